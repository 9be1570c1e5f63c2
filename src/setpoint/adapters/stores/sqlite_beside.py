"""What goes down beside an append, as rows of the same SQLite transaction.

First all of a batch at once, in as few statements as it takes (``put_together``); when something of it does not hold,
the batch is taken back and each append has its turn in the order they came (``put_apart``).

A user's statement runs under an authorizer, which SQLite asks for every table and action while it compiles, inside
views and triggers, too. It may read and change tables that are not Setpoint's, and nothing else: no transaction
control, no PRAGMA, no ATTACH, no change of the schema. Virtual tables (full-text search) are out of reach with that:
SQLite opens them by way of its own schema.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from setpoint.adapters.stores.beside import statement_refused, wrong_row_count
from setpoint.adapters.stores.leases import claimed_by_other
from setpoint.adapters.stores.sqlite_rows import ROWS_A_STATEMENT, chunks, flat
from setpoint.kernel.errors import Fault, StatementRefused
from setpoint.ports.log import NO_WAKE, WAKE_AS_BEFORE, Beside, Statement

OWN_TABLES = frozenset({"stream", "event", "payload", "checkpoint", "inbox", "effect_claim"})

_PAIRS = [",".join(["(?,?)"] * n) for n in range(ROWS_A_STATEMENT + 1)]
_CLAIM = [f"INSERT INTO effect_claim VALUES {pairs} ON CONFLICT (key) DO NOTHING" for pairs in _PAIRS]
_WAKE = [
    "UPDATE stream SET wake_ms=CASE WHEN t.column3>=0 AND EXISTS"
    " (SELECT 1 FROM inbox i WHERE i.stream=t.column1 AND i.id>t.column3) THEN 0 ELSE t.column2 END"
    f" FROM (VALUES {','.join(['(?,?,?)'] * n)}) AS t WHERE stream.id=t.column1"
    for n in range(ROWS_A_STATEMENT + 1)
]

# The store's trouble, not the statement's: the whole batch fails with it, as it would have without the statement.
_OF_THE_STORE = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)

Placed = Sequence[tuple[int, str, Beside]]  # the stream's row id and name, what goes down beside its append


class TransactionLost(Exception):
    """A statement ended the transaction it ran in (``ON CONFLICT ROLLBACK``); with it went the rest of the batch."""

    def __init__(self, fault: StatementRefused) -> None:
        self.fault = fault


def put_together(db: sqlite3.Connection, placed: Placed) -> bool:
    """All of a batch; False when they have to be looked at one by one, and the transaction is then of no use."""
    claims = [(key, id) for id, _, beside in placed for key in dict.fromkeys(beside.claims)]
    releases = [(key, id) for id, _, beside in placed for key in beside.releases]
    if claims and releases and not {key for key, _ in claims}.isdisjoint(key for key, _ in releases):
        return False  # which came first matters
    if sum(db.execute(_CLAIM[len(chunk)], flat(chunk)).rowcount for chunk in chunks(claims)) != len(claims):
        return False
    if releases:
        db.executemany("DELETE FROM effect_claim WHERE key=? AND stream=?", releases)
    try:
        for _, stream, beside in placed:
            if beside.statements:
                _run_statements(db, stream, beside.statements)
    except (StatementRefused, TransactionLost):
        return False
    put_wakes(db, placed)
    return True


def put_apart(db: sqlite3.Connection, id: int, stream: str, beside: Beside) -> Fault | None:
    """Claims, releases and statements of one append, or why not, and then nothing of them. TransactionLost.

    Its wake-up time is left to ``put_wakes``: it cannot be refused.
    """
    claims = list(dict.fromkeys(beside.claims))
    for key in claims:
        holder = db.execute(
            "SELECT s.stream_id FROM effect_claim c JOIN stream s ON s.id=c.stream WHERE c.key=? AND c.stream<>?",
            (key, id),
        ).fetchone()
        if holder is not None:
            return claimed_by_other(stream, key, holder[0])
    if beside.statements:
        db.execute("SAVEPOINT beside")
        try:
            _run_statements(db, stream, beside.statements)
        except StatementRefused as fault:
            db.execute("ROLLBACK TO beside")
            return fault
        finally:
            if db.in_transaction:
                db.execute("RELEASE beside")
    for chunk in chunks((key, id) for key in claims):
        db.execute(_CLAIM[len(chunk)], flat(chunk))
    if beside.releases:
        db.executemany("DELETE FROM effect_claim WHERE key=? AND stream=?", [(key, id) for key in beside.releases])
    return None


def put_wakes(db: sqlite3.Connection, placed: Placed) -> None:
    """Of several wake-up times of one stream the last counts."""
    wakes = {
        id: (id, None, -1) if beside.wake_ms == NO_WAKE else (id, beside.wake_ms, beside.heard)
        for id, _, beside in placed
        if beside.wake_ms != WAKE_AS_BEFORE
    }
    for chunk in chunks(wakes.values()):
        db.execute(_WAKE[len(chunk)], flat(chunk))


def _run_statements(db: sqlite3.Connection, stream: str, statements: Sequence[Statement]) -> None:
    """StatementRefused at the first that does not do what it must, TransactionLost when it took the others along."""
    with _confined(db) as denied:
        for statement in statements:
            try:
                changed = _changed_rows(db, statement)
            except (sqlite3.Error, sqlite3.Warning, OverflowError, TypeError, ValueError) as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_STORE:
                    raise
                fault = statement_refused(stream, statement, " ".join([f"{error}", *denied[:1]]))
                if not db.in_transaction:
                    raise TransactionLost(fault) from error
                raise fault from error
            if changed != statement.rows:
                raise wrong_row_count(stream, statement, changed)


def _changed_rows(db: sqlite3.Connection, statement: Statement) -> int:
    """How many rows it changed itself; what triggers changed does not count."""
    before = db.total_changes
    db.execute(statement.sql, statement.parameters).fetchall()  # with RETURNING it is done only after its last row
    if db.total_changes == before:
        return 0
    return db.execute("SELECT changes()").fetchone()[0]


@contextmanager
def _confined(db: sqlite3.Connection) -> Iterator[list[str]]:
    """Inside, only tables of the user's own; yields the words for what was denied, empty so far.

    Setting an authorizer makes SQLite compile every statement of the connection anew, also those it had kept.
    """
    denied: list[str] = []

    def ask(action: int, what: str | None, *_: str | None) -> int:
        match action:
            case sqlite3.SQLITE_SELECT | sqlite3.SQLITE_RECURSIVE | sqlite3.SQLITE_FUNCTION:
                return sqlite3.SQLITE_OK
            case sqlite3.SQLITE_READ | sqlite3.SQLITE_INSERT | sqlite3.SQLITE_UPDATE | sqlite3.SQLITE_DELETE:
                if not _is_kept_from_users(what or ""):
                    return sqlite3.SQLITE_OK
                denied.append(f"(a statement may only touch tables of the user's own, and {what} is none)")
            case _:
                denied.append("(a statement may only read and change rows)")
        return sqlite3.SQLITE_DENY

    db.set_authorizer(ask)
    try:
        yield denied
    finally:
        db.set_authorizer(None)


def _is_kept_from_users(table: str) -> bool:
    name = table.lower()
    return name in OWN_TABLES or name.startswith(("sqlite_", "pragma_"))
