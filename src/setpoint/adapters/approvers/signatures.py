"""Public keys as OpenSSH writes them, and the two kinds of signature over a decision.

- ``ed25519``: a plain Ed25519 signature (RFC 8032) over the decision's bytes.
- ``sshsig``: what ``ssh-keygen -Y sign -n setpoint-approval`` makes (OpenSSH's PROTOCOL.sshsig), with a key of type
  ssh-ed25519 or sk-ssh-ed25519@openssh.com (a hardware key, which must have been touched: PROTOCOL.u2f).

Strict: one armour, one base64 spelling, no byte left over. What is accepted here, ``ssh-keygen -Y verify`` accepts too.
The two kinds cannot be taken for each other: signed bytes begin with ``{`` in one and with ``SSHSIG`` in the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from setpoint.kernel.ticket import NAMESPACE, SignedDecision, decision_bytes

PLAIN: Final = "ssh-ed25519"
HARDWARE: Final = "sk-ssh-ed25519@openssh.com"

_MAGIC: Final = b"SSHSIG"
_BEGIN: Final = "-----BEGIN SSH SIGNATURE-----\n"
_END: Final = "-----END SSH SIGNATURE-----\n"
_LINE_CHARS_MAX: Final = 76
_HASHES: Final[dict[bytes, Callable[[bytes], Any]]] = {b"sha256": hashlib.sha256, b"sha512": hashlib.sha512}
_TOUCHED: Final = 0x01
_RAW_KEY_BYTES: Final = 32
_RAW_SIGNATURE_BYTES: Final = 64


class Malformed(ValueError):
    """These bytes are no key or no signature; the message says why."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that can sign decisions. ``text`` is its one spelling: type, blank, base64."""

    text: str
    blob: bytes
    raw: bytes
    application: bytes | None = None  # of a hardware key: what it was made for

    def holds(self, signature: bytes, message: bytes) -> bool:
        """Whether these 64 bytes are this key's Ed25519 signature of ``message``."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True


def parse_key(text: str) -> PublicKey:
    """The key of a line of a ``.pub`` file; a comment after it is dropped. Malformed for anything else."""
    parts = text.strip().split(None, 2)
    if len(parts) < 2 or "\n" in text.strip():
        raise Malformed("a public key is one line: its type, a blank, and base64, as in a .pub file")
    if parts[0] not in (PLAIN, HARDWARE):
        raise Malformed(
            f"keys of type {parts[0]} cannot approve; make one with `ssh-keygen -t ed25519` (or ed25519-sk)"
        )
    key = _key_of_blob(_base64(parts[1]))
    if key.text != f"{parts[0]} {parts[1]}":
        raise Malformed(f"the base64 part is the key of another type than {parts[0]}")
    return key


def plain_key(raw: bytes) -> PublicKey:
    """The key of 32 raw Ed25519 bytes."""
    return _key_of_blob(_string(PLAIN.encode()) + _string(raw))


def fault_of(signed: SignedDecision, key: PublicKey) -> str | None:
    """Why ``signed`` does not carry ``key``'s signature of its decision, or None when it does."""
    message = decision_bytes(signed.decision)
    try:
        if signed.scheme == "ed25519":
            return _fault_of_plain(_base64(signed.signature), message, key)
        return _fault_of_sshsig(_unarmoured(signed.signature), message, key)
    except Malformed as fault:
        return str(fault)


def key_that_signed(armoured: str) -> PublicKey:
    """The public key inside an SSH signature. It says who claims to have signed; it proves nothing."""
    wire = _Wire(_unarmoured(armoured))
    wire.take(len(_MAGIC) + 4)
    return _key_of_blob(wire.string())


def _fault_of_plain(signature: bytes, message: bytes, key: PublicKey) -> str | None:
    if key.application is not None:
        return "a hardware key makes SSH signatures only"
    if len(signature) != _RAW_SIGNATURE_BYTES:
        return f"the signature has {len(signature)} bytes instead of {_RAW_SIGNATURE_BYTES}"
    return None if key.holds(signature, message) else _DOES_NOT_MATCH


