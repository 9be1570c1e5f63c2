"""The event log in one SQLite file: write-ahead log, every durable commit synced.

Appends go through group commit (``group_commit``, ``sqlite_batch``); leases, new streams and the inbox through the
same connection under the same lock. A lease and a new stream need no sync of their own: the write-ahead log keeps
order, so whatever was appended under a lease carries the lease down with it, and after a power cut no owner from
before the cut is alive. Reads see everything this process has appended, durable or not.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from setpoint.adapters.stores.beside import refuse_unfit
from setpoint.adapters.stores.file_system import VOLATILE, file_system_of
from setpoint.adapters.stores.group_commit import GroupCommit, Job
from setpoint.adapters.stores.leases import (
    closed,
    held_by_other,
    is_held,
    stream_exists,
    superseded,
    unknown_stream,
)
from setpoint.adapters.stores.sealing import Row, corrupt, seal, verified
from setpoint.adapters.stores.sqlite_batch import BatchWriter, roll_back
from setpoint.adapters.stores.sqlite_faults import fault_of
from setpoint.adapters.stores.sqlite_schema import connect, open_store
from setpoint.kernel.chain import envelope_template, hash_raw, hash_text, instant
from setpoint.kernel.errors import LogCorrupt, StoreFault
from setpoint.kernel.keys import digest_bytes
from setpoint.ports.log import ZERO_HASH, Beside, Checkpoint, Draft, Head, Lease, Stored, StreamInfo

READ_ROWS = 512  # events fetched at a time: no read transaction outlives a fetch, so none holds a checkpoint back

MAIL_AGE_S = 0.020  # how late a message of another process may be seen; every trajectory looks every turn

_READ = "SELECT seq, turn, type, v, at, hash, data FROM event WHERE stream=? AND seq>? AND seq<=? ORDER BY seq LIMIT ?"


class SqliteLog:
    """The Log port over one file. Safe to use from any thread; close it, or the write-ahead log stays behind."""

    def __init__(self, path: str, now: Callable[[], int]) -> None:
        """Open or make the store at ``path``; ``now`` is epoch milliseconds. StoreFault says why it cannot be."""
        self.path = path
        self._now = now
        self._batches = BatchWriter(open_store(path), path)
        self.durability = "process" if file_system_of(path) in VOLATILE else "power"
        try:
            self._reader = connect(path)
        except BaseException:
            self._batches.connection.close()
            raise
        self._reader.execute("PRAGMA query_only=1")
        self._reading = threading.Lock()
        self._commits = GroupCommit(self._batches.write, path)
        self._templates: dict[str, bytes] = {}
        self._leased: set[str] = set()  # streams this store may append to; one alone has no company to wait for
        self._mail: tuple[float, int] = (0.0, -1)  # when the newest message of all was looked for, and its row
        self._no_mail: dict[str, tuple[int, int]] = {}  # by stream: nothing after this position at that newest row
        self._is_closed = False

    @property
    def syncs(self) -> int:
        """Commits so far that waited for the disk. A checkpoint of the write-ahead log syncs besides, rarely."""
        return self._batches.syncs

    # Streams and events.

    def create(self, stream: str, kind: str) -> None:
        at = instant(self._now())
        try:
            with self._transaction("creating a log", synced=False) as db:
                db.execute(
                    "INSERT INTO stream (stream_id, kind, seq, hash, fence, expires_at_ms, created_at, updated_at)"
                    " VALUES (?, ?, 0, ?, 0, 0, ?, ?)",
                    (stream, kind, hash_raw(ZERO_HASH), at, at),
                )
        except sqlite3.IntegrityError as error:
            raise stream_exists(stream, self.path) from error

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
        """As the port says. A cancelled append may still go down: read the head before the next one.

        Statements run on tables that the user made in this file. They may read and change the rows of such tables and
        nothing else: not Setpoint's tables, not the schema, no PRAGMA. As always in SQLite unless a connection asks
        for it, foreign keys are not enforced.
        """
        self._refuse_closed()
        if beside is not None:
            refuse_unfit(beside, durable)
        if failure := self._commits.take_failure(lease.stream, lease.fence):
            raise failure
        template = self._templates.get(lease.stream)
        if template is None:
            template = self._templates[lease.stream] = envelope_template(lease.stream)
        rows, head = seal(template, expected, events)
        digested = [(hash_raw(digest_bytes(content)), content) for content in payloads] if payloads else ()
        job = Job(lease.stream, lease.fence, expected, head, rows, digested, checkpoint, None, beside)
        if (
            durable
            and len(self._leased) == 1
            and not (beside and beside.statements)  # who knows how long they take
            and self._commits.try_write(job)
        ):
            if failure := self._commits.take_failure(lease.stream, lease.fence):
                raise failure
            await asyncio.sleep(0)  # whatever else the loop holds has its turn, as it would during a sync elsewhere
        elif durable or self._commits.is_full:
            await self._commits.wait_for(job)
        else:
            self._commits.enter(job)
        if beside is not None and beside.wake_ms > 0:
            # Whoever goes to sleep looks once more for what was delivered meanwhile, and sees it.
            self._mail = (0.0, -1)
        return head

    async def flush(self, stream: str) -> None:
        """As the port says; also tells a failure of an earlier append that nobody waited for."""
        self._refuse_closed()
        await self._commits.flush(stream)

    def head(self, stream: str) -> Head:
        row = self._one("SELECT seq, hash FROM stream WHERE stream_id=?", stream)
        return Head(row[0], hash_text(row[1]))

    def read(self, stream: str, after: int = 0, *, prev: str = ZERO_HASH) -> Iterator[Stored]:
        """As the port says, up to the head as it is now."""
        id, seq, raw, last = self._one(
            "SELECT id, seq, hash, (SELECT max(seq) FROM event WHERE stream=stream.id) FROM stream WHERE stream_id=?",
            stream,
        )
        if (last or 0) > seq:
            raise corrupt(stream, seq + 1, f"events go on to {last}, beyond its head at {seq}")
        return verified(stream, self._rows(stream, id, after, seq), Head(after, prev), Head(seq, hash_text(raw)))

    def payload(self, digest: str) -> bytes:
        sql, raw = "SELECT bytes FROM payload WHERE hash=?", hash_raw(digest)
        rows = self._fetch(sql, raw) or self._select(sql, raw)  # what is in the file by its digest waits for no queue
        if not rows:
            raise StoreFault(f"{self.path} holds no payload {digest}", hint="It may have been moved out by retention.")
        content: bytes = rows[0][0]
        if digest_bytes(content) != digest:
            raise LogCorrupt(f"payload {digest} in {self.path} has digest {digest_bytes(content)}")
        return content

    def checkpoint(self, stream: str) -> Checkpoint | None:
        """The newest; LogCorrupt when it does not stand on the event it names."""
        row = self._one(
            "SELECT c.seq, c.hash, c.record, coalesce(e.hash, s.hash) FROM stream s"
            " LEFT JOIN checkpoint c ON c.stream=s.id LEFT JOIN event e ON e.stream=c.stream AND e.seq=c.seq"
            " WHERE s.stream_id=? ORDER BY c.seq DESC LIMIT 1",
            stream,
        )
        seq, raw, record, event_raw = row
        if seq is None:
            return None
        if raw != event_raw:
            at_event = hash_text(event_raw)
            raise corrupt(stream, seq, f"its checkpoint at {seq} has hash {hash_text(raw)}, the event {at_event}")
        return Checkpoint(seq, hash_text(raw), record)

    def streams(self, kind: str | None = None) -> list[StreamInfo]:
        rows = self._select(
            "SELECT stream_id, kind, seq, created_at, updated_at FROM stream WHERE ?1 IS NULL OR kind=?1"
            " ORDER BY id DESC",
            kind,
        )
        return [StreamInfo(*row) for row in rows]

    # Leases. ``claim`` is the only place where a fence changes.

    def claim(self, stream: str, owner: str, ttl_ms: int) -> Lease:
        with self._transaction("claiming a lease", synced=False) as db:
            now = self._now()
            id, fence, holder, expires = self._lease_row(db, stream)
            if holder != owner and is_held(holder, expires, now):
                raise held_by_other(stream, holder or "", fence, expires - now)
            lease = Lease(stream, fence + 1, owner, now + ttl_ms)
            db.execute(
                "UPDATE stream SET fence=?, owner=?, expires_at_ms=? WHERE id=?",
                (lease.fence, owner, lease.expires_at_ms, id),
            )
            self._batches.expect(stream, id)
        self._leased.add(stream)
        return lease

    def renew(self, lease: Lease, ttl_ms: int) -> Lease:
        """The same lease for longer, also when it had expired and nobody took it; LeaseLost when somebody did."""
        with self._transaction("renewing a lease", synced=False) as db:
            id, fence, holder, _ = self._lease_row(db, lease.stream)
            if fence != lease.fence or holder is None:
                raise superseded(lease.stream, lease.fence, fence, holder)
            expires = self._now() + ttl_ms
            db.execute("UPDATE stream SET expires_at_ms=? WHERE id=?", (expires, id))
        return Lease(lease.stream, lease.fence, lease.owner, expires)

    def release(self, lease: Lease) -> None:
        """Free the lease once everything appended under it is written; a lease that was lost stays as it is.

        Nothing of the stream is left in memory: a store serves any number of streams that wait.
        """
        self._commits.settle(lease.stream)
        with self._transaction("releasing a lease", synced=False) as db:
            db.execute(
                "UPDATE stream SET owner=NULL, expires_at_ms=0 WHERE stream_id=? AND fence=?",
                (lease.stream, lease.fence),
            )
            self._batches.forget(lease.stream)
        self._leased.discard(lease.stream)
        self._templates.pop(lease.stream, None)
        self._no_mail.pop(lease.stream, None)

    def holder(self, stream: str) -> Lease | None:
        rows = self._fetch("SELECT fence, owner, expires_at_ms FROM stream WHERE stream_id=?", stream)
        if not rows:
            raise unknown_stream(stream, self.path)
        fence, owner, expires = rows[0]
        return Lease(stream, fence, owner, expires) if is_held(owner, expires, self._now()) else None

    # Outside effects and wake-up times.

    def claimant(self, key: str) -> str | None:
        """As the port says. Claims go down with durable appends only, so one that stands is in the file: a look, taken
        before every effect, waits for nothing that is queued, and hurries no commit that others could share.
        """
        rows = self._fetch("SELECT s.stream_id FROM effect_claim c JOIN stream s ON s.id=c.stream WHERE c.key=?", key)
        return rows[0][0] if rows else None

    def due(self, kind: str, now_ms: int, count: int) -> list[tuple[str, int]]:
        return self._select(
            "SELECT stream_id, wake_ms FROM stream WHERE kind=? AND wake_ms<=? ORDER BY wake_ms, stream_id LIMIT ?",
            kind,
            now_ms,
            count,
        )

    def next_wake(self, kind: str) -> int | None:
        rows = self._select(
            "SELECT wake_ms FROM stream WHERE kind=? AND wake_ms IS NOT NULL ORDER BY wake_ms LIMIT 1", kind
        )
        return rows[0][0] if rows else None

    # The mailbox.

    def deliver(self, stream: str, key: str, data: bytes) -> bool:
        with self._transaction("delivering a message", synced=True) as db:
            (id, *_) = self._lease_row(db, stream)
            inserted = db.execute(
                "INSERT INTO inbox SELECT ?1, 1 + coalesce(max(id), 0), ?2, ?3 FROM inbox WHERE stream=?1"
                " ON CONFLICT (stream, key) DO NOTHING",
                (id, key, data),
            )
            if inserted.rowcount == 1:
                db.execute("UPDATE stream SET wake_ms=0 WHERE id=? AND wake_ms IS NOT NULL", (id,))
        self._mail = (0.0, -1)
        return inserted.rowcount == 1

    def inbox(self, stream: str, after: int = 0) -> list[tuple[int, str, bytes]]:
        """A look costs no sync and waits for none, so it may be taken every turn; the same holds for ``holder``.

        It mostly costs no statement either: one look at the whole mailbox serves every stream for ``MAIL_AGE_S``. A
        statement gives up the interpreter lock, and a hundred trajectories that each do so every turn share no sync.
        """
        newest = self._newest_mail()
        if self._no_mail.get(stream) == (after, newest):
            return []
        rows = self._fetch(
            "SELECT i.id, i.key, i.data FROM stream s LEFT JOIN inbox i ON i.stream=s.id AND i.id>?2"
            " WHERE s.stream_id=?1 ORDER BY i.id",
            stream,
            after,
        )
        if not rows:
            raise unknown_stream(stream, self.path)
        found = [row for row in rows if row[0] is not None]
        if not found and stream in self._leased:
            self._no_mail[stream] = (after, newest)
        return found

    def _newest_mail(self) -> int:
        """The row of the newest message of any stream, as of at most ``MAIL_AGE_S`` ago; rows are never removed."""
        looked_at, newest = self._mail
        now = time.monotonic()
        if now - looked_at > MAIL_AGE_S:
            newest = self._fetch("SELECT coalesce(max(rowid), 0) FROM inbox")[0][0]
            self._mail = (now, newest)
        return newest

    async def close(self) -> None:
        """Write what is queued and close the file. Raises what an append that nobody waited for ran into."""
        if self._is_closed:
            return
        self._is_closed = True
        failure = self._commits.close()
        with self._reading:
            self._reader.close()
        with self._commits.writing:
            self._batches.connection.close()  # checkpoints and removes the write-ahead log
        if failure is not None:
            raise failure

    # How statements run.

    @contextmanager
    def _transaction(self, doing: str, *, synced: bool) -> Iterator[sqlite3.Connection]:
        """A small write transaction on the writer's connection, rolled back when the body raises."""
        self._refuse_closed()
        db = self._batches.connection
        with self._commits.writing:
            try:
                if not synced:
                    db.execute("PRAGMA synchronous=NORMAL")
                try:
                    db.execute("BEGIN IMMEDIATE")
                    yield db
                    db.execute("COMMIT")
                    self._batches.syncs += synced
                finally:
                    roll_back(db)
                    if not synced:
                        db.execute("PRAGMA synchronous=FULL")
            except sqlite3.IntegrityError:
                raise
            except sqlite3.Error as error:
                raise fault_of(error, self.path, doing) from error

    def _lease_row(self, db: sqlite3.Connection, stream: str) -> tuple[int, int, str | None, int]:
        row = db.execute("SELECT id, fence, owner, expires_at_ms FROM stream WHERE stream_id=?", (stream,)).fetchone()
        if row is None:
            raise unknown_stream(stream, self.path)
        return row

    def _select(self, sql: str, *values: object) -> list[Any]:
        """Rows, after everything this process has appended was written."""
        self._refuse_closed()
        self._commits.settle()
        return self._fetch(sql, *values)

    def _one(self, sql: str, stream: str) -> tuple[Any, ...]:
        """The row of a stream, after everything this process has appended to it was written."""
        self._refuse_closed()
        self._commits.settle(stream)
        rows = self._fetch(sql, stream)
        if not rows:
            raise unknown_stream(stream, self.path)
        return rows[0]

    def _fetch(self, sql: str, *values: object) -> list[Any]:
        """Rows as the file has them."""
        try:
            with self._reading:
                self._refuse_closed()
                return self._reader.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise fault_of(error, self.path, "reading the log") from error

    def _rows(self, stream: str, id: int, after: int, until: int) -> Iterator[Row]:
        """Rows in order. Where the file itself is damaged, the rows before it still come, one by one."""
        limit = READ_ROWS
        while after < until:
            try:
                rows = self._fetch(_READ, id, after, until, limit)
            except LogCorrupt as damage:
                if limit > 1:
                    limit = 1
                    continue
                what = f"event {after + 1} cannot be read: {damage.message}"
                raise corrupt(stream, after + 1, what) from damage
            if not rows:
                return
            yield from rows
            after = rows[-1][0]

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise closed(self.path)
