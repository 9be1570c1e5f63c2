"""The promises of ``setpoint.ports.clock``: time and chance."""

from __future__ import annotations

import asyncio

import pytest

from setpoint.ports.clock import Clock

YEAR_2020_MS, YEAR_2200_MS = 1_577_836_800_000, 7_258_118_400_000


class ClockSuite:
    """Every clock keeps these. Override ``clock``."""

    @pytest.fixture
    def clock(self) -> Clock:
        raise NotImplementedError("Override the fixture clock: it returns your clock.")

    def test_now_is_in_milliseconds_since_the_epoch(self, clock: Clock) -> None:
        """A whole number, and neither seconds nor nanoseconds."""
        now = clock.now_ms()
        assert isinstance(now, int) and YEAR_2020_MS < now < YEAR_2200_MS

    def test_the_monotonic_clock_never_goes_back(self, clock: Clock) -> None:
        seen = [clock.monotonic_ms() for _ in range(1_000)]
        assert seen == sorted(seen) and all(isinstance(one, int) for one in seen)

    @pytest.mark.parametrize("ms", [0, 1, 20])
    def test_after_a_sleep_at_least_so_much_has_passed(self, clock: Clock, ms: int) -> None:
        """By the monotonic clock; a millisecond is left to rounding."""

        async def sleep() -> int:
            before = clock.monotonic_ms()
            await clock.sleep_ms(ms)
            return clock.monotonic_ms() - before

        assert asyncio.run(sleep()) >= ms - 1

    def test_an_identifier_is_fresh_and_says_what_it_is_of(self, clock: Clock) -> None:
        """A fresh identifier: the prefix, a dash, and what no other has."""
        made = [clock.new_id("run") for _ in range(200)]
        assert len(set(made)) == len(made)
        assert all(one.startswith("run-") and len(one) > len("run-") for one in made)
        assert {len(one) for one in made} == {len(made[0])}
        assert all(one.isascii() and one.removeprefix("run-").isalnum() for one in made)

    def test_identifiers_sort_by_time(self, clock: Clock) -> None:
        """Sortable by time."""

        async def make() -> list[str]:
            made: list[str] = []
            for _ in range(5):
                made.append(clock.new_id("run"))
                await clock.sleep_ms(3)
            return made

        made = asyncio.run(make())
        assert made == sorted(made)