_DOES_NOT_MATCH: Final = "the signature does not match the decision and the key"


def _fault_of_sshsig(blob: bytes, message: bytes, key: PublicKey) -> str | None:
    wire = _Wire(blob)
    if wire.take(len(_MAGIC)) != _MAGIC or wire.number() != 1:
        return "this is no SSH signature of version 1"
    by, namespace, reserved, hash_name, signature = (wire.string() for _ in range(5))
    wire.end()
    if by != key.blob:
        return "the signature is by another key than the decision names"
    if namespace != NAMESPACE.encode():
        return f"the signature is for the namespace {namespace.decode('utf-8', 'replace')!r}, not {NAMESPACE!r}"
    if reserved or hash_name not in _HASHES:
        return f"the signature uses the hash {hash_name.decode('utf-8', 'replace')!r}, or a reserved field"
    digest: bytes = _HASHES[hash_name](message).digest()
    covered = _MAGIC + b"".join(_string(part) for part in (namespace, reserved, hash_name, digest))
    return _fault_of_inner(signature, covered, key)


def _fault_of_inner(signature: bytes, covered: bytes, key: PublicKey) -> str | None:
    """The signature inside, in the form of its key's type."""
    wire = _Wire(signature)
    kind, raw = wire.string(), wire.string()
    if kind != key.text.split()[0].encode() or len(raw) != _RAW_SIGNATURE_BYTES:
        return "the signature has another type than its key"
    if key.application is not None:
        flags, counter = wire.take(1), wire.take(4)
        if not flags[0] & _TOUCHED:
            return "the hardware key signed without being touched, so no person did"
        covered = hashlib.sha256(key.application).digest() + flags + counter + hashlib.sha256(covered).digest()
    wire.end()
    return None if key.holds(raw, covered) else _DOES_NOT_MATCH


def _key_of_blob(blob: bytes) -> PublicKey:
    wire = _Wire(blob)
    kind = wire.string()
    if kind not in (PLAIN.encode(), HARDWARE.encode()):
        raise _of_another_type(kind.decode("utf-8", "replace"))
    raw = wire.string()
    application = wire.string() if kind == HARDWARE.encode() else None
    wire.end()
    if len(raw) != _RAW_KEY_BYTES:
        raise Malformed(f"an Ed25519 key has {_RAW_KEY_BYTES} bytes, this one {len(raw)}")
    if application is not None and not application.startswith(b"ssh:"):
        raise Malformed("the hardware key was not made for SSH")
    return PublicKey(f"{kind.decode()} {base64.b64encode(blob).decode()}", blob, raw, application)


def _of_another_type(kind: str) -> Malformed:
    return Malformed(f"keys of type {kind} cannot approve; make one with `ssh-keygen -t ed25519` (or ed25519-sk)")


def _unarmoured(text: str) -> bytes:
    if not text.startswith(_BEGIN) or not text.endswith(_END):
        raise Malformed("an SSH signature stands between its BEGIN and END lines, with nothing around them")
    lines = text[len(_BEGIN) : -len(_END)].split("\n")
    last = lines.pop()
    # All lines are equally long but the last, so that there is no room for other text.
    if last or not lines or len({len(line) for line in lines[:-1]}) > 1 or len(lines[-1]) > len(lines[0]):
        raise Malformed("the lines of the SSH signature are ragged")
    if len(lines[0]) > _LINE_CHARS_MAX:
        raise Malformed(f"the SSH signature has lines above {_LINE_CHARS_MAX} characters")
    return _base64("".join(lines))


def _base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as fault:
        raise Malformed(f"not base64: {fault}") from fault
    if base64.b64encode(data).decode() != text:
        raise Malformed("not the one base64 spelling of its bytes")
    return data


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class _Wire:
    """Reads SSH's wire form from the front. Malformed where bytes are missing."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise Malformed("it ends too early")
        self._at += count
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def string(self) -> bytes:
        return self.take(self.number())

    def end(self) -> None:
        if self._at != len(self._data):
            raise Malformed(f"{len(self._data) - self._at} bytes too many")
