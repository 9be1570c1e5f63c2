"""A process of its own that works on one refund: ``python -m tests.runs.paying STORE BANK RUN ORDER PROBES``."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel

from setpoint import App, Context, Runtime, capability
from setpoint.adapters.effectors.http import HttpClient, wire_key
from setpoint.kernel.effects import DidNotHappen, Happened


class Order(BaseModel):
    order_id: str


class State(BaseModel):
    order_id: str
    steps: int = 0
    receipt: dict[str, Any] | None = None


def shop(probes: bool) -> tuple[App, Any]:
    async def find(ctx: Context) -> Any:
        found = (await ctx.services["bank"].get("/refunds", query={"key": wire_key(ctx.key)}))["refunds"]
        return Happened(found[0]) if found else DidNotHappen()

    async def reverse(ctx: Context, result: dict[str, Any]) -> None:
        await ctx.services["bank"].send("POST", f"/refunds/{result['refund_id']}/reversal", key=ctx.key)

    @capability(
        effect="compensable",
        key=lambda a: f"refund:{a.order_id}",
        probe=find if probes else None,
        compensate=reverse,
        timeout="2s",
    )
    async def refund(ctx: Context, order_id: str) -> dict[str, Any]:
        return await ctx.services["bank"].send(
            "POST", "/refunds", key=ctx.key, body={"order_id": order_id, "cents": 100}
        )

    app = App("paying")
    flow = app.workflow("pay", input=Order, state=State).step("before", lambda state: {"steps": state.steps + 1})
    flow = flow.capability("refund", refund, into="receipt").step("after", lambda state: {"steps": state.steps + 1})
    return app, flow


async def main(store: str, bank: str, run_id: str, order: str, probes: str) -> None:
    app, flow = shop(probes == "probes")
    async with HttpClient(bank) as client, Runtime.open(store, app, services={"bank": client}) as runtime:
        values, state = flow.begin({"order_id": order})
        await runtime.runs.start(flow.program, values, state, run_id=run_id)
        outcome = await runtime.runs.wait(run_id)
        record = outcome.record
        print(json.dumps([record.state, record.reason, outcome.exit_code, outcome.output]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
