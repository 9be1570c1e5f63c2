"""Durations, sizes and money as a person writes them, and as integers.

Inside the runtime every number is an integer: milliseconds, bytes, micro-dollars. A unit is always written, so that
``60`` can never mean seconds here and milliseconds there. Each ``format_x`` is the canonical spelling of its value:
``parse_x(format_x(n)) == n``.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

DURATION_PATTERN: Final = r"^[1-9][0-9]{0,8}(ms|s|m|h|d)$"
SIZE_PATTERN: Final = r"^[1-9][0-9]{0,11}(B|K|M|G|T|Ki|Mi|Gi|Ti)$"
USD_PATTERN: Final = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"

SIZE_MAX: Final = 1 << 60
"""An exbibyte: every size fits a signed 64-bit number with room for sums."""
USD_MICROS_MAX: Final = 10**15 - 1

_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {
    "B": 1,
    **{unit: 1000**power for power, unit in enumerate(("K", "M", "G", "T"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)},
}
_NUMBER_AND_UNIT: Final = re.compile(r"([0-9]+)([A-Za-z]+)")


def parse_duration_ms(text: str) -> int:
    """Milliseconds of ``500ms``, ``60s``, ``20m``, ``24h`` or ``1d``. ValueError says what is wrong."""
    return _scaled(text, DURATION_PATTERN, _MS, "a duration such as 500ms, 60s, 20m, 24h or 1d")


def format_duration(ms: int) -> str:
    """The shortest exact spelling: ``1_200_000`` is ``20m``."""
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if ms % _MS[unit] == 0)
    return f"{ms // _MS[unit]}{unit}"


def parse_size(text: str) -> int:
    """Bytes of ``512B``, ``64Ki``, ``10M`` or ``1Gi``. ValueError says what is wrong."""
    size = _scaled(text, SIZE_PATTERN, _BYTES, "a size such as 64Ki, 10M or 1Gi")
    if size > SIZE_MAX:
        raise ValueError(f"{text!r} is {size} bytes, above the largest size of {SIZE_MAX} bytes")
    return size


def format_size(size: int) -> str:
    """The shortest exact spelling in binary units: ``65536`` is ``64Ki``."""
    unit = next(unit for unit in ("Ti", "Gi", "Mi", "Ki", "B") if size % _BYTES[unit] == 0)
    return f"{size // _BYTES[unit]}{unit}"


def parse_usd_micros(text: str) -> int:
    """Micro-dollars of a decimal amount, exactly; never through a float. ValueError says what is wrong."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an amount such as 2.50") from None
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{text!r} is not an amount of zero or more")
    if amount >= Decimal(10) ** 9:
        raise ValueError(f"{text!r} is above the largest amount of 999999999.999999")
    micros = amount * 1_000_000
    if micros != micros.to_integral_value():
        raise ValueError(f"{text!r} is finer than a micro-dollar (six decimals)")
    return int(micros)


def format_usd(micros: int) -> str:
    """The shortest exact decimal: ``2_000_000`` is ``2.0``."""
    whole, rest = divmod(micros, 1_000_000)
    return f"{whole}.{f'{rest:06d}'.rstrip('0') or '0'}"


def _scaled(text: str, pattern: str, factors: dict[str, int], wanted: str) -> int:
    # fullmatch, since `$` also matches before a trailing newline
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{text!r} is not {wanted}")
    match = _NUMBER_AND_UNIT.fullmatch(text)
    assert match is not None
    return int(match[1]) * factors[match[2]]
