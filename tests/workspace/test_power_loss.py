"""Power loss at every step of keep, commit and undo: shut the filesystem down without a flush, mount it again."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from setpoint.adapters.workspaces.copy import CopyWorkspaceProvider
from setpoint.adapters.workspaces.moves import no_crash

from .harness import make, picture

_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
_CLONE_NEWNS = 0x00020000

TREE = """
mkdir -p a/b d; for i in 1 2 3 4 5; do echo $i >a/f$i; echo $i >d/g$i; done; echo b >a/b/x; ln -s a l; echo k >keep
"""
TURN = """
echo mod >>a/f1; head -c 300000 /dev/zero | tr '\\0' x >a/f2; rm a/f3; rm -r d; mkdir d; echo n >d/new; mkdir -p n/e/w
echo q >n/e/w/q; rm l; ln -s keep l; rm keep; mv a/f4 a/f4b
"""


class Disk:
    """An ext4 image on a loop device, mounted only for the test."""

    def __init__(self, top: Path) -> None:
        self.at = top / "mnt"
        self.image = top / "image"
        self.at.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(96 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.image], check=True)

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self.image, self.at], check=True)

    def umount(self) -> None:
        subprocess.run(["umount", self.at], check=True)

    def lose_power(self) -> None:
        fd = os.open(self.at, os.O_RDONLY)
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        os.close(fd)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control") or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root, loop devices and mkfs.ext4")
    with private_mounts():
        made = Disk(tmp_path)
        made.mount()
        try:
            yield made
        finally:
            made.umount()
            made.image.unlink()


@contextmanager
def private_mounts() -> Iterator[None]:
    """A mount namespace of our own: a copy of the mount in any other one would keep the dead filesystem alive."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    try:
        assert libc.unshare(_CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        yield
    finally:
        assert libc.setns(before, _CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
        os.close(before)


def turn(disk: Disk, crash: Callable[[str], None]) -> None:
    workspace = CopyWorkspaceProvider(disk.at / "state", crash_point=crash).open(str(disk.at / "ws"), "t", 0)
    if workspace.savepoint() == 0:
        workspace.begin()
        subprocess.run(["/bin/sh", "-c", TURN], cwd=workspace.action_view().root, check=True)
        workspace.keep(1)
    workspace.close(keep_staged=True)


def commit(disk: Disk, crash: Callable[[str], None]) -> None:
    workspace = CopyWorkspaceProvider(disk.at / "state", crash_point=crash).open(str(disk.at / "ws"), "t", 0)
    workspace.commit("c")
    workspace.close(keep_staged=True)


def undo(disk: Disk, crash: Callable[[str], None]) -> None:
    CopyWorkspaceProvider(disk.at / "state", crash_point=crash).undo(str(disk.at / "ws"), "c")


def fresh(disk: Disk) -> None:
    for name in ("ws", "state"):
        shutil.rmtree(disk.at / name, ignore_errors=True)
    make(disk.at / "ws", TREE)
    os.sync()


def loses_power_at(disk: Disk, work: Callable[[Disk, Callable[[str], None]], None], at: int) -> bool:
    pid = os.fork()
    if pid == 0:
        passed = 0

        def crash(step: str) -> None:
            nonlocal passed
            del step
            passed += 1
            if passed == at:
                disk.lose_power()
                os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            work(disk, crash)
            status = 0
        finally:
            os._exit(status)
    lost = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    if not lost:
        disk.lose_power()  # what has returned must be there too
    disk.umount()
    disk.mount()
    return lost


def staged(disk: Disk) -> tuple[int, str]:
    workspace = CopyWorkspaceProvider(disk.at / "state").open(str(disk.at / "ws"), "t", 0)
    found = workspace.savepoint(), workspace.changes().fingerprint
    workspace.close(keep_staged=True)
    return found


def sweep(
    disk: Disk,
    prepare: Callable[[Disk], None],
    work: Callable[[Disk, Callable[[str], None]], None],
    measure: Callable[[Disk], object],
) -> None:
    fresh(disk)
    prepare(disk)
    os.sync()
    before = measure(disk)
    work(disk, no_crash)
    after = measure(disk)
    seen: list[str] = []
    at = 1
    while True:
        fresh(disk)
        prepare(disk)
        os.sync()
        lost = loses_power_at(disk, work, at)
        CopyWorkspaceProvider(disk.at / "state").recover(str(disk.at / "ws"))
        now = measure(disk)
        assert now in (before, after), f"mixed after power loss at step {at}"
        seen.append("before" if now == before else "after")
        if not lost:
            break
        at += 1
    assert seen[-1] == "after", "work that had returned was lost"
    assert "before" in seen and seen == sorted(seen, reverse=True)  # once after, never before again
    print(work.__name__, seen.count("before"), seen.count("after"))


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.timeout(900)
def test_power_loss_leaves_before_or_after_and_what_returned_is_durable(disk: Disk) -> None:
    """R189"""
    sweep(disk, lambda disk: None, turn, staged)
    sweep(disk, lambda disk: turn(disk, no_crash), commit, lambda disk: picture(disk.at / "ws"))

    def committed(disk: Disk) -> None:
        turn(disk, no_crash)
        commit(disk, no_crash)

    sweep(disk, committed, undo, lambda disk: picture(disk.at / "ws"))


@pytest.mark.slow
@pytest.mark.root
def test_the_power_loss_test_can_see_a_missing_sync(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(disk)
    turn(disk, no_crash)
    before = picture(disk.at / "ws")
    os.sync()
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    assert not loses_power_at(disk, commit, 0)
    monkeypatch.undo()
    CopyWorkspaceProvider(disk.at / "state").recover(str(disk.at / "ws"))
    assert picture(disk.at / "ws") == before, "without any sync the commit cannot have survived"
