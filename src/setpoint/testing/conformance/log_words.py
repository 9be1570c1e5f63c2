"""The small words the Log suites are written in, and the fixtures they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import pytest

from setpoint.ports.log import ZERO_HASH, Draft, Head, Lease, Log

AT = "2026-01-01T00:00:00.000Z"
EMPTY = Head(0, ZERO_HASH)
OWNER = "elsewhere/some-boot/4711/1"
OTHER = "elsewhere/some-boot/4712/1"
TTL_MS = 10_000


class Clock:
    """What times leases and stamps: ``clock()`` is ``clock.ms``, epoch milliseconds."""

    def __init__(self) -> None:
        self.ms = 1_767_225_600_000

    def __call__(self) -> int:
        return self.ms


OpenLog = Callable[[Clock], Log]
Body = Callable[[Any], Coroutine[Any, Any, Any]]
Run = Callable[[Body], Any]


class LogBench:
    """What an author of a log fills in, and what the tests ask for."""

    has_processes: ClassVar[bool] = True
    """Whether several processes can open one store. False for a store in memory."""

    @pytest.fixture
    def open_log(self) -> OpenLog:
        """``open_log(clock)`` opens this test's store, which is empty the first time; called again, the same store.

        ``clock()`` is the time of leases and of ``StreamInfo``.
        """
        raise NotImplementedError("Override the fixture open_log: it returns a function that opens your log.")

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def run(self, open_log: OpenLog, clock: Clock) -> Run:
        """Runs ``async body(log)`` against a store that is opened for it and closed."""
        return lambda body: run_with(open_log, clock, body)


def run_with(open_log: OpenLog, clock: Clock, body: Body) -> Any:
    async def whole() -> Any:
        log = open_log(clock)
        try:
            return await body(log)
        finally:
            await log.close()

    return asyncio.run(whole())


def draft(text: str = "", turn: int = 1, type: str = "TurnStarted") -> Draft:
    return Draft(turn, type, b'{"text":"%b"}' % text.encode(), AT)


def drafts(*texts: str) -> list[Draft]:
    return [draft(text) for text in texts]


def texts(log: Log, stream: str) -> list[str]:
    return [event.data[9:-2].decode() for event in log.read(stream)]


def begin(log: Log, stream: str = "t-1", owner: str = OWNER) -> Lease:
    log.create(stream, "trajectory")
    return log.claim(stream, owner, TTL_MS)
