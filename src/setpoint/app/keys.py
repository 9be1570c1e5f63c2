"""The signing key of this installation: one Ed25519 key in a file only its owner can read (``adapters.keyfile``).

The key lies outside every workspace, so no action can read it (law L9).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from setpoint.adapters import keyfile
from setpoint.kernel.errors import StoreFault, UsageFault

PRIVATE_NAME: Final = "signing.pem"
PUBLIC_NAME: Final = "signing.pub"


def signing_key(directory: Path, *, workspace: Path | None = None) -> Ed25519PrivateKey:
    """The installation's private key, created at first use under ``directory``.

    Raises UsageFault when the key could be read by others, is no Ed25519 key, or would lie inside ``workspace``;
    StoreFault when it cannot be read or written.
    """
    if workspace is not None:
        refuse_inside(directory, workspace)
    path = directory / PRIVATE_NAME
    try:
        return keyfile.created_or_read(path, "the signing key")
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
            fresh = keyfile.write_beside(path, pem, 0o644)
            os.replace(fresh, path)
            keyfile.sync_directory(path.parent)
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
