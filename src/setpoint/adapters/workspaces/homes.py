"""Where the objects of a commit wait: a directory on the workspace's own mount, since renames do not cross mounts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from setpoint.adapters.workspaces import moves, objects

HOME = b"home"  # the name inside a commit's directory


def outside_home(root: str, base_fd: int, commits_fd: int, serial: str) -> str:
    """Where ``new`` and ``old`` must lie so that renames into the workspace work; "" for the commit's directory."""
    if same_mount(base_fd, commits_fd):
        return ""
    hidden = f".setpoint-{serial}"
    parent = os.path.dirname(root)
    parent_fd = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if same_mount(base_fd, parent_fd) and os.access(parent, os.W_OK | os.X_OK):
            return os.path.join(parent, hidden)
    finally:
        os.close(parent_fd)
    return os.path.join(root, hidden)


def same_mount(a_fd: int, b_fd: int) -> bool:
    """One filesystem seen through one mount: renames cross neither (a bind mount shares the device number)."""
    return os.fstat(a_fd).st_dev == os.fstat(b_fd).st_dev and _mount_id(a_fd) == _mount_id(b_fd)


def _mount_id(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
        return next((line.split()[1] for line in info if line.startswith("mnt_id:")), "")


@contextmanager
def made_home(fd: int, outside: str) -> Iterator[int]:
    if outside:
        remove_outside(outside)
        os.mkdir(outside, 0o700)
        home = os.open(outside, objects.OPEN_DIR)
    else:
        os.mkdir(HOME, 0o700, dir_fd=fd)
        home = os.open(HOME, objects.OPEN_DIR, dir_fd=fd)
    try:
        moves.make_home(home)
        yield home
    finally:
        os.close(home)


def remove_outside(outside: str) -> None:
    if not outside:
        return
    parent_fd = os.open(os.path.dirname(outside), objects.OPEN_DIR)
    try:
        objects.remove_tree(parent_fd, os.fsencode(os.path.basename(outside)))
    finally:
        os.close(parent_fd)
