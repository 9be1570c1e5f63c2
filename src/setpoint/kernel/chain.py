"""The hash chain: the exact bytes each event of the log is hashed over.

``hash = sha256(canonical envelope without "hash")``. The envelope's keys in canonical order are at, data, prev,
seq, stream, turn, type, v, and ``data`` already is canonical JSON, so the envelope is put together from bytes and
``data`` is never decoded; the result equals ``keys.canonical`` of the same object (a property test holds the two
together).

Where one field ends and the next begins must not depend on what a field holds, or bytes could wander from one field
to another under the same hash. Hence ``at`` has exactly 24 characters, ``type`` is an ASCII identifier, the other
fields are integers or known before the event is read.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import sha256

from setpoint.kernel.keys import canonical

AT_CHARS = 24  # 2026-01-01T00:00:00.000Z
INT_MAX = 2**53 - 1  # what every JSON reader holds exactly

_AT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


def envelope_template(stream: str) -> bytes:
    """The envelope of any event of ``stream``, to be filled by ``%`` with (at, data, prev, seq, turn, type, v)."""
    name = canonical(stream).replace(b"%", b"%%")
    return b'{"at":"%b","data":%b,"prev":"%b","seq":%d,"stream":' + name + b',"turn":%d,"type":"%b","v":%d}'


def link(template: bytes, seq: int, turn: int, type: str, v: int, at: str, prev: str, data: bytes) -> bytes:
    """The raw digest of one event of the stream ``template`` was made for."""
    return sha256(template % (at.encode(), data, prev.encode(), seq, turn, type.encode(), v)).digest()


def hash_text(raw: bytes) -> str:
    """``sha256:<hex>`` of a raw digest, as envelopes carry it."""
    return "sha256:" + raw.hex()


def hash_raw(text: str) -> bytes:
    """The raw digest of ``sha256:<hex>``. ValueError on anything else."""
    prefix, _, digits = text.partition(":")
    raw = bytes.fromhex(digits)
    if prefix != "sha256" or len(raw) != 32 or digits != raw.hex():
        raise ValueError(f"{text!r} is not sha256: and 64 lower-case hex digits")
    return raw


def is_unambiguous(type: str, at: str) -> bool:
    """Whether these fields keep the envelope's boundaries where they belong. Cheap enough for every read."""
    return len(at) == AT_CHARS and type.isascii() and type.isidentifier()


def refuse_malformed(turn: int, type: str, v: int, at: str, data: bytes) -> None:
    """ValueError when an event could not be stored so that it reads back as the same envelope."""
    if not _AT.fullmatch(at):
        raise ValueError(f"event time {at!r} is not RFC 3339 UTC with milliseconds (2026-01-01T00:00:00.000Z)")
    if not (type.isascii() and type.isidentifier()):
        raise ValueError(f"event type {type!r} is not an ASCII identifier")
    if not (0 <= turn <= INT_MAX and 0 <= v <= INT_MAX):
        raise ValueError(f"turn {turn} and v {v} of a {type} must lie in 0..2^53-1")
    if data[:1] != b"{" or data[-1:] != b"}":
        raise ValueError(f"data of a {type} is not a canonical JSON object: {data[:40]!r}")


def instant(epoch_ms: int) -> str:
    """RFC 3339 UTC with milliseconds, as ``at`` carries it."""
    seconds, ms = divmod(epoch_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"
