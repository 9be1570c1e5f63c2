"""Refunds for a shop: one small application, from the customer's words to the money, and back when something fails.

    python bank.py --port 8600 &                                     # the bank: a fake one, beside this file
    python refunds.py --bank http://127.0.0.1:8600 A-1001            # refund an order
    python refunds.py --bank http://127.0.0.1:8600                   # go on with everything that is open
    python refunds.py --bank http://127.0.0.1:8600 --model scripted:friendly.yaml --say "My kettle leaks, order A-1001"

The workflow says what may happen. It looks the order up, decides by rules that a model has no part in, asks a person
above a limit, pays, and tells the customer. What it does outside is declared once, as capabilities; the runtime writes
down each intent before it is sent, so that a crash, a lost reply or a second request never pays twice. The agent reads
what customers write. It holds no tool: all it can do is to start that workflow, and to answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from setpoint import (
    App,
    CannotTell,
    Context,
    DidNotHappen,
    Happened,
    Hydrating,
    RetryPolicy,
    RunOutcome,
    Runtime,
    capability,
)
from setpoint.adapters.effectors.http import HttpClient, wire_key

LATE_AFTER_DAYS = 30
LIMIT_CENTS = 10_000
"""Refunds above it need a yes from ops."""
PATIENT = RetryPolicy(attempts=8, first_ms=200, max_ms=5_000)


@asynccontextmanager
async def services() -> AsyncIterator[dict[str, Any]]:
    """What capabilities find in their context, for `setpoint run` and `setpoint worker --app refunds.py:app`."""
    async with HttpClient(os.environ["BANK_URL"]) as bank:
        yield {"bank": bank}


app = App("support", services=services)


# What the workflow knows


class RefundInput(BaseModel):
    """Which order, how much of it, and why in the customer's words."""  # a model on their behalf reads this, too

    order_id: str
    asked_cents: int | None = None  # None: all of it
    reason: str = ""  # kept, and never obeyed


class Order(BaseModel):
    order_id: str
    item: str
    cents: int
    customer: str
    status: str
    is_late: bool
    is_theirs: bool  # it belongs to whom the run acts for
    refunded_cents: int


class Receipt(BaseModel):
    refund_id: int
    cents: int


class Letter(BaseModel):
    letter_id: int


class RefundState(BaseModel):
    order_id: str
    asked_cents: int | None = None
    order: Order | None = None
    cents: int = 0  # to be refunded
    eligible: bool = False
    why: str = ""  # not, when it is not
    receipt: Receipt | None = None
    letter: Letter | None = None


# What it may do outside. The class, the key, the way to look and the way back come from here, never from a model.


@capability(effect="read", timeout="2s", retry=PATIENT)
async def load_order(ctx: Context, order_id: str) -> Order:
    found = await _bank(ctx).get(f"/orders/{quote(order_id, safe='')}")
    is_late = found.get("days", 0) > LATE_AFTER_DAYS
    return Order(**found, is_late=is_late, is_theirs=found["customer"] == ctx.principal)


async def find_refund(ctx: Context) -> Happened | DidNotHappen | CannotTell:
    """Look, when nobody knows whether a refund arrived: the bank keeps our key with it."""
    found = (await _bank(ctx).get("/refunds", query={"key": wire_key(ctx.key)}))["refunds"]
    match found:
        case []:
            return DidNotHappen()
        case [refund]:
            return Happened(Receipt(**refund))
        case _:
            return CannotTell(f"the bank has {len(found)} refunds under the key {ctx.key}")


async def reverse_refund(ctx: Context, result: Receipt) -> None:
    """Take a refund back. It may be told twice, so it looks first."""
    if not (await _bank(ctx).get("/reversals", query={"key": wire_key(ctx.key)}))["reversals"]:
        await _bank(ctx).send("POST", f"/refunds/{result.refund_id}/reversal", key=ctx.key)


@capability(
    effect="compensable",
    key=lambda a: f"refund:{a.order_id}",  # one refund for an order, whoever asks and however they put it
    probe=find_refund,
    compensate=reverse_refund,
    timeout="2s",
    worst="2s",  # how long the bank may still work on a request that timed out
    retry=PATIENT,
)
async def issue_refund(ctx: Context, order_id: str, cents: int) -> Receipt:
    body = {"order_id": order_id, "cents": cents}
    return await _bank(ctx).send("POST", "/refunds", key=ctx.key, body=body, parse=Receipt.model_validate_json)


async def find_letter(ctx: Context) -> Letter | None:
    found = (await _bank(ctx).get("/letters", query={"key": wire_key(ctx.key)}))["letters"]
    return Letter(**found[0]) if found else None


@capability(effect="keyed", key=lambda a: f"letter:{a.order_id}", probe=find_letter, timeout="2s", retry=PATIENT)
async def send_letter(ctx: Context, order_id: str, to: str, text: str) -> Letter:
    body = {"to": to, "text": text}
    return await _bank(ctx).send("POST", "/letters", key=ctx.key, body=body, parse=Letter.model_validate_json)


def _bank(ctx: Context) -> HttpClient:
    return ctx.services["bank"]


# What it decides. Steps are plain functions of the state: no clock, no network, no chance.


def evaluate_refund_policy(state: RefundState) -> RefundState:
    assert state.order is not None
    state.cents = state.order.cents if state.asked_cents is None else state.asked_cents
    state.why = _why_not(state.order, state.cents)
    state.eligible = not state.why
    return state


