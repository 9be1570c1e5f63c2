"""Canonical bytes, digests and idempotency keys.

Canonical JSON is RFC 8785 restricted to strings, integers, booleans, null, lists and objects with string
keys. Floats are refused: money is micro-dollars, time is milliseconds. Under that restriction sorted keys
and no white space are byte-equal to JCS for ASCII keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

DIGEST_PREFIX = "sha256:"
_sorted: Final = msgspec.json.Encoder(order="sorted")
"""Byte-equal to ``canonical`` for values it accepts, faster, and blind to floats: only for values that hold none."""


def canonical(value: Any) -> bytes:
    """The canonical UTF-8 bytes of ``value``. Raises TypeError on floats and other types."""
    _refuse_floats(value)
    return _json.encode(value).encode("utf-8", "surrogatepass")


_json: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _refuse_floats(value: Any) -> None:
    if type(value) in (str, int):  # most of what there is, and the checks below are slow
        return
    if isinstance(value, float):
        raise TypeError(f"{value!r} is a float; canonical JSON holds integers only (use milli- or micro-units)")
    if isinstance(value, Mapping):
        for key, item in value.items():  # type: ignore[reportUnknownVariableType]
            if not isinstance(key, str):
                raise TypeError(f"object key {key!r} is not a string")
            _refuse_floats(item)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for item in value:  # type: ignore[reportUnknownVariableType]
            _refuse_floats(item)


def digest_bytes(data: bytes) -> str:
    """``sha256:<hex>`` of raw bytes."""
    return DIGEST_PREFIX + hashlib.sha256(data).hexdigest()


def digest(value: Any) -> str:
    """``sha256:<hex>`` of the canonical bytes of ``value``."""
    return digest_bytes(canonical(value))


def digest_exact(value: Any) -> str:
    """``digest`` of plain JSON known to hold no fraction, no half surrogate and no integer beyond 64 bits; faster."""
    return digest_bytes(_sorted.encode(value))


def short_digest(text: str) -> str:
    """128 bits of a ``sha256:`` digest: enough to tell calls of one trajectory apart, half the bytes in every event."""
    return text.removeprefix(DIGEST_PREFIX)[:32]


def call_key(trajectory_id: str, turn: int, ordinal: int, tool: str, arguments: Any) -> str:
    """The idempotency key of one call: a digest of inputs fixed before the model's text could matter.

    ``arguments`` hold no fractions (``phases.p2_proposal.parse.exact``). A key the model supplies is never used.
    """
    return digest_exact([trajectory_id, turn, ordinal, tool, arguments])
