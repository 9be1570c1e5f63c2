"""Setpoint's tables in a Postgres database: a schema of their own, ``setpoint``, made when it is missing.

``stream`` is narrow and half empty a page, and none of its indexes holds a column that an append changes, so that a
turn's update stays on its page (HOT). Wake-up times change an index, and so they have a table of their own. Names are
compared byte by byte (``COLLATE "C"``), whatever the language of the database.
"""

from __future__ import annotations

import psycopg

from setpoint.kernel.errors import StoreFault

SCHEMA_VERSION = 1

_MAKING = 0x53455450  # the advisory lock that whoever makes the tables holds; "SETP"

_TABLES = (
    "CREATE SCHEMA setpoint",
    "CREATE TABLE setpoint.version (version integer NOT NULL)",
    f"INSERT INTO setpoint.version VALUES ({SCHEMA_VERSION})",
    """
    CREATE TABLE setpoint.stream (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        stream_id text COLLATE "C" NOT NULL UNIQUE,
        kind text COLLATE "C" NOT NULL,
        seq bigint NOT NULL,
        hash bytea NOT NULL,
        fence bigint NOT NULL,
        owner text,
        expires_at_ms bigint NOT NULL,
        created_at text NOT NULL,
        updated_at text NOT NULL
    ) WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE setpoint.event (
        stream bigint NOT NULL,
        seq bigint NOT NULL,
        turn bigint NOT NULL,
        type text NOT NULL,
        v bigint NOT NULL,
        at text NOT NULL,
        hash bytea NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (stream, seq)
    )
    """,
    "CREATE TABLE setpoint.payload (hash bytea PRIMARY KEY, bytes bytea NOT NULL)",
    """
    CREATE TABLE setpoint.checkpoint (
        stream bigint NOT NULL, seq bigint NOT NULL, hash bytea NOT NULL, record bytea NOT NULL,
        PRIMARY KEY (stream, seq)
    )
    """,
    """
    CREATE TABLE setpoint.inbox (
        stream bigint NOT NULL, id bigint NOT NULL, key text COLLATE "C" NOT NULL, data bytea NOT NULL,
        PRIMARY KEY (stream, id), UNIQUE (stream, key)
    )
    """,
    'CREATE TABLE setpoint.effect_claim (key text COLLATE "C" PRIMARY KEY, stream bigint NOT NULL)',
    """
    CREATE TABLE setpoint.wake (
        stream bigint PRIMARY KEY,
        kind text COLLATE "C" NOT NULL,
        at_ms bigint NOT NULL,
        stream_id text COLLATE "C" NOT NULL
    )
    """,
    "CREATE INDEX wake_by_time ON setpoint.wake (kind, at_ms, stream_id)",
    """
    CREATE FUNCTION setpoint.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'the event log is append-only' USING ERRCODE = 'integrity_constraint_violation'; END $$
    """,
    """
    CREATE TRIGGER event_is_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON setpoint.event
    FOR EACH STATEMENT EXECUTE FUNCTION setpoint.refuse_change()
    """,
)


def enter_schema(db: psycopg.Connection, where: str) -> None:
    """Make the tables unless they are there; StoreFault when those found are another program's, or newer."""
    if _version(db, where) is not None:
        return
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", [_MAKING])  # two processes may make the tables at once
        if _version(db, where) is None:
            for statement in _TABLES:
                db.execute(statement.encode())


def _version(db: psycopg.Connection, where: str) -> int | None:
    """The schema version of the store, None when the database has none."""
    # Asked of the catalogue's tables: to_regnamespace and its like may answer from a cache as of before the lock.
    row = db.execute(
        "SELECT count(*) > 0, coalesce(bool_or(c.relname = 'version'), false) FROM pg_namespace n"
        " LEFT JOIN pg_class c ON c.relnamespace = n.oid WHERE n.nspname = 'setpoint'"
    ).fetchone()
    assert row is not None
    has_schema, has_version = row
    if not has_schema:
        return None
    if not has_version:
        raise StoreFault(
            f"{where} has a schema named setpoint that is another program's (it has no table setpoint.version)",
            hint="It was left as it is. Choose another database with --store.",
        )
    found = db.execute("SELECT max(version) FROM setpoint.version").fetchone()
    version: int = found[0] if found and found[0] is not None else 0
    if version > SCHEMA_VERSION:
        raise StoreFault(
            f"{where} has schema version {version}; this Setpoint knows up to {SCHEMA_VERSION}",
            hint="It was left as it is. Use the Setpoint that made it, or a newer one.",
        )
    return version
