"""The digest of a directory tree, by the rule the certified state digest was made with.

One line an object, sorted by path bytes: ``<kind> <mode, four octal digits> <sha256 hex or -> <path>`` and a NUL.
Kind is f, d, l (the digest is of the link's target) or s (special: no digest). The root itself, the top-level
``.git``, times, owners and attributes are left out. Links are never followed. A test holds this equal to the
runtime's own digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Final

from .canonical import DIGEST_PREFIX

DEPTH_MAX: Final = 128
_UNREADABLE: Final = "unreadable"
_CHUNK: Final = 1 << 20
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def tree_digest(root: str | os.PathLike[str]) -> str:
    """``sha256:<hex>`` of the tree below ``root``. OSError when it is no directory or changes while it is read."""
    lines: list[tuple[bytes, bytes]] = []
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _collect(fd, b"", 0, lines)
    finally:
        os.close(fd)
    lines.sort()
    return DIGEST_PREFIX + hashlib.sha256(b"".join(line for _, line in lines)).hexdigest()


def _collect(fd: int, parent: bytes, depth: int, lines: list[tuple[bytes, bytes]]) -> None:
    if depth > DEPTH_MAX:
        raise OSError(f"{os.fsdecode(parent)[:80]}... lies deeper than {DEPTH_MAX} directories")
    for name in map(os.fsencode, os.listdir(fd)):
        if not parent and name == b".git":
            continue
        path = parent + b"/" + name if parent else name
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        kind, digest = _described(fd, name, found.st_mode)
        mode = stat.S_IMODE(found.st_mode)
        lines.append((path, b"%s %04o %s %s\0" % (kind.encode(), mode, (digest or "-").encode(), path)))
        if kind == "d":
            try:
                below = os.open(name, _DIRECTORY, dir_fd=fd)
            except PermissionError:
                continue  # the runtime lists such a directory by itself
            try:
                _collect(below, path, depth + 1, lines)
            finally:
                os.close(below)


def _described(fd: int, name: bytes, mode: int) -> tuple[str, str]:
    """Kind and hex digest of one object."""
    if stat.S_ISDIR(mode):
        return "d", ""
    if stat.S_ISLNK(mode):
        return "l", hashlib.sha256(os.readlink(name, dir_fd=fd)).hexdigest()
    if not stat.S_ISREG(mode):
        return "s", ""
    try:
        opened = os.open(name, _FILE, dir_fd=fd)
    except PermissionError:
        return "f", _UNREADABLE
    state = hashlib.sha256()
    with os.fdopen(opened, "rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    return "f", state.hexdigest()
