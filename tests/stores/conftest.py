"""Every store of the conformance suite."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.adapters.stores import open_log

from .words import Clock

Run = Callable[[Callable[[Any], Coroutine[Any, Any, Any]]], Any]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


@pytest.fixture(params=["sqlite"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that outlives its process and has room for tables of the user's own."""
    return store_url(request, tmp_path)


def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/state/log.db"


@pytest.fixture
def run(url: str, clock: Clock) -> Run:
    """Runs ``async body(log)`` against a fresh store and closes it."""
    return runner(url, clock)


@pytest.fixture
def run_sql(sql_url: str, clock: Clock) -> Run:
    """The same against a store with room for tables of the user's own."""
    return runner(sql_url, clock)


def runner(url: str, clock: Clock) -> Run:
    def run_body(body: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def whole() -> Any:
            log = open_log(url, clock)
            try:
                return await body(log)
            finally:
                await log.close()

        return asyncio.run(whole())

    return run_body


@pytest.fixture
def user(sql_url: str) -> Iterator[Callable[..., list[Any]]]:
    """Runs one statement as the user does, on a connection of the user's own, committed; answers with its rows."""
    open_store = open_log(sql_url, Clock())
    db = sqlite3.connect(sql_url.removeprefix("sqlite:///"), isolation_level=None)
    asyncio.run(open_store.close())
    try:
        yield lambda sql: db.execute(sql).fetchall()
    finally:
        db.close()


@pytest.fixture
def trigger_on_orders(user: Callable[..., list[Any]]) -> Callable[[str], None]:
    """Makes the database run a statement of the user's whenever a row of ``orders`` is updated."""

    def make(body: str) -> None:
        user(f"CREATE TRIGGER orders_updated AFTER UPDATE ON orders BEGIN {body}; END")

    return make
