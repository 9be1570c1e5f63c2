"""Applications whose nodes do nothing: what the measurements of workflows share.

The real builder, the real proof when it is opened, the real engine and the real SQLite store, with its defaults. So
what is measured is the runtime's own cost of a node: its state read, the step called, its change checked, one record
appended and synced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic import BaseModel

from setpoint import App, Context, Runtime, capability
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.app.workflow import Workflow
from setpoint.engine.runs.journal import Observer
from setpoint.kernel.events import Event
from setpoint.kernel.run_record import RunRecord


class Named(BaseModel):
    """The input: a name that keeps the business keys of two runs apart."""

    run: str = "one"


class Count(BaseModel):
    """The state: how many steps were made."""

    n: int = 0


def counted(state: Count) -> dict[str, int]:
    return {"n": state.n + 1}


@capability(effect="keyed", key=lambda arguments: f"noop:{arguments.run}:{arguments.n}")
async def noop(ctx: Context, run: str, n: int) -> int:
    """An effect outside that does nothing."""
    return n + 1


class Called(Count):
    """The state of the workflow of calls."""

    run: str


def of_steps(app: App, steps: int, name: str = "steps") -> Workflow[Any, Any]:
    """``steps`` pure steps in a row, each of which changes the state. Their names are all of one length."""
    workflow = app.workflow(name, input=Named, state=Count)
    for number in range(steps):
        workflow.step(f"s{number:05}", counted)
    return workflow


def of_calls(app: App, calls: int, name: str = "calls") -> Workflow[Any, Any]:
    """``calls`` effects in a row under a business key each: intent durable, performed, result durable."""
    workflow = app.workflow(name, input=Named, state=Called)
    for number in range(calls):
        workflow.capability(f"c{number:05}", noop, into="n")
    return workflow


@contextlib.asynccontextmanager
async def opened(directory: str, app: App) -> AsyncIterator[tuple[Runtime, SqliteLog]]:
    """A runtime over a store in ``directory``; nothing of the user's own directories is touched."""
    os.environ["SETPOINT_HOME"] = directory
    async with Runtime.open(f"sqlite:///{path_in(directory)}", app) as runtime:
        log = runtime.log
        assert isinstance(log, SqliteLog)
        yield runtime, log


def path_in(directory: str) -> str:
    return os.path.join(directory, "bench.db")


def at_steps(steps: frozenset[int], mark: Callable[[int], None]) -> Observer:
    """Calls ``mark`` once when that many nodes of a run are done, and durable."""
    left = set(steps)

    def observe(event: Event, record: RunRecord) -> None:
        if record.step in left:
            left.discard(record.step)
            mark(record.step)

    return observe
