"""H4. Destructive SQL on a live database: irreversible, so it needs a digest-bound approval and a verified snapshot."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from setpoint import App, Context, capability
from setpoint.app.runs import RunOutcome
from setpoint.app.typed import DefinitionFault
from setpoint.app.workflow import Workflow, approval_terms
from setpoint.kernel.effects import DidNotHappen, EffectDeclined, Happened
from setpoint.kernel.run_events import EffectQueued
from setpoint.kernel.ticket import Ticket
from setpoint.testing.apps import AppKit

OPS = approval_terms(by=["ops"], expires="24h")
ROWS = [(1, "old"), (2, "old"), (3, "new")]


class Purge(BaseModel):
    kind: str


class Snapshot(BaseModel):
    """A copy of the live table that was read back and compared: what it held, row for row."""

    file: str
    of_live: str  # digest of the live rows when it was taken
    read_back: str  # digest of the rows that the file gives when it is opened anew

    @property
    def is_verified(self) -> bool:
        return self.of_live == self.read_back


class State(BaseModel):
    snapshot: Snapshot | None = None
    purged: int = 0


def digest_of(file: Path) -> str:
    connection = sqlite3.connect(file)
    try:
        rows = connection.execute("SELECT id, kind FROM customers ORDER BY id").fetchall()
    except sqlite3.DatabaseError as error:
        rows = [("unreadable", str(error))]
    finally:
        connection.close()
    return hashlib.sha256(repr(rows).encode()).hexdigest()


@capability(effect="read")
def take_snapshot(ctx: Context, kind: str) -> Snapshot:
    """Copies the live database beside it with SQLite's own backup, and reads the copy back."""
    live, file = Path(ctx.services["live"]), Path(ctx.services["live"]).with_suffix(".snapshot")
    before = digest_of(live)
    source, target = sqlite3.connect(live), sqlite3.connect(file)
    source.backup(target)
    source.close()
    target.close()
    ctx.services["disturb"](file)
    return Snapshot(file=str(file), of_live=before, read_back=digest_of(file))


def was_purged(ctx: Context, kind: str) -> Any:
    connection = sqlite3.connect(ctx.services["live"])
    (left,) = connection.execute("SELECT count(*) FROM customers WHERE kind = ?", (kind,)).fetchone()
    connection.close()
    return DidNotHappen() if left else Happened(0)


@capability(effect="irreversible", key=lambda a: f"purge:{a.kind}:{a.of_live}", probe=was_purged)
def purge(ctx: Context, kind: str, of_live: str) -> int:
    """Deletes for good, and only what the snapshot holds: rows that came meanwhile are a no of the database."""
    if digest_of(Path(ctx.services["live"])) != of_live:
        raise EffectDeclined("the table is not what the snapshot holds any more")
    connection = sqlite3.connect(ctx.services["live"])
    with connection:
        gone = connection.execute("DELETE FROM customers WHERE kind = ?", (kind,)).rowcount
    connection.close()
    return gone


def has_verified_snapshot(state: State) -> bool | str:
    if state.snapshot is None:
        return "there is no snapshot of the live database"
    return state.snapshot.is_verified or "the snapshot does not give back what the live database held"


def arguments(state: State, given: Purge) -> dict[str, Any]:
    return {"kind": given.kind, "of_live": state.snapshot.of_live if state.snapshot else ""}


def preview(state: State, given: Purge) -> str:
    return f"DELETE FROM customers WHERE kind = '{given.kind}', for good"


def purge_flow(app: App, *, with_snapshot: bool = True, with_approval: bool = True) -> Workflow[Any, Any]:
    flow = app.workflow("purge", input=Purge, state=State)
    if with_snapshot:
        flow.capability("snapshot", take_snapshot, into="snapshot")
    asks: dict[str, Any] = {"approval": OPS, "preview": preview} if with_approval else {}
    return flow.capability("purge", purge, args=arguments, into="purged", require=has_verified_snapshot, **asks)


@pytest.fixture
def live(tmp_path: Path) -> Path:
    file = tmp_path / "live.db"
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, kind TEXT)")
        connection.executemany("INSERT INTO customers VALUES (?, ?)", ROWS)
    connection.close()
    return file


def rows(live: Path) -> list[tuple[int, str]]:
    connection = sqlite3.connect(live)
    found = connection.execute("SELECT id, kind FROM customers ORDER BY id").fetchall()
    connection.close()
    return found


def played(
    live: Path,
    story: Callable[[AppKit, RunOutcome], Awaitable[RunOutcome]],
    disturb: Callable[[Path], Any] = lambda file: None,
    **parts: bool,
) -> tuple[RunOutcome, AppKit]:
    async def play() -> tuple[RunOutcome, AppKit]:
        app = App("shop")
        purge_flow(app, **parts)
        people = {"anna": ["ops"], "eve": ["sales"]}
        kit = AppKit(app, services={"live": str(live), "disturb": disturb}, approvers=people)
        outcome = await story(kit, await kit.run("purge", {"kind": "old"}))
        return outcome, kit

    return asyncio.run(play())


