"""Which calls a recorded reply holds, as digests: a permit for anything else was never proposed.

Deliberately lenient where the runtime is strict: what the runtime refused as malformed may be counted as a call here.
That can only miss a forged permit of a malformed call, never fail an honest log.
"""

from __future__ import annotations

import json
from typing import Any, Final

from .canonical import DIGEST_PREFIX, digest

CALL_DIGEST_CHARS: Final = 32


def call_digest(tool: str, arguments: dict[str, Any]) -> str:
    """The digest of a call as events carry it: its first 128 bits, bare.

    Fractions count as their shortest text, with their places beside them.
    """
    places: list[str] = []
    form = _without_fractions(arguments, "", places)
    return digest([tool, [form, places] if places else form]).removeprefix(DIGEST_PREFIX)[:CALL_DIGEST_CHARS]


def is_call(claimed: str, tool: str, arguments: dict[str, Any]) -> bool:
    """Whether ``claimed`` is the digest of this call."""
    try:
        return call_digest(tool, arguments) == claimed
    except (TypeError, RecursionError):  # deeper than any call
        return False


def call_digests(reply: dict[str, Any]) -> set[str]:
    """Digests of every call that may be read out of a reply document."""
    found: set[str] = set()
    calls = reply.get("calls")
    raw = _decoded(reply.get("raw"))
    for entry in [*(calls if isinstance(calls, list) else []), *_raw_calls(raw)]:
        if not isinstance(entry, dict):
            continue
        name, arguments = entry.get("name"), entry.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _decoded(arguments)
        if isinstance(name, str) and isinstance(arguments, dict):
            try:
                found.add(call_digest(name, arguments))
            except (TypeError, ValueError, RecursionError):  # too deep, or no JSON value: not a call
                continue
    return found


def _raw_calls(raw: Any) -> list[Any]:
    if isinstance(raw, list):
        return raw
    if isinstance(raw, dict):
        calls = raw.get("calls", [raw])
        return calls if isinstance(calls, list) else []
    return []


def _decoded(text: Any) -> Any:
    if not isinstance(text, str):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _without_fractions(value: Any, place: str, places: list[str]) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)  # JSON knows one kind of number
        case float():
            places.append(place)
            return repr(value)
        case dict():
            return {key: _without_fractions(value[key], f"{place}/{_escaped(key)}", places) for key in sorted(value)}
        case list():
            return [_without_fractions(item, f"{place}/{index}", places) for index, item in enumerate(value)]
        case _:
            return value


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
