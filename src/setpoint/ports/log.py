"""Append at an expected position; read; lease.

One stream per trajectory. The unit of durability is ``append``: all events of one call go down together or not at
all. Events chain by hash: ``hash = sha256(canonical envelope without "hash")`` where ``prev`` is the hash of the
event before (or 64 zeros). The stored ``data`` is canonical JSON text, so the chain is checked on bytes.

Promises every adapter keeps (each sentence has a conformance test):

- ``append`` with another head than the stream has raises HeadMoved; with a stale fence raises LeaseLost; in both
  cases nothing was written.
- The fence alone decides: an expired lease that nobody took still appends; a released one does not.
- ``durable=True`` returns only once the events (and every earlier one of the stream) survive a power cut;
  ``durable=False`` returns at once, keeps order, and becomes durable with the next durable append or ``flush``.
  What it ran into is raised there at the latest, by the next ``append`` under the same lease, ``flush`` or ``close``.
- Reads see everything this process has appended. A stream that does not exist raises UnknownTrajectory.
- A malformed draft (``at``, ``type``, ``turn``, ``data``) raises ValueError before anything is queued.
- Concurrent durable appends of many streams share syncs.
- ``read`` verifies the chain and raises LogCorrupt naming stream and seq; nothing is repaired.
- ``beside`` goes down with the events or not at all: a key in ``claims`` that another stream holds raises
  DuplicateEffect and nothing was written; one that this stream holds already is no change. A statement that changes
  another number of rows than it must raises StatementRefused, likewise. The database's own words for a statement it
  cannot run are in the StatementRefused, too.
- A claimed key stays until its stream releases it. ``claimant`` tells who holds a key.
- ``due`` lists streams whose wake-up time has come, earliest first; a message delivered to a stream with a wake-up time
  brings it to 0. A stream without one is never listed.
- A wake-up time that goes down with ``heard`` becomes 0 when a message behind that position has come: whoever goes to
  sleep overlooks none, wherever it dies.
- A lease is exclusive; ``claim`` on a lease whose owner process is provably dead succeeds at once, on a live one raises
  LeaseLost; each claim raises the fencing token.
- A full disk, a locked or read-only database raises StoreFault, and nothing acknowledged is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

ZERO_HASH = "sha256:" + "0" * 64


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event to append: the store adds seq, prev and hash. ``data`` is canonical JSON."""

    turn: int
    type: str
    data: bytes
    at: str  # RFC 3339 UTC with milliseconds, e.g. 2026-01-01T00:00:00.000Z
    v: int = 1


class Stored(msgspec.Struct, frozen=True, gc=False):
    """An event as the log holds it."""

    stream: str
    seq: int
    turn: int
    type: str
    v: int
    at: str
    prev: str
    hash: str
    data: bytes


class Statement(msgspec.Struct, frozen=True):
    """SQL on tables of the user's own in the store's database, run inside the append's transaction.

    ``parameters`` are named (``:name`` in ``sql``). ``rows`` is how many rows it must change.
    """

    sql: str
    parameters: dict[str, str | int | float | bytes | None] = {}
    rows: int = 1


WAKE_AS_BEFORE = -1
NO_WAKE = -2
"""The stream is over: nothing will ever have to be done for it by itself."""
WAKE_BY_MESSAGE = 2**53 - 1
"""Only a message wakes it."""


class Beside(msgspec.Struct, frozen=True):
    """What goes down in the same transaction as the events of an append."""

    claims: tuple[str, ...] = ()  # keys of outside effects that become this stream's: at most one stream holds a key
    releases: tuple[str, ...] = ()  # keys that this stream gives up; one it does not hold is no change
    wake_ms: int = WAKE_AS_BEFORE  # when the stream next wants attention, epoch ms; 0 is now
    statements: tuple[Statement, ...] = ()
    heard: int = -1  # the last message ``wake_ms`` was decided on, by its position; -1: whatever may have come


class Head(msgspec.Struct, frozen=True, gc=False):
    """Position after the last event: the number of events and the last hash."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Lease:
    stream: str
    fence: int
    owner: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folded record at a position; ``hash`` is the event hash there, so a checkpoint cannot be moved."""

    seq: int
    hash: str
    record: bytes


@dataclass(frozen=True, slots=True)
class StreamInfo:
    stream: str
    kind: str
    seq: int
    created_at: str
    updated_at: str


class Log(Protocol):
    durability: str  # power | process | none

    def create(self, stream: str, kind: str) -> None:
        """A new empty stream; StoreFault when it exists."""
        ...

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
        """Append in one transaction, with content-addressed payloads and optionally a checkpoint at the new head.

        Claims and statements need ``durable=True`` (else ValueError): whoever acts on them must know that they stand.

        Cancelled while it waits, it may still go down: read the head before the next one. A fault whose ``effect`` is
        ``in_doubt`` (the disk failed while it was syncing) says the same.
        """
        ...

    async def flush(self, stream: str) -> None:
        """Make everything appended so far durable."""
        ...

    def head(self, stream: str) -> Head: ...

    def read(self, stream: str, after: int = 0, *, prev: str = ZERO_HASH) -> Iterator[Stored]:
        """Verified events with seq > ``after``; ``prev`` is the hash the first must chain to."""
        ...

    def payload(self, digest: str) -> bytes:
        """Bytes of ``sha256:...``; StoreFault when unknown, LogCorrupt when they do not match."""
        ...

    def checkpoint(self, stream: str) -> Checkpoint | None: ...

    def streams(self, kind: str | None = None) -> list[StreamInfo]:
        """Newest first."""
        ...

    def claim(self, stream: str, owner: str, ttl_ms: int) -> Lease: ...

    def renew(self, lease: Lease, ttl_ms: int) -> Lease: ...

    def release(self, lease: Lease) -> None: ...

    def holder(self, stream: str) -> Lease | None:
        """Who holds the lease now, None when nobody does."""
        ...

    def claimant(self, key: str) -> str | None:
        """The stream that holds the key of an outside effect, None when nobody does."""
        ...

    def due(self, kind: str, now_ms: int, count: int) -> list[tuple[str, int]]:
        """At most ``count`` streams of a kind whose wake-up time has come by ``now_ms``, with it, earliest first."""
        ...

    def next_wake(self, kind: str) -> int | None:
        """The earliest wake-up time of any stream of that kind, None when there is none."""
        ...

    # A mailbox for requests from outside the owner: pause, cancel, kill, answer. Durable, ordered, deduplicated by key.
    def deliver(self, stream: str, key: str, data: bytes) -> bool:
        """False when a message of that key was delivered before."""
        ...

    def inbox(self, stream: str, after: int = 0) -> list[tuple[int, str, bytes]]: ...

    async def close(self) -> None: ...