async def approve(kit: AppKit, waiting: RunOutcome) -> RunOutcome:
    kit.approve(waiting.run_id, by="anna")
    return await kit.go_on(waiting.run_id)


async def as_it_is(kit: AppKit, waiting: RunOutcome) -> RunOutcome:
    return waiting


def sent(kit: AppKit, outcome: RunOutcome) -> list[str]:
    return [event.capability for event in kit.events(outcome.run_id) if isinstance(event, EffectQueued)]


def test_h4_with_a_verified_snapshot_and_an_approval_of_exactly_this_call_it_happens_once(live: Path) -> None:
    """H4, R124: what people approved names kind and snapshot; the snapshot gives the deleted rows back."""
    asked: list[Ticket] = []

    async def story(kit: AppKit, waiting: RunOutcome) -> RunOutcome:
        asked.extend(kit.tickets(waiting.run_id))
        assert rows(live) == ROWS, "nothing is deleted while people decide"
        return await approve(kit, waiting)

    outcome, kit = played(live, story)
    assert outcome.record.state == "COMPLETED" and rows(live) == [(3, "new")]
    [ticket] = asked
    assert (ticket.effect, ticket.arguments["kind"]) == ("irreversible", "old") and "DELETE" in ticket.preview
    assert ticket.arguments["of_live"] == digest_of(live.with_suffix(".snapshot"))
    assert rows(live.with_suffix(".snapshot")) == ROWS and sent(kit, outcome) == ["purge"]


def test_h4_without_an_approval_the_application_does_not_open(live: Path) -> None:
    """H4: an irreversible call on a path where nobody is asked is no workflow at all."""
    app = App("shop")
    with pytest.raises(DefinitionFault, match="irreversible, and on this path nobody is asked"):
        purge_flow(app, with_approval=False)
        app.check()
    assert rows(live) == ROWS


def test_h4_without_a_snapshot_nobody_is_even_asked(live: Path) -> None:
    """H4"""
    outcome, kit = played(live, as_it_is, with_snapshot=False)
    assert (outcome.record.reason, outcome.exit_code) == ("PreconditionUnmet", 12)
    assert "there is no snapshot" in outcome.record.message and sent(kit, outcome) == [] and rows(live) == ROWS


@pytest.mark.parametrize("damage", ["cut", "other rows"])
def test_h4_a_snapshot_that_does_not_give_the_data_back_is_none(live: Path, damage: str) -> None:
    """H4: it is verified by reading it back, not by having been written."""

    def disturb(file: Path) -> None:
        if damage == "cut":
            file.write_bytes(file.read_bytes()[:100])
            return
        connection = sqlite3.connect(file)
        with connection:
            connection.execute("UPDATE customers SET kind = 'gone' WHERE id = 1")
        connection.close()

    outcome, kit = played(live, as_it_is, disturb)
    assert (outcome.record.reason, outcome.exit_code) == ("PreconditionUnmet", 12)
    assert "does not give back" in outcome.record.message and sent(kit, outcome) == [] and rows(live) == ROWS


@pytest.mark.parametrize("answer", ["denied", "silence", "the wrong person"])
def test_h4_without_a_yes_nothing_is_deleted(live: Path, answer: str) -> None:
    """H4, R127"""

    async def story(kit: AppKit, waiting: RunOutcome) -> RunOutcome:
        if answer == "denied":
            kit.deny(waiting.run_id, by="anna")
        elif answer == "the wrong person":
            kit.approve(waiting.run_id, by="eve")
        else:
            await kit.skip("25h")
        return await kit.go_on(waiting.run_id)

    outcome, kit = played(live, story)
    expected = {"denied": "ApprovalDenied", "silence": "ApprovalExpired", "the wrong person": ""}[answer]
    assert outcome.record.reason == expected and sent(kit, outcome) == [] and rows(live) == ROWS


def test_h4_rows_that_came_after_the_snapshot_are_not_deleted_by_the_old_yes(live: Path) -> None:
    """H4, D3: the yes is to the rows of the snapshot; the database itself refuses another table."""

    async def story(kit: AppKit, waiting: RunOutcome) -> RunOutcome:
        connection = sqlite3.connect(live)
        with connection:
            connection.execute("INSERT INTO customers VALUES (4, 'old')")
        connection.close()
        return await approve(kit, waiting)

    outcome, _ = played(live, story)
    assert outcome.record.state != "COMPLETED" and rows(live) == [*ROWS, (4, "old")]
