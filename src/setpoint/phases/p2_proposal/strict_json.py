"""JSON read strictly, with the exact place of the first thing that is wrong.

Decoding marks what JSON allows and we do not (a key twice, NaN, numbers that cannot be kept); the walk copies the
value into plain JSON and turns the first mark into a ``Flaw`` with its JSON pointer. Nothing here raises.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final, cast

from setpoint.kernel import limits
from setpoint.kernel.proposal import Malformed

KEY_CHARS_MAX: Final = 128
"""How much of a key a pointer shows."""
EXCERPT_CHARS_MAX: Final = 160
"""How much of the offending text a complaint quotes; it goes into a prompt."""
INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1
"""The log's codec and SQLite hold 64-bit integers."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first thing that is wrong. ``reason`` is one of ``Malformed.reason``."""

    reason: str
    pointer: str
    message: str

    def complaint(self, ordinal: int, name: str) -> Malformed:
        return Malformed(ordinal, name, self.reason, self.pointer, self.message)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded value, null included."""

    value: Any


@dataclass(frozen=True, slots=True)
class _BadNumber:
    text: str


class _Twice(dict[str, Any]):
    """An object in which a key occurred twice: ``key`` is the first such."""

    key: str = ""


def decode(text: str, pointer: str, what: str) -> Decoded | Flaw:
    """The value of a JSON text, marks included; a ``Flaw`` with the decoder's own words when it is not JSON."""
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        return Flaw("not_json", pointer, f"{what} is not JSON: {error}. Near: {quote(_near(text, error.pos))}.")
    except RecursionError:
        return _too_deep(pointer)
    return Decoded(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) == len(pairs):
        return fields
    marked = _Twice(fields)
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            marked.key = key
            break
        seen.add(key)
    return marked


def _integer(text: str) -> int | _BadNumber:
    # int() of more than 4300 digits raises; 64 bits have at most 19 digits and a sign.
    return int(text) if len(text) <= 20 else _BadNumber(text)


def _fraction(text: str) -> float | _BadNumber:
    number = float(text)
    return number if math.isfinite(number) else _BadNumber(text)


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_BadNumber, parse_int=_integer, parse_float=_fraction
)


class Walk:
    """Copies a decoded value into plain JSON, or gives the first flaw with its exact place.

    Bounded by depth and by total size, so that a decoded value with cycles or shared parts ends too.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = limits.PROPOSAL_BYTES_MAX

    def object(self, value: dict[Any, Any], pointer: str, depth: int = 1) -> dict[str, Any] | Flaw:
        """``value`` as a plain object. ``depth`` counts the arguments object itself as 1."""
        flaw = self._enter(depth, pointer) or twice(value, pointer)
        if flaw is not None:
            return flaw
        plain: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                return Flaw("not_json", pointer, f"An object key is {kind_of(key)}; JSON keys are strings.")
            read_key = self._text(key, pointer)
            if isinstance(read_key, Flaw):
                return read_key
            read = self._value(item, join(pointer, key), depth + 1)
            if isinstance(read, Flaw):
                return read
            plain[key] = read
        return plain

    def _list(self, value: list[Any] | tuple[Any, ...], pointer: str, depth: int) -> list[Any] | Flaw:
        flaw = self._enter(depth, pointer)
        if flaw is not None:
            return flaw
        plain: list[Any] = []
        for n, item in enumerate(value):
            read = self._value(item, f"{pointer}/{n}", depth + 1)
            if isinstance(read, Flaw):
                return read
            plain.append(read)
        return plain

    def _value(self, value: Any, pointer: str, depth: int) -> Any:
        match value:
            case dict():
                return self.object(cast("dict[Any, Any]", value), pointer, depth)
            case list() | tuple():
                return self._list(cast("list[Any]", value), pointer, depth)
            case str():
                return self._text(value, pointer)
            case None | bool():
                return self._spend(4, pointer) or value
            case int() | float() | _BadNumber():
                return self._spend(8, pointer) or _number(value, pointer)
            case _:
                return Flaw("not_json", pointer, f"This is {kind_of(value)}, which JSON cannot hold.")

    def _text(self, value: str, pointer: str) -> str | Flaw:
        try:
            size = len(value.encode("utf-8"))
        except UnicodeEncodeError as error:
            message = f"The text holds half a surrogate pair at character {error.start}: {quote(value)}."
            return Flaw("not_text", pointer, message)
        return self._spend(size + 2, pointer) or value

    def _enter(self, depth: int, pointer: str) -> Flaw | None:
        return _too_deep(pointer) if depth > limits.ARGUMENT_DEPTH_MAX else self._spend(2, pointer)

    def _spend(self, size: int, pointer: str) -> Flaw | None:
        self._left -= size
        if self._left >= 0:
            return None
        return Flaw("too_large", pointer, f"The arguments have more than {limits.PROPOSAL_BYTES_MAX} bytes.")


def _number(value: int | float | _BadNumber, pointer: str) -> int | float | Flaw:
    """JSON knows one kind of number: 1.0 is the integer 1."""
    if isinstance(value, _BadNumber):
        return Flaw("bad_number", pointer, f"{quote(value.text)} is not a number that can be kept exactly.")
    if isinstance(value, float):
        if not math.isfinite(value):
            return Flaw("bad_number", pointer, f"{value!r} is not a JSON number.")
        if not value.is_integer():
            return value
        value = int(value)
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        return Flaw("bad_number", pointer, "The number does not fit 64 bits; give it as a string.")
    return value


def twice(value: dict[Any, Any], pointer: str) -> Flaw | None:
    """The complaint when ``value`` was decoded from an object that names a key twice."""
    if not isinstance(value, _Twice):
        return None
    message = f"The key {quote(value.key)} occurs twice in one object; it is not clear which one is meant."
    return Flaw("duplicate_key", join(pointer, value.key), message)


def _too_deep(pointer: str) -> Flaw:
    return Flaw("too_deep", pointer, f"Nested more than {limits.ARGUMENT_DEPTH_MAX} levels deep.")


def exact_pointer(pointer: str, key: str) -> str:
    """``pointer`` one key further (RFC 6901), whatever the key: for digests."""
    return f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"


def join(pointer: str, key: str) -> str:
    """``pointer`` one key further, for people and logs: a long or unprintable key is clipped and escaped."""
    return exact_pointer(pointer, clip(key, KEY_CHARS_MAX))


def quote(text: str) -> str:
    return f"'{clip(text, EXCERPT_CHARS_MAX)}'"


def clip(text: str, chars_max: int) -> str:
    """Printable and bounded: control characters and lone surrogates are shown as escapes."""
    clipped = text if len(text) <= chars_max else text[:chars_max] + "…"
    if clipped.isprintable():
        return clipped
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in clipped)


def _near(text: str, position: int) -> str:
    start = max(0, position - EXCERPT_CHARS_MAX // 2)
    return text[start : start + EXCERPT_CHARS_MAX]


def kind_of(value: Any) -> str:
    """What a value is, in words for a complaint."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float() | _BadNumber():
            return "a number"
        case str():
            return f"the string {quote(value)}"
        case list() | tuple():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a Python {type(value).__name__}"  # type: ignore[reportUnknownArgumentType]
