"""The Python form that users were promised runs as it is written: only what its ``...`` stand for is filled in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PRELUDE = """
import asyncio
from pydantic import BaseModel
from setpoint import Context

class RefundInput(BaseModel):
    order_id: str
class Receipt(BaseModel):
    number: str
class RefundState(BaseModel):
    order_id: str
    cents: int = 0
    eligible: bool = False
    receipt: Receipt | None = None

BANK = {}
async def find_refund(ctx: Context):
    return BANK.get(ctx.key)
async def reverse_refund(ctx: Context, result: Receipt):
    BANK.pop(result.number)
"""

PROMISED = """
from setpoint import App, Task, Runtime, capability, criterion, invariant

app = App("support")

@capability(effect="compensable", key=lambda a: f"refund:{a.order_id}",
            probe=find_refund, compensate=reverse_refund)
async def issue_refund(ctx: Context, order_id: str, cents: int) -> Receipt:
    BANK[ctx.key] = Receipt(number=ctx.key)
    return BANK[ctx.key]

@capability(effect="read")
async def load_order(ctx: Context, order_id: str) -> int:
    return 4200
def evaluate_refund_policy(state: RefundState) -> RefundState:
    state.eligible = state.cents < 10_000
    return state
issue_refund_fragment = app.fragment("issue", state=RefundState).capability("issue", issue_refund)
reject_request_fragment = app.fragment("reject", state=RefundState).step("reject", lambda state: state)
@app.hydrator()
def account_tier(session) -> str:
    return "gold"

refund = (app.workflow("refund", input=RefundInput, state=RefundState)
    .capability("load-order", load_order)
    .step("check-policy", evaluate_refund_policy)
    .branch("decision", lambda state: "APPROVED" if state.eligible else "REJECTED",
            {"APPROVED": issue_refund_fragment, "REJECTED": reject_request_fragment}))

support = app.agent("support-agent", instructions="Help customers resolve refund inquiries.",
    workflows=[refund], context=lambda session: {"customer_tier": session.context.account_tier})

async def main():
    async with Runtime.open("sqlite:///refunds.db", app) as runtime:
        session = await runtime.session("customer-17", principal="customer:17")
        reply = await runtime.turn(support, session, "Please refund order A-1001")
        result = await runtime.converge(Task.load("fix.yaml"))       # or runtime.sync.converge(...)
        print(reply.text, list(BANK), result.exit_code)
"""

LATER = """
_open = Runtime.open
Runtime.open = lambda store, app: _open(store, app, models=["scripted:support.yaml"])
asyncio.run(main())
"""

FILES = {
    "support.yaml": "proposals:\n"
    "  - calls: [{name: start_workflow_refund, arguments: {order_id: A-1001}}]\n"
    "  - calls: [{name: complete, arguments: {text: done}}]\n",
    "fix.yaml": "apiVersion: setpoint.dev/v1\nkind: Task\nmetadata: {name: fix}\nspec:\n"
    "  goal: {text: it is there}\n  environment: {workspace: project}\n  actions: [{tool: file_edit}]\n"
    "  observe: {}\n  done: [{id: there, run: 'true'}]\n",
}


def test_the_promised_code_runs_as_a_whole_program(tmp_path: Path) -> None:
    """R026, R027, R036, R037"""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "project").mkdir()
    (tmp_path / "program.py").write_text(PRELUDE + PROMISED + LATER)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SETPOINT_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done ['refund:A-1001'] 0\n"), done.stderr
