"""One batch of appends becomes one Postgres transaction.

The streams of a batch are locked in the order of their names, so that two processes never wait for each other there;
what a statement of a user's locks can still bring a deadlock, and then the transaction is run again. Heads and fences
are checked under the lock. A refused append writes nothing and fails alone; the others go down.

A connection lost while it commits leaves doubt, and the log resolves it: whoever gets the lock next sees whether the
event at an append's new head has that head's hash.

What belongs together is sent as one message of several statements (``_Script``), with the values in it: fewer round
trips, and a process that is stopped in between is always stopped between two messages, where the server bounds how long
it waits (``IDLE_MS``). A pipeline does not give that: within it, and after the Flush that psycopg ends it with, the
server would wait for ever, with the streams of the batch locked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import psycopg

from setpoint.adapters.stores.beside import statement_refused
from setpoint.adapters.stores.group_commit import Job, Outcome
from setpoint.adapters.stores.leases import claimed_by_other
from setpoint.adapters.stores.postgres_faults import fault_of, is_of_what_was_written, is_passing, words_of
from setpoint.adapters.stores.postgres_session import Session
from setpoint.adapters.stores.postgres_statements import run_statement
from setpoint.adapters.stores.tips import Tip
from setpoint.kernel.chain import hash_raw, hash_text
from setpoint.kernel.errors import DuplicateEffect, Fault, StatementRefused, StoreFault
from setpoint.ports.log import NO_WAKE, WAKE_AS_BEFORE, Head

ATTEMPTS = 4
RECONNECT_S = 0.25  # times the attempt: a server that is started again is back within the second
CHECKPOINTS_KEPT = 2  # the newest, and one to fall back to

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

_LOCK = (
    "SELECT stream_id, id, seq, hash, fence, owner FROM setpoint.stream WHERE stream_id = ANY(%s::text[])"
    " ORDER BY stream_id FOR UPDATE"
)
_ADVANCE = (
    "UPDATE setpoint.stream s SET seq = t.seq, hash = t.hash, updated_at = t.at"
    " FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[], %s::text[]) AS t (id, seq, hash, at) WHERE s.id = t.id"
)
_EVENTS = (
    "INSERT INTO setpoint.event SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[],"
    " %s::bigint[], %s::text[], %s::bytea[], %s::bytea[])"
)
_PAYLOADS = (
    "INSERT INTO setpoint.payload SELECT * FROM unnest(%s::bytea[], %s::bytea[]) AS t (hash, bytes) ORDER BY hash"
    " ON CONFLICT DO NOTHING"
)
_CHECKPOINT = (
    "INSERT INTO setpoint.checkpoint VALUES (%s, %s, %s, %s)"
    " ON CONFLICT (stream, seq) DO UPDATE SET hash = excluded.hash, record = excluded.record"
)
_FORGET = (
    "DELETE FROM setpoint.checkpoint WHERE stream = %s AND seq NOT IN"
    " (SELECT seq FROM setpoint.checkpoint WHERE stream = %s ORDER BY seq DESC LIMIT %s)"
)
_WAKE = (
    "INSERT INTO setpoint.wake SELECT s.id, s.kind, CASE WHEN t.heard >= 0 AND EXISTS"
    " (SELECT 1 FROM setpoint.inbox i WHERE i.stream = t.id AND i.id > t.heard) THEN 0 ELSE t.at_ms END, s.stream_id"
    " FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS t (id, at_ms, heard)"
    " JOIN setpoint.stream s USING (id)"
    " ON CONFLICT (stream) DO UPDATE SET at_ms = excluded.at_ms"
)
_NO_WAKE = "DELETE FROM setpoint.wake WHERE stream = ANY(%s::bigint[])"
_CLAIM = (
    "INSERT INTO setpoint.effect_claim SELECT * FROM unnest(%s::text[], %s::bigint[]) AS t (key, stream) ORDER BY key"
    " ON CONFLICT (key) DO NOTHING"
)
_HOLDERS = (
    "SELECT c.key, s.id, s.stream_id FROM setpoint.effect_claim c JOIN setpoint.stream s ON s.id = c.stream"
    " WHERE c.key = ANY(%s::text[])"
)
_GIVE_UP = "DELETE FROM setpoint.effect_claim WHERE stream = %s AND key = ANY(%s::text[])"
_IS_DOWN = (
    "SELECT s.stream_id, e.seq, e.hash FROM unnest(%s::text[], %s::bigint[]) AS t (stream_id, seq)"
    " JOIN setpoint.stream s USING (stream_id) JOIN setpoint.event e ON e.stream = s.id AND e.seq = t.seq"
)

Admitted = Sequence[tuple[int, Job]]  # the stream's id, the job
Put = Callable[[int, Job], Fault | None]


class BatchWriter:
    """Writes batches through one session; the caller sees to it that only one thread is inside."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.commits = 0
        self._is_committing = False

    def write(self, jobs: Sequence[Job]) -> list[Outcome]:
        """One outcome a job: None when it is durable, else the fault; then nothing of it was written."""
        if all(job.fence is None for job in jobs):
            return [None] * len(jobs)
        try:
            return self._write_until_it_passes(jobs)
        except _Broken as broken:
            if not broken.is_of_what_was_written:
                return [broken.fault(self.session.where) for _ in jobs]
        return self._write_apart(jobs)

    def _write_apart(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Each append in its own transaction, so that what cannot be stored fails alone."""
        outcomes: list[Outcome] = []
        reasons: dict[tuple[str, Head], Fault] = {}
        for job in jobs:
            if outcome := reasons.get((job.stream, job.expected)):
                outcomes.append(outcome)
            else:
                outcomes.append(self._write_alone(job))
            if isinstance(outcomes[-1], Fault) and job.head != job.expected:
                reasons[job.stream, job.head] = outcomes[-1]
        return outcomes

    def _write_alone(self, job: Job) -> Outcome:
        try:
            return self._write_until_it_passes([job])[0]
        except _Broken as broken:
            if broken.was_committing and broken.is_of_what_was_written and job.beside and job.beside.statements:
                # A constraint that is checked only at the end; which of the statements broke it is not told.
                return statement_refused(job.stream, job.beside.statements[-1], words_of(broken.error))
            return broken.fault(self.session.where)

    def _write_until_it_passes(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Again from the beginning after a deadlock or a lost connection. _Broken."""
        in_doubt = False
        for attempt in range(1, ATTEMPTS + 1):
            self._is_committing = False
            try:
                return self._write_once(jobs, in_doubt)
            except psycopg.Error as error:
                self.session.clear()
                in_doubt = in_doubt or (self._is_committing and self.session.is_lost)
                if attempt == ATTEMPTS or not (self.session.is_lost or is_passing(error)):
                    raise _Broken(error, in_doubt, self._is_committing) from error
            except BaseException:
                self.session.clear()
                raise
            if self.session.is_lost:
                time.sleep(RECONNECT_S * attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _write_once(self, jobs: Sequence[Job], in_doubt: bool) -> list[Outcome]:
        db = self.session.db
        script = _Script().add(BEGIN).add(_LOCK, [*{job.stream for job in jobs}])
        streams = script.run(db).fetchall()
        down = self._already_down(jobs) if in_doubt else frozenset[Head]()
        outcomes, admitted = self._admit(jobs, streams, in_doubt, down, self._put_nothing)
        if any(_needs_a_look(job) for _, job in admitted) and not self._put_together(admitted):
            outcomes, admitted = self._admit(jobs, streams, in_doubt, down, self._put_apart)
        if not admitted:
            db.execute("ROLLBACK")
            return outcomes
        self._is_committing = True
        script = _Script()
        _write_events(script, admitted)
        _write_payloads(script, admitted)
        _write_checkpoints(script, admitted)
        _write_wakes(script, admitted)
        script.add("COMMIT").run(db)  # after a statement that fails the server skips the rest, COMMIT included
        self.commits += 1
        return outcomes

    def _already_down(self, jobs: Sequence[Job]) -> frozenset[Head]:
        """The new heads of appends that a transaction in doubt has committed after all."""
        rows = self.session.db.execute(
            _IS_DOWN, [[job.stream for job in jobs], [job.head.seq for job in jobs]]
        ).fetchall()
        found = {(stream, Head(seq, hash_text(raw))) for stream, seq, raw in rows}
        return frozenset(job.head for job in jobs if job.rows and (job.stream, job.head) in found)

    def _admit(
        self, jobs: Sequence[Job], streams: Sequence[tuple[Any, ...]], in_doubt: bool, down: frozenset[Head], put: Put
    ) -> tuple[list[Outcome], Admitted]:
        """Admit what follows and whose ``put`` raises no objection; say of the rest why not."""
        tips = {job.stream: Tip(job.stream) for job in jobs}
        for name, id, seq, raw, fence, owner in streams:
            tips[name] = Tip(name, id, Head(seq, hash_text(raw)), fence, owner)
        outcomes: list[Outcome] = []
        admitted: list[tuple[int, Job]] = []
        for job in jobs:
            tip = tips[job.stream]
            if job.fence is None or (job.rows and job.head in down):
                outcomes.append(None)
                continue
            if in_doubt and not job.rows and job.beside and job.beside.statements:
                outcomes.append(_doubtful(job, self.session.where))
                continue
            fault = tip.fault(job, self.session.where) or put(tip.id, job)
            tip.pass_over(job, fault)
            outcomes.append(fault)
            if fault is None:
                admitted.append((tip.id, job))
        return outcomes, admitted

    # What goes down beside the events.

    def _put_nothing(self, id: int, job: Job) -> Fault | None:
        return None

    def _put_together(self, admitted: Admitted) -> bool:
        """The keys of all at once; False, and nothing put, when each append has to be looked at."""
        besides = [(id, job.beside) for id, job in admitted if job.beside is not None]
        if any(beside.statements or beside.releases for _, beside in besides):
            return False
        claims = [(key, id) for id, beside in besides for key in dict.fromkeys(beside.claims)]
        db = self.session.db
        script = _Script().add("SAVEPOINT beside")
        script.add(_CLAIM, [key for key, _ in claims], [id for _, id in claims])
        if script.run(db).rowcount == len(claims):
            return True
        db.execute("ROLLBACK TO SAVEPOINT beside")
        return False

    def _put_apart(self, id: int, job: Job) -> Fault | None:
        """Keys and statements of one append, or why not, and then nothing of them."""
        beside = job.beside
        if beside is None or not _needs_a_look(job):
            return None
        db = self.session.db
        db.execute("SAVEPOINT beside")
        try:
            self._claim(id, job.stream, beside.claims)
            for statement in beside.statements:
                run_statement(db, job.stream, statement)
        except (DuplicateEffect, StatementRefused) as fault:
            db.execute("ROLLBACK TO SAVEPOINT beside")
            return fault
        if beside.releases:
            db.execute(_GIVE_UP, [id, [*beside.releases]])
        db.execute("RELEASE SAVEPOINT beside")
        return None

    def _claim(self, id: int, stream: str, keys: Sequence[str]) -> None:
        """Make the keys this stream's. DuplicateEffect."""
        wanted = [*dict.fromkeys(keys)]
        db = self.session.db
        while wanted:
            found = _Script().add(_CLAIM, wanted, [id] * len(wanted)).add(_HOLDERS, wanted).run(db)
            holders = {key: (holder, name) for key, holder, name in found.fetchall()}
            for key in wanted:
                if key in holders and holders[key][0] != id:
                    raise claimed_by_other(stream, key, holders[key][1])
            wanted = [key for key in wanted if key not in holders]  # given up between the two statements: once more


class _Script:
    """Statements that go to the server as one message, values and all."""

    def __init__(self) -> None:
        self._statements: list[str] = []
        self._values: list[object] = []

    def add(self, statement: str, *values: object) -> Self:
        self._statements.append(statement)
        self._values.extend(values)
        return self

    def run(self, db: psycopg.Connection) -> psycopg.ClientCursor:
        """The result of the last statement."""
        cursor = psycopg.ClientCursor(db)
        cursor.execute("; ".join(self._statements).encode(), self._values)
        while cursor.nextset():
            pass
        return cursor


class _Broken(Exception):
    """The transaction as a whole failed and was taken back."""

    def __init__(self, error: psycopg.Error, in_doubt: bool, was_committing: bool) -> None:
        self.error = error
        self.was_committing = was_committing
        self._in_doubt = in_doubt

    @property
    def is_of_what_was_written(self) -> bool:
        return is_of_what_was_written(self.error)

    def fault(self, where: str) -> Fault:
        return fault_of(self.error, where, "appending events", effect="in_doubt" if self._in_doubt else "not_sent")


def _doubtful(job: Job, where: str) -> StoreFault:
    return StoreFault(
        f"the connection to {where} was lost while statements of {job.stream} were committed, without any event beside "
        "them that would tell; whether they were is not known",
        effect="in_doubt",
        hint="Look at the rows they change before you repeat them.",
    )


def _needs_a_look(job: Job) -> bool:
    """Whether something beside its events can be refused, or depends on the order of the appends."""
    beside = job.beside
    return beside is not None and bool(beside.claims or beside.releases or beside.statements)


def _write_events(script: _Script, admitted: Admitted) -> None:
    moved = {id: job for id, job in admitted if job.rows}  # the last of each stream
    if not moved:
        return
    heads = [job.head for job in moved.values()]
    script.add(
        _ADVANCE,
        [*moved],
        [head.seq for head in heads],
        [hash_raw(head.hash) for head in heads],
        [job.rows[-1][4] for job in moved.values()],
    )
    rows = [(id, *row) for id, job in admitted for row in job.rows]
    script.add(_EVENTS, *([*column] for column in zip(*rows, strict=True)))


def _write_payloads(script: _Script, admitted: Admitted) -> None:
    payloads = {digest: content for _, job in admitted for digest, content in job.payloads}
    if payloads:
        script.add(_PAYLOADS, [*payloads], [*payloads.values()])


def _write_checkpoints(script: _Script, admitted: Admitted) -> None:
    for id, job in admitted:
        if job.checkpoint is not None:
            script.add(_CHECKPOINT, id, job.head.seq, hash_raw(job.head.hash), job.checkpoint)
            script.add(_FORGET, id, id, CHECKPOINTS_KEPT)


def _write_wakes(script: _Script, admitted: Admitted) -> None:
    """Of several wake-up times of one stream the last counts."""
    wakes = {
        id: (job.beside.wake_ms, job.beside.heard)
        for id, job in admitted
        if job.beside is not None and job.beside.wake_ms != WAKE_AS_BEFORE
    }
    over = [id for id, (at, _) in wakes.items() if at == NO_WAKE]
    waiting = [(id, at, heard) for id, (at, heard) in wakes.items() if at != NO_WAKE]
    if waiting:
        script.add(_WAKE, *([one[part] for one in waiting] for part in range(3)))
    if over:
        script.add(_NO_WAKE, over)
