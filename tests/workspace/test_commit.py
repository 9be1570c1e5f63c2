"""Commit and undo where it gets narrow: other mounts, old filesystems, edits in the very moment, many commits."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from setpoint.adapters.workspaces import commit as commits
from setpoint.adapters.workspaces import homes, kernelcalls, layers, moves, state
from setpoint.adapters.workspaces.copy import CopyWorkspaceProvider
from setpoint.adapters.workspaces.moves import no_crash
from setpoint.kernel.errors import ConflictFault, UsageFault, WorkspaceFault

from .harness import make, picture, unlock
from .test_crashes import killed_at
from .test_power_loss import private_mounts

TREE = """
mkdir -p d/e ro; echo 1 >f; echo 2 >d/g; echo 3 >d/e/h; ln -s f l; echo r >ro/r; chmod 555 ro; chmod 640 f; mkfifo d/p
"""
TURN = """
echo new >f; rm -r d; mkdir d; echo n >d/n; chmod 755 ro; echo x >ro/x; chmod 555 ro; echo a >a; chmod 751 .
"""


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    make(tmp_path / "ws", TREE)
    yield tmp_path
    unlock(tmp_path)


def provider(top: Path, crash: Callable[[str], None] = no_crash) -> CopyWorkspaceProvider:
    """The copying provider runs without a sandbox: its view is a directory that the test itself writes."""
    return CopyWorkspaceProvider(top / "state", crash_point=crash)


def kept(top: Path, crash: Callable[[str], None] = no_crash, transaction_id: str = "t"):
    workspace = provider(top, crash).open(str(top / "ws"), transaction_id, 0)
    if workspace.savepoint() == 0:
        workspace.begin()
        subprocess.run(["/bin/sh", "-c", TURN], cwd=workspace.action_view().root, check=True)
        workspace.keep(1)
    return workspace


@pytest.fixture
def other_mount() -> Iterator[Path]:
    """A directory on another filesystem than the workspace's."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or shm.stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev:
        pytest.skip("no second filesystem to write to")
    made = Path(tempfile.mkdtemp(dir=shm))
    yield made
    unlock(made)
    shutil.rmtree(made)


def test_a_workspace_on_another_mount_is_committed_and_undone_and_nothing_is_left_beside_it(
    top: Path, other_mount: Path
) -> None:
    make(other_mount / "ws", TREE)
    os.symlink(other_mount / "ws", top / "link")
    before = picture(other_mount / "ws")
    where = CopyWorkspaceProvider(top / "state")
    for at in range(1, 60):

        def work(crash: Callable[[str], None]) -> None:
            workspace = CopyWorkspaceProvider(top / "state", crash_point=crash).open(str(top / "link"), "t", 0)
            if workspace.savepoint() == 0:
                workspace.begin()
                subprocess.run(
                    ["/bin/sh", "-c", "echo new >f; rm -r d; echo a >a"],
                    cwd=workspace.action_view().root,
                    check=True,
                )
                workspace.keep(1)
            workspace.commit("c")
            workspace.close(keep_staged=True)

        killed = killed_at(work, at)
        said = where.recover(str(top / "link"))
        now = picture(other_mount / "ws")
        if now != before:
            assert now[b"f"] != before[b"f"] and b"d/g" not in now and b"a" in now, (at, said)

            def back(crash: Callable[[str], None]) -> None:
                CopyWorkspaceProvider(top / "state", crash_point=crash).undo(str(top / "link"), "c")

            killed_at(back, at)
            where.recover(str(top / "link"))
            where.undo(str(top / "link"), "c")
        assert picture(other_mount / "ws") == before
        assert os.listdir(other_mount) == ["ws"]
        unlock(top / "state")
        shutil.rmtree(top / "state")
        if not killed:
            break
    else:
        pytest.fail("the commit never finished")


