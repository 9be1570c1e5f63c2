"""A small application as its user would write it, and a shell in which it is run by real processes.

Its other side is a file of lines, ``ledger``. A call holds while a file ``hold`` is there, so that a test can kill or
stop whoever made it in the middle; a step fails until a file ``fixed`` is there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .conftest import Shell

SHOP = """\
import asyncio, json
from pathlib import Path
from pydantic import BaseModel
from setpoint import App, Context, EffectDeclined, EffectInDoubt, Fails, RetryPolicy, approval_terms, capability

HERE = Path(__file__).parent
LEDGER = HERE / "ledger"

class Input(BaseModel):
    order_id: str
    cents: int = 500
class Receipt(BaseModel):
    id: str
class State(Input):
    eligible: bool = False
    receipt: Receipt | None = None
    told: bool = False
    word: str | None = None

def rows():
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
def note(**row):
    with LEDGER.open("a") as file:
        file.write(json.dumps(row) + "\\n")

async def find(ctx, order_id: str):
    return next((Receipt(id=row["key"]) for row in rows() if row["key"] == ctx.key), None)
async def reverse(ctx, order_id: str, result: Receipt):
    note(what="undo", key=ctx.key)
@capability(effect="compensable", key=lambda a: f"refund:{a.order_id}", probe=find, compensate=reverse, timeout="1h")
async def pay(ctx: Context, order_id: str, cents: int) -> Receipt:
    note(what="pay", key=ctx.key)
    while (HERE / "hold").exists():
        await asyncio.sleep(0.02)
    return Receipt(id=ctx.key)
@capability(effect="compensable", key=lambda a: f"gift:{a.order_id}", compensate=reverse, retry=RetryPolicy(attempts=1))
async def give(ctx: Context, order_id: str) -> Receipt:
    note(what="give", key=ctx.key)
    raise EffectInDoubt("the reply was lost")
@capability(effect="compensable", key=lambda a: f"gift:{a.order_id}", compensate=reverse, retry=RetryPolicy(attempts=1))
async def lend(ctx: Context, order_id: str) -> Receipt:
    raise EffectInDoubt("the reply was lost")

def check(state):
    return {"eligible": state.order_id != "late"}
def mend(state):
    if not (HERE / "fixed").exists():
        raise ValueError("not yet")
    return {"told": True}
def refuse(state):
    raise Fails("NoStock", "nothing is left")

app = App("shop")
issue = app.fragment("issue", state=State).capability("pay", pay)
reject = app.fragment("reject", state=State).step("say-no", lambda state: {"told": True})
refund = (app.workflow("refund", input=Input, state=State).step("check", check)
    .branch("decision", lambda state: "APPROVED" if state.eligible else "REJECTED",
            {"APPROVED": issue, "REJECTED": reject}))
def asking(name, **terms):
    return app.workflow(name, input=Input, state=State).step("check", check).capability(
        "pay", pay, approval=approval_terms(**terms), preview=lambda state: f"pay {state.cents} for {state.order_id}")
big = asking("big", by=["ops"], expires="1h")
brief = asking("brief", by=["ops"], expires="300ms")
two = asking("two", by=["ops", "finance"], quorum=2, each_role=True)
waits = (app.workflow("waits", input=Input, state=State).capability("pay", pay)
    .wait_for("word", timeout="1h", into="word").step("after", mend))
later = app.workflow("later", input=Input, state=State).wait_for("go", timeout="1h").capability("pay", pay)
gift = app.workflow("gift", input=Input, state=State).capability("send", give, into="receipt")
loan = app.workflow("loan", input=Input, state=State).capability("lend", lend, into="receipt")
@capability(effect="keyed", key=lambda a: f"mail:{a.order_id}")
async def mail(ctx: Context, order_id: str) -> Receipt:
    note(what="mail", key=ctx.key)
    return Receipt(id=ctx.key)
mailed = (app.workflow("mailed", input=Input, state=State).capability("mail", mail, into="receipt")
    .capability("pay", pay).step("stock", refuse))
part = app.workflow("part", input=Input, state=State).capability("pay", pay).capability("mail", mail, into="receipt")
whole = (app.workflow("whole", input=Input, state=State)
    .workflow("part", part, input=lambda state: {"order_id": state.order_id}).step("stock", refuse))
@capability(effect="keyed", key=lambda a: f"no:{a.order_id}")
async def no(ctx: Context, order_id: str) -> Receipt:
    raise EffectDeclined("no such card")
refused = app.workflow("refused", input=Input, state=State).capability("pay-no", no, into="receipt")
maybe = (app.workflow("maybe", input=Input, state=State)
    .approval("ask", by=["ops"], show=lambda state: f"pay {state.cents}", when=lambda state: state.cents > 900)
    .capability("pay", pay))
sold_out = app.workflow("sold-out", input=Input, state=State).capability("pay", pay).step("stock", refuse)
parent = app.workflow("parent", input=Input, state=State).workflow(
    "child", waits, input=lambda state: {"order_id": state.order_id})
"""
DEADLINE_S = 60.0


@dataclass
class Shop(Shell):
    """A shell beside ``shop.py``. ``close`` leaves no process behind, whatever a test came to."""

    started: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        process = super().start(*words, **options)
        self.started.append(process)
        return process

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def start_run(self, workflow: str, order: str, *more: str) -> subprocess.Popen[str]:
        return self.start("run", workflow, "--input", json.dumps({"order_id": order}), "--id", order, *more)

    def run_order(self, workflow: str, order: str, *more: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        words = ("run", workflow, "--input", json.dumps({"order_id": order}), "--id", order, *more)
        return self.run(*words, code=code)

    def ledger(self) -> list[tuple[str, str]]:
        path = self.directory / "ledger"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [(row["what"], row["key"]) for row in rows]

    def ticket(self) -> str:
        """The one open ticket."""
        (one,) = self.json("approvals")["approvals"]
        return one["ticket_id"]

    def held_in_call(self, workflow: str, order: str, *more: str) -> subprocess.Popen[str]:
        """A process in the middle of the call that pays for this order."""
        (self.directory / "hold").touch()
        process = self.start_run(workflow, order, *more)
        until(lambda: ("pay", f"refund:{order}") in self.ledger())
        return process

    def worker_in_call(self, order: str, *options: str) -> subprocess.Popen[str]:
        """A worker in the middle of the call that pays for this order."""
        self.run_order("later", order, code=13)
        self.run("signal", order, "go")
        (self.directory / "hold").touch()
        worker = self.start("worker", *options)
        until(lambda: ("pay", f"refund:{order}") in self.ledger())
        return worker

    def let_go(self) -> None:
        (self.directory / "hold").unlink()


def until(holds: Callable[[], Any]) -> Any:
    """The first true answer. Fails when there is none before the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)
    return found


def killed(process: subprocess.Popen[str]) -> None:
    """``kill -9``, and gone."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
