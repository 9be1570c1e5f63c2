"""The digest of a directory of sealed files: what is pinned when a task is accepted, and compared before every use."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Final

from setpoint.kernel.keys import digest

SEALED_ENTRIES_MAX: Final = 20_000
SEALED_BYTES_MAX: Final = 256 << 20
"""Read before every sealed check, at about 1 GB/s: a quarter of a second at most."""


class SealedFilesUnusable(ValueError):
    """The directory is absent, unreadable, too large, or holds something that is neither file, directory nor link."""


def digest_directory(root: str) -> str:
    """``sha256:...`` over every path, type, executable bit, content and link target below ``root``.

    ``__pycache__`` is left out: Python writes it beside sealed tests when their author runs them, and inside the
    sandbox sealed modules are compiled from source.
    Raises SealedFilesUnusable.
    """
    entries: list[list[str]] = []
    size = 0
    try:
        if not stat.S_ISDIR(os.lstat(root).st_mode):
            raise SealedFilesUnusable(f"{root} is not a directory")
        for path in _walk(root):
            name = os.fsencode(os.path.relpath(path, root)).hex()
            info = os.lstat(path)
            size += info.st_size
            if len(entries) >= SEALED_ENTRIES_MAX or size > SEALED_BYTES_MAX:
                raise SealedFilesUnusable(
                    f"{root} holds more than {SEALED_ENTRIES_MAX} entries or {SEALED_BYTES_MAX} bytes;"
                    " name a smaller directory in `files`"
                )
            entries.append([name, *_identity(path, info)])
    except OSError as fault:
        raise SealedFilesUnusable(f"sealed files cannot be read: {fault}") from fault
    return digest(sorted(entries))


def _walk(root: str) -> list[str]:
    found: list[str] = []
    for folder, folders, files in os.walk(root, onerror=_raise):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found.extend(os.path.join(folder, name) for name in (*folders, *files))
    return found


def _raise(fault: OSError) -> None:
    raise fault


def _identity(path: str, info: os.stat_result) -> tuple[str, str, str]:
    if stat.S_ISDIR(info.st_mode):
        return "dir", "", ""
    if stat.S_ISLNK(info.st_mode):
        return "symlink", "", os.fsencode(os.readlink(path)).hex()
    if not stat.S_ISREG(info.st_mode):
        raise SealedFilesUnusable(f"{path} is neither a file, a directory nor a link")
    with open(path, "rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return "file", "x" if info.st_mode & 0o100 else "", content
