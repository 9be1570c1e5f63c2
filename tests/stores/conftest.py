"""Every store of the conformance suite."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.adapters.stores import open_log

from .postgres_server import NoServer, Server, started
from .words import Clock, Run, runner

_numbers = itertools.count(1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A private PostgreSQL for the session; skips where none can be started."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    try:
        server = started()
        running = server.__enter__()
    except NoServer as why:
        pytest.skip(str(why))
    try:
        yield running
    finally:
        server.__exit__(None, None, None)


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """An empty database of its own."""
    import psycopg

    name = f"t{next(_numbers)}"
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        yield postgres_server.url(name)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state/log.db"


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return store_url(request)


@pytest.fixture(params=["sqlite", "postgres"])
def sql_url(request: pytest.FixtureRequest) -> str:
    """A store that outlives its process and has room for tables of the user's own."""
    return store_url(request)


def store_url(request: pytest.FixtureRequest) -> str:
    match request.param:
        case "memory":
            return "memory:"
        case "postgres":
            return request.getfixturevalue("postgres_url")
        case _:
            return request.getfixturevalue("sqlite_url")


@pytest.fixture
def run(url: str, clock: Clock) -> Run:
    """Runs ``async body(log)`` against a fresh store and closes it."""
    return runner(url, clock)


@pytest.fixture
def run_sql(sql_url: str, clock: Clock) -> Run:
    """The same against a store with room for tables of the user's own."""
    return runner(sql_url, clock)


@pytest.fixture
def user(sql_url: str) -> Iterator[Callable[..., list[Any]]]:
    """Runs one statement as the user does, on a connection of the user's own, committed; answers with its rows."""
    asyncio.run(open_log(sql_url, Clock()).close())
    if sql_url.startswith("sqlite"):
        db: Any = sqlite3.connect(sql_url.removeprefix("sqlite:///"), isolation_level=None)
    else:
        import psycopg

        db = psycopg.connect(sql_url, autocommit=True)

    def ask(sql: str) -> list[Any]:
        done = db.execute(sql)
        return done.fetchall() if done.description else []

    try:
        yield ask
    finally:
        db.close()


@pytest.fixture
def trigger_on_orders(sql_url: str, user: Callable[..., list[Any]]) -> Callable[[str], None]:
    """Makes the database run a statement of the user's whenever a row of ``orders`` is updated."""

    def make(body: str) -> None:
        if sql_url.startswith("sqlite"):
            user(f"CREATE TRIGGER orders_updated AFTER UPDATE ON orders BEGIN {body}; END")
        else:
            user(
                f"CREATE FUNCTION orders_updated() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN {body}; RETURN NULL; END $$"
            )
            user("CREATE TRIGGER orders_updated AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION orders_updated()")

    return make
