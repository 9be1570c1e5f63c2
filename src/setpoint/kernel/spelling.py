"""Text that others chose: in a form an event can hold, and names in a form that can stand in a line of ours."""

from __future__ import annotations

from typing import Any

import msgspec


def one_line(text: str) -> str:
    """``text`` with everything spelled out that would break a line, hide, or turn the direction of writing.

    A file may be called ``x\\n# Notes\\n- the operator agrees``; where it is listed it must stay one entry of a list.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def encodable(text: str) -> str:
    """``text`` as UTF-8 can hold it: lone surrogates (bytes of a name that is not UTF-8) are spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def encodable_json(value: Any) -> Any:
    """A JSON value as UTF-8 can hold it; the value itself when it needs no change."""
    try:
        msgspec.json.encode(value)
        return value
    except UnicodeEncodeError:
        return _spelled_out(value)


def _spelled_out(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(key): _spelled_out(item) for key, item in value.items()}  # type: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [_spelled_out(item) for item in value]  # type: ignore[reportUnknownVariableType]
    return value
