"""The real clock."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u


class SystemClock:
    """Wall clock for stamps, monotonic clock for durations: a wall clock that jumps moves no deadline."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    def new_id(self, prefix: str) -> str:
        """``prefix-`` and 16 characters: 9 of time in milliseconds, 7 of chance. Sorts by time."""
        return f"{prefix}-{_base32(self.now_ms(), 9)}{_base32(secrets.randbits(35), 7)}"


def _base32(number: int, width: int) -> str:
    digits: list[str] = []
    for _ in range(width):
        number, rest = divmod(number, 32)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))
