"""Call the model under a deadline, and meter it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from setpoint.kernel.errors import ProposerFault
from setpoint.kernel.proposal import Reply, Usage
from setpoint.ports.clock import Clock
from setpoint.ports.proposer import Context, Proposer, RouteLimits

GRACE_MS = 2_000
"""An adapter ends by its own deadline; one that does not is cut this much later."""


@dataclass(frozen=True, slots=True)
class Answered:
    reply: Reply
    latency_ms: int


@dataclass(frozen=True, slots=True)
class Failed:
    fault: ProposerFault
    latency_ms: int


async def invoke(proposer: Proposer, context: Context, deadline_ms: int, clock: Clock) -> Answered | Failed:
    """The reply, or the classified failure. Never raises for what the model or its server does."""
    start = clock.monotonic_ms()
    try:
        async with asyncio.timeout((deadline_ms + GRACE_MS) / 1000):
            reply = await proposer.propose(context, deadline_ms)
    except ProposerFault as fault:
        return Failed(fault, clock.monotonic_ms() - start)
    except TimeoutError:
        fault = ProposerFault("timeout", f"{proposer.route} did not answer within {deadline_ms} ms")
        return Failed(fault, clock.monotonic_ms() - start)
    if reply.stop == "refusal":
        fault = ProposerFault("refused", f"{proposer.route} refused to answer", usage=reply.usage, cursor=reply.cursor)
        return Failed(fault, clock.monotonic_ms() - start)
    return Answered(reply, clock.monotonic_ms() - start)


def price(usage: Usage, route: RouteLimits) -> int:
    """Micro-dollars of one call: as reported, else by the route's price, else 0. Rounded up."""
    if usage.usd_micros is not None:
        return usage.usd_micros
    if route.usd_micros_per_mtok_in is None or route.usd_micros_per_mtok_out is None:
        return 0
    total = usage.input_tokens * route.usd_micros_per_mtok_in + usage.output_tokens * route.usd_micros_per_mtok_out
    return -(-total // 1_000_000)
