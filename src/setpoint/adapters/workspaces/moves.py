"""A journalled set of renames: all of it happens, or none, whatever dies in between.

One primitive serves keep, restore, commit and undo. A *home* directory on the target's filesystem holds
``new/<slot>`` (objects that will be put in place) and ``old/<slot>`` (objects they replaced). Once the journal that
lists the moves is durable, ``roll_forward`` completes it and ``roll_back`` reverses it; both may be killed at any
point and run again, since each move tells by inode number how far it got. Nothing is copied or deleted here: what
is replaced is moved aside, so the way back always exists.

``Diverged`` means that somebody else changed a path between planning and moving. Their version is never
overwritten: it stays in place, or goes back there by the caller's roll-back.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from setpoint.adapters.workspaces import kernelcalls, objects
from setpoint.adapters.workspaces.objects import Ident

CrashPoint = Callable[[str], None]
"""Called between any two durable or visible steps; tests kill the process in it."""


def no_crash(step: str) -> None:
    del step


class Diverged(Exception):
    """Somebody else changed this path; nothing of theirs was overwritten."""

    def __init__(self, path: bytes) -> None:
        super().__init__(objects.show(path))
        self.path = path


@dataclass(frozen=True, slots=True)
class Move:
    """Put ``new/<slot>`` at ``path`` (``new`` set) or take ``path`` away (``new`` None)."""

    path: bytes
    slot: int
    old: Ident | None  # what stood there; it goes to old/<slot>
    new: Ident | None  # ino of new/<slot>; its mode is the one to have in place
    content: str = ""  # digest of the new object with everything below, where the caller wants to know it again


@dataclass(frozen=True, slots=True)
class Dress:
    """Mode and attributes of a directory that stays; equal sides mean it only has to be unlocked meanwhile."""

    path: bytes
    old_mode: int
    new_mode: int
    old_attributes: tuple[tuple[str, str], ...] = ()  # name, hex value
    new_attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class MoveSet:
    moves: tuple[Move, ...] = ()
    dresses: tuple[Dress, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "moves": [[os.fsdecode(m.path), m.slot, m.old, m.new, m.content] for m in self.moves],
            "dresses": [
                [os.fsdecode(d.path), d.old_mode, d.new_mode, d.old_attributes, d.new_attributes] for d in self.dresses
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> MoveSet:
        def ident(found: list[int] | None) -> Ident | None:
            return None if found is None else Ident(*found)

        def pairs(found: list[list[str]]) -> tuple[tuple[str, str], ...]:
            return tuple((name, value) for name, value in found)

        return cls(
            tuple(Move(os.fsencode(p), k, ident(o), ident(n), c) for p, k, o, n, c in data["moves"]),
            tuple(Dress(os.fsencode(p), a, b, pairs(x), pairs(y)) for p, a, b, x, y in data["dresses"]),
        )

    @property
    def paths(self) -> tuple[bytes, ...]:
        changed = {d.path for d in self.dresses if (d.old_mode, d.old_attributes) != (d.new_mode, d.new_attributes)}
        return tuple(sorted(changed | {m.path for m in self.moves}))


def pack_attributes(found: dict[str, bytes]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value.hex()) for name, value in sorted(found.items()))


def locks_us_out(mode: int) -> bool:
    """Whether a directory of this mode stops us (root passes everywhere)."""
    return os.geteuid() != 0 and mode & 0o700 != 0o700


def make_home(fd: int) -> None:
    os.mkdir(b"new", 0o700, dir_fd=fd)
    os.mkdir(b"old", 0o700, dir_fd=fd)


class _Run:
    """One pass over a move set, in either direction."""

    def __init__(self, target_fd: int, new_fd: int, old_fd: int, crash: CrashPoint) -> None:
        self.target_fd = target_fd
        self.new_fd = new_fd
        self.old_fd = old_fd
        self.crash = crash
        self.touched: set[bytes] = set()

    @contextmanager
    def parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        directory, name = objects.split(path)
        try:
            fd = kernelcalls.open_dir_beneath(self.target_fd, directory)
        except OSError as error:
            if error.errno in _LED_ASTRAY:
                raise Diverged(path) from error
            raise
        self.touched.add(directory)
        try:
            yield fd, name
        finally:
            os.close(fd)

    def unlock(self, dresses: tuple[Dress, ...], *, back: bool) -> None:
        for dress in sorted(dresses, key=lambda d: d.path):
            with self.theirs_stays(back), self.directory(dress.path) as fd:
                mode = os.fstat(fd).st_mode
                if locks_us_out(mode):
                    os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | 0o700)
                    self.crash("unlocked")

    @contextmanager
    def theirs_stays(self, back: bool) -> Iterator[None]:
        """On the way back a directory that somebody replaced or removed is theirs, and no reason to stop."""
        try:
            yield
        except Diverged:
            if not back:
                raise

    def dress(self, dresses: tuple[Dress, ...], *, back: bool) -> None:
        for dress in sorted(dresses, key=lambda d: d.path, reverse=True):
            with self.theirs_stays(back), self.directory(dress.path) as path_fd:
                fd = os.open(f"/proc/self/fd/{path_fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    packed = dress.old_attributes if back else dress.new_attributes
                    if dress.old_attributes != dress.new_attributes:
                        objects.set_user_xattrs(fd, {name: bytes.fromhex(value) for name, value in packed})
                    wanted = dress.old_mode if back else dress.new_mode
                    if stat.S_IMODE(os.fstat(fd).st_mode) != wanted:
                        os.fchmod(fd, wanted)
                        self.crash("dressed")
                    os.fsync(fd)
                finally:
                    os.close(fd)

    @contextmanager
    def directory(self, path: bytes) -> Iterator[int]:
        """An O_PATH descriptor of a directory, also when its mode locks us out."""
        with self.parent(path) as (fd, name):
            try:
                flags = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
                inner = os.open(name or b".", flags, dir_fd=fd)
            except OSError as error:
                raise Diverged(path) from error
        try:
            yield inner
        finally:
            os.close(inner)

    def sync(self) -> None:
        for directory in sorted(self.touched):
            try:
                fd = kernelcalls.open_dir_beneath(self.target_fd, directory)
            except PermissionError:  # dressed to a mode that locks us out
                kernelcalls.syncfs(self.old_fd)
                continue
            except OSError as error:
                if error.errno in _LED_ASTRAY:  # it went away with a later move
                    continue
                raise
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        os.fsync(self.old_fd)
        os.fsync(self.new_fd)

    # Forward.

    def forward(self, move: Move) -> None:
        slot = b"%d" % move.slot
        with self.parent(move.path) as (fd, name):
            present = objects.lstat(fd, name)
            if move.new is None:
                self._take_away(fd, name, slot, move, present)
                return
            if present is not None and present.st_ino == move.new.ino:
                if move.old is not None and objects.lstat(self.new_fd, slot) is not None:
                    kernelcalls.rename(self.new_fd, slot, self.old_fd, slot, _NOREPLACE)
            elif present is None:
                if move.old is not None and objects.lstat(self.old_fd, slot) is None:
                    raise Diverged(move.path)
                self._rename_new(self.new_fd, slot, fd, name, move.path)
                self.crash("created")
            else:
                self._replace(fd, name, slot, move, present)
            _set_mode(fd, name, move.new.mode)

    def _take_away(self, fd: int, name: bytes, slot: bytes, move: Move, present: os.stat_result | None) -> None:
        if objects.lstat(self.old_fd, slot) is not None:
            return  # done; whatever stands there now is not ours
        if present is None or not _is_version(present, move.old):
            raise Diverged(move.path)
        _unlock_object(fd, name, present.st_mode)
        self._rename_new(fd, name, self.old_fd, slot, move.path)
        self.crash("removed")
        moved = os.stat(slot, dir_fd=self.old_fd, follow_symlinks=False)
        if not _is_version(moved, move.old, ignore_mode=True):
            raise Diverged(move.path)

    def _replace(self, fd: int, name: bytes, slot: bytes, move: Move, present: os.stat_result) -> None:
        if not _is_version(present, move.old):
            raise Diverged(move.path)
        _unlock_object(fd, name, present.st_mode)
        try:
            kernelcalls.rename(self.new_fd, slot, fd, name, kernelcalls.RENAME_EXCHANGE)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise Diverged(move.path) from error
            if error.errno not in _NO_FLAGS:
                raise
            # A filesystem without EXCHANGE: two renames with a gap; the replay knows the gap by old/<slot>.
            os.rename(name, slot, src_dir_fd=fd, dst_dir_fd=self.old_fd)
            self.crash("gap")
            self._rename_new(self.new_fd, slot, fd, name, move.path)
            self.crash("replaced")
            return
        self.crash("exchanged")
        moved = os.stat(slot, dir_fd=self.new_fd, follow_symlinks=False)
        if not _is_version(moved, move.old, ignore_mode=True):
            raise Diverged(move.path)  # somebody wrote in the very moment; roll_back puts their version back
        kernelcalls.rename(self.new_fd, slot, self.old_fd, slot, _NOREPLACE)
        self.crash("set aside")

    def _rename_new(self, src_fd: int, src: bytes, dst_fd: int, dst: bytes, path: bytes) -> None:
        """Rename to a name that must not exist."""
        try:
            kernelcalls.rename(src_fd, src, dst_fd, dst, _NOREPLACE)
        except FileExistsError as error:
            raise Diverged(path) from error
        except OSError as error:
            if error.errno not in _NO_FLAGS:
                raise
            if objects.lstat(dst_fd, dst) is not None:
                raise Diverged(path) from error
            os.rename(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd)

    # Back.

    def back(self, move: Move) -> None:
        try:
            self._back(move)
        except Diverged:
            if self._was_begun(move):
                raise

    def _was_begun(self, move: Move) -> bool:
        slot = b"%d" % move.slot
        if move.new is not None:
            return not _is_inode(objects.lstat(self.new_fd, slot), move.new)
        return objects.lstat(self.old_fd, slot) is not None

    def _back(self, move: Move) -> None:
        slot = b"%d" % move.slot
        with self.parent(move.path) as (fd, name):
            present = objects.lstat(fd, name)
            if move.new is not None and present is not None and present.st_ino == move.new.ino:
                _unlock_object(fd, name, present.st_mode)
                if move.old is None:
                    self._rename_new(fd, name, self.new_fd, slot, move.path)
                    self.crash("uncreated")
                    return
                self._exchange_back(fd, name, slot, move)
            elif move.old is not None and present is None and objects.lstat(self.old_fd, slot) is not None:
                self._rename_new(self.old_fd, slot, fd, name, move.path)
                self.crash("returned")
            elif move.old is not None and _is_inode(objects.lstat(self.old_fd, slot), move.old):
                raise Diverged(move.path)  # a third version stands where the old one belongs
            if move.old is not None and _is_inode(objects.lstat(fd, name), move.old):
                _set_mode(fd, name, move.old.mode)

    def _exchange_back(self, fd: int, name: bytes, slot: bytes, move: Move) -> None:
        midway = objects.lstat(self.new_fd, slot) is not None
        side = self.new_fd if midway else self.old_fd
        try:
            kernelcalls.rename(side, slot, fd, name, kernelcalls.RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in _NO_FLAGS:
                raise
            self._rename_new(fd, name, self.new_fd, slot, move.path)
            self.crash("gap back")
            self._rename_new(side, slot, fd, name, move.path)
        self.crash("exchanged back")


_NOREPLACE = kernelcalls.RENAME_NOREPLACE
_LED_ASTRAY = (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EXDEV)  # a parent is gone or became a link
_NO_FLAGS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def _is_inode(st: os.stat_result | None, ident: Ident) -> bool:
    return st is not None and st.st_ino == ident.ino


def _is_version(st: os.stat_result, ident: Ident | None, *, ignore_mode: bool = False) -> bool:
    """The same object, unwritten since (a rename changes ctime, so that cannot be asked)."""
    if ident is None or st.st_ino != ident.ino or stat.S_IFMT(st.st_mode) != stat.S_IFMT(ident.mode):
        return False
    if stat.S_ISDIR(st.st_mode):
        return True
    same_mode = ignore_mode or st.st_mode == ident.mode
    return same_mode and (st.st_size, st.st_mtime_ns) == (ident.size, ident.mtime_ns)


def _unlock_object(fd: int, name: bytes, mode: int) -> None:
    """A directory that changes its parent is written to (its ``..``), so it needs our write bit for that moment."""
    if stat.S_ISDIR(mode) and locks_us_out(mode):
        objects.chmod_nofollow(fd, name, mode | 0o700)


def _set_mode(fd: int, name: bytes, mode: int) -> None:
    present = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if stat.S_ISDIR(present.st_mode) and present.st_mode != mode:
        objects.chmod_nofollow(fd, name, mode)


@contextmanager
def _run(target_fd: int, home_fd: int, crash: CrashPoint) -> Iterator[_Run]:
    new_fd = os.open(b"new", objects.OPEN_DIR, dir_fd=home_fd)
    try:
        old_fd = os.open(b"old", objects.OPEN_DIR, dir_fd=home_fd)
        try:
            yield _Run(target_fd, new_fd, old_fd, crash)
        finally:
            os.close(old_fd)
    finally:
        os.close(new_fd)


def roll_forward(target_fd: int, home_fd: int, what: MoveSet, crash: CrashPoint = no_crash) -> None:
    """Complete ``what`` below ``target_fd``; durable on return. Raises Diverged; then call ``roll_back``."""
    with _run(target_fd, home_fd, crash) as run:
        run.unlock(what.dresses, back=False)
        for move in what.moves:
            run.forward(move)
        run.dress(what.dresses, back=False)
        run.sync()
        crash("moved")


def roll_back(target_fd: int, home_fd: int, what: MoveSet, crash: CrashPoint = no_crash) -> None:
    """Reverse ``what`` however far it got; durable on return.

    Raises Diverged, after everything else was reversed, when a third version stands in the way of one path.
    """
    stuck: Diverged | None = None
    with _run(target_fd, home_fd, crash) as run:
        run.unlock(what.dresses, back=True)
        for move in reversed(what.moves):
            try:
                run.back(move)
            except Diverged as diverged:
                stuck = stuck or diverged
        run.dress(what.dresses, back=True)
        run.sync()
        crash("moved back")
    if stuck is not None:
        raise stuck
