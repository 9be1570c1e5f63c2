"""The small words the tests of the stores are written in."""

from __future__ import annotations

from setpoint.adapters.stores import open_log
from setpoint.ports.log import Log
from setpoint.testing.conformance.log_words import (
    AT,
    EMPTY,
    OTHER,
    OWNER,
    TTL_MS,
    Clock,
    Run,
    begin,
    draft,
    drafts,
    run_with,
    texts,
)

__all__ = [
    "AT",
    "EMPTY",
    "OTHER",
    "OWNER",
    "TTL_MS",
    "Clock",
    "Run",
    "begin",
    "draft",
    "drafts",
    "open_by_clock",
    "runner",
    "texts",
]


def open_by_clock(url: str, clock: Clock) -> Log:
    """The log of ``url`` whose leases ``clock`` times, in Postgres too, where else the database's clock does."""
    if not url.startswith("postgresql:"):
        return open_log(url, clock)
    from setpoint.adapters.stores.postgres import PostgresLog

    return PostgresLog(url, clock, lease_now=clock)


def runner(url: str, clock: Clock) -> Run:
    """Runs ``async body(log)`` against a store that is opened for it and closed."""
    return lambda body: run_with(lambda now: open_by_clock(url, now), clock, body)
