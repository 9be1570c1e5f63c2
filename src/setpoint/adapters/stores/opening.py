"""From a store URL to an open log."""

from __future__ import annotations

import os
from collections.abc import Callable

from setpoint.adapters.stores.memory import MemoryLog
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.kernel.errors import UsageFault
from setpoint.ports.log import Log

_FORMS = "Write sqlite:///relative/path.db, sqlite:////absolute/path.db, postgresql://user@host/database, or memory:"


def open_log(url: str, now: Callable[[], int]) -> Log:
    """The log ``url`` names; ``now`` is epoch milliseconds.

    UsageFault on a URL of another form, or for Postgres without its driver; StoreFault when the store cannot be opened.
    """
    if url == "memory:":
        return MemoryLog(now)
    if url.startswith("sqlite:///"):
        path = os.path.expanduser(url.removeprefix("sqlite:///"))
        if not path or path.endswith("/"):
            raise UsageFault(f"the store URL {url!r} names no file", hint=_FORMS)
        return SqliteLog(os.path.abspath(path), now)
    if url.startswith(("postgres://", "postgresql://")):
        return _open_postgres(url, now)
    raise UsageFault(f"the store URL {url!r} is not understood", hint=_FORMS)


def _open_postgres(url: str, now: Callable[[], int]) -> Log:
    try:
        import psycopg  # noqa: F401  # only who uses Postgres has to have it
    except ImportError as error:  # also when it is there and finds no libpq
        raise UsageFault(
            f"a Postgres store needs psycopg, which cannot be loaded: {error}",
            hint="Install it with: pip install 'setpoint[postgres]'",
        ) from error
    from setpoint.adapters.stores.postgres import PostgresLog

    return PostgresLog(url, now)
