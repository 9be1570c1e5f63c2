"""``kill -9`` in the middle of a turn, and going on from the log."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from setpoint.cli.account import Account, read_account
from setpoint.cli.tour.ground import Ground, changed, program, setpoint_command, tree
from setpoint.cli.tour.narration import Narrator, Untold
from setpoint.cli.tour.three_turns import PARSER, Played
from setpoint.kernel.events import Certified, LeaseClaimed, ModelReplied, ToolIntent, ToolResult

DEADLINE_S: Final = 30
"""For the child to reach the turn in which it is killed, on a machine that does other things as well."""
GONE_S_MAX: Final = 5
"""For the kernel to end what a killed process had started."""
KILLED_TURN: Final = 3
SLOW_CALL: Final = 1
"""The second call of the fix: a test run that takes some seconds."""

Process = tuple[int, int]
"""A process id and when it started, in clock ticks: together they name one process for ever."""


async def play(narrator: Narrator, ground: Ground, story: Played) -> None:
    narrator.chapter("4. kill -9 in the middle")
    narrator.tell(
        "The same task once more, by the command line in a process of its own, with a model in a program of its own "
        "that counts how often it is asked. In turn 2 the fix is staged and its test run is under way; then the "
        "runtime is killed with SIGKILL, which no program can catch."
    )
    folder = ground.lay_out("crash", "parse_timeout")
    project, before = folder / "project", tree(folder / "project")
    model = f"command:{shlex.quote(sys.executable)} slow_model.py"
    words = ("converge", "-f", "task.yaml", "--json", "--model", model)
    narrator.row("run", f"setpoint {shlex.join(words)}")
    trajectory_id, below = await _run_until_killed(words, folder)
    killed = read_account(ground.runtime, trajectory_id)
    _tell_killed(narrator, killed)
    narrator.fact(f"the {len(below)} processes below the runtime are gone", await _all_gone(below), True)
    narrator.fact("the user's project", changed(before, tree(project)), [], shown="untouched")
    asked = (folder / "asked.log").read_text(encoding="utf-8").splitlines()

    narrator.row("run", f"setpoint resume {trajectory_id}")
    code, _ = await program(setpoint_command("resume", trajectory_id), cwd=folder)
    account = read_account(ground.runtime, trajectory_id)
    narrator.tell(
        "The log is ahead of every effect, so the new process knows that the test run had begun and its outcome is "
        "unknown. Staged work is thrown away and done again from the recorded reply; the model is not asked again."
    )
    narrator.fact("resume, exit", code, 0)
    narrator.fact("the log up to the kill is unchanged", account.facts[: len(killed.facts)] == killed.facts, True)
    again = (folder / "asked.log").read_text(encoding="utf-8").splitlines()
    narrator.fact("model calls before and after, counted by the model", (asked, again), (_TURNS, _TURNS), shown="3, 3")
    narrator.fact("replies in the log", [fact.turn for fact, _ in account.of_type(ModelReplied)], [1, 2, 3], shown="3")
    narrator.fact("processes that owned the trajectory, one after the other", len(account.of_type(LeaseClaimed)), 2)
    narrator.fact("certified", len(account.of_type(Certified)), 1, shown="once")
    narrator.fact("files that differ from the start", changed(before, tree(project)), [PARSER], shown=f"1, {PARSER}")
    digest = story.account.record.state_digest
    narrator.fact("final state, the same as without a crash", account.record.state_digest, digest, shown=digest[:23])


_TURNS: Final = ["turn 1", "turn 2", "turn 3"]


def _tell_killed(narrator: Narrator, killed: Account) -> None:
    intents = [(fact.turn, event.ordinal) for fact, event in killed.of_type(ToolIntent)]
    results = [(fact.turn, event.ordinal) for fact, event in killed.of_type(ToolResult)]
    there = (KILLED_TURN, SLOW_CALL)
    narrator.row("killed", f"after event {len(killed.facts)}; the last one is {type(killed.facts[-1].event).__name__}")
    narrator.fact("in the log: the intent of the test run, and no result", (there in intents, there in results),
                  (True, False), shown="yes")  # fmt: skip
    narrator.fact("the trajectory is neither finished nor lost", killed.record.state, "WAITING_TOOL")


async def _run_until_killed(words: tuple[str, ...], folder: Path) -> tuple[str, set[Process]]:
    """(trajectory, what ran below the runtime). The moment is when the slow call runs."""
    child = await asyncio.create_subprocess_exec(
        *setpoint_command(*words),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=1 << 22,  # an event is one line
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            trajectory_id = await _until_the_slow_call(child.stdout)
            below = await _until_it_runs(child.pid)
    except TimeoutError as late:
        raise Untold(f"the run did not come to the call in which it was to be killed within {DEADLINE_S} s") from late
    else:
        child.send_signal(signal.SIGKILL)
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return trajectory_id, below


async def _until_the_slow_call(events: asyncio.StreamReader) -> str:
    async for line in events:
        event: dict[str, Any] = json.loads(line)
        where = (event["turn"], event["data"].get("ordinal", 0))
        if event["type"] == "ToolIntent" and where == (KILLED_TURN, SLOW_CALL):
            return event["stream"]
    raise Untold("the run ended before the call in which it was to be killed")


async def _until_it_runs(root: int) -> set[Process]:
    """The processes below ``root`` once ``sleep`` is among them."""
    while True:
        below = _below(root)
        if any(_name(pid) == "sleep" for pid, _ in below):
            return below
        await asyncio.sleep(0.02)


async def _all_gone(processes: set[Process]) -> bool:
    deadline = time.monotonic() + GONE_S_MAX
    while any(_started(pid) == started for pid, started in processes):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


def _below(root: int) -> set[Process]:
    """Every descendant of ``root``, from /proc."""
    parents = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found: set[Process] = set()
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        for pid, fields in parents.items():
            if fields is not None and fields[0] == parent:
                found.add((pid, fields[1]))
                waiting.append(pid)
    return found


def _started(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else fields[1]


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and start time of a process; None when it is gone or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else (int(fields[1]), int(fields[19]))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
