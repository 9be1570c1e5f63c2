"""A process whose model thinks for ever about its second reply: ``python -m tests.agents.killed_turn STORE``."""

from __future__ import annotations

import asyncio
import sys

from tests.agents.shop import Shop

from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.testing import FakeClock, call, reply


async def main(path: str) -> None:
    clock = FakeClock()
    shop = Shop(
        [reply(call("start_workflow_refund", order_id="A-1001"))], log=SqliteLog(path, clock.now_ms), clock=clock
    )
    propose = shop.script.propose

    async def think(context, deadline_ms):
        if context.cursor:
            print("thinking", flush=True)
            await asyncio.sleep(60)
        return await propose(context, deadline_ms)

    shop.script.propose = think  # type: ignore[method-assign]
    await shop.say("Refund A-1001")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
