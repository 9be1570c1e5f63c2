"""What an undo needs to know: is everything as the commit left it, and which inodes are that now."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from setpoint.adapters.workspaces import copying, kernelcalls, objects
from setpoint.adapters.workspaces.moves import Move, MoveSet
from setpoint.adapters.workspaces.objects import Ident


def changed_since(base_fd: int, what: MoveSet) -> list[bytes]:
    """Paths that are no longer as the commit left them."""
    found: list[bytes] = []
    for move in what.moves:
        with _parent(base_fd, move.path) as (fd, name):
            if fd is None or not _is_as_left(fd, name, move):
                found.append(move.path)
    for dress in what.dresses:
        with _parent(base_fd, dress.path) as (fd, name):
            present = None if fd is None else objects.lstat(fd, name)
            if present is None or stat.S_IMODE(present.st_mode) != dress.new_mode:
                found.append(dress.path)
    return sorted(set(found))


def _is_as_left(fd: int, name: bytes, move: Move) -> bool:
    if objects.lstat(fd, name) is None or move.new is None:
        return objects.lstat(fd, name) is None and move.new is None
    try:
        return objects.digest_tree(fd, name, ours=True) == move.content  # ours: the commit made this object
    except PermissionError:
        return False


def refreshed(base_fd: int, what: MoveSet) -> MoveSet:
    """The same moves with the inode numbers that hold the commit's content now (an editor may have rewritten them)."""

    def fresh(move: Move) -> Move:
        with _parent(base_fd, move.path) as (fd, name):
            present = None if fd is None else objects.lstat(fd, name)
            return move if present is None else replace(move, new=Ident.of(present))

    return replace(what, moves=tuple(fresh(move) if move.new is not None else move for move in what.moves))


@contextmanager
def _parent(base_fd: int, path: bytes) -> Iterator[tuple[int | None, bytes]]:
    directory, name = objects.split(path)
    try:
        fd = kernelcalls.open_dir_beneath(base_fd, directory)
    except OSError:
        yield None, name
        return
    try:
        yield fd, name
    finally:
        os.close(fd)


def copied_back(archive: int, old: int, what: MoveSet) -> MoveSet:
    """Copy pre-images to the workspace's mount; their inode numbers change with that."""
    fresh: list[Move] = []
    for move in what.moves:
        if move.old is None:
            fresh.append(move)
            continue
        slot = b"%d" % move.slot
        copying.copy_tree(archive, slot, old, slot, ours=True)
        made = os.stat(slot, dir_fd=old, follow_symlinks=False)
        fresh.append(replace(move, old=Ident.of(made)._replace(mode=move.old.mode)))
    return replace(what, moves=tuple(fresh))
