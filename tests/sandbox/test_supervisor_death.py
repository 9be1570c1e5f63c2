"""A supervisor that is killed takes everything it started along: processes, mounts and scratch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Alive = Callable[[str], list[int]]

# Runs one action for ever, with a scratch open beside it. Paths and the marker come as arguments.
SUPERVISOR = """
import asyncio, os, sys
from pathlib import Path
from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.ports.sandbox import Action, BindView, Limits, OverlayView
state, workspace, rung, marker = sys.argv[1:5]
sandbox = open_sandbox("none", cache_dir=Path(state), rung=rung)
if rung == "overlay":
    scratch = sandbox.open_scratch(8 << 20)
    for name in ("upper", "work"):
        os.mkdir(os.path.join(scratch.outside, name))
    view = OverlayView((workspace,), "upper", "work", scratch)
else:
    view = BindView(workspace)
script = f"trap '' TERM HUP INT; setsid sleep {marker} & setsid sh -c 'sleep {marker} & sleep {marker}'"
print("ready", flush=True)
asyncio.run(sandbox.run(Action(("/bin/sh", "-c", script), view, Limits())))
"""


def start(state: Path, workspace: Path, rung: str, marker: str) -> subprocess.Popen[str]:
    workspace.mkdir()
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, os.fspath(state), os.fspath(workspace), rung, marker],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert supervisor.stdout is not None and supervisor.stdout.readline() == "ready\n"
    return supervisor


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def mounts_with(text: str) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if text in line]


@pytest.mark.parametrize("rung", ["overlay", "copy", "landlock", "none"])
def test_nothing_survives_a_killed_supervisor(
    state_directory: Path, tmp_path: Path, found: object, rung: str, alive: Alive, marker: str
) -> None:
    """R096"""
    supervisor = start(state_directory, tmp_path / "workspace", rung, marker)
    try:
        assert wait_until(lambda: len(alive(f"sleep\0{marker}")) >= 2), "the action did not come up"
        holders = children(supervisor.pid)
        assert holders
    finally:
        supervisor.kill()
        supervisor.wait()
        assert supervisor.stdout is not None
        supervisor.stdout.close()
    assert wait_until(lambda: not alive(marker)), alive(marker)
    assert wait_until(lambda: not any(is_running(pid) for pid in holders))
    assert not mounts_with(os.fspath(state_directory))


@pytest.mark.parametrize("delay_ms", range(0, 24, 2))
def test_nothing_survives_a_supervisor_killed_while_setting_up(
    state_directory: Path, tmp_path: Path, found: object, alive: Alive, marker: str, delay_ms: int
) -> None:
    supervisor = start(state_directory, tmp_path / "workspace", "overlay", marker)
    time.sleep(delay_ms / 1000)  # the point of the test is that any moment will do
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    assert supervisor.stdout is not None
    supervisor.stdout.close()
    assert wait_until(lambda: not alive(marker)), alive(marker)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def is_running(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