def test_a_home_inside_the_workspace_is_there_only_while_the_commit_runs(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = str(top / "ws" / ".setpoint-test")
    monkeypatch.setattr(homes, "outside_home", lambda *args: inside)
    before = picture(top / "ws")
    seen: list[int] = []

    def look(step: str) -> None:
        del step
        seen.append(sum(name.startswith(".setpoint-") for name in os.listdir(top / "ws")))

    workspace = kept(top, look)
    workspace.commit("c")
    assert max(seen) == 1 and seen[-1] == 0
    workspace.close(keep_staged=False)
    assert (top / "ws/d/n").exists() and not any(n.startswith(".setpoint") for n in os.listdir(top / "ws"))
    provider(top).undo(str(top / "ws"), "c")
    assert picture(top / "ws") == before and not any(n.startswith(".setpoint") for n in os.listdir(top / "ws"))


def test_a_filesystem_without_rename_flags_still_commits_and_undoes(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.EINVAL, "flags not supported")

    monkeypatch.setattr(kernelcalls, "rename", refuse)
    before = picture(top / "ws")
    for at in range(1, 60):

        def work(crash: Callable[[str], None]) -> None:
            workspace = kept(top, crash)
            workspace.commit("c")
            workspace.close(keep_staged=True)

        killed = killed_at(work, at)
        provider(top).recover(str(top / "ws"))
        now = picture(top / "ws")
        if now != before:
            assert b"d/g" not in now and now[b"f"] != before[b"f"] and b"ro/x" in now
            provider(top).undo(str(top / "ws"), "c")
        assert picture(top / "ws") == before, f"mixed after a crash at {at}"
        unlock(top / "state")
        shutil.rmtree(top / "state")
        if not killed:
            return
    pytest.fail("the commit never finished")


def test_paths_open_the_same_way_without_openat2(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R071"""
    root = os.open(top / "ws", os.O_RDONLY)
    (top / "ws" / "dl").symlink_to("d")
    for way in (kernelcalls.open_dir_beneath, kernelcalls._open_dir_by_component):
        os.close(way(root, b"d/e"))
        for wrong in (b"dl/e", b"../x", b"f", b"/etc", b"d/nothing"):
            with pytest.raises(OSError):
                os.close(way(root, wrong))
    os.close(root)


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        ("echo yours >f", "f"),
        ("echo yours >a", "a"),
        ("rm f", "f"),
        ("chmod 666 f", "f"),
        ("mv ro ro2; ln -s /tmp ro", "ro/x"),
    ],
)
def test_an_edit_between_check_and_apply_takes_the_commit_back(top: Path, edit: str, path: str) -> None:
    """R025"""

    def meanwhile(step: str) -> None:
        if step == "commit: durable":
            make(top / "ws", edit)

    workspace = kept(top, meanwhile)
    make(top / "ws", "true")
    shutil.copytree(top / "ws", top / "expected", symlinks=True, copy_function=shutil.copy2, ignore=lambda d, n: ["p"])
    make(top / "expected", f"mkfifo d/p; {edit}")
    with pytest.raises(ConflictFault) as caught:
        workspace.commit("c")
    assert caught.value.paths[0] in (
        path,
        os.path.dirname(path),
    )  # the parent, where it had to be unlocked first
    assert picture(top / "ws") == picture(top / "expected")
    assert provider(top).recover(str(top / "ws")) == []
    with pytest.raises(UsageFault):
        provider(top).undo(str(top / "ws"), "c")
    workspace.close(keep_staged=False)


def test_an_edit_after_a_crash_is_never_overwritten_by_recovery(top: Path) -> None:
    def work(crash: Callable[[str], None]) -> None:
        kept(top, crash).commit("c")

    steps: list[str] = []
    shutil.copytree(top / "ws", top / "spare/ws", symlinks=True, ignore=lambda d, n: ["p"])
    kept(top / "spare", steps.append).commit("c")
    at = steps.index("commit: durable") + 1
    before = picture(top / "ws")
    assert killed_at(work, at)
    make(top / "ws", "echo yours >f")
    said = provider(top).recover(str(top / "ws"))
    assert len(said) == 1 and "taken back" in said[0] and "f" in said[0]
    now = picture(top / "ws")
    assert now.pop(b"f") != before.pop(b"f") and now == before
    assert (top / "ws/f").read_text() == "yours\n"


def test_the_lock_lets_one_commit_run_at_a_time_and_gives_up_in_time(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = kept(top)
    monkeypatch.setattr(state, "LOCK_WAIT_MS_MAX", 50)
    with open(workspace._state.path_of("lock")) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(WorkspaceFault):
            workspace.commit("c")
    workspace.commit("c")
    workspace.close(keep_staged=False)


def test_commits_of_many_threads_over_one_workspace_all_arrive(top: Path) -> None:
    """R025"""
    one = provider(top)
    faults: list[BaseException] = []

    def run(number: int) -> None:
        try:
            workspace = one.open(str(top / "ws"), f"t{number}", 0)
            workspace.begin()
            Path(workspace.action_view().root, f"file{number}").write_text(str(number))
            workspace.keep(1)
            workspace.commit(f"c{number}")
            workspace.close(keep_staged=False)
        except BaseException as fault:  # noqa: BLE001 - shown by the test
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert all((top / "ws" / f"file{number}").read_text() == str(number) for number in range(6))


def test_old_commits_are_pruned_but_the_newest_stay_undoable(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "KEPT_COMMITS", 3)
    monkeypatch.setattr(commits, "KEPT_BYTES", 0)
    for number in range(6):
        workspace = provider(top).open(str(top / "ws"), f"t{number}", 0)
        workspace.begin()
        Path(workspace.action_view().root, "f").write_text(f"content {number}")
        workspace.keep(1)
        workspace.commit(f"c{number}")
        workspace.close(keep_staged=False)
    for number in (5, 4, 3):
        provider(top).undo(str(top / "ws"), f"c{number}")
    assert (top / "ws/f").read_text() == "content 2"
    with pytest.raises(UsageFault):
        provider(top).undo(str(top / "ws"), "c2")


def test_a_closed_transaction_leaves_nothing_but_its_commits(top: Path) -> None:
    workspace = kept(top)
    workspace.commit("c")
    workspace.close(keep_staged=False)
    workspace.close(keep_staged=False)
    (below,) = (top / "state/workspaces").iterdir()
    assert os.listdir(below / "transactions") == [] and os.listdir(below / "trash") == []
    assert len(os.listdir(below / "commits")) == 1


def test_no_descriptor_is_left_open(top: Path) -> None:
    def used() -> int:
        return len(os.listdir("/proc/self/fd"))

    kept(top, transaction_id="warm").close(keep_staged=False)
    before = used()
    workspace = kept(top)
    workspace.begin()
    workspace.changes(), workspace.diff(1000), workspace.listing(100), workspace.state_digest()
    resolved = workspace.resolve("d/n")
    assert resolved is not None
    workspace.write(resolved, b"w")
    workspace.commit("c")
    workspace.close(keep_staged=False)
    provider(top).undo(str(top / "ws"), "c")
    assert used() == before


def test_a_deep_and_locked_attempt_is_thrown_away(top: Path) -> None:
    workspace = provider(top).open(str(top / "ws"), "t", 0)
    workspace.begin()
    here = os.open(workspace.action_view().root, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir(b"deep", dir_fd=here)
        below = os.open(b"deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    os.mkdir(Path(workspace.action_view().root, "locked"), 0)
    workspace.discard()
    assert workspace.changes().changes == ()
    workspace.close(keep_staged=False)


def test_a_commit_that_the_disk_refuses_midway_is_taken_back(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = picture(top / "ws")
    real = kernelcalls.rename
    for at in range(1, 40):
        workspace = kept(top)
        calls = 0

        def failing(*args: object, at: int = at) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(errno.EIO, "disk says no")
            real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(kernelcalls, "rename", failing)
        try:
            workspace.commit("c")
        except WorkspaceFault as fault:
            assert "disk says no" in fault.message
        else:
            assert calls < at
            workspace.close(keep_staged=False)
            return
        monkeypatch.setattr(kernelcalls, "rename", real)
        assert picture(top / "ws") == before
        assert provider(top).recover(str(top / "ws")) == []
        workspace.close(keep_staged=True)
    pytest.fail("the commit never got through")


@pytest.mark.root
def test_a_mount_inside_the_workspace_is_refused_before_anything_moves(top: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    with private_mounts():
        (top / "ws/mnt").mkdir()
        subprocess.run(["mount", "--bind", top / "ws/d", top / "ws/mnt"], check=True)
        before = picture(top / "ws")
        workspace = provider(top).open(str(top / "ws"), "m", 0)
        workspace.begin()
        Path(workspace.action_view().root, "mnt/g").write_text("changed")
        Path(workspace.action_view().root, "f").write_text("changed")
        workspace.keep(1)
        with pytest.raises(WorkspaceFault):
            workspace.commit("c")
        assert picture(top / "ws") == before
        workspace.close(keep_staged=False)
        subprocess.run(["umount", top / "ws/mnt"], check=True)


@pytest.mark.root
def test_what_root_commits_belongs_to_the_owner_of_what_it_replaces_or_of_its_directory(top: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    for path in ("ws", "ws/f", "ws/d"):
        os.chown(top / path, 12345, 12346)
    workspace = kept(top)
    workspace.commit("c")
    workspace.close(keep_staged=False)
    for path in ("f", "a", "d", "d/n"):
        found = os.lstat(top / "ws" / path)
        assert (found.st_uid, found.st_gid) == (12345, 12346), path
    provider(top).undo(str(top / "ws"), "c")
    assert os.lstat(top / "ws/d/g").st_uid == 0


def test_where_device_nodes_are_refused_removals_are_marked_by_an_attribute(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EPERM, "no device nodes")

    monkeypatch.setattr(os, "mknod", refuse)
    before = picture(top / "ws")
    workspace = provider(top).open(str(top / "ws"), "t", 0)
    workspace.begin()
    subprocess.run(["/bin/sh", "-c", "rm f; rm -r d/e; touch empty"], cwd=workspace.action_view().root, check=True)
    workspace.keep(1)
    assert {(c.path, c.kind) for c in workspace.changes().changes} == {
        ("d/e", "removed"),
        ("d/e/h", "removed"),
        ("empty", "added"),
        ("f", "removed"),
    }
    workspace.commit("c")
    after = picture(top / "ws")
    assert b"f" not in after and b"d/e" not in after and after[b"empty"][2] == ()
    provider(top).undo(str(top / "ws"), "c")
    assert picture(top / "ws") == before
    workspace.close(keep_staged=False)


def test_a_move_set_survives_its_journal(top: Path) -> None:
    del top
    what = moves.MoveSet(
        (moves.Move(b"odd\xff\n", 0, None, moves.Ident(1, 2, 3, 4, 5), "c"),),
        (moves.Dress(b"", 0o755, 0o700, (("user.a", "00"),), ()),),
    )
    import json

    assert moves.MoveSet.from_json(json.loads(json.dumps(what.to_json()))) == what
    assert layers.components(b"a//./b") == [b"a", b"b"]
