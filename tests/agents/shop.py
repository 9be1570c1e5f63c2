"""A shop with a bank, and an agent that may start three workflows of it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field

from setpoint import App, Context, approval_terms, capability
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.agent import Agent
from setpoint.app.session import Session
from setpoint.app.sessions import Sessions, TurnReply
from setpoint.engine.sessions.journal import stream_of
from setpoint.kernel.errors import ProposerFault
from setpoint.kernel.events import Event
from setpoint.kernel.proposal import Reply
from setpoint.kernel.session_events import decode
from setpoint.ports.log import Log
from setpoint.testing import FakeClock, FakeEffector, ScriptedReplies
from setpoint.testing.apps import AppKit

LIMIT_CENTS = 10_000
ORDERS = {"A-1001": 500, "A-1002": 700, "B-2001": 50_000}


class RefundInput(BaseModel):
    order_id: str = Field(max_length=20)


class Order(BaseModel):
    id: str
    cents: int


class Receipt(BaseModel):
    id: str


class RefundState(BaseModel):
    order_id: str
    order: Order | None = None
    cents: int = 0
    receipt: Receipt | None = None


class ReturnInput(BaseModel):
    order_id: str


class ReturnState(BaseModel):
    order_id: str
    photo: str | None = None
    due: datetime.date | None = None
    wish: Literal["exchange", "voucher"] | None = None


class AdjustInput(BaseModel):
    customer: str
    previous: str = ""


class AdjustState(BaseModel):
    customer: str
    previous: str = ""


class Shop:
    """One process's view; ``restart`` is a new one over the same log."""

    def __init__(
        self,
        replies: Sequence[Reply | ProposerFault] = (),
        *,
        log: Log | None = None,
        clock: FakeClock | None = None,
        bank: FakeEffector | None = None,
        tiers: dict[str, str] | None = None,
        **agent: Any,
    ) -> None:
        self.clock = clock or FakeClock()
        self.log: Log = log or MemoryLog(self.clock.now_ms)
        self.bank = bank or FakeEffector()
        self.tiers = {"customer:17": "gold"} if tiers is None else tiers
        self.script = ScriptedReplies(list(replies))
        self.app = App("shop")
        self._declare()
        self.agent: Agent = self.app.agent(
            "support",
            **{
                "instructions": "Help customers.",
                "workflows": [self.refund, self.returning, self.adjust, self.visit],
                "context": lambda session: {"customer_tier": session.context.account_tier},
                "signals": ["photo", "wish", "due"],
                "scopes": {"adjust": ["staff"]},
                "fill": {
                    "adjust": lambda session: {
                        "customer": session.principal,
                        "previous": session.facts["refund"]["receipt"]["id"] if "refund" in session.facts else "",
                    }
                },
            }
            | agent,
        )
        self.kit = AppKit(self.app, approvers={"anna": ["ops"]}, model=self.script, log=self.log, clock=self.clock)

    @property
    def sessions(self) -> Sessions:
        return self.kit.sessions

    def restart(self, log: Log | None = None) -> None:
        self.kit.restart(log)
        self.log = self.kit.log

    def _declare(self) -> None:
        app, bank = self.app, self.bank

        @capability(effect="read")
        async def load_order(ctx: Context, order_id: str) -> Order:
            return Order(id=order_id, cents=ORDERS.get(order_id, 100))

        async def find(ctx: Context, order_id: str) -> Any:
            return await bank.probe(ctx.key)

        @capability(effect="keyed", key=lambda a: f"refund:{a.order_id}", probe=None)
        async def issue_refund(ctx: Context, order_id: str, cents: int) -> Receipt:
            await bank.perform(ctx.key, {"order": order_id, "cents": cents})
            return Receipt(id=ctx.key)

        self.refund = (
            app.workflow("refund", input=RefundInput, state=RefundState)
            .capability("load-order", load_order)
            .step("price", lambda state: {"cents": state.order.cents})
            .capability(
                "issue",
                issue_refund,
                approval=approval_terms(by=["ops"]),
                approval_when=lambda state: state.cents > LIMIT_CENTS,
            )
        )
        self.returning = (
            app.workflow("return", input=ReturnInput, state=ReturnState)
            .wait_for("photo", timeout="7d", into="photo")
            .wait_for("wish", timeout="7d", into="wish")
        )
        self.visit = app.workflow("visit", input=ReturnInput, state=ReturnState).wait_for(
            "due", timeout="7d", into="due"
        )
        self.adjust = app.workflow("adjust", input=AdjustInput, state=AdjustState).step("note", lambda state: {})

        @app.hydrator(fresh="5m")
        def account_tier(ctx: Any) -> str:
            return self.tiers[ctx.principal]

    async def session(self, session_id: str = "customer-17", **options: Any) -> Session:
        return await self.sessions.open(session_id, **{"principal": "customer:17"} | options)

    async def say(self, text: str = "Please refund order A-1001", session: Session | None = None) -> TurnReply:
        return await self.sessions.turn(self.agent, session or await self.session(), text)

    def then(self, *replies: Reply | ProposerFault) -> None:
        """What the model says next."""
        self.script._script.extend(replies)

    def events(self, session_id: str = "customer-17") -> list[Event]:
        return [decode(stored.type, stored.data) for stored in self.log.read(stream_of(session_id))]

    def raw(self, session_id: str = "customer-17") -> list[dict[str, Any]]:
        return [
            {"type": stored.type, **msgspec.json.decode(stored.data)} for stored in self.log.read(stream_of(session_id))
        ]

    def types(self, session_id: str = "customer-17") -> list[str]:
        return [stored.type for stored in self.log.read(stream_of(session_id))]
