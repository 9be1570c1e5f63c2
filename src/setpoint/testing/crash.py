"""Logs that watch, and logs that stop the process in mid-story."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from setpoint.ports.log import ZERO_HASH, Beside, Draft, Head, Lease, Log, Stored


class Crash(BaseException):
    """The process is gone. Derives from BaseException: nothing may catch it and carry on."""


class CrashingLog:
    """A log whose owner dies as soon as exactly ``events`` events of it are stored.

    An append that crosses the mark is cut there: the events before the mark are stored, those after are not. A real
    store never tears an append, so this is harsher than a power cut. What the mark leaves out of an append loses its
    payloads too late to matter: payloads are stored first, as a content-addressed store may.
    """

    def __init__(self, inner: Log, events: int | None) -> None:
        self._inner = inner
        self.left = events
        self.durability = inner.durability

    async def append(
        self,
        lease: Lease,
        expected: Head,
        events: Sequence[Draft],
        *,
        durable: bool = True,
        payloads: Sequence[bytes] = (),
        checkpoint: bytes | None = None,
        beside: Beside | None = None,
    ) -> Head:
        left = self.left
        if left is None or len(events) < left:
            head = await self._inner.append(
                lease, expected, events, durable=durable, payloads=payloads, checkpoint=checkpoint, beside=beside
            )
            if left is not None:
                self.left = left - len(events)
            return head
        if left and not (beside and beside.statements and left < len(events)):  # the user's rows stand with them all
            whole = checkpoint if left == len(events) else None
            part = beside if left == len(events) else _claims_of(beside)
            await self._inner.append(
                lease, expected, events[:left], durable=True, payloads=payloads, checkpoint=whole, beside=part
            )
        self.left = 0
        raise Crash(f"the owner of {lease.stream} died after {expected.seq + left} events")

    async def flush(self, stream: str) -> None:
        if self.left == 0:
            raise Crash("dead")
        await self._inner.flush(stream)

    def read(self, stream: str, after: int = 0, *, prev: str = ZERO_HASH) -> Iterator[Stored]:
        return self._inner.read(stream, after, prev=prev)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _claims_of(beside: Beside | None) -> Beside | None:
    """What may be down when not all events are: a claim with half its events is harsher than none."""
    return None if beside is None else Beside(claims=beside.claims)


class DiaryLog:
    """A log that writes down, in order, what became durable beside whatever else a test notes in ``diary``.

    An event counts as durable when ``append(durable=True)`` or ``flush`` has returned.
    """

    def __init__(self, inner: Log) -> None:
        self._inner = inner
        self.durability = inner.durability
        self.diary: list[str] = []
        self.appends: list[tuple[bool, tuple[str, ...]]] = []
        self._waiting: list[str] = []

    async def append(
        self,
        lease: Lease,
        expected: Head,
        events: Sequence[Draft],
        *,
        durable: bool = True,
        payloads: Sequence[bytes] = (),
        checkpoint: bytes | None = None,
        beside: Beside | None = None,
    ) -> Head:
        head = await self._inner.append(
            lease, expected, events, durable=durable, payloads=payloads, checkpoint=checkpoint, beside=beside
        )
        self.appends.append((durable, tuple(draft.type for draft in events)))
        self._waiting += [draft.type for draft in events]
        if durable:
            self._settle()
        return head

    async def flush(self, stream: str) -> None:
        await self._inner.flush(stream)
        self._settle()

    def _settle(self) -> None:
        self.diary += self._waiting
        self._waiting = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
