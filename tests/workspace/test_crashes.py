"""SIGKILL at every step of keep, restore, commit and undo, and in recovery: always before or after, never mixed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from setpoint.adapters.workspaces.copy import CopyWorkspaceProvider
from setpoint.adapters.workspaces.moves import CrashPoint, no_crash
from setpoint.adapters.workspaces.overlay import OverlayWorkspaceProvider
from setpoint.ports.workspace import Workspace, WorkspaceProvider

from .conftest import DISK
from .harness import PlainSandbox, act, make, picture, unlock

TREE = """
mkdir -p a/b d e; for i in 1 2 3 4 5; do echo $i >a/f$i; echo $i >d/g$i; done; echo b >a/b/x; ln -s a l; echo k >keep
echo e >e/e; chmod 750 e
"""
FIRST = """
echo mod >>a/f1; echo mod2 >a/f2; rm a/f3; rm -r d; mkdir d; echo n >d/new; mkdir -p n/e/w; echo q >n/e/w/q
rm l; ln -s keep l; rm keep; chmod 700 a/b; mv a/f4 a/f4b; chmod 711 e; echo e2 >e/e
"""
SECOND = "echo 3 >a/f3; rm -r n; mkdir n; rm -r a/b; echo file >a/b; rm d/new; echo k >keep; chmod 750 e; echo m >a/f2"


@dataclass
class Stage:
    """A fresh directory per crash; the crash happens in a forked child."""

    top: Path
    kind: str

    def provider(self, crash: CrashPoint = no_crash) -> WorkspaceProvider:
        if self.kind == "copy":
            return CopyWorkspaceProvider(self.top / "state", crash_point=crash)
        return OverlayWorkspaceProvider(self.top / "state", PlainSandbox(self.top / "scratch"), crash_point=crash)

    @property
    def root(self) -> Path:
        return self.top / "ws"

    def open(self, crash: CrashPoint = no_crash) -> Workspace:
        return self.provider(crash).open(str(self.root), "t", DISK)


class Counter:
    """Counts crash points, and kills this process at the given one."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.passed = 0

    def __call__(self, step: str) -> None:
        del step
        self.passed += 1
        if self.passed == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_at(work: Callable[[CrashPoint], None], at: int) -> bool:
    """Whether a child doing ``work`` was killed at step ``at``; False when it finished before."""
    pid = os.fork()
    if pid == 0:
        try:
            work(Counter(at))
        except BaseException:  # noqa: BLE001 - the child must end here, whatever happened
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed by itself"
    return False


@pytest.fixture(params=["overlay", "copy"])
def stages(request: pytest.FixtureRequest, tmp_path: Path, overlays: bool) -> Iterator[Callable[[], Stage]]:
    if not overlays:
        pytest.skip("bwrap cannot mount overlays here")
    made = 0

    def fresh() -> Stage:
        nonlocal made
        made += 1
        stage = Stage(tmp_path / str(made), request.param)
        make(stage.root, TREE)
        return stage

    yield fresh
    unlock(tmp_path)


def sweep(
    stages: Callable[[], Stage],
    prepare: Callable[[Stage], None],
    work: Callable[[Stage, CrashPoint], None],
    measure: Callable[[Stage], object],
    recover: Callable[[Stage, CrashPoint], None],
) -> dict[str, int]:
    """Kill ``work`` at each of its steps and recovery at its first ones; what ``measure`` then finds, counted."""
    stage = stages()
    prepare(stage)
    before = measure(stage)
    work(stage, no_crash)
    after = measure(stage)
    assert before != after
    found = {"before": 0, "after": 0}
    at = 1
    while True:
        stage = stages()
        prepare(stage)
        if not killed_at(lambda crash, stage=stage: work(stage, crash), at):
            break
        for again in range(1, 6):
            killed_at(lambda crash, stage=stage: recover(stage, crash), again)
        recover(stage, no_crash)
        now = measure(stage)
        assert now in (before, after), f"mixed after a crash at step {at}"
        found["before" if now == before else "after"] += 1
        at += 1
    assert found["before"] and found["after"]
    return found


def keep(stage: Stage, script: str, number: int, crash: CrashPoint = no_crash) -> None:
    workspace = stage.open(crash)
    workspace.begin()
    act(workspace.action_view(), script)
    workspace.keep(number)
    workspace.close(keep_staged=True)


