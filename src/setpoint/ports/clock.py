"""Time and chance, so that replay can stand in for both."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...

    def monotonic_ms(self) -> int: ...

    async def sleep_ms(self, ms: int) -> None: ...

    def new_id(self, prefix: str) -> str:
        """A fresh identifier, sortable by time."""
        ...
