"""begin, changes, keep, discard and restore follow the change, never the size of the base: counted, not timed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.adapters.workspaces.overlay import OverlayWorkspaceProvider
from setpoint.ports.workspace import Workspace

from .conftest import DISK
from .harness import PlainSandbox, act, unlock


def fill(root: Path, directories: int) -> None:
    for number in range(directories):
        below = root / f"d{number}"
        below.mkdir(parents=True)
        for file in range(20):
            (below / f"f{file}").write_text(str(file))


class Syscalls:
    """Counts the filesystem calls of ``os`` that look at or list something."""

    watched = ("stat", "open", "listdir", "scandir", "listxattr", "getxattr")

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in self.watched:
            patch.setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            self.count += 1
            return real(*args, **kwargs)

        return call


def test_a_turn_costs_the_same_over_a_small_and_a_large_base(
    tmp_path: Path, overlays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R201"""
    if not overlays:
        pytest.skip("bwrap cannot mount overlays here")
    counts: dict[int, tuple[int, int]] = {}
    calls = Syscalls(monkeypatch)
    for directories in (3, 150):
        top = tmp_path / str(directories)
        fill(top / "ws", directories)
        provider = OverlayWorkspaceProvider(top / "state", PlainSandbox(top / "scratch"))
        workspace = provider.open(str(top / "ws"), "t", DISK)
        counts[directories] = one_turn(workspace, calls)
        workspace.close(keep_staged=False)
    unlock(tmp_path)
    assert counts[3] == counts[150]


def one_turn(workspace: Workspace, calls: Syscalls) -> tuple[int, int]:
    workspace.begin()
    act(workspace.action_view(), "echo changed > d1/f1; rm d2/f2; mkdir -p new/deep; echo n > new/deep/n")
    before = calls.count, workspace.visits.count  # type: ignore[attr-defined]
    assert len(workspace.attempt_changes().changes) == 5
    workspace.keep(1)
    workspace.state_digest()
    workspace.begin()
    workspace.changes()
    workspace.discard()
    workspace.restore(0)
    return calls.count - before[0], workspace.visits.count - before[1]  # type: ignore[attr-defined]


def test_a_second_scan_hashes_nothing_that_kept_its_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from setpoint.adapters.workspaces import objects, treedigest

    fill(tmp_path / "ws", 5)
    for path in (tmp_path / "ws").rglob("f*"):
        os.utime(path, (1, 1))
    fd = os.open(tmp_path / "ws", os.O_RDONLY)
    monkeypatch.setattr(treedigest, "RACY_NS", -(10**12))  # as if the scan came long after the last write
    first = treedigest.scan(fd)
    hashed: list[bytes] = []
    real = objects.hash_object
    monkeypatch.setattr(
        objects,
        "hash_object",
        lambda d, name, st, *, ours: (hashed.append(name), real(d, name, st, ours=ours))[1],
    )
    assert treedigest.scan(fd, first).digest == first.digest and hashed == []
    (tmp_path / "ws" / "d1" / "f1").write_text("other")
    assert treedigest.scan(fd, first).digest != first.digest and hashed == [b"f1"]
    os.close(fd)


def test_a_write_in_the_tick_of_the_scan_is_not_missed(tmp_path: Path) -> None:
    """As in git: an identity as young as the scan is never trusted."""
    from setpoint.adapters.workspaces import treedigest

    root = tmp_path / "ws"
    root.mkdir()
    fd = os.open(root, os.O_RDONLY)
    for number in range(30):
        (root / "f").write_text(f"{number:04}")
        first = treedigest.scan(fd)
        with open(root / "f", "r+") as file:
            file.write(f"{number + 1:04}")
        assert treedigest.scan(fd, first).digest != first.digest
    os.close(fd)