def staged(stage: Stage) -> tuple[int, str, str]:
    workspace = stage.open()
    found = workspace.savepoint(), workspace.state_digest(), workspace.changes().fingerprint
    workspace.close(keep_staged=True)
    return found


def reopen(stage: Stage, crash: CrashPoint) -> None:
    stage.open(crash).close(keep_staged=True)


def test_a_crash_in_keep_leaves_exactly_one_savepoint(stages: Callable[[], Stage]) -> None:
    """R189"""
    found = sweep(
        stages,
        lambda stage: keep(stage, FIRST, 1),
        lambda stage, crash: keep(stage, SECOND, 2, crash),
        staged,
        reopen,
    )
    assert sum(found.values()) > 12


def test_a_crash_in_restore_leaves_exactly_one_savepoint(stages: Callable[[], Stage]) -> None:
    """R188"""

    def prepare(stage: Stage) -> None:
        keep(stage, FIRST, 1)
        keep(stage, SECOND, 2)

    def restore(stage: Stage, crash: CrashPoint) -> None:
        workspace = stage.open(crash)
        workspace.restore(0)
        workspace.close(keep_staged=True)

    assert sum(sweep(stages, prepare, restore, staged, reopen).values()) > 15


def test_a_crash_in_commit_leaves_the_old_tree_or_the_new_one(stages: Callable[[], Stage]) -> None:
    """R189"""

    def commit(stage: Stage, crash: CrashPoint) -> None:
        workspace = stage.open(crash)
        workspace.commit("c")
        workspace.close(keep_staged=True)

    def recover(stage: Stage, crash: CrashPoint) -> None:
        stage.provider(crash).recover(str(stage.root))

    found = sweep(stages, lambda stage: keep(stage, FIRST, 1), commit, lambda stage: picture(stage.root), recover)
    assert sum(found.values()) > 15


def test_after_a_crash_in_commit_the_same_call_finishes_it_and_undo_takes_it_back(
    stages: Callable[[], Stage],
) -> None:
    stage = stages()
    before = picture(stage.root)
    keep(stage, FIRST, 1)

    def commit(stage: Stage, crash: CrashPoint) -> None:
        workspace = stage.open(crash)
        workspace.commit("c")
        workspace.close(keep_staged=True)

    assert killed_at(lambda crash: commit(stage, crash), 6)
    commit(stage, no_crash)
    workspace = stage.open()
    assert workspace.changes().changes == ()
    workspace.close(keep_staged=False)
    stage.provider().undo(str(stage.root), "c")
    assert picture(stage.root) == before


def test_a_crash_in_undo_leaves_the_old_tree_or_the_new_one(stages: Callable[[], Stage]) -> None:
    """R189"""

    def prepare(stage: Stage) -> None:
        keep(stage, FIRST, 1)
        workspace = stage.open()
        workspace.commit("c")
        workspace.close(keep_staged=False)

    def undo(stage: Stage, crash: CrashPoint) -> None:
        stage.provider(crash).undo(str(stage.root), "c")

    def recover(stage: Stage, crash: CrashPoint) -> None:
        stage.provider(crash).recover(str(stage.root))

    assert sum(sweep(stages, prepare, undo, lambda stage: picture(stage.root), recover).values()) > 15


def test_the_working_copy_is_in_step_after_a_crash_in_keep_or_restore(tmp_path: Path, overlays: bool) -> None:
    if not overlays:
        pytest.skip("bwrap cannot run here")
    for at in range(1, 60, 4):
        stage = Stage(tmp_path / str(at), "copy")
        make(stage.root, TREE)
        keep(stage, FIRST, 1)

        def both(crash: CrashPoint, stage: Stage = stage) -> None:
            keep(stage, SECOND, 2, crash)
            workspace = stage.open(crash)
            workspace.restore(1)
            workspace.close(keep_staged=True)

        killed_at(both, at)
        workspace = stage.open()
        kept = workspace.changes().fingerprint
        workspace.begin()
        assert workspace.attempt_changes().changes == (), f"the tree was out of step after a crash at {at}"
        workspace.keep(9)
        workspace.commit("c")
        tree = picture(workspace.candidate_view().root)
        assert picture(stage.root) == tree and kept
        workspace.close(keep_staged=False)
