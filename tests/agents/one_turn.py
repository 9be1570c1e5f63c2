"""A process that reads a session, waits for a line, then gives a message: ``python -m tests.agents.one_turn STORE``."""

from __future__ import annotations

import asyncio
import sys

from tests.agents.shop import Shop

from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.kernel.errors import ConflictFault
from setpoint.testing import FakeClock, call, reply


async def main(path: str) -> None:
    clock = FakeClock()
    replies = [reply(call("start_workflow_refund", order_id="A-1001")), reply(call("complete", text="Done."))]
    shop = Shop(replies, log=SqliteLog(path, clock.now_ms), clock=clock)
    session = await shop.session()
    print("read", flush=True)
    sys.stdin.readline()
    try:
        status = (await shop.say("Refund A-1001", session)).status
    except ConflictFault as fault:
        status = fault.message.partition(":")[0]
    print(status, len(shop.bank.effects), flush=True)
    await shop.log.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
