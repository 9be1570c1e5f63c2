"""Canonical bytes and strict reading: one document has one spelling, so every byte of a bundle is bound.

The rule is the runtime's (RFC 8785 restricted to strings, integers, booleans, null, lists and objects); it is written
again here because this package imports nothing of the runtime. A test holds the two equal.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from typing import Any, Final, NoReturn

DIGEST_PREFIX: Final = "sha256:"
DEPTH_MAX: Final = 64
"""Deeper nesting than any bundle holds; bounds recursion on hostile input."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")


def canonical(value: Any) -> bytes:
    """The canonical UTF-8 bytes of ``value``. Raises TypeError on floats and other types."""
    _refuse_other_types(value, 0)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def _refuse_other_types(value: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise TypeError(f"nested deeper than {DEPTH_MAX}")
    match value:
        case str() | bool() | int() | None:
            return
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise TypeError(f"object key {key!r} is not a string")
                _refuse_other_types(item, depth + 1)
        case list() | tuple():
            for item in value:
                _refuse_other_types(item, depth + 1)
        case _:
            raise TypeError(f"{value!r} is a {type(value).__name__}; canonical JSON holds integers and text only")


def parse(data: bytes) -> Any:
    """The value whose canonical bytes are exactly ``data``.

    Raises ValueError for anything else: other spelling of the same value (white space, order, escapes, repeated keys),
    floats, invalid UTF-8, trailing bytes.
    """
    try:
        value = json.loads(
            data.decode("utf-8", "surrogatepass"), parse_float=_refuse_number, parse_constant=_refuse_number
        )
        spelled = canonical(value)
    except (UnicodeDecodeError, RecursionError, TypeError) as error:
        raise ValueError(f"not canonical JSON: {error}") from error
    if spelled != data:
        at = next(
            (i for i, (a, b) in enumerate(zip(spelled, data, strict=False)) if a != b), min(len(spelled), len(data))
        )
        raise ValueError(f"not canonical JSON: byte {at} is spelled another way than the canonical form")
    return value


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"not canonical JSON: the number {text} is not an integer")


def digest_bytes(data: bytes) -> str:
    """``sha256:<hex>`` of raw bytes."""
    return DIGEST_PREFIX + hashlib.sha256(data).hexdigest()


def digest(value: Any) -> str:
    """``sha256:<hex>`` of the canonical bytes of ``value``."""
    return digest_bytes(canonical(value))


def is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.match(value) is not None


def to_base64(data: bytes) -> str:
    return base64.standard_b64encode(data).decode("ascii")


def from_base64(text: str) -> bytes:
    """Decode standard base64; ValueError unless ``text`` is the one spelling ``to_base64`` gives."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not base64: {error}") from error
    if to_base64(data) != text:
        raise ValueError("not base64: unused bits are set or padding is wrong")
    return data
