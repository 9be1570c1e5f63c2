"""The one database file: its tables, its identity, and how a connection to it is opened."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from setpoint.adapters.stores.file_system import NETWORK, file_system_of
from setpoint.adapters.stores.sqlite_faults import fault_of
from setpoint.kernel.errors import StoreFault

APPLICATION_ID = 0x53455450  # "SETP": tells a store from any other SQLite file
SCHEMA_VERSION = 2

_MAGIC = b"SQLite format 3\x00"

BUSY_MS = 5_000  # how long another process may hold the write lock; a commit takes milliseconds even on a slow disk
WAL_PAGES = 1_024  # checkpoint every 4 MiB of WAL: its 2 to 3 syncs fall on some 200 turns, and from then on the WAL
# is written over in place, where a sync costs half of what it does while the file grows
WAL_BYTES_MAX = 64 << 20  # what a WAL that had to grow (a long reader) is cut back to
CACHE_KIB = 2_048  # holds the hot tail of some hundred streams; a bigger one made neither 100 nor 800 of them faster

# event is a rowid table on purpose: rows append at the right end whatever the stream, so concurrent streams share
# pages, and an event of more than 1 KB does not spill to overflow pages as it would WITHOUT ROWID.
# ``prev`` is not stored: it is the hash of the row before.
_TABLES = """
CREATE TABLE stream (
    id INTEGER PRIMARY KEY,
    stream_id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL,
    fence INTEGER NOT NULL,
    owner TEXT,
    expires_at_ms INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;
CREATE TABLE event (
    stream INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    type TEXT NOT NULL,
    v INTEGER NOT NULL,
    at TEXT NOT NULL,
    hash BLOB NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (stream, seq)
) STRICT;
CREATE TABLE payload (hash BLOB NOT NULL PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
CREATE TABLE checkpoint (
    stream INTEGER NOT NULL, seq INTEGER NOT NULL, hash BLOB NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (stream, seq)
) STRICT;
CREATE TABLE inbox (
    stream INTEGER NOT NULL, id INTEGER NOT NULL, key TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (stream, id), UNIQUE (stream, key)
) STRICT;
CREATE TRIGGER event_is_never_updated BEFORE UPDATE ON event
BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END;
CREATE TRIGGER event_is_never_deleted BEFORE DELETE ON event
BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END;
"""

# From version 1: wake-up times, and who holds the key of an outside effect. A stream is listed by its wake-up time from
# the index alone. The key's table has a long name, since users keep tables of their own in the same file.
_SINCE_1 = """
ALTER TABLE stream ADD COLUMN wake_ms INTEGER;
CREATE INDEX stream_by_wake ON stream (kind, wake_ms, stream_id) WHERE wake_ms IS NOT NULL;
CREATE TABLE effect_claim (key TEXT NOT NULL PRIMARY KEY, stream INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""


def open_store(path: str) -> sqlite3.Connection:
    """The writing connection; makes directory (0700), file (0600) and tables when they are missing.

    StoreFault when the file belongs to another program or to a newer Setpoint, lies on a network file system, or
    cannot be written.
    """
    if (kind := file_system_of(path)) in NETWORK:
        raise StoreFault(
            f"{path} lies on a network file system ({kind}), where two hosts would write over each other",
            hint="Choose a path on a local disk with --store sqlite:///PATH.",
        )
    try:
        _make_directory(Path(path).parent)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            beginning = os.read(file, len(_MAGIC))
        finally:
            os.close(file)
    except OSError as error:
        raise StoreFault(
            f"the store {path} cannot be opened for writing: {error.strerror}",
            hint="Make the path writable, or choose another with --store sqlite:///PATH.",
        ) from error
    # SQLite takes a file of a few bytes for an empty one, and would write over it. Beside a journal of its own it is a
    # database whose making was interrupted, which SQLite takes back itself.
    if beginning not in (b"", _MAGIC) and not os.path.exists(f"{path}-journal"):
        raise StoreFault(
            f"{path} is not an SQLite database (it begins with {beginning!r})",
            hint="It was left as it is. Choose another --store, or restore the file if it once was a store.",
        )
    connection = connect(path)
    try:
        version = _enter_wal(connection, path)
        connection.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES_MAX}")
        if version < SCHEMA_VERSION:
            connection.execute("BEGIN IMMEDIATE")  # two processes may make the tables at once
            _enter_schema(connection, path)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        connection.close()
        raise fault_of(error, path, "opening it") from error
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: str) -> sqlite3.Connection:
    """A bare connection: no implicit transactions, every commit synced, usable from any one thread at a time."""
    try:
        connection = sqlite3.connect(
            path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=1")  # macOS: a plain fsync stops at the drive's cache; no effect elsewhere
        connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    except sqlite3.Error as error:
        raise fault_of(error, path, "opening it") from error
    return connection


def _make_directory(directory: Path) -> None:
    """The directory, private, with its name synced; SQLite syncs only the names of its own files."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    parent = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _enter_wal(connection: sqlite3.Connection, path: str) -> int:
    """Switch to WAL; the schema version found. SQLite does not wait for a lock here, so the wait is spelled out."""
    connection.execute("BEGIN")  # one snapshot: another process may be making the tables right now
    version = _refuse_foreign(connection, path)  # before anything is written to it
    connection.execute("COMMIT")
    deadline = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreFault(
            f"the file system of {path} cannot hold a write-ahead log (journal mode is {mode})",
            hint="Network file systems cannot; choose a local path with --store sqlite:///PATH.",
        )
    return version


def _enter_schema(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables, or bring those of an older version up to this one; the caller's transaction holds all of it."""
    version = _refuse_foreign(connection, path)
    if version == SCHEMA_VERSION:
        return
    for statement in _statements(_TABLES if version == 0 else "") + _statements(_SINCE_1):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _refuse_foreign(connection: sqlite3.Connection, path: str) -> int:
    """The schema version of a store, 0 for an empty file; StoreFault for anything else."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != APPLICATION_ID:
        raise StoreFault(
            f"{path} is an SQLite database of another program (application id {application:#x})",
            hint="It was left as it is. Choose another --store.",
        )
    if version > SCHEMA_VERSION:
        raise StoreFault(
            f"{path} has schema version {version}; this Setpoint knows up to {SCHEMA_VERSION}",
            hint="It was left as it is. Use the Setpoint that wrote it, or a newer one.",
        )
    return version


def _statements(script: str) -> list[str]:
    """The script's statements; ``executescript`` would commit the transaction it runs in."""
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements
