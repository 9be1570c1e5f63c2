"""A. Lost state after a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from setpoint.app.manifest import load_task
from setpoint.testing.crash import Crash, CrashingLog

from .conftest import CLAIM, Case, say, shell, write


def wait_for_process(mark: str, pid: int, seconds: float = 15) -> None:
    """Until a process other than ``pid`` with ``mark`` in its arguments runs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if [other for other in processes(mark) if other != pid]:
            return
        time.sleep(0.01)
    raise AssertionError(f"nothing with {mark} came up")


def processes(mark: str) -> list[int]:
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def test_a1_a_worker_killed_during_a_tool_goes_on_at_that_tool(case: Case) -> None:
    """A1: completed steps ran once, recorded model calls are not made again, nothing of the killed tool is left."""
    mark = f"case-a1-{os.getpid()}"
    case.script(
        say(write("src/one", "1")),
        say(shell(f": {mark}; echo 2 > src/two; test -e /tmp/never || sleep 0.4")),
        say(write("src/value", "5"), CLAIM),
    )
    worker = subprocess.Popen(
        [sys.executable, "-m", "setpoint", "converge", "-f", str(case.task())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_process(mark, worker.pid)
    worker.send_signal(signal.SIGKILL)
    worker.wait(10)
    outcome = case.resume()
    assert outcome.exit_code == 0 and outcome.record.turn == 3
    intents = [(event.tool, event.attempt) for event in case.events("ToolIntent")]
    assert intents == [("file_write", 1), ("shell_exec", 1), ("shell_exec", 2), ("file_write", 1)]
    assert [event.cursor for event in case.events("ModelReplied")] == [1, 2, 3]
    assert len(case.prompts) == 1, "only the third proposal was asked for after the restart"
    deadline = time.monotonic() + 3
    while processes(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes(mark) == []


@pytest.mark.parametrize("step", [9])
def test_a2_the_last_step_raises_and_only_it_runs_again(case: Case, step: int) -> None:
    """A2: what was spent stays spent and is not spent again."""
    case.script(*[say(write("src/value", f"{n}")) for n in range(10, 18)], say(write("src/value", "5")))
    task = case.task(budget={"turns": 20, "tokens": 200000, "usd": 2.0, "wall": "5m"}, policy={"stall_after": 20})

    async def die_in_step() -> None:
        async with case.runtime() as runtime:
            runtime.log = log = CrashingLog(runtime.log, None)  # type: ignore[assignment]
            runtime._worker._log = log  # type: ignore[assignment]

            def watch(turn: int, event: object, record: object) -> None:
                if turn == step and type(event).__name__ == "ToolResult":
                    log.left = 0

            await runtime.converge(load_task(str(task)), observer=watch)

    with pytest.raises(Crash):
        asyncio.run(die_in_step())
    before = len(case.prompts)
    assert before == 9
    outcome = case.resume()
    assert outcome.exit_code == 0 and outcome.record.turn == step
    assert len(case.prompts) == before, "the model was not asked again"
    spent = outcome.record.spent
    assert (spent.usd_micros, spent.model_calls) == (9 * 4000, 9)
    attempts = [event.attempt for event in case.events("ToolIntent")]
    assert attempts == [1] * 9 + [2]
