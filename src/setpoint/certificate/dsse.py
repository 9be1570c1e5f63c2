"""The DSSE envelope (Dead Simple Signing Envelope) with one Ed25519 signature.

The signature covers the type and the bytes of the payload (the pre-authentication encoding, PAE), so neither can be
read as something else. Exactly one signature is allowed: a second, unchecked one would be bytes nobody vouches for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from .canonical import DIGEST_PREFIX, from_base64, to_base64

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"


@dataclass(frozen=True, slots=True)
class Sealed:
    """An envelope whose form was checked; its signature was not yet."""

    payload: bytes
    payload_type: str
    keyid: str
    signature: bytes


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE v1 pre-authentication encoding: the bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def key_id(key: Ed25519PublicKey) -> str:
    """``sha256:`` of the raw 32 bytes of the public key."""
    return DIGEST_PREFIX + hashlib.sha256(key.public_bytes_raw()).hexdigest()


def sign(payload: bytes, key: Ed25519PrivateKey, payload_type: str = PAYLOAD_TYPE) -> dict[str, Any]:
    """The envelope as a JSON object. Deterministic: Ed25519 uses no chance."""
    return {
        "payload": to_base64(payload),
        "payloadType": payload_type,
        "signatures": [{"keyid": key_id(key.public_key()), "sig": to_base64(key.sign(pae(payload_type, payload)))}],
    }


def opened(envelope: Any) -> Sealed:
    """Take an envelope apart, strictly. ValueError names the first thing that does not belong."""
    match envelope:
        case {
            "payload": str(payload),
            "payloadType": str(kind),
            "signatures": [{"keyid": str(keyid), "sig": str(sig)}],
        } if len(envelope) == 3 and len(envelope["signatures"][0]) == 2:
            pass
        case _:
            raise ValueError("not a DSSE envelope with payload, payloadType and exactly one signature {keyid, sig}")
    if kind != PAYLOAD_TYPE:
        raise ValueError(f"payloadType is {kind!r}, not {PAYLOAD_TYPE!r}")
    return Sealed(from_base64(payload), kind, keyid, from_base64(sig))


def signed_by(sealed: Sealed, key: Ed25519PublicKey) -> bool:
    """Whether ``key`` made the signature, and the envelope names that key."""
    if sealed.keyid != key_id(key):
        return False
    try:
        key.verify(sealed.signature, pae(sealed.payload_type, sealed.payload))
    except InvalidSignature:
        return False
    return True


def read_public_key(pem: bytes) -> Ed25519PublicKey:
    """An Ed25519 public key from PEM. ValueError when it is something else."""
    if b"PRIVATE KEY" in pem:
        raise ValueError("this is a private key; a verifier needs the public one (`-----BEGIN PUBLIC KEY-----`)")
    try:
        key = load_pem_public_key(pem)
    except ValueError as error:
        raise ValueError(f"not a PEM public key: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"the key is a {type(key).__name__}, not an Ed25519 public key")
    return key
