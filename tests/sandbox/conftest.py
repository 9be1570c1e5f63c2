"""Rungs to test on, views of a small workspace, and a way to see whether anything of an action is still alive."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from setpoint.adapters.sandboxes.cgroup import find_home
from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.adapters.sandboxes.probe import RUNGS, Found, Rung, probe
from setpoint.kernel.errors import IsolationUnavailable
from setpoint.ports.sandbox import Sandbox
from setpoint.testing.conformance.sandbox import QUICK, SandboxBench, odd_number_of_seconds, processes_with

__all__ = ["QUICK", "Bench"]


@dataclass(frozen=True, slots=True)
class Bench(SandboxBench):
    rung: str

    @property
    def isolated(self) -> bool:
        return self.rung in ("overlay", "copy")


@pytest.fixture(scope="session")
def state_directory() -> Iterator[Path]:
    """Short and private: the mount point of the scratch lies in it."""
    path = Path(tempfile.mkdtemp(prefix="setpoint-test-"))
    yield path
    shutil.rmtree(path)
    find_home()  # sweeps the empty groups of supervisors that a test has killed


@pytest.fixture(scope="session")
def found(state_directory: Path) -> Found:
    return probe(state_directory)


@pytest.fixture(scope="session")
def sandboxes(state_directory: Path) -> Iterator[Callable[[Rung], Sandbox]]:
    """One sandbox a rung for the whole session, because forcing a rung tries its limits anew."""
    opened: dict[Rung, Sandbox] = {}

    def at(rung: Rung) -> Sandbox:
        if rung not in opened:
            try:
                opened[rung] = open_sandbox("none", cache_dir=state_directory, rung=rung)
            except IsolationUnavailable as why:
                pytest.skip(f"rung {rung} does not work on this machine: {why}")
        return opened[rung]

    yield at
    for sandbox in opened.values():
        asyncio.run(sandbox.close())


Sandboxes = Callable[[Rung], Sandbox]


@pytest.fixture(params=RUNGS)
def bench(request: pytest.FixtureRequest, sandboxes: Sandboxes, tmp_path: Path) -> Bench:
    """Every rung this machine has, forced one after the other."""
    return _bench(request.param, sandboxes, tmp_path)


@pytest.fixture(params=("overlay", "copy"))
def isolated(request: pytest.FixtureRequest, sandboxes: Sandboxes, tmp_path: Path) -> Bench:
    """The rungs that make tier "namespaces"."""
    return _bench(request.param, sandboxes, tmp_path)


@pytest.fixture
def overlay(sandboxes: Sandboxes, tmp_path: Path) -> Bench:
    return _bench("overlay", sandboxes, tmp_path)


def _bench(rung: Rung, sandboxes: Sandboxes, tmp_path: Path) -> Bench:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "file").write_text("content\n")
    return Bench(sandboxes(rung), workspace, rung == "overlay", rung)


@pytest.fixture
def marker() -> str:
    """A number of seconds nobody else sleeps for, to recognise processes by."""
    return odd_number_of_seconds()


@pytest.fixture
def alive() -> Callable[[str], list[int]]:
    """Processes of this machine whose command line holds a marker."""
    return processes_with
