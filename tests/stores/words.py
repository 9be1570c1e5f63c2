"""The small words the tests of the stores are written in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from setpoint.adapters.stores import open_log
from setpoint.ports.log import ZERO_HASH, Draft, Head, Lease, Log

AT = "2026-01-01T00:00:00.000Z"
EMPTY = Head(0, ZERO_HASH)
Run = Callable[[Callable[[Any], Coroutine[Any, Any, Any]]], Any]
OWNER = "elsewhere/some-boot/4711/1"
OTHER = "elsewhere/some-boot/4712/1"
TTL_MS = 10_000


class Clock:
    def __init__(self) -> None:
        self.ms = 1_767_225_600_000

    def __call__(self) -> int:
        return self.ms


def draft(text: str = "", turn: int = 1, type: str = "TurnStarted") -> Draft:
    return Draft(turn, type, b'{"text":"%b"}' % text.encode(), AT)


def drafts(*texts: str) -> list[Draft]:
    return [draft(text) for text in texts]


def texts(log: Log, stream: str) -> list[str]:
    return [event.data[9:-2].decode() for event in log.read(stream)]


def begin(log: Log, stream: str = "t-1", owner: str = OWNER) -> Lease:
    log.create(stream, "trajectory")
    return log.claim(stream, owner, TTL_MS)


def open_by_clock(url: str, clock: Clock) -> Log:
    """The log of ``url`` whose leases ``clock`` times, in Postgres too, where else the database's clock does."""
    if not url.startswith("postgresql:"):
        return open_log(url, clock)
    from setpoint.adapters.stores.postgres import PostgresLog

    return PostgresLog(url, clock, lease_now=clock)


def runner(url: str, clock: Clock) -> Run:
    """Runs ``async body(log)`` against a store that is opened for it and closed."""

    def run_body(body: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def whole() -> Any:
            log = open_by_clock(url, clock)
            try:
                return await body(log)
            finally:
                await log.close()

        return asyncio.run(whole())

    return run_body
