"""Time and chance, so that replay can stand in for both."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...

    def monotonic_ms(self) -> int:
        """For durations: never goes back, whatever is done to the wall clock."""
        ...

    async def sleep_ms(self, ms: int) -> None:
        """At least so much passes by the monotonic clock."""
        ...

    def new_id(self, prefix: str) -> str:
        """A fresh identifier, ``prefix-`` and letters and digits of one length, sortable by time."""
        ...