def _why_not(order: Order, cents: int) -> str:
    if not order.is_theirs:
        return f"{order.order_id} is not an order of theirs"
    if order.status != "delivered":
        return f"{order.order_id} is not delivered yet; it is {order.status}"
    if order.is_late:
        return f"{order.order_id} was delivered more than {LATE_AFTER_DAYS} days ago"
    if order.refunded_cents:
        return f"{order.order_id} is refunded already ({order.refunded_cents} cents)"
    if not 0 < cents <= order.cents:
        return f"{cents} cents were asked for; {order.order_id} cost {order.cents}"
    return ""


def reject_request(state: RefundState) -> dict[str, Any]:
    return {"cents": 0}


def summary(state: RefundState) -> dict[str, Any]:
    """What a run comes to."""
    refunded = {} if state.receipt is None else {"refund_id": state.receipt.refund_id}
    return {"order_id": state.order_id, "refunded_cents": state.cents, "why_not": state.why, **refunded}


def preview(state: RefundState) -> str:
    """What a person sees before they say yes."""
    order = state.order
    assert order is not None
    return f"Refund {_money(state.cents)} of {_money(order.cents)} for order {order.order_id} ({order.item})"


def letter(state: RefundState) -> dict[str, Any]:
    assert state.order is not None
    text = f"We have refunded {_money(state.cents)} for your order {state.order_id}."
    return {"order_id": state.order_id, "to": state.order.customer, "text": text}


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


# What may happen, in this order and no other

issue_refund_fragment = (
    app.fragment("issue-refund", state=RefundState)
    .approval(
        "ops-agree",
        of="pay",  # a yes is to exactly the call that would be made now: this order, this amount, this state
        by=["ops"],
        when=lambda state: state.cents > LIMIT_CENTS,
        preview=preview,
        expires="24h",
    )
    .capability("look-again", load_order)  # a person may have taken hours, and the shop went on
    .step("check-again", evaluate_refund_policy)
    .capability("pay", issue_refund, require=lambda state: state.eligible or state.why)
    .capability("tell-customer", send_letter, args=letter)  # if this fails for good, the refund is taken back
)

reject_request_fragment = app.fragment("reject-request", state=RefundState).step("reject", reject_request)

refund = (
    app.workflow("refund", input=RefundInput, state=RefundState, output=summary)
    .capability("load-order", load_order)
    .step("check-policy", evaluate_refund_policy)
    .branch(
        "decision",
        lambda state: "APPROVED" if state.eligible else "REJECTED",
        {"APPROVED": issue_refund_fragment, "REJECTED": reject_request_fragment},
    )
)


# Who talks to customers


@app.hydrator(fresh="5m")
async def account_tier(ctx: Hydrating) -> str:
    """From the shop's own records, never from what somebody says."""
    return (await ctx.services["bank"].get(f"/customers/{quote(ctx.principal, safe='')}"))["tier"]


support = app.agent(
    "support-agent",
    instructions="Help customers resolve refund inquiries.",
    workflows=[refund],
    context=lambda session: {"customer_tier": session.context.account_tier},
)


# Running it


async def main() -> int:
    parser = argparse.ArgumentParser(prog="refunds.py", description="Refund an order, or go on with what is open.")
    parser.add_argument("order", nargs="?", help="the order to refund; without it, every open run is gone on with")
    parser.add_argument("--bank", required=True, metavar="URL")
    parser.add_argument("--cents", type=int, help="how much (default: all of it)")
    parser.add_argument("--for", dest="principal", default="customer:17", help="whom it is for (default: customer:17)")
    parser.add_argument("--say", metavar="TEXT", help="instead: what they write to the support agent")
    parser.add_argument("--model", metavar="ROUTE", help="the agent's model, such as scripted:FILE or openai:NAME")
    parser.add_argument("--store", metavar="URL", help="the log (default: Setpoint's own, `sqlite:///FILE` elsewhere)")
    given = parser.parse_args()
    models = [given.model] if given.model else []
    async with (
        HttpClient(given.bank) as bank,
        Runtime.open(given.store, app, services={"bank": bank}, models=models) as runtime,
    ):
        if given.say is not None:
            return await say(runtime, given.principal, given.say)
        if given.order is None:
            return await go_on(runtime)
        asked = RefundInput(order_id=given.order, asked_cents=given.cents)
        return told(await runtime.run(refund, asked, principal=given.principal))


async def say(runtime: Runtime, principal: str, text: str) -> int:
    """Give the support agent a customer's message, and tell what it did and what it says."""
    session = await runtime.session(principal, principal=principal)
    reply = await runtime.turn(support, session, text)
    for taken in reply.actions:
        print(f"{taken.action}: {taken.status} {taken.reason}".rstrip())
    print(reply.text or reply.reason)
    return reply.exit_code


async def go_on(runtime: Runtime) -> int:
    """Go on with every run that is open. (`runtime.runs.work()` is a worker, which does so for ever.)"""
    open_runs = [run.stream for run in runtime.log.streams("run") if not runtime.runs.record(run.stream).is_terminal]
    return max([told(await runtime.runs.wait(run_id)) for run_id in open_runs], default=0)


def told(outcome: RunOutcome) -> int:
    """Print what a run came to, or where it stands. Its exit code: 13 waits for a person."""
    record = outcome.record
    print(json.dumps(outcome.output or {"run": record.run_id, "state": record.state, "message": record.message}))
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
