"""The user's directory itself: moved, removed or locked while a transaction over it is open."""

from __future__ import annotations

import pytest

from setpoint.kernel.errors import ChangeRejected, WorkspaceFault

from .conftest import Bench
from .harness import act


@pytest.mark.parametrize("replaced", [False, True])
def test_a_workspace_that_is_no_longer_there_is_a_fault_and_nothing_is_lost(bench: Bench, replaced: bool) -> None:
    """L4: neither an action nor a check is shown another tree, or none, under the old name."""
    bench.fill("echo 1 > a")
    workspace = bench.open()
    workspace.begin()
    act(workspace.action_view(), "open('a', 'w').write('2')", python=True)
    workspace.keep(1)
    bench.root.rename(bench.root.parent / "elsewhere")
    if replaced:
        bench.root.mkdir()
    for look in (workspace.begin, workspace.base_view, workspace.candidate_view, lambda: workspace.commit("c1")):
        with pytest.raises(WorkspaceFault, match="is another directory now" if replaced else "is gone"):
            look()
    moved = bench.root.parent / "elsewhere"
    assert (moved / "a").read_text() == "1\n"
    if replaced:
        bench.root.rmdir()
    moved.rename(bench.root)
    workspace.commit("c1")
    assert (bench.root / "a").read_text() == "2"


@pytest.mark.parametrize("mode", [0o500, 0o300, 0o000])
def test_an_attempt_that_locks_the_workspace_is_a_change_no_savepoint_may_carry(bench: Bench, mode: int) -> None:
    """L5: the change is rejected and rolled back; nothing ends."""
    bench.fill("echo 1 > a")
    workspace = bench.open()
    workspace.begin()
    act(workspace.action_view(), f"import os; open('a', 'w').write('2'); os.chmod('.', {mode})", python=True)
    with pytest.raises(ChangeRejected, match="locks its owner out"):
        workspace.changes()
    workspace.discard()
    workspace.begin()
    act(workspace.action_view(), "open('a', 'w').write('3')", python=True)
    workspace.keep(1)
    workspace.commit("c1")
    assert (bench.root / "a").read_text() == "3"
