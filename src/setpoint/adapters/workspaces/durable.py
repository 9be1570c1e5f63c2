"""Small files that are either the old or the new version after a power cut, and the trash."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from typing import Any

from setpoint.adapters.workspaces import objects
from setpoint.kernel.errors import WorkspaceFault


def write_json(dir_fd: int, name: bytes, data: Any) -> None:
    """Replace ``name`` durably."""
    spare = b"%s.%s.tmp" % (name, secrets.token_hex(6).encode())  # several processes may write the same name
    fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    with open(fd, "wb") as file:
        file.write(json.dumps(data, separators=(",", ":")).encode())  # ASCII: odd path bytes become escapes
        file.flush()
        os.fsync(fd)
    os.rename(spare, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    os.fsync(dir_fd)


def read_json(dir_fd: int, name: bytes) -> Any | None:
    """The content, None when there is no such file."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        return json.loads(file.read())


def require_json(dir_fd: int, name: bytes) -> Any:
    """The content of a file that must be there. Raises WorkspaceFault."""
    found = read_json(dir_fd, name)
    if found is None:
        raise WorkspaceFault(
            f"{os.readlink(f'/proc/self/fd/{dir_fd}')} has no {os.fsdecode(name)}; the state directory is damaged",
            hint="Discard this transaction; the workspace itself was not touched.",
        )
    return found


def rename(src_fd: int, src: bytes, dst_fd: int, dst: bytes) -> None:
    """Rename and make both directories durable."""
    os.rename(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd)
    os.fsync(dst_fd)
    if src_fd != dst_fd:
        os.fsync(src_fd)


def open_made(dir_fd: int, name: bytes) -> int:
    """A descriptor of a private directory, made when absent."""
    try:
        os.mkdir(name, 0o700, dir_fd=dir_fd)
        os.fsync(dir_fd)
    except FileExistsError:
        pass
    return os.open(name, objects.OPEN_DIR, dir_fd=dir_fd)


def throw_away(dir_fd: int, name: bytes, trash_fd: int) -> None:
    """Rename into the trash (one step, whatever the size), then delete there."""
    if objects.lstat(dir_fd, name) is None:
        return
    grave = secrets.token_hex(8).encode()
    os.rename(name, grave, src_dir_fd=dir_fd, dst_dir_fd=trash_fd)
    os.fsync(dir_fd)
    with suppress(FileNotFoundError):  # another process is emptying the trash too
        objects.remove_tree(trash_fd, grave)


def empty(trash_fd: int) -> None:
    """Delete what a crash left in the trash."""
    for name in objects.names(trash_fd):
        with suppress(FileNotFoundError):  # another process is emptying it too
            objects.remove_tree(trash_fd, name)
