"""Which route is asked: first to last, next on failure or stall. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from setpoint.kernel import limits
from setpoint.kernel.record import Record

TRANSIENT = frozenset({"overloaded", "rate_limited", "broken_stream", "timeout"})
"""Worth another try on the same route after a pause; everything else goes to the next route at once."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The same route again after ``wait_ms``."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class NextRoute:
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class NoRoute:
    reason: str


def after_failure(record: Record, kind: str, retry_after_ms: int) -> Retry | NextRoute | NoRoute:
    """What to do after a failed model call; ``record`` has the failure folded in.

    A server that asks for a longer pause than ``RETRY_AFTER_MS_MAX`` is left for the next route: no wait without a
    bound (law L7).
    """
    patient = retry_after_ms <= limits.RETRY_AFTER_MS_MAX
    if patient and kind in TRANSIENT and record.route_failures <= limits.ROUTE_RETRIES_MAX:
        backoff = min(limits.BACKOFF_MS_BASE * 2 ** (record.route_failures - 1), limits.BACKOFF_MS_MAX)
        return Retry(max(backoff, retry_after_ms))
    return next_route(record, kind)


def next_route(record: Record, reason: str) -> NextRoute | NoRoute:
    if record.route_index + 1 < len(record.models):
        return NextRoute(record.route_index + 1, reason)
    return NoRoute(f"{record.models[record.route_index]} failed ({reason})")
