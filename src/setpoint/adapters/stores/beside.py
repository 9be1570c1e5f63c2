"""What every store says of the things that go down beside an append: what may be asked, and how a no is told."""

from __future__ import annotations

from setpoint.kernel.errors import StatementRefused
from setpoint.ports.log import NO_WAKE, WAKE_BY_MESSAGE, Beside, Statement

_SHOWN_MAX = 200  # characters of a statement that a fault repeats


def refuse_unfit(beside: Beside, durable: bool) -> None:
    """ValueError when no store could keep the promise ``beside`` asks for."""
    if not durable and (beside.claims or beside.statements):
        raise ValueError("claims and statements need durable=True")
    if not NO_WAKE <= beside.wake_ms <= WAKE_BY_MESSAGE:
        raise ValueError(f"wake_ms {beside.wake_ms} is no time in epoch milliseconds")


def statement_refused(stream: str, statement: Statement, why: str) -> StatementRefused:
    """``why`` is the database's own words, or the rule that the statement broke."""
    return StatementRefused(
        f"a statement of {stream} was refused: {why}; the statement is {_shown(statement)}; nothing was written",
        hint="Correct the statement or what it finds in its tables; the append can then be tried again.",
    )


def wrong_row_count(stream: str, statement: Statement, changed: int) -> StatementRefused:
    return StatementRefused(
        f"a statement of {stream} changes {changed} rows where it must change {statement.rows}; "
        f"the statement is {_shown(statement)}; nothing was written",
        hint="The rows are not as the statement takes them to be: read them again and decide from what they hold now.",
    )


def _shown(statement: Statement) -> str:
    sql = " ".join(statement.sql.split())
    return repr(sql if len(sql) <= _SHOWN_MAX else sql[:_SHOWN_MAX] + "...")
