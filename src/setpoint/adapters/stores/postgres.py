"""The event log in a Postgres database, for workers of many machines.

Appends go through group commit (``group_commit``, ``postgres_batch``): one thread, one session, one transaction for
all that came in meanwhile. Leases, new streams and the inbox go through the same session under the same lock. Every
one of them is synced, leases too: a worker outlives a crash of the server, and a fence that was given twice would be
none. Reads have a session of their own and see everything this process has appended, durable or not.

Leases are timed by the database's clock, so that workers whose clocks differ agree when one has expired.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg

from setpoint.adapters.stores.beside import refuse_unfit
from setpoint.adapters.stores.group_commit import GroupCommit, Job
from setpoint.adapters.stores.leases import (
    closed,
    held_by_other,
    is_held,
    stream_exists,
    superseded,
    unknown_stream,
)
from setpoint.adapters.stores.postgres_batch import BEGIN, BatchWriter
from setpoint.adapters.stores.postgres_faults import fault_of
from setpoint.adapters.stores.postgres_schema import enter_schema
from setpoint.adapters.stores.postgres_session import Session
from setpoint.adapters.stores.sealing import Row, corrupt, seal, verified
from setpoint.kernel.chain import envelope_template, hash_raw, hash_text, instant
from setpoint.kernel.errors import LogCorrupt, StoreFault
from setpoint.kernel.keys import digest_bytes
from setpoint.ports.log import ZERO_HASH, Beside, Checkpoint, Draft, Head, Lease, Stored, StreamInfo

READ_ROWS = 512  # events fetched at a time
MAIL_AGE_S = 0.020  # how late a message of another process may be seen; every trajectory looks every turn

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_LEASE = f"SELECT id, fence, owner, expires_at_ms, {_NOW} FROM setpoint.stream WHERE stream_id = %s"
_READ = (
    "SELECT seq, turn, type, v, at, hash, data FROM setpoint.event WHERE stream = %s AND seq > %s AND seq <= %s"
    " ORDER BY seq LIMIT %s"
)


class PostgresLog:
    """The Log port over one database. Safe to use from any thread; close it, or two sessions stay open."""

    def __init__(self, url: str, now: Callable[[], int], *, lease_now: Callable[[], int] | None = None) -> None:
        """Connect, and make the tables where they are missing. UsageFault, StoreFault.

        ``now`` (epoch milliseconds) dates new streams. ``lease_now`` None: the database's clock times the leases.
        """
        self._now = now
        self._lease_now = lease_now
        writer = Session(url)
        self.where = writer.where
        try:
            self._reader = Session(url, read_only=True)
            try:
                enter_schema(writer.db, self.where)
                self.durability = _durability(writer.db)
            except BaseException:
                self._reader.close()
                raise
        except psycopg.Error as error:
            writer.close()
            raise fault_of(error, self.where, "opening it") from error
        except BaseException:
            writer.close()
            raise
        self._batches = BatchWriter(writer)
        self._reading = threading.Lock()
        self._commits = GroupCommit(self._batches.write, self.where)
        self._templates: dict[str, bytes] = {}
        self._leased: set[str] = set()  # streams this store may append to
        self._mail: tuple[float, dict[str, int]] = (0.0, {})  # when looked at, the newest message of each leased stream
        self._is_closed = False

    @property
    def syncs(self) -> int:
        """Commits of appends and messages so far."""
        return self._batches.commits

    # Streams and events.

    def create(self, stream: str, kind: str) -> None:
        at = instant(self._now())
        with self._transaction("creating a log") as db:
            made = db.execute(
                "INSERT INTO setpoint.stream (stream_id, kind, seq, hash, fence, expires_at_ms, created_at, updated_at)"
                " VALUES (%s, %s, 0, %s, 0, 0, %s, %s) ON CONFLICT (stream_id) DO NOTHING",
                [stream, kind, hash_raw(ZERO_HASH), at, at],
            )
            if made.rowcount == 0:
                raise stream_exists(stream, self.where)

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

        Statements run in this database as the user of the store's URL; ``postgres_statements`` says what they may be.
        A row that another session has locked is waited for ``LOCK_MS`` at most, by all appends of this process.
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
        digested = [(hash_raw(digest_bytes(content)), content) for content in payloads]
        job = Job(lease.stream, lease.fence, expected, head, rows, digested, checkpoint, None, beside)
        if durable or self._commits.is_full:
            await self._commits.wait_for(job)
        else:
            self._commits.enter(job)
        if beside is not None and beside.wake_ms > 0:
            # Whoever goes to sleep looks once more for what was delivered meanwhile, and sees it.
            self._mail = (0.0, {})
        return head

    async def flush(self, stream: str) -> None:
        """As the port says; also tells a failure of an earlier append that nobody waited for."""
        self._refuse_closed()
        await self._commits.flush(stream)

    def head(self, stream: str) -> Head:
        row = self._one("SELECT seq, hash FROM setpoint.stream WHERE stream_id = %s", stream)
        return Head(row[0], hash_text(row[1]))

    def read(self, stream: str, after: int = 0, *, prev: str = ZERO_HASH) -> Iterator[Stored]:
        """As the port says, up to the head as it is now."""
        id, seq, raw, last = self._one(
            "SELECT id, seq, hash, (SELECT max(e.seq) FROM setpoint.event e WHERE e.stream = s.id)"
            " FROM setpoint.stream s WHERE stream_id = %s",
            stream,
        )
        if (last or 0) > seq:
            raise corrupt(stream, seq + 1, f"events go on to {last}, beyond its head at {seq}")
        return verified(stream, self._rows(id, after, seq), Head(after, prev), Head(seq, hash_text(raw)))

    def payload(self, digest: str) -> bytes:
        rows = self._select("SELECT bytes FROM setpoint.payload WHERE hash = %s", hash_raw(digest))
        if not rows:
            raise StoreFault(f"{self.where} holds no payload {digest}", hint="It may have been moved out by retention.")
        content: bytes = rows[0][0]
        if digest_bytes(content) != digest:
            raise LogCorrupt(f"payload {digest} in {self.where} has digest {digest_bytes(content)}")
        return content

    def checkpoint(self, stream: str) -> Checkpoint | None:
        """The newest; LogCorrupt when it does not stand on the event it names."""
        seq, raw, record, event_raw = self._one(
            "SELECT c.seq, c.hash, c.record, coalesce(e.hash, s.hash) FROM setpoint.stream s"
            " LEFT JOIN setpoint.checkpoint c ON c.stream = s.id"
            " LEFT JOIN setpoint.event e ON e.stream = c.stream AND e.seq = c.seq"
            " WHERE s.stream_id = %s ORDER BY c.seq DESC LIMIT 1",
            stream,
        )
        if seq is None:
            return None
        if raw != event_raw:
            at_event = hash_text(event_raw)
            raise corrupt(stream, seq, f"its checkpoint at {seq} has hash {hash_text(raw)}, the event {at_event}")
        return Checkpoint(seq, hash_text(raw), record)

    def streams(self, kind: str | None = None) -> list[StreamInfo]:
        rows = self._select(
            "SELECT stream_id, kind, seq, created_at, updated_at FROM setpoint.stream"
            " WHERE %s::text IS NULL OR kind = %s ORDER BY id DESC",
            kind,
            kind,
        )
        return [StreamInfo(*row) for row in rows]

    # Leases. ``claim`` is the only place where a fence changes.

    def claim(self, stream: str, owner: str, ttl_ms: int) -> Lease:
        with self._transaction("claiming a lease") as db:
            id, fence, holder, expires, now = self._lease_row(db, stream)
            if holder != owner and is_held(holder, expires, now):
                raise held_by_other(stream, holder or "", fence, expires - now)
            lease = Lease(stream, fence + 1, owner, now + ttl_ms)
            db.execute(
                "UPDATE setpoint.stream SET fence = %s, owner = %s, expires_at_ms = %s WHERE id = %s",
                [lease.fence, owner, lease.expires_at_ms, id],
            )
        self._leased.add(stream)
        self._mail = (0.0, {})
        return lease

    def renew(self, lease: Lease, ttl_ms: int) -> Lease:
        """The same lease for longer, also when it had expired and nobody took it; LeaseLost when somebody did."""
        with self._transaction("renewing a lease") as db:
            id, fence, holder, _, now = self._lease_row(db, lease.stream)
            if fence != lease.fence or holder is None:
                raise superseded(lease.stream, lease.fence, fence, holder)
            expires = now + ttl_ms
            db.execute("UPDATE setpoint.stream SET expires_at_ms = %s WHERE id = %s", [expires, id])
        return Lease(lease.stream, lease.fence, lease.owner, expires)

    def release(self, lease: Lease) -> None:
        """Free the lease once everything appended under it is written; a lease that was lost stays as it is.

        Nothing of the stream is left in memory: a store serves any number of streams that wait.
        """
        self._commits.settle(lease.stream)
        with self._transaction("releasing a lease") as db:
            db.execute(
                "UPDATE setpoint.stream SET owner = NULL, expires_at_ms = 0 WHERE stream_id = %s AND fence = %s",
                [lease.stream, lease.fence],
            )
        self._leased.discard(lease.stream)
        self._templates.pop(lease.stream, None)

    def holder(self, stream: str) -> Lease | None:
        rows = self._fetch(_LEASE, stream)
        if not rows:
            raise unknown_stream(stream, self.where)
        _, fence, owner, expires, now = rows[0]
        return Lease(stream, fence, owner, expires) if is_held(owner, expires, self._lease_time(now)) else None

    # Outside effects and wake-up times.

    def claimant(self, key: str) -> str | None:
        rows = self._select(
            "SELECT s.stream_id FROM setpoint.effect_claim c JOIN setpoint.stream s ON s.id = c.stream"
            " WHERE c.key = %s",
            key,
        )
        return rows[0][0] if rows else None

    def due(self, kind: str, now_ms: int, count: int) -> list[tuple[str, int]]:
        return self._select(
            "SELECT stream_id, at_ms FROM setpoint.wake WHERE kind = %s AND at_ms <= %s"
            " ORDER BY at_ms, stream_id LIMIT %s",
            kind,
            now_ms,
            count,
        )

    def next_wake(self, kind: str) -> int | None:
        rows = self._select("SELECT at_ms FROM setpoint.wake WHERE kind = %s ORDER BY at_ms LIMIT 1", kind)
        return rows[0][0] if rows else None

    # The mailbox.

    def deliver(self, stream: str, key: str, data: bytes) -> bool:
        with self._transaction("delivering a message") as db:
            id = self._lease_row(db, stream)[0]  # and with it the lock under which the next number is the next
            inserted = db.execute(
                "INSERT INTO setpoint.inbox SELECT %(id)s, 1 + coalesce(max(id), 0), %(key)s, %(data)b"
                " FROM setpoint.inbox WHERE stream = %(id)s ON CONFLICT (stream, key) DO NOTHING",
                {"id": id, "key": key, "data": data},
            )
            if inserted.rowcount == 1:
                db.execute("UPDATE setpoint.wake SET at_ms = 0 WHERE stream = %s", [id])
        self._batches.commits += 1
        self._mail = (0.0, {})
        return inserted.rowcount == 1

    def inbox(self, stream: str, after: int = 0) -> list[tuple[int, str, bytes]]:
        """A look every turn is cheap: one at the mail of all leased streams serves each of them for ``MAIL_AGE_S``."""
        if stream in self._leased and self._newest_mail().get(stream, 0) <= after:
            return []
        rows = self._fetch(
            "SELECT i.id, i.key, i.data FROM setpoint.stream s"
            " LEFT JOIN setpoint.inbox i ON i.stream = s.id AND i.id > %s WHERE s.stream_id = %s ORDER BY i.id",
            after,
            stream,
        )
        if not rows:
            raise unknown_stream(stream, self.where)
        return [row for row in rows if row[0] is not None]

    def _newest_mail(self) -> dict[str, int]:
        """The number of the newest message of each leased stream that has any, as of at most ``MAIL_AGE_S`` ago."""
        looked_at, newest = self._mail
        now = time.monotonic()
        if now - looked_at > MAIL_AGE_S:
            newest = dict(
                self._fetch(
                    "SELECT s.stream_id, max(i.id) FROM setpoint.stream s JOIN setpoint.inbox i ON i.stream = s.id"
                    " WHERE s.stream_id = ANY(%s::text[]) GROUP BY s.stream_id",
                    list(self._leased),
                )
            )
            self._mail = (now, newest)
        return newest

    async def close(self) -> None:
        """Write what is queued and end both sessions. Raises what an append that nobody waited for ran into."""
        if self._is_closed:
            return
        self._is_closed = True
        failure = self._commits.close()
        with self._reading:
            self._reader.close()
        with self._commits.writing:
            self._batches.session.close()
        if failure is not None:
            raise failure

    # How statements run.

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[psycopg.Connection]:
        """A small transaction on the writer's session, taken back when the body raises."""
        self._refuse_closed()
        session = self._batches.session
        with self._commits.writing:
            is_committing = False
            try:
                db = self._begun()
                yield db
                is_committing = True
                db.execute("COMMIT")
            except psycopg.Error as error:
                session.clear()
                effect = "in_doubt" if is_committing and session.is_lost else "not_sent"
                raise fault_of(error, self.where, doing, effect=effect) from error
            except BaseException:
                session.clear()
                raise

    def _begun(self) -> psycopg.Connection:
        """The session with a transaction begun; a session that turns out to be lost is opened anew, once."""
        session = self._batches.session
        try:
            session.db.execute(BEGIN)
        except psycopg.OperationalError:
            session.clear()
            if not session.is_lost:
                raise
            session.db.execute(BEGIN)
        return session.db

    def _lease_row(self, db: psycopg.Connection, stream: str) -> tuple[int, int, str | None, int, int]:
        """id, fence, owner, expiry and the time, with the stream locked."""
        row = db.execute(f"{_LEASE} FOR UPDATE", [stream]).fetchone()
        if row is None:
            raise unknown_stream(stream, self.where)
        id, fence, owner, expires, now = row
        return id, fence, owner, expires, self._lease_time(now)

    def _lease_time(self, of_the_database: int) -> int:
        return of_the_database if self._lease_now is None else self._lease_now()

    def _select(self, sql: LiteralString, *values: object) -> list[Any]:
        """Rows, after everything this process has appended was written."""
        self._refuse_closed()
        self._commits.settle()
        return self._fetch(sql, *values)

    def _one(self, sql: LiteralString, stream: str) -> tuple[Any, ...]:
        rows = self._select(sql, stream)
        if not rows:
            raise unknown_stream(stream, self.where)
        return rows[0]

    def _fetch(self, sql: LiteralString, *values: object) -> list[Any]:
        """Rows as the database has them; asked once more when the session turns out to be lost."""
        with self._reading:
            self._refuse_closed()
            try:
                return self._ask(sql, values)
            except psycopg.OperationalError as error:
                if not self._reader.is_lost:
                    raise fault_of(error, self.where, "reading the log") from error
            except psycopg.Error as error:
                raise fault_of(error, self.where, "reading the log") from error
            try:
                return self._ask(sql, values)
            except psycopg.Error as error:
                raise fault_of(error, self.where, "reading the log") from error

    def _ask(self, sql: LiteralString, values: Sequence[object]) -> list[Any]:
        return self._reader.db.execute(sql, values, binary=True).fetchall()

    def _rows(self, id: int, after: int, until: int) -> Iterator[Row]:
        while after < until:
            rows = self._fetch(_READ, id, after, until, READ_ROWS)
            if not rows:
                return
            yield from rows
            after = rows[-1][0]

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise closed(self.where)


def _durability(db: psycopg.Connection) -> str:
    """``power`` where the server syncs before it answers a commit; else a crash of the server may lose the newest."""
    row = db.execute(
        "SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on'"
        " AND current_setting('synchronous_commit') <> 'off'"
    ).fetchone()
    return "power" if row is not None and row[0] else "process"
