"""Which renames turn the base into base + staged, with every new object made ready."""

from __future__ import annotations

import os
import stat

from setpoint.adapters.workspaces import copying, homes, moves, objects
from setpoint.adapters.workspaces.moves import Dress, Move, MoveSet
from setpoint.adapters.workspaces.objects import Ident, join
from setpoint.kernel.errors import WorkspaceFault


class CommitPlan:
    """The moves that turn the base into base + staged; new objects are copied under ``new/<slot>``."""

    def __init__(self, base_fd: int, new_fd: int) -> None:
        self._base_fd = base_fd
        self._new_fd = new_fd
        self._moves: list[Move] = []
        self._dresses: list[Dress] = []

    def of(self, staged_fd: int) -> MoveSet:
        new = os.fstat(staged_fd)  # before it is opened, which may lift a lock
        with objects.opened_dir(staged_fd, b".", ours=True) as staged:
            base = os.dup(self._base_fd)
            try:
                old = os.fstat(base)
                self._walk(staged, base, b"", 0)
                locked = bool(self._moves) and moves.locks_us_out(old.st_mode)
                self._dress(b"", staged, new, base, old, locked=locked)
            finally:
                os.close(base)
        return MoveSet(tuple(self._moves), tuple(self._dresses))

    def _walk(self, staged: int, base: int, path: bytes, depth: int) -> None:
        objects.refuse_depth(path, depth)
        for name in objects.names(staged):
            below = join(path, name)
            new = os.stat(name, dir_fd=staged, follow_symlinks=False)
            old = objects.lstat(base, name)
            if objects.is_whiteout(staged, name, new):
                if old is not None:
                    self._moves.append(Move(below, len(self._moves), Ident.of(old), None))
            elif stat.S_ISDIR(new.st_mode):
                self._directory(staged, base, name, below, new, old, depth)
            elif old is None or not _equal(staged, base, name, new, old):
                self._put(staged, name, below, new, old, os.fstat(base))

    def _directory(
        self,
        staged: int,
        base: int,
        name: bytes,
        below: bytes,
        new: os.stat_result,
        old: os.stat_result | None,
        depth: int,
    ) -> None:
        if old is None or not stat.S_ISDIR(old.st_mode):
            self._put(staged, name, below, new, old, os.fstat(base))
            return
        with objects.opened_dir(staged, name, ours=True) as source:
            whole = objects.is_opaque(source)
        if whole:  # closed again, since its true mode shows only then
            if not _equal_trees(staged, base, name):
                self._put(staged, name, below, new, old, os.fstat(base))
            return
        with (
            objects.opened_dir(staged, name, ours=True) as source,
            objects.opened_dir(base, name, ours=False) as target,
        ):
            if not homes.same_mount(base, target):
                raise WorkspaceFault(
                    f"{objects.show(below)} is a mount of its own; a commit cannot be atomic across mounts",
                    hint="Make the mounted directory the workspace, or leave it unchanged.",
                )
            before = len(self._moves)
            self._walk(source, target, below, depth + 1)
            locked = len(self._moves) > before and moves.locks_us_out(old.st_mode)
            self._dress(below, source, new, target, old, locked=locked)

    def _dress(
        self, path: bytes, source: int, new: os.stat_result, target: int, old: os.stat_result, *, locked: bool
    ) -> None:
        modes = stat.S_IMODE(old.st_mode), stat.S_IMODE(new.st_mode)
        packed = (
            moves.pack_attributes(objects.user_xattrs(target)),
            moves.pack_attributes(objects.user_xattrs(source)),
        )
        if locked or modes[0] != modes[1] or packed[0] != packed[1]:
            self._dresses.append(Dress(path, *modes, *packed))

    def _put(
        self,
        staged: int,
        name: bytes,
        path: bytes,
        new: os.stat_result,
        old: os.stat_result | None,
        parent: os.stat_result,
    ) -> None:
        slot = b"%d" % len(self._moves)
        copying.copy_tree(staged, name, self._new_fd, slot, ours=True)
        owner = old or parent
        if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (new.st_uid, new.st_gid):
            _give(self._new_fd, slot, owner.st_uid, owner.st_gid)
        content = objects.digest_tree(self._new_fd, slot, ours=True)
        if moves.locks_us_out(new.st_mode) and stat.S_ISDIR(new.st_mode):
            objects.chmod_nofollow(self._new_fd, slot, new.st_mode | 0o700)  # it will be renamed
        made = os.stat(slot, dir_fd=self._new_fd, follow_symlinks=False)
        ident = Ident.of(made)._replace(mode=new.st_mode)
        self._moves.append(Move(path, len(self._moves), None if old is None else Ident.of(old), ident, content))


def _give(dir_fd: int, name: bytes, uid: int, gid: int) -> None:
    """As root: what is made for a user's tree belongs to that user."""
    st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    os.chown(name, uid, gid, dir_fd=dir_fd, follow_symlinks=False)
    if stat.S_ISDIR(st.st_mode):
        with objects.opened_dir(dir_fd, name, ours=True) as fd:
            for child in objects.names(fd):
                _give(fd, child, uid, gid)


def _equal(staged: int, base: int, name: bytes, new: os.stat_result, old: os.stat_result) -> bool:
    if new.st_mode != old.st_mode:
        return False
    try:
        return objects.same_content(staged, name, new, base, name, old, ours=(True, False)) and (
            objects.xattrs_of(staged, name, new, ours=True) == objects.xattrs_of(base, name, old, ours=False)
        )
    except PermissionError:  # the user's own unreadable file
        return False


def _equal_trees(staged: int, base: int, name: bytes) -> bool:
    try:
        return objects.digest_tree(staged, name, ours=True) == objects.digest_tree(base, name, ours=False)
    except PermissionError:
        return False
