"""What proposers share when they turn something received into a ``Reply``: text, calls, money, usage.

A reply lies in the log as it came. So texts hold no lone surrogates (no log or file could keep them), arguments are
JSON text (fractions included, digit for digit), and money is a whole number of micro-dollars or an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from setpoint.kernel.proposal import RawCall, Usage

USD_MAX: Final = 1_000_000
"""No single model call costs a million dollars; a larger report is a wrong unit."""
TOKENS_MAX: Final = 10**12
"""A larger count is a broken report; it would also not fit the log's 64-bit sums."""


def plain_text(text: str) -> str:
    """``text`` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def raw_call(name: Any, arguments: Any, call_id: str = "") -> RawCall:
    """A call whose arguments were received as a *decoded value*.

    The value becomes JSON text, so a string that was given where an object belongs stays recognisable as one: parsing
    finds text in quotes and says ``double_encoded``.
    """
    named = plain_text(name) if isinstance(name, str) else name if isinstance(name, int | None) else None
    return RawCall(named, json.dumps(arguments), plain_text(call_id))


def raw_call_text(name: str, arguments: str, call_id: str = "") -> RawCall:
    """A call whose arguments were received as JSON text; they are kept as they came."""
    return RawCall(plain_text(name), plain_text(arguments), plain_text(call_id))


def stable_json(schema: Mapping[str, Any]) -> Any:
    """``schema`` with its keys in canonical order at every level, so that its bytes on the wire never change."""
    return json.loads(json.dumps(schema, sort_keys=True))


def micros_of_usd(text: str) -> int:
    """Dollars in decimal notation -> whole micro-dollars, exactly. ValueError says what is wrong."""
    try:
        micros = Decimal(text.strip()) * 1_000_000
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an amount of dollars, such as 0.004") from None
    if not micros.is_finite() or not 0 <= micros <= USD_MAX * 1_000_000:
        raise ValueError(f"{text!r} dollars is not between 0 and {USD_MAX}")
    if micros != micros.to_integral_value():
        raise ValueError(f"{text!r} dollars is finer than a micro-dollar (0.000001)")
    return int(micros)


def token_count(value: Any) -> int:
    """A provider's count. ValueError when it is not a whole number from 0 to ``TOKENS_MAX``; None counts as 0."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TOKENS_MAX:
        raise ValueError(f"{value!r} is not a token count")
    return value


def usage_of(report: Mapping[str, Any]) -> Usage:
    """A usage report with the fields of ``Usage``, or ``usd`` (decimal text or number) for its money. ValueError."""
    unknown = sorted(set(report) - {"input_tokens", "output_tokens", "cached_tokens", "usd", "usd_micros"})
    if unknown:
        raise ValueError(f"usage has no field {unknown[0]!r}")
    micros = report.get("usd_micros")
    if micros is not None:
        micros = token_count(micros)
    if report.get("usd") is not None:
        micros = micros_of_usd(str(report["usd"]))
    return Usage(
        input_tokens=token_count(report.get("input_tokens")),
        output_tokens=token_count(report.get("output_tokens")),
        cached_tokens=token_count(report.get("cached_tokens")),
        usd_micros=micros,
    )
