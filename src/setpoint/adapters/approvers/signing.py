"""Sign a decision: with this installation's own approver key, or with an SSH key.

The own key is a file like the one certificates are signed with (``adapters.keyfile``), for machines, tests and a
person's first try. SSH keys sign through ``ssh-keygen``, so passphrases, agents and hardware keys work as they do
elsewhere. Nothing here decides whether a signature counts: ``roster`` does.
"""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from setpoint.adapters import keyfile
from setpoint.adapters.approvers.signatures import Malformed, fault_of, key_that_signed, plain_key
from setpoint.kernel.errors import StoreFault, UsageFault
from setpoint.kernel.limits import SSH_SIGN_MS_MAX
from setpoint.kernel.ticket import NAMESPACE, Decision, SignedDecision, Ticket, Verdict, decide, decision_bytes

OWN_NAME: Final = "approver.pem"

_WHAT: Final = "the approver key"
_PEM: Final = b"-----BEGIN PRIVATE KEY-----"
_SSH: Final = (b"-----BEGIN OPENSSH PRIVATE KEY-----", b"ssh-", b"sk-ssh-")


def sign_decision(ticket: Ticket, verdict: Verdict, by: str, at_ms: int, reason: str, key_path: Path) -> SignedDecision:
    """``by``'s signed decision about exactly this ticket, with the private key at ``key_path``.

    The file is an own key (``own_key``), an OpenSSH private key, or an OpenSSH public key whose private half an agent
    or a hardware key holds. Raises UsageFault when the key or the reason cannot be used; nothing was decided then.
    """
    try:
        decision = decide(ticket, verdict, by, at_ms, reason)
    except ValueError as fault:
        raise UsageFault(f"this is no decision: {fault}; nothing was decided") from fault
    start = _start_of(key_path)
    if start.startswith(_PEM):
        return sign_with(_own(key_path), decision)
    if start.startswith(_SSH):
        return sign_with_ssh(key_path, decision)
    raise UsageFault(
        f"{key_path} is neither an OpenSSH key nor a key Setpoint made; nothing was decided",
        hint="Make one with `ssh-keygen -t ed25519`, and put its .pub line into the roster.",
    )


def own_key(directory: Path) -> Path:
    """The file of this installation's approver key, created at first use under ``directory``.

    Raises UsageFault when others could read it or it is no Ed25519 key, StoreFault when it cannot be written.
    """
    path = directory / OWN_NAME
    try:
        keyfile.created_or_read(path, _WHAT)
    except OSError as fault:
        raise StoreFault(f"the approver key {path} cannot be read or written: {fault.strerror or fault}") from fault
    return path


def own_public_line(path: Path) -> str:
    """The public half of an own key, as the roster wants it. Raises UsageFault as ``sign_decision`` does."""
    return _public_text(_own(path))


def sign_with(key: Ed25519PrivateKey, decision: Decision) -> SignedDecision:
    """The decision under the plain scheme."""
    signature = base64.b64encode(key.sign(decision_bytes(decision))).decode()
    return SignedDecision(decision=decision, scheme="ed25519", key=_public_text(key), signature=signature)


def sign_with_ssh(key_path: Path, decision: Decision) -> SignedDecision:
    """The decision signed by ``ssh-keygen -Y sign``. UsageFault when it is missing, refuses, or takes too long."""
    armoured = _ssh_keygen_sign(key_path, decision_bytes(decision))
    try:
        key = key_that_signed(armoured)
    except Malformed as fault:
        raise UsageFault(f"{key_path} cannot approve: {fault}; nothing was decided") from fault
    signed = SignedDecision(decision=decision, scheme="sshsig", key=key.text, signature=armoured)
    broken = fault_of(signed, key)  # a key made without touch, say: better said here than where it is sent
    if broken is not None:
        raise UsageFault(f"the signature by {key_path} would not count: {broken}; nothing was decided")
    return signed


def _ssh_keygen_sign(key_path: Path, message: bytes) -> str:
    # Absolute, so that no file name is taken for an option.
    command = ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", str(key_path.absolute())]
    # At a terminal, ssh-keygen itself tells the person to touch the key, and what went wrong.
    person = os.isatty(2)
    try:
        ran = subprocess.run(
            command,
            input=message,
            stdout=subprocess.PIPE,
            stderr=None if person else subprocess.PIPE,
            timeout=SSH_SIGN_MS_MAX / 1000,
            check=False,
        )
    except FileNotFoundError as fault:
        raise UsageFault(
            f"ssh-keygen is not installed, so {key_path} cannot sign; nothing was decided",
            hint="Install the OpenSSH client, or sign with a key Setpoint made.",
        ) from fault
    except subprocess.TimeoutExpired as fault:
        raise UsageFault(
            f"ssh-keygen did not sign within {SSH_SIGN_MS_MAX // 1000} s; nothing was decided",
            hint="Touch the hardware key when it blinks, or unlock the agent first.",
        ) from fault
    if ran.returncode != 0:
        said = "see above" if person else " ".join(ran.stderr.decode("utf-8", "replace").split())
        raise UsageFault(
            f"ssh-keygen could not sign with {key_path}: {said}; nothing was decided",
            hint="A key with a passphrase needs a terminal or an agent (ssh-add); with an agent, pass its .pub file.",
        )
    return ran.stdout.decode("ascii", "replace")


def _start_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError as fault:
        raise _unreadable(path, fault) from fault


def _own(path: Path) -> Ed25519PrivateKey:
    try:
        return keyfile.read(path, _WHAT)
    except OSError as fault:
        raise _unreadable(path, fault) from fault


def _unreadable(path: Path, fault: OSError) -> UsageFault:
    return UsageFault(f"the key {path} cannot be read: {fault.strerror or fault}; nothing was decided")


def _public_text(key: Ed25519PrivateKey) -> str:
    return plain_key(key.public_key().public_bytes_raw()).text
