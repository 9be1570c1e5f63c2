"""What counts as evidence over whole runs: cheap checks first, nothing else changed, and no judge model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from setpoint.app.manifest import ManifestFault, load_task
from setpoint.app.runtime import Outcome, Runtime
from setpoint.app.schema import schema
from setpoint.app.validate import WAYS
from setpoint.kernel.contract import ExprCheck, OracleCheck, Predicate, ProbeCheck, RunCheck
from setpoint.kernel.events import EvidenceRecorded, decode

TASK = """\
apiVersion: setpoint.dev/v1
kind: Task
metadata: {name: t}
spec:
  goal: {text: g}
  environment: {workspace: ./work}
  actions: [{tool: file_write}, {tool: shell_exec}, {tool: complete_task}]
  observe: {}
  done:
    - {id: works, run: "%(works)s"}
  invariants:
    - %(invariant)s
  budget: {turns: 6}
  models: ["scripted:script.yaml"]
"""

Ran = tuple[Outcome, list[tuple[int, EvidenceRecorded]]]
Pursue = Callable[..., Ran]


@pytest.fixture
def pursue(tmp_path: Path, sandbox, monkeypatch) -> Pursue:
    """Converge a task over ``files`` with one proposal per list of calls; the outcome, and all evidence by turn."""
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))

    def run(works: str, invariant: str, files: dict[str, str], *proposals: list[dict]) -> Ran:
        for name, text in files.items():
            path = tmp_path / "work" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "task.yaml").write_text(TASK % {"works": works, "invariant": invariant})
        script = {"proposals": [{"calls": calls} for calls in proposals]}
        (tmp_path / "script.yaml").write_text(json.dumps(script))

        async def whole():
            async with Runtime.open() as runtime:
                outcome = await runtime.converge(load_task(str(tmp_path / "task.yaml")))
                log = list(runtime.log.read(outcome.record.trajectory_id))
                events = [(stored.turn, decode(stored.type, stored.data)) for stored in log]
                return outcome, [(turn, event) for turn, event in events if isinstance(event, EvidenceRecorded)]

        return asyncio.run(whole())

    return run


def write(path: str, content: str) -> dict:
    return {"name": "file_write", "arguments": {"path": path, "content": content}}


def shell(command: str) -> dict:
    return {"name": "shell_exec", "arguments": {"command": command}}


def test_broken_syntax_never_starts_the_tests(pursue: Pursue):
    """R147, R146: the static check says no, so the dearer one is not run at all; once it parses, it is."""
    outcome, evidence = pursue(
        "python -c 'import a; assert a.x == 2'",
        '{id: parses, run: "python -m compileall -q a.py", level: static, severity: soft}',
        {"a.py": "x = 1\n"},
        [write("a.py", "x = = 2\n")],
        [write("a.py", "x = 2\n")],
    )
    assert outcome.exit_code == 0, outcome.record.finished_message
    by_turn = {turn: event for turn, event in evidence if event.check == "done/works"}
    assert by_turn[1].verdict == "missing" and by_turn[1].reason == "skipped: a static check failed"
    assert by_turn[1].duration_ms == 0 and by_turn[1].output_sha256 == ""
    assert by_turn[2].verdict == "pass"
    (broken,) = [event for turn, event in evidence if event.check == "invariants/parses" and turn == 1]
    assert broken.verdict == "fail" and broken.failures[0].name.startswith("a.py:1")


ORDERS = {f"orders/{n}.json": '{"state": "open"}\n' for n in (16, 17, 18)}
CANCELLED = "grep -q cancelled orders/17.json"
ONLY_17 = """{id: nothing-else, expr: "changes.all(c, c.path == 'orders/17.json' && c.kind == 'modified')"}"""


def test_cancelling_every_order_fails_although_the_target_is_cancelled(pursue: Pursue, tmp_path: Path):
    """R155"""
    outcome, evidence = pursue(
        CANCELLED,
        ONLY_17,
        ORDERS,
        [shell("sed -i s/open/cancelled/ orders/*.json"), {"name": "complete_task"}],
        [shell("sed -i s/open/cancelled/ orders/17.json"), {"name": "complete_task"}],
    )
    all_of_them = {event.check: event for turn, event in evidence if turn == 1}
    assert all_of_them["invariants/nothing-else"].verdict == "fail"
    assert [f.name for f in all_of_them["invariants/nothing-else"].failures] == ["orders/16.json", "orders/18.json"]
    assert outcome.exit_code == 0 and outcome.record.turn == 2
    left = {path.name: "cancelled" in path.read_text() for path in (tmp_path / "work" / "orders").iterdir()}
    assert left == {"16.json": False, "17.json": True, "18.json": False}


def test_nothing_else_changed_can_be_said_of_the_lines_of_one_document(pursue: Pursue, tmp_path: Path):
    """R155: the example of the schema."""
    rule = "changes.all(c, c.path == 'orders.json' && c.lines_added == 1 && c.lines_removed == 1)"
    assert rule in schema("Task")["properties"]["spec"]["properties"]["done"]["items"]["properties"]["expr"]["examples"]
    document = '{\n"16": "open",\n"17": "open",\n"18": "open"\n}\n'
    outcome, _ = pursue(
        "grep -q '17.*cancelled' orders.json",
        f'{{id: one-line, expr: "{rule}"}}',
        {"orders.json": document},
        [shell("sed -i s/open/cancelled/ orders.json")],
        [shell("sed -i /17/s/open/cancelled/ orders.json")],
    )
    assert outcome.exit_code == 0 and outcome.record.turn == 2
    assert (tmp_path / "work/orders.json").read_text() == document.replace('"17": "open"', '"17": "cancelled"')


def test_there_is_no_way_to_write_a_judge_model_as_a_check(tmp_path: Path):
    """R152, R240: the kinds of check are these four; none of them asks a model."""
    assert WAYS == ("run", "expr", "probe", "oracle")
    assert set(get_args(Predicate)) == {RunCheck, ExprCheck, ProbeCheck, OracleCheck}
    (tmp_path / "work").mkdir()
    for judge in ("judge: gpt", "llm: says it is fine", "rubric: r.md", "model: 'openai:x'"):
        text = TASK.replace('run: "%(works)s"', judge) % {"invariant": '{id: a, expr: "true"}'}
        (tmp_path / "task.yaml").write_text(text)
        with pytest.raises(ManifestFault, match="a check is judged by run, expr, probe or oracle"):
            load_task(str(tmp_path / "task.yaml"))
