"""The signing key of this installation: one Ed25519 key in a file only its owner can read (law L9).

Invariants:

- The private key is created once, by whichever process comes first; every other one reads that same key. It appears
  under its name complete, synced and mode 0600, or not at all.
- A private key that anybody else could have read is refused, never repaired silently: what it signed may be forged.
- The key lies outside every workspace, so no action can read it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from setpoint.kernel.errors import StoreFault, UsageFault

PRIVATE_NAME: Final = "signing.pem"
PUBLIC_NAME: Final = "signing.pub"
KEY_BYTES_MAX: Final = 16 * 1024
"""A PEM Ed25519 key has about 120 bytes; a larger file is not one."""


def signing_key(directory: Path, *, workspace: Path | None = None) -> Ed25519PrivateKey:
    """The installation's private key, created at first use under ``directory``.

    Raises UsageFault when the key could be read by others, is no Ed25519 key, or would lie inside ``workspace``;
    StoreFault when it cannot be read or written.
    """
    if workspace is not None:
        refuse_inside(directory, workspace)
    path = directory / PRIVATE_NAME
    try:
        if not os.path.lexists(path):
            _create(path)
        return _load(path)
    except OSError as error:
        raise StoreFault(
            f"the signing key {path} cannot be read or written: {error.strerror or error}; nothing can be certified",
            hint="Check the owner, free space and permissions of that directory, or set SETPOINT_HOME elsewhere.",
        ) from error


def public_key(directory: Path) -> Ed25519PublicKey:
    """The public half, from the private key's file (which is created when there is none)."""
    return signing_key(directory).public_key()


def public_pem(key: Ed25519PublicKey) -> bytes:
    """PEM (SubjectPublicKeyInfo): what a verifier is given, by a way that is not the certificate's."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def public_file(directory: Path) -> Path:
    """The path of the exported public key, written (again) from the private one, mode 0644."""
    path = directory / PUBLIC_NAME
    pem = public_pem(public_key(directory))
    try:
        if not path.is_file() or path.read_bytes() != pem:
            fresh = _write_beside(path, pem, 0o644)
            os.replace(fresh, path)
            _sync_dir(path.parent)
    except OSError as error:
        raise StoreFault(f"the public key {path} cannot be written: {error.strerror or error}") from error
    return path


def refuse_inside(directory: Path, workspace: Path) -> None:
    """UsageFault when keys in ``directory`` would lie inside ``workspace``, where actions could read them."""
    keys, root = directory.resolve(), workspace.resolve()
    if keys == root or root in keys.parents:
        raise UsageFault(
            f"the key directory {keys} lies inside the workspace {root}: actions could read the signing key",
            hint="Set SETPOINT_HOME to a directory outside the workspace.",
        )


def _create(path: Path) -> None:
    """Make the key under a name of its own, then give it its real name only if that is still free."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    fresh = _write_beside(path, pem, 0o600)
    try:
        # link, unlike rename, never replaces: of two processes that race here, one key survives and both use it.
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        os.unlink(fresh)
    _sync_dir(path.parent)


def _write_beside(path: Path, data: bytes, mode: int) -> Path:
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


def _sync_dir(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _load(path: Path) -> Ed25519PrivateKey:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # no link, no waiting on a pipe put in its place
    with os.fdopen(fd, "rb") as file:
        _refuse_exposed(path, os.fstat(file.fileno()))
        _refuse_exposed_directory(path.parent, os.stat(path.parent))
        pem = file.read(KEY_BYTES_MAX + 1)
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise UsageFault(f"{path} holds no readable private key: {error}", hint=_REPLACE) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageFault(f"{path} holds a {type(key).__name__}; Setpoint signs with Ed25519", hint=_REPLACE)
    return key


_REPLACE: Final = "Move that file away; a new key is made at the next use. Verifiers then need the new public key."


def _refuse_exposed(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UsageFault(f"the signing key {path} is not a regular file", hint=_REPLACE)
    if found.st_uid not in (os.geteuid(), 0):
        raise UsageFault(
            f"the signing key {path} belongs to user {found.st_uid}, not to you ({os.geteuid()}): they can read it",
            hint=_REPLACE,
        )
    if found.st_mode & 0o077:
        raise UsageFault(
            f"the signing key {path} has mode {stat.S_IMODE(found.st_mode):04o}: other users can read or change it, "
            "so its signatures prove nothing",
            hint=f"If nobody else had access: chmod 600 {path}. Otherwise: {_REPLACE}",
        )


def _refuse_exposed_directory(directory: Path, found: os.stat_result) -> None:
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise UsageFault(
            f"the key directory {directory} has mode {stat.S_IMODE(found.st_mode):04o}: other users can replace the "
            "signing key",
            hint=f"chmod 700 {directory}",
        )
