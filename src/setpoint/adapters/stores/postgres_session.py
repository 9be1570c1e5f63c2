"""A connection to the database of a store, opened anew when it was lost.

Every session has bounds of its own, whatever the server's are: no lock is waited for longer than ``LOCK_MS``, and a
transaction whose client stands still for ``IDLE_MS`` (a stopped process) is ended by the server, so that it holds up
nobody.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from setpoint.adapters.stores.postgres_faults import fault_of
from setpoint.kernel.errors import UsageFault

LOCK_MS = 5_000  # as long as SQLite waits for a writer
IDLE_MS = 5_000  # between two statements of one transaction; a healthy client sends them within milliseconds
CONNECT_S = 10  # unless the URL says otherwise
SILENCE_MS = 20_000  # unacknowledged bytes, before a connection to a host that is gone counts as lost


class Session:
    """One connection, in autocommit; the caller sees to it that one thread at a time uses it."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        """Connects. UsageFault for a URL that is none, StoreFault when the server does not let us in."""
        self.where = name_of(url)
        self._url = url
        self._is_read_only = read_only
        try:
            self._db = self._connect()
        except psycopg.Error as error:
            raise fault_of(error, self.where, "connecting to it") from error

    @property
    def db(self) -> psycopg.Connection:
        """The connection, opened anew when the last one was lost. psycopg.OperationalError."""
        if self._db.closed:
            self._db = self._connect()
        return self._db

    @property
    def is_lost(self) -> bool:
        return self._db.closed

    def clear(self) -> None:
        """After an error: no transaction is open any more, or the connection is given up."""
        try:
            if not self._db.closed and self._db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self._db.rollback()
        except psycopg.Error:
            self._db.close()

    def close(self) -> None:
        self._db.close()

    def _connect(self) -> psycopg.Connection:
        given: dict[str, Any] = {"connect_timeout": CONNECT_S, "application_name": "setpoint"}
        given |= {"keepalives_idle": 30, "tcp_user_timeout": SILENCE_MS}
        named = conninfo_to_dict(self._url)
        db = psycopg.connect(self._url, autocommit=True, **{k: v for k, v in given.items() if k not in named})
        try:
            db.execute(_bounds(self._is_read_only).encode())
        except BaseException:
            db.close()
            raise
        return db


def _bounds(read_only: bool) -> str:
    return (
        f"SET lock_timeout = {LOCK_MS}; SET idle_in_transaction_session_timeout = {IDLE_MS};"
        " SET default_transaction_isolation = 'read committed'; SET standard_conforming_strings = on;"
        f" SET client_min_messages = warning; SET default_transaction_read_only = {'on' if read_only else 'off'}"
    )


def name_of(url: str) -> str:
    """The URL as messages show it: without a password. UsageFault when it cannot be understood."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise UsageFault(
            f"the store URL is not understood: {' '.join(str(error).split())}",
            hint="Write postgresql://user@host:port/database.",
        ) from error
    user = f"{parts['user']}@" if parts.get("user") else ""
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{user}{parts.get('host') or ''}{port}/{parts.get('dbname') or ''}"
