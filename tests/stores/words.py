"""The small words the tests of the stores are written in."""

from __future__ import annotations

from setpoint.ports.log import ZERO_HASH, Draft, Head, Lease, Log

AT = "2026-01-01T00:00:00.000Z"
EMPTY = Head(0, ZERO_HASH)
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
