"""The transaction over the real sandbox: its quota-bound scratch, its overlays, its limits."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.adapters.workspaces.opening import open_workspaces
from setpoint.kernel.errors import ChangeRejected, IsolationUnavailable, WorkspaceFault
from setpoint.ports.sandbox import Action, Finished, Limits, Sandbox, View
from setpoint.testing.conformance.workspace import AWKWARD, TREE

from .harness import make, picture, unlock

DISK = 16 << 20


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    place = Path(tempfile.mkdtemp(prefix="setpoint-test-"))
    try:
        found = open_sandbox("namespaces", cache_dir=place)
    except IsolationUnavailable as fault:
        pytest.skip(str(fault))
    yield found
    asyncio.run(found.close())
    shutil.rmtree(place)


def run(sandbox: Sandbox, view: View, *argv: str) -> Finished:
    action = Action(argv, view, Limits(wall_ms=30_000, disk_bytes=DISK))
    done = asyncio.run(sandbox.run(action))
    assert done.reason == "", (done.reason, done.stderr.kept)
    return done


def shell(sandbox: Sandbox, view: View, script: str) -> Finished:
    return run(sandbox, view, "/bin/sh", "-c", script)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    make(tmp_path / "ws", TREE)
    yield tmp_path / "ws"
    unlock(tmp_path)


def test_an_awkward_turn_goes_through_the_real_sandbox_and_back(sandbox: Sandbox, root: Path, tmp_path: Path) -> None:
    """R013 R201"""
    provider = open_workspaces(tmp_path / "state", sandbox)
    before = picture(root)
    workspace = provider.open(str(root), "t", DISK)
    workspace.begin()
    done = run(sandbox, workspace.action_view(), "python3", "-c", AWKWARD)
    assert done.exit_code == 0, done.stderr.kept
    resolved = workspace.resolve("fresh2/tool")
    assert resolved is not None
    workspace.write(resolved, b"by the file tool")
    candidate = workspace.state_digest()
    checked = shell(sandbox, workspace.candidate_view(), "cat fresh2/tool d1/new; ls d1; touch x 2>/dev/null; true")
    assert checked.stdout.kept == b"by the file tooln" + b"new\n"
    assert shell(sandbox, workspace.base_view(), "ls d1").stdout.kept == b"one\ntwo\n"
    workspace.keep(1)
    assert workspace.state_digest() == candidate
    workspace.begin()
    shell(sandbox, workspace.action_view(), "rm -rf d1; mkdir d1; echo 2 >d1/second; echo more >>fresh2/tool")
    workspace.keep(2)
    workspace.begin()
    assert shell(sandbox, workspace.action_view(), "ls d1; cat fresh2/tool").stdout.kept == (
        b"second\nby the file toolmore\n"
    )
    workspace.restore(1)
    assert workspace.state_digest() == candidate and picture(root) == before
    workspace.commit("c")
    assert picture(root)[b"fresh2/tool"][1] and b"d1/second" not in picture(root)
    workspace.close(keep_staged=False)
    provider.undo(str(root), "c")
    assert picture(root) == before


def test_a_full_scratch_is_a_fault_of_the_file_tool_and_nothing_is_lost(
    sandbox: Sandbox, root: Path, tmp_path: Path
) -> None:
    if sandbox.report.rung != "overlay":
        pytest.skip("only a scratch bounds the attempt")
    workspace = open_workspaces(tmp_path / "state", sandbox).open(str(root), "t", DISK)
    workspace.begin()
    resolved = workspace.resolve("big")
    assert resolved is not None
    workspace.write(resolved, b"small")
    with pytest.raises(WorkspaceFault):
        workspace.write(resolved, b"x" * (2 * DISK))
    assert workspace.read(resolved, 100) == b"small"
    workspace.keep(1)
    assert [c.path for c in workspace.changes().changes] == ["big"]
    workspace.close(keep_staged=False)


def test_a_fifo_made_in_the_real_sandbox_is_rejected(sandbox: Sandbox, root: Path, tmp_path: Path) -> None:
    workspace = open_workspaces(tmp_path / "state", sandbox).open(str(root), "t", DISK)
    workspace.begin()
    shell(sandbox, workspace.action_view(), "mkfifo p")
    with pytest.raises(ChangeRejected):
        workspace.keep(1)
    workspace.discard()
    assert workspace.changes().changes == ()
    workspace.close(keep_staged=False)
