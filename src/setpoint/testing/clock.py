"""A clock that moves only when told to: no test of a wait, a timer or a deadline sleeps."""

from __future__ import annotations

EPOCH_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""


class FakeClock:
    """The Clock port by hand. ``sleep_ms`` returns at once and moves both clocks on; ``slept`` holds every wait.

    ``tick_ms`` passes with every look at the monotonic clock, so that durations are not all zero.
    """

    def __init__(self, now_ms: int = EPOCH_MS, tick_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0
        self._tick_ms = tick_ms
        self._ids = 0
        self.slept: list[int] = []

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        self.advance(self._tick_ms)
        return self._monotonic_ms

    async def sleep_ms(self, ms: int) -> None:
        self.slept.append(ms)
        self.advance(ms)

    def new_id(self, prefix: str) -> str:
        """``prefix-`` and a counter: the same identifiers in every run."""
        self._ids += 1
        return f"{prefix}-{self._ids:016d}"

    def advance(self, ms: int) -> None:
        self._now_ms += ms
        self._monotonic_ms += ms
