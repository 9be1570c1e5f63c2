"""A small application to build workflows of: states, capabilities over a world with a ledger, and a bench to run on."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from pydantic import BaseModel

from setpoint import App, Context, Fails, capability
from setpoint.app.runs import RunOutcome
from setpoint.kernel.events import Event
from setpoint.kernel.run_events import NodeCompleted
from setpoint.testing import AppKit, FakeEffector


def played(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that waits, run to its end in a loop of its own."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


class In(BaseModel):
    order_id: str
    cents: int = 0


class Order(BaseModel):
    id: str
    cents: int


class Receipt(BaseModel):
    number: int
    key: str


class Answer(BaseModel):
    outcome: str
    by: list[str]
    reason: str = ""


class State(BaseModel):
    order_id: str
    cents: int = 0
    order: Order | None = None
    receipt: Receipt | None = None
    letter: bool | None = None
    eligible: bool = False
    count: int = 0
    items: list[int] = []
    item: int = 0
    doubled: list[int] = []
    note: str = ""
    answer: Answer | None = None
    left: str = ""
    right: str = ""


@capability(effect="read")
async def load_order(ctx: Context, order_id: str) -> Order:
    return Order(id=order_id, cents=500)


async def find_payment(ctx: Context) -> Any:
    return await ctx.services["world"].probe(ctx.key)


async def pay_back(ctx: Context, result: Receipt) -> None:
    receipt = {"number": result.number, "key": result.key, "request": {}}
    await ctx.services["world"].compensate(ctx.key, receipt)


@capability(
    effect="compensable", key=lambda a: f"refund:{a.order_id}:{a.cents}", probe=find_payment, compensate=pay_back
)
async def pay(ctx: Context, order_id: str, cents: int) -> Receipt:
    receipt = await ctx.services["world"].perform(ctx.key, {"order_id": order_id, "cents": cents})
    return Receipt(number=receipt["number"], key=receipt["key"])


@capability(effect="irreversible", probe=find_payment)
async def send_letter(ctx: Context, order_id: str) -> bool:
    await ctx.services["world"].perform(ctx.key, {"letter": order_id})
    return True


@capability(effect="keyed")
async def mark(ctx: Context, item: int) -> None:
    await ctx.services["world"].perform(ctx.key, {"item": item})


def fails(reason: str) -> Callable[[Any], Any]:
    """A step that ends the run in its author's own words."""

    def step(state: Any) -> Any:
        raise Fails(reason, f"{reason} on purpose")

    return step


def add(amount: int) -> Callable[[State], State]:
    def step(state: State) -> State:
        state.count += amount
        return state

    return step


def new_app(name: str = "shop") -> App:
    return App(name)


def bench(app: App, *troubles: Any, **options: Any) -> AppKit:
    """The app on the bench, with a world that has these troubles. Its world is ``kit.services["world"]``."""
    return AppKit(app, services={"world": FakeEffector(*troubles)}, **options)


def world(kit: AppKit) -> FakeEffector:
    return kit.services["world"]


def done(kit: AppKit, run_id: str) -> list[str]:
    """Paths of the nodes that completed, in order."""
    return [event.node for event in kit.events(run_id) if isinstance(event, NodeCompleted)]


def of_type(kit: AppKit, run_id: str, *types: type[Event]) -> list[Any]:
    return [event for event in kit.events(run_id) if isinstance(event, types)]


def why(outcome: RunOutcome) -> tuple[str, str, str]:
    record = outcome.record
    return record.state, record.reason, record.message
