"""The event log in memory: the same answers as a file, and nothing left when the process ends.

For tests, and for runs whose log is exported instead of kept. Everything is written at once, so an append that does
not ask for durability fails at once too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from setpoint.adapters.stores.beside import refuse_unfit
from setpoint.adapters.stores.leases import (
    claimed_by_other,
    closed,
    head_moved,
    held_by_other,
    is_held,
    stream_exists,
    superseded,
    unknown_stream,
)
from setpoint.adapters.stores.sealing import Row, seal, verified
from setpoint.kernel.chain import envelope_template, instant
from setpoint.kernel.errors import LogCorrupt, StatementRefused, StoreFault
from setpoint.kernel.keys import digest_bytes
from setpoint.ports.log import (
    NO_WAKE,
    WAKE_AS_BEFORE,
    ZERO_HASH,
    Beside,
    Checkpoint,
    Draft,
    Head,
    Lease,
    Stored,
    StreamInfo,
)

_WHERE = "the store in memory"


@dataclass(slots=True)
class _Stream:
    kind: str
    template: bytes
    created_at: str
    updated_at: str
    head: Head = field(default_factory=lambda: Head(0, ZERO_HASH))
    rows: list[Row] = field(default_factory=list[Row])
    checkpoint: Checkpoint | None = None
    fence: int = 0
    owner: str | None = None
    expires_at_ms: int = 0
    wake_ms: int | None = None
    inbox: list[tuple[int, str, bytes]] = field(default_factory=list[tuple[int, str, bytes]])


class MemoryLog:
    """The Log port without a disk. Safe to use from any thread."""

    durability = "none"
    syncs = 0

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._lock = threading.RLock()
        self._streams: dict[str, _Stream] = {}
        self._payloads: dict[str, bytes] = {}
        self._claims: dict[str, str] = {}
        self._is_closed = False

    def create(self, stream: str, kind: str) -> None:
        with self._lock:
            self._refuse_closed()
            if stream in self._streams:
                raise stream_exists(stream, _WHERE)
            at = instant(self._now())
            self._streams[stream] = _Stream(kind, envelope_template(stream), at, at)

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
        if beside is not None:
            refuse_unfit(beside, durable)
        with self._lock:
            held = self._stream(lease.stream)
            rows, head = seal(held.template, expected, events)
            if held.fence != lease.fence or held.owner is None:
                raise superseded(lease.stream, lease.fence, held.fence, held.owner)
            if held.head != expected:
                raise head_moved(lease.stream, expected, held.head)
            if beside is not None:
                self._put_beside(lease.stream, held, beside)
            held.rows.extend(rows)
            held.head = head
            if rows:
                held.updated_at = rows[-1][4]
            self._payloads.update((digest_bytes(content), content) for content in payloads)
            if checkpoint is not None:
                held.checkpoint = Checkpoint(head.seq, head.hash, checkpoint)
            return head

    def _put_beside(self, stream: str, held: _Stream, beside: Beside) -> None:
        if beside.statements:
            raise StatementRefused(
                f"{_WHERE} has no tables; nothing was written", hint="Use an SQLite or Postgres store."
            )
        for key in beside.claims:
            if self._claims.get(key, stream) != stream:
                raise claimed_by_other(stream, key, self._claims[key])
        self._claims.update(dict.fromkeys(beside.claims, stream))
        for key in beside.releases:
            if self._claims.get(key) == stream:
                del self._claims[key]
        if beside.wake_ms != WAKE_AS_BEFORE:
            has_news = 0 <= beside.heard < len(held.inbox) and beside.wake_ms != NO_WAKE
            held.wake_ms = None if beside.wake_ms == NO_WAKE else 0 if has_news else beside.wake_ms

    async def flush(self, stream: str) -> None:
        with self._lock:
            self._refuse_closed()

    def head(self, stream: str) -> Head:
        with self._lock:
            return self._stream(stream).head

    def read(self, stream: str, after: int = 0, *, prev: str = ZERO_HASH) -> Iterator[Stored]:
        with self._lock:
            held = self._stream(stream)
            return verified(stream, held.rows[after:], Head(after, prev), held.head)

    def payload(self, digest: str) -> bytes:
        with self._lock:
            self._refuse_closed()
            content = self._payloads.get(digest)
        if content is None:
            raise StoreFault(f"{_WHERE} holds no payload {digest}")
        if digest_bytes(content) != digest:
            raise LogCorrupt(f"payload {digest} in {_WHERE} has digest {digest_bytes(content)}")
        return content

    def checkpoint(self, stream: str) -> Checkpoint | None:
        with self._lock:
            return self._stream(stream).checkpoint

    def streams(self, kind: str | None = None) -> list[StreamInfo]:
        with self._lock:
            self._refuse_closed()
            return [
                StreamInfo(name, held.kind, held.head.seq, held.created_at, held.updated_at)
                for name, held in reversed(self._streams.items())
                if kind is None or held.kind == kind
            ]

    def claim(self, stream: str, owner: str, ttl_ms: int) -> Lease:
        with self._lock:
            held = self._stream(stream)
            now = self._now()
            if held.owner != owner and is_held(held.owner, held.expires_at_ms, now):
                raise held_by_other(stream, held.owner or "", held.fence, held.expires_at_ms - now)
            held.fence += 1
            held.owner, held.expires_at_ms = owner, now + ttl_ms
            return Lease(stream, held.fence, owner, held.expires_at_ms)

    def renew(self, lease: Lease, ttl_ms: int) -> Lease:
        with self._lock:
            held = self._stream(lease.stream)
            if held.fence != lease.fence or held.owner is None:
                raise superseded(lease.stream, lease.fence, held.fence, held.owner)
            held.expires_at_ms = self._now() + ttl_ms
            return Lease(lease.stream, lease.fence, lease.owner, held.expires_at_ms)

    def release(self, lease: Lease) -> None:
        with self._lock:
            held = self._stream(lease.stream)
            if held.fence == lease.fence:
                held.owner, held.expires_at_ms = None, 0

    def holder(self, stream: str) -> Lease | None:
        with self._lock:
            held = self._stream(stream)
            if held.owner is None or not is_held(held.owner, held.expires_at_ms, self._now()):
                return None
            return Lease(stream, held.fence, held.owner, held.expires_at_ms)

    def claimant(self, key: str) -> str | None:
        with self._lock:
            self._refuse_closed()
            return self._claims.get(key)

    def due(self, kind: str, now_ms: int, count: int) -> list[tuple[str, int]]:
        return [(name, at) for name, at in self._wakes(kind) if at <= now_ms][:count]

    def next_wake(self, kind: str) -> int | None:
        return next((at for _, at in self._wakes(kind)), None)

    def _wakes(self, kind: str) -> list[tuple[str, int]]:
        with self._lock:
            self._refuse_closed()
            waits = [(s.wake_ms, name) for name, s in self._streams.items() if s.kind == kind and s.wake_ms is not None]
        return [(name, at) for at, name in sorted(waits)]

    def deliver(self, stream: str, key: str, data: bytes) -> bool:
        with self._lock:
            held = self._stream(stream)
            if any(key == delivered for _, delivered, _ in held.inbox):
                return False
            held.inbox.append((len(held.inbox) + 1, key, data))
            if held.wake_ms is not None:
                held.wake_ms = 0
            return True

    def inbox(self, stream: str, after: int = 0) -> list[tuple[int, str, bytes]]:
        with self._lock:
            return self._stream(stream).inbox[after:]

    async def close(self) -> None:
        with self._lock:
            self._is_closed = True

    def _stream(self, stream: str) -> _Stream:
        self._refuse_closed()
        held = self._streams.get(stream)
        if held is None:
            raise unknown_stream(stream, _WHERE)
        return held

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise closed(_WHERE)
