"""One batch of appends becomes one SQLite transaction and one sync.

Heads and fences are checked inside the transaction that writes. A refused append writes nothing and fails alone;
the others go down.

Each step of a statement gives up the interpreter lock, and getting it back from a busy event loop takes up to 5 ms
(``sys.getswitchinterval``). Hence a batch in which everything follows takes four statements, however many streams it
holds; only when the first of them finds that something does not follow are the streams looked at one by one. What
goes down beside the events is one statement more a batch for each kind of it, and one for each of the user's own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from setpoint.adapters.stores.group_commit import Job, Outcome
from setpoint.adapters.stores.sqlite_beside import (
    Placed,
    TransactionLost,
    put_apart,
    put_together,
    put_wakes,
)
from setpoint.adapters.stores.sqlite_faults import fault_of
from setpoint.adapters.stores.sqlite_rows import ROWS_A_STATEMENT, chunks, flat
from setpoint.adapters.stores.tips import Tip
from setpoint.kernel.chain import hash_raw, hash_text
from setpoint.kernel.errors import Effect, Fault
from setpoint.ports.log import Head

CHECKPOINTS_KEPT = 2  # the newest, and one to fall back to

_ROWS = [",".join(["(?,?,?,?,?,?,?,?)"] * n) for n in range(ROWS_A_STATEMENT + 1)]
_INSERT = [f"INSERT INTO event VALUES {rows}" for rows in _ROWS]
_ADVANCE = [
    f"UPDATE stream SET seq=t.column6, hash=t.column7, updated_at=t.column8 FROM (VALUES {rows}) AS t"
    " WHERE id=t.column1 AND stream_id=t.column2 AND fence=t.column3 AND seq=t.column4 AND hash=t.column5"
    " AND owner IS NOT NULL"
    for rows in _ROWS
]

_ADVANCE_ONE = (  # the same for a single stream, which most batches are: half the work for SQLite
    "UPDATE stream SET seq=?6, hash=?7, updated_at=?8"
    " WHERE id=?1 AND stream_id=?2 AND fence=?3 AND seq=?4 AND hash=?5 AND owner IS NOT NULL"
)

Admitted = Sequence[tuple[int, Job]]  # the stream's row id, the job


class BatchWriter:
    """Writes batches through one connection; the caller sees to it that only one thread is inside."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self.connection = connection
        self.path = path
        self.syncs = 0  # commits that returned only after a sync of the write-ahead log
        self._ids: dict[str, int] = {}  # row ids of streams that are written to, checked again whenever they are used

    def expect(self, stream: str, id: int) -> None:
        """Appends to this stream will come: then the first one needs no look of its own. ``id`` is its row."""
        self._ids[stream] = id

    def forget(self, stream: str) -> None:
        """No more appends to this stream will come, for now."""
        self._ids.pop(stream, None)

    def write(self, jobs: Sequence[Job]) -> list[Outcome]:
        """One outcome a job: None when it is durable, else the fault; then nothing of it was written."""
        if all(job.fence is None for job in jobs):
            return [None] * len(jobs)
        try:
            return self._write(jobs)
        except _Broken as broken:
            if broken.is_one_streams_fault and len(jobs) > 1:
                return self._write_apart(jobs)
            return [broken.fault(self.path) for _ in jobs]

    def _write_apart(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Each stream in its own transaction, so that a damaged stream fails alone."""
        outcomes: list[Outcome] = [None] * len(jobs)
        for stream in dict.fromkeys(job.stream for job in jobs):
            places = [i for i, job in enumerate(jobs) if job.stream == stream]
            try:
                results = self._write([jobs[i] for i in places])
            except _Broken as broken:
                results = [broken.fault(self.path) for _ in places]
            for i, result in zip(places, results, strict=True):
                outcomes[i] = result
        return outcomes

    def _write(self, jobs: Sequence[Job]) -> list[Outcome]:
        refused: dict[int, Fault] = {}  # by place: appends that would take the others' transaction along
        while True:
            try:
                return self._write_once(jobs, refused)
            except _Spoiled as spoiled:
                refused[spoiled.place] = spoiled.fault

    def _write_once(self, jobs: Sequence[Job], refused: dict[int, Fault]) -> list[Outcome]:
        db = self.connection
        effect: Effect = "not_sent"
        try:
            db.execute("BEGIN IMMEDIATE")
            admitted = None if refused else self._admit_all(jobs)
            if admitted is not None:
                outcomes: list[Outcome] = [None] * len(jobs)
            else:
                outcomes, admitted = self._admit_each(jobs, refused)
            if not admitted:
                db.execute("ROLLBACK")
                return outcomes
            _insert_events(db, admitted)
            _insert_payloads(db, admitted)
            _insert_checkpoints(db, admitted)
            effect = "in_doubt"
            db.execute("COMMIT")
        except sqlite3.Error as error:
            roll_back(db)
            raise _Broken(error, effect) from error
        except BaseException:
            roll_back(db)
            raise
        self.syncs += 1
        return outcomes

    def _admit_all(self, jobs: Sequence[Job]) -> Admitted | None:
        """Move every stream at once; None, and nothing moved or put, when some job cannot be admitted so."""
        moves = self._moves(jobs)
        if moves is None:
            return None
        moved = 0
        if len(moves) == 1:
            moved = self.connection.execute(_ADVANCE_ONE, moves[0]).rowcount
        else:
            for chunk in chunks(moves):
                moved += self.connection.execute(_ADVANCE[len(chunk)], flat(chunk)).rowcount
        admitted = [(self._ids[job.stream], job) for job in jobs if job.fence is not None]
        placed = _placed(admitted)
        if moved != len(moves) or (placed and not put_together(self.connection, placed)):
            roll_back(self.connection)
            self.connection.execute("BEGIN IMMEDIATE")
            return None
        return admitted

    def _moves(self, jobs: Sequence[Job]) -> list[tuple[object, ...]] | None:
        """One row a stream for ``_ADVANCE``, None when a stream is new here or its jobs do not follow each other."""
        first: dict[str, Job] = {}
        last: dict[str, Job] = {}
        for job in jobs:
            if job.fence is None:
                continue
            before = last.get(job.stream)
            if before is None:
                first[job.stream] = job
            elif (job.expected is not before.head and job.expected != before.head) or job.fence != before.fence:
                return None
            last[job.stream] = job
        if not (first.keys() <= self._ids.keys() and all(job.rows for job in last.values())):
            return None
        return [
            (
                self._ids[stream], stream, job.fence, job.expected.seq, hash_raw(job.expected.hash),
                last[stream].head.seq, last[stream].rows[-1][5], last[stream].rows[-1][4],
            )
            for stream, job in first.items()
        ]  # fmt: skip

    def _admit_each(self, jobs: Sequence[Job], refused: dict[int, Fault]) -> tuple[list[Outcome], Admitted]:
        """Look at each stream, admit what follows, and say of the rest why not."""
        db = self.connection
        tips = {stream: _tip(db, stream) for stream in dict.fromkeys(job.stream for job in jobs)}
        outcomes: list[Outcome] = []
        admitted: list[tuple[int, Job]] = []
        for place, job in enumerate(jobs):
            tip = tips[job.stream]
            fault = None if job.fence is None else tip.fault(job, self.path) or refused.get(place)
            if fault is None and job.beside is not None:
                try:
                    fault = put_apart(db, tip.id, job.stream, job.beside)
                except TransactionLost as lost:
                    raise _Spoiled(place, lost.fault) from lost
            outcomes.append(fault)
            if job.fence is not None:
                tip.pass_over(job, fault)
                if fault is None:
                    admitted.append((tip.id, job))
        db.executemany(
            "UPDATE stream SET seq=?, hash=?, updated_at=? WHERE id=?",
            [_moved(tip) for tip in tips.values() if tip.updated_at is not None],
        )
        put_wakes(db, _placed(admitted))
        self._ids.update((job.stream, id) for id, job in admitted)
        return outcomes, admitted


def _tip(db: sqlite3.Connection, stream: str) -> Tip:
    row = db.execute("SELECT id, seq, hash, fence, owner FROM stream WHERE stream_id=?", (stream,)).fetchone()
    return Tip(stream, row[0], Head(row[1], hash_text(row[2])), row[3], row[4]) if row else Tip(stream)


def _moved(tip: Tip) -> tuple[int, bytes, str | None, int]:
    assert tip.head is not None
    return (tip.head.seq, hash_raw(tip.head.hash), tip.updated_at, tip.id)


class _Broken(Exception):
    """The transaction as a whole failed and was rolled back."""

    def __init__(self, error: sqlite3.Error, effect: Effect) -> None:
        self.error = error
        # Only a sync that failed leaves doubt: its bytes may or may not be on the disk after a power cut.
        code = getattr(error, "sqlite_errorcode", 0)
        self.effect: Effect = effect if code & 0xFF == sqlite3.SQLITE_IOERR else "not_sent"

    @property
    def is_one_streams_fault(self) -> bool:
        """Whether it lies in what was to be written, not in the file: a row too many, a value too large or odd."""
        return isinstance(
            self.error,
            (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
        )

    def fault(self, path: str) -> Fault:
        return fault_of(self.error, path, "appending events", effect=self.effect)


class _Spoiled(Exception):
    """The append at this place ended the transaction of all, which has to begin again without it."""

    def __init__(self, place: int, fault: Fault) -> None:
        self.place = place
        self.fault = fault


def roll_back(db: sqlite3.Connection) -> None:
    """End the transaction if one is still open; some errors have ended it already."""
    if db.in_transaction:
        db.rollback()


def _placed(admitted: Admitted) -> Placed:
    return [(id, job.stream, job.beside) for id, job in admitted if job.beside is not None]


def _insert_events(db: sqlite3.Connection, admitted: Admitted) -> None:
    for chunk in chunks((id, *row) for id, job in admitted for row in job.rows):
        db.execute(_INSERT[len(chunk)], flat(chunk))


def _insert_payloads(db: sqlite3.Connection, admitted: Admitted) -> None:
    payloads = [payload for _, job in admitted for payload in job.payloads]
    if payloads:
        db.executemany("INSERT OR IGNORE INTO payload VALUES (?,?)", payloads)


def _insert_checkpoints(db: sqlite3.Connection, admitted: Admitted) -> None:
    for id, job in admitted:
        if job.checkpoint is None:
            continue
        db.execute(
            "INSERT OR REPLACE INTO checkpoint VALUES (?,?,?,?)",
            (id, job.head.seq, hash_raw(job.head.hash), job.checkpoint),
        )
        db.execute(
            "DELETE FROM checkpoint WHERE stream=?1 AND seq NOT IN "
            "(SELECT seq FROM checkpoint WHERE stream=?1 ORDER BY seq DESC LIMIT ?2)",
            (id, CHECKPOINTS_KEPT),
        )
