"""SSH signatures made by hand, so that each part can be wrong, and OpenSSH's own word on them."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from setpoint.adapters.approvers.signatures import HARDWARE, PLAIN
from setpoint.kernel.ticket import NAMESPACE

needs_openssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")


def string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def key_blob(key: Ed25519PrivateKey, application: str = "") -> bytes:
    raw = string(key.public_key().public_bytes_raw())
    return (
        string(HARDWARE.encode()) + raw + string(application.encode()) if application else string(PLAIN.encode()) + raw
    )


def key_text(key: Ed25519PrivateKey, application: str = "") -> str:
    return f"{HARDWARE if application else PLAIN} {base64.b64encode(key_blob(key, application)).decode()}"


def blob(
    key: Ed25519PrivateKey,
    message: bytes,
    *,
    application: str = "",
    namespace: str = NAMESPACE,
    hash_name: str = "sha512",
    reserved: bytes = b"",
    version: int = 1,
    flags: int = 1,
    kind: str = "",
    after: bytes = b"",
    after_inner: bytes = b"",
) -> bytes:
    """The bytes inside the armour, right unless told otherwise."""
    digest = hashlib.new(hash_name, message).digest()
    parts = (namespace.encode(), reserved, hash_name.encode(), digest)
    covered = b"SSHSIG" + b"".join(string(part) for part in parts)
    tail = b""
    if application:
        tail = bytes([flags]) + (7).to_bytes(4, "big")
        covered = hashlib.sha256(application.encode()).digest() + tail + hashlib.sha256(covered).digest()
    kind = kind or (HARDWARE if application else PLAIN)
    inner = string(kind.encode()) + string(key.sign(covered)) + tail + after_inner
    outer = (key_blob(key, application), namespace.encode(), reserved, hash_name.encode(), inner)
    return b"SSHSIG" + version.to_bytes(4, "big") + b"".join(string(part) for part in outer) + after


def armour(data: bytes, width: int = 70) -> str:
    text = base64.b64encode(data).decode()
    lines = "".join(f"{text[at : at + width]}\n" for at in range(0, len(text), width))
    return f"-----BEGIN SSH SIGNATURE-----\n{lines}-----END SSH SIGNATURE-----\n"


def private_file(path: Path, key: Ed25519PrivateKey) -> Path:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    return path


def openssh_accepts(folder: Path, key_line: str, message: bytes, signature: str) -> bool:
    """What ``ssh-keygen -Y verify`` says."""
    signers, written = folder / "allowed_signers", folder / "signature"
    signers.write_text(f'anna namespaces="{NAMESPACE}" {key_line}\n')
    written.write_text(signature)
    command = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", "anna", "-n", NAMESPACE, "-s", written]
    return subprocess.run(command, input=message, capture_output=True, timeout=60).returncode == 0
