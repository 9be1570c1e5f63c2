"""Digest of a directory of sealed files: pinned when a task is accepted, taken again before every use.

What counts is what a check can read: each path, its kind, its execute bit, its content or link target. What does not:
times, owners, the other mode bits, the order in which a file system lists names.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from typing import Final

from setpoint.kernel.errors import UsageFault
from setpoint.kernel.keys import digest

ENTRIES_MAX: Final = 10_000
BYTES_MAX: Final = 512 << 20
"""Sealed checks are test files and their data; more than this is a mistake in the path."""
_CHUNK: Final = 1 << 20


def pin_files(directory: str) -> str:
    """``sha256:<hex>`` of a directory. UsageFault on special files, links that lead out, and too much content."""
    root = os.path.realpath(directory)
    entries: list[list[str]] = []
    budget = BYTES_MAX
    pending = [""]
    while pending:
        folder = pending.pop()
        for entry in _scan(os.path.join(root, folder)):
            path = os.path.join(folder, entry.name)
            if len(entries) >= ENTRIES_MAX:
                raise UsageFault(f"{directory} holds more than {ENTRIES_MAX} entries; sealed files are fewer")
            if entry.is_symlink():
                entries.append([path, "link", "", _inner_link(root, path, directory)])
            elif entry.is_dir():
                entries.append([path, "dir", "", ""])
                pending.append(path)
            else:
                mode, size, content = _read(os.path.join(root, path), budget, directory)
                budget -= size
                entries.append([path, "file", "x" if mode & 0o111 else "", content])
    return digest(sorted(entries))


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError as fault:
        raise UsageFault(f"cannot read the sealed files in {folder}: {fault.strerror}") from fault


def _inner_link(root: str, path: str, directory: str) -> str:
    """The target of a link, which must stay inside: sealed files are mounted alone, and pinned whole."""
    full = os.path.join(root, path)
    target = os.readlink(full)
    leads = os.path.realpath(full)
    if os.path.isabs(target) or not (leads == root or leads.startswith(root.rstrip("/") + "/")):
        raise UsageFault(
            f"{directory}/{path} is a link to {target}, which leads out of the sealed files",
            hint="copy the file in, or link to it relative and inside",
        )
    return target


def _read(path: str, budget: int, directory: str) -> tuple[int, int, str]:
    """Mode, size and content digest of a regular file; read through one descriptor, so that they belong together."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as fault:
        raise UsageFault(f"cannot read the sealed file {path}: {fault.strerror}") from fault
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise UsageFault(f"{path} is not a regular file; sealed files are files, folders and inner links")
        hasher = sha256()
        size = 0
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            if size > budget:
                raise UsageFault(f"{directory} holds more than {BYTES_MAX >> 20} MiB; sealed files are smaller")
            hasher.update(chunk)
    return mode, size, hasher.hexdigest()
