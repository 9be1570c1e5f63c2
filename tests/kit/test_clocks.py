"""The real clock and the one by hand keep the promises of ``setpoint.ports.clock``."""

from __future__ import annotations

import pytest

from setpoint.adapters.clock import SystemClock
from setpoint.ports.clock import Clock
from setpoint.testing import FakeClock
from setpoint.testing.conformance import ClockSuite


class TestSystemClock(ClockSuite):
    @pytest.fixture
    def clock(self) -> Clock:
        return SystemClock()


class TestFakeClock(ClockSuite):
    @pytest.fixture
    def clock(self) -> Clock:
        return FakeClock()


class TestFakeClockThatTicks(ClockSuite):
    @pytest.fixture
    def clock(self) -> Clock:
        return FakeClock(tick_ms=2)
