"""What a Postgres error means for the log, said as a fault: what happened, to which database, what to do."""

from __future__ import annotations

from typing import LiteralString

import psycopg
from psycopg import errors

from setpoint.kernel.errors import Effect, Fault, LogCorrupt, StoreFault

_CORRUPT_HINT = "Nothing was repaired. Restore the database from a backup, and keep the damaged one aside."

# The class of the error, or one of its subclasses -> (what happened, what to do). The first that fits counts.
_MEANINGS: list[tuple[type[psycopg.Error], LiteralString, LiteralString]] = [
    (errors.DiskFull, "cannot grow: the server's disk is full", "Free space there, then resume."),
    (errors.TooManyConnections, "takes no more connections", "Raise max_connections, or end clients that idle."),
    (errors.LockNotAvailable, "is locked by another session", "pg_locks shows by whom. Then try again."),
    (errors.DeadlockDetected, "was in a deadlock, again and again", "pg_locks shows with whom. Then try again."),
    (errors.ReadOnlySqlTransaction, "is read-only", "Choose the primary server with --store."),
    (errors.InsufficientPrivilege, "refuses this user", "Grant it CREATE on the database, or all in schema setpoint."),
    (errors.InvalidPassword, "refuses this user's password", "Correct it in the URL, PGPASSWORD or ~/.pgpass."),
    (errors.InvalidAuthorizationSpecification, "refuses this user", "Correct the URL, or pg_hba.conf on the server."),
    (errors.InvalidCatalogName, "does not exist", "Make it with createdb, or correct the URL."),
    (errors.UndefinedTable, "has lost a table of Setpoint's", "Restore it from a backup, or choose another store."),
    (errors.IntegrityError, "contradicts itself: a row is there that must not be",
     "Run `setpoint events` on the trajectory to verify its log, and keep a copy."),
    (errors.DataError, "refuses a value", "See the error above."),
    (errors.OperationalError, "cannot be reached, or went away",
     "Check that the server runs and the URL names it; then resume."),
]  # fmt: skip

# What passes by itself once the transaction is run again from its beginning.
_PASSING = (errors.DeadlockDetected, errors.SerializationFailure)


def fault_of(error: psycopg.Error, where: str, doing: str, *, effect: Effect = "not_sent") -> Fault:
    """The fault to raise from ``error``; ``doing`` completes "while ..."."""
    detail = f"{type(error).__name__}: {words_of(error)}"
    if isinstance(error, errors.DataCorrupted | errors.IndexCorrupted):
        return LogCorrupt(f"{where} is damaged ({detail}), found while {doing}", hint=_CORRUPT_HINT)
    what, hint = next(
        ((what, hint) for kind, what, hint in _MEANINGS if isinstance(error, kind)),
        ("failed in an unexpected way", "See the error above; this may be a bug."),
    )
    if effect == "in_doubt":
        tail = "whether it was written is not known: read the log before you repeat it"
    else:
        tail = "nothing of it was written"
    return StoreFault(f"{where} {what} ({detail}), found while {doing}; {tail}", effect=effect, hint=hint)


def words_of(error: psycopg.Error) -> str:
    """The server's own words on one line, with its detail when it gives one."""
    said = error.diag.message_primary or str(error)
    detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
    return " ".join(f"{said}{detail}".split())


def is_passing(error: psycopg.Error) -> bool:
    return isinstance(error, _PASSING)


def is_of_what_was_written(error: psycopg.Error) -> bool:
    """Whether it lies in what was to be written, not in the database: a row too many, a value too large or odd."""
    return isinstance(error, errors.IntegrityError | errors.DataError | errors.ProgrammingError) and not isinstance(
        error, errors.InsufficientPrivilege | errors.UndefinedTable
    )
