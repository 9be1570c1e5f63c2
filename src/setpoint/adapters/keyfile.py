"""A private Ed25519 key in a file only its owner can read (law L9).

Invariants:

- The key is created once, by whichever process comes first; every other one reads that same key. It appears under its
  name complete, synced and mode 0600, or not at all.
- A key that anybody else could have read is refused, never repaired silently: what it signed may be forged.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from setpoint.kernel.errors import UsageFault

KEY_BYTES_MAX: Final = 16 * 1024
"""A PEM Ed25519 key has about 120 bytes; a larger file is not one."""

_REPLACE: Final = "Move that file away; a new key is made at the next use. Whoever trusts it needs the new public key."


def created_or_read(path: Path, what: str) -> Ed25519PrivateKey:
    """The key at ``path``, made there when nothing has that name. ``what`` names it in messages: "the signing key".

    Raises UsageFault when others could read or replace the key or it is no Ed25519 key; OSError as the system does.
    """
    if not os.path.lexists(path):
        _create(path)
    return read(path, what)


def read(path: Path, what: str) -> Ed25519PrivateKey:
    """The key at ``path``. Raises as ``created_or_read`` does, FileNotFoundError when there is none."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # no link, no waiting on a pipe put in its place
    with os.fdopen(fd, "rb") as file:
        _refuse_exposed(path, os.fstat(file.fileno()), what)
        refuse_exposed_directory(path.parent, what)
        pem = file.read(KEY_BYTES_MAX + 1)
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise UsageFault(f"{path} holds no readable private key: {error}", hint=_REPLACE) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageFault(f"{path} holds a {type(key).__name__}; Setpoint signs with Ed25519", hint=_REPLACE)
    return key


def _create(path: Path) -> None:
    """Make the key under a name of its own, then give it its real name only if that is still free."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    fresh = write_beside(path, pem, 0o600)
    try:
        # link, unlike rename, never replaces: of two processes that race here, one key survives and both use it.
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        os.unlink(fresh)
    sync_directory(path.parent)


def write_beside(path: Path, data: bytes, mode: int) -> Path:
    """A synced file with ``data`` and exactly ``mode`` in the directory of ``path``, under a name nobody has."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(8)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)  # exactly, whatever the umask
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        os.unlink(fresh)
        raise
    return fresh


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def refuse_exposed_directory(directory: Path, what: str) -> None:
    """UsageFault when others can replace files in ``directory``."""
    mode = stat.S_IMODE(os.stat(directory).st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        raise UsageFault(
            f"the directory {directory} has mode {mode:04o}: other users can replace {what}",
            hint=f"chmod go-w {directory}",
        )


def _refuse_exposed(path: Path, found: os.stat_result, what: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UsageFault(f"{what} {path} is not a regular file", hint=_REPLACE)
    if found.st_uid not in (os.geteuid(), 0):
        raise UsageFault(
            f"{what} {path} belongs to user {found.st_uid}, not to you ({os.geteuid()}): they can read it",
            hint=_REPLACE,
        )
    if found.st_mode & 0o077:
        raise UsageFault(
            f"{what} {path} has mode {stat.S_IMODE(found.st_mode):04o}: other users can read or change it, "
            "so its signatures prove nothing",
            hint=f"If nobody else had access: chmod 600 {path}. Otherwise: {_REPLACE}",
        )
