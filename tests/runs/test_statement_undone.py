"""A compensator that returns a statement, as only a capability may: nothing passes for taken back."""

from __future__ import annotations

import asyncio
import sqlite3

from pydantic import BaseModel

from setpoint import App, Context, Fails, Runtime, Statement, capability


class Entry(BaseModel):
    cents: int


def change(cents: int) -> Statement:
    return Statement("UPDATE balance SET cents = cents + :cents", {"cents": cents}, rows=1)


@capability(effect="compensable", statements=True, compensate=lambda ctx, cents: change(-cents))
def book(ctx: Context, cents: int):
    return change(cents)


def fail(state: Entry) -> Entry:
    raise Fails("No", "it cannot be")


def test_it_pauses_for_a_person_at_once_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))
    app = App("books")
    app.workflow("book", input=Entry, state=Entry).capability("book", book).step("fail", fail)
    file = tmp_path / "books.db"

    async def story() -> None:
        async with Runtime.open(f"sqlite:///{file}", app) as runtime:
            with sqlite3.connect(file) as db:
                db.executescript("CREATE TABLE balance (cents INTEGER); INSERT INTO balance VALUES (0)")
            outcome = await runtime.run("book", {"cents": 5})
            assert (outcome.record.state, outcome.record.reason) == ("PAUSED", "CompensationFailed")
            assert "returned a Statement" in outcome.record.message
            assert outcome.record.attempts.get("book/book#undo", 0) <= 1

    asyncio.run(story())
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT cents FROM balance").fetchone() == (5,)
