"""The counter-run: the same script in a loop that believes what it is told."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from setpoint.app.manifest import load_task
from setpoint.cli.tour.ground import Ground, changed, program, tree
from setpoint.cli.tour.narration import Narrator
from setpoint.cli.tour.three_turns import GOLDEN, TEST, diff_stat

LOOP: Final = """for turn, proposal in enumerate(model):
    for call in proposal.calls:
        if call.name == "complete_task":
            return turn                     # the model says it is done
        run(call)                           # no gate, no check, no way back"""


async def play(narrator: Narrator, ground: Ground) -> None:
    narrator.chapter("2. The same model in an open loop")
    narrator.tell("The usual agent loop runs what the model asks for, and stops when it says that it is done:")
    narrator.quote(LOOP)
    folder = ground.lay_out("open-loop", "parse_timeout")
    project = folder / "project"
    before = tree(project)
    proposals = yaml.safe_load((folder / "script.yaml").read_text(encoding="utf-8"))["proposals"]
    turn, summary, printed = await _open_loop(proposals, project, _plain_environment(folder))
    after = tree(project)
    narrator.row("turn", f"{turn}: the loop ends. Test run: {printed}. Model: {summary!r}")
    narrator.quote(diff_stat(before, after))
    narrator.fact("the open loop reports success after turn", turn, 1)
    narrator.fact("its last test run", printed, "1 passed, exit 0")
    narrator.tell("Now the audit afterwards: the sealed tests of the same contract, run on what the loop left behind.")
    record = await ground.runtime.measure(load_task(str(folder / "task.yaml")))
    golden = record.evidence["done/golden"]
    narrator.row("audit", f"FAIL  {golden.check} ({golden.level}, {golden.distance} of {golden.collected} failed)")
    for name, message in golden.failures[:1]:
        narrator.row("", f"{name.rpartition('::')[2]}: {message.splitlines()[0].removeprefix('AssertionError: ')}")
    narrator.fact("FALSE SUCCESS: golden tests that fail",
                  (golden.verdict, golden.distance, golden.collected), ("fail", 3, GOLDEN),
                  shown=f"3 of {GOLDEN}, the bug is still there")  # fmt: skip
    narrator.fact("what the loop changed instead of the code", changed(before, after), [TEST], shown=TEST)


async def _open_loop(proposals: list[dict[str, Any]], project: Path, env: dict[str, str]) -> tuple[int, str, str]:
    """(turn in which the model was believed, what it said, how its last command ended)."""
    printed = ""
    for turn, proposal in enumerate(proposals):
        for call in proposal["calls"]:
            arguments = call.get("arguments", {})
            match call["name"]:
                case "complete_task":
                    return turn, arguments["summary"], printed
                case "shell_exec":
                    code, text = await program(["sh", "-c", arguments["command"]], cwd=project, env=env)
                    printed = f"{text.strip().splitlines()[-1].partition(' in ')[0]}, exit {code}"
                case "file_edit":
                    path = project / arguments["path"]
                    text = path.read_text(encoding="utf-8")
                    path.write_text(text.replace(arguments["old_str"], arguments["new_str"], 1), encoding="utf-8")
                case name:
                    raise AssertionError(f"the script of the demo calls {name}, which the open loop does not know")
    raise AssertionError("the script of the demo never says that it is done")


def _plain_environment(folder: Path) -> dict[str, str]:
    """The user's environment with ``python`` being the interpreter Setpoint runs on, and no litter left behind."""
    programs = folder / "bin"
    programs.mkdir()
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return os.environ | quiet | {"PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
