"""Ask the agent's models for one reply, route after route; every attempt is recorded and charged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from setpoint.engine.model_events import model_failed, model_replied
from setpoint.engine.sessions.hand import SessionHand
from setpoint.kernel import limits
from setpoint.kernel.events import Routed
from setpoint.kernel.proposal import Reply
from setpoint.kernel.spelling import encodable, encodable_json
from setpoint.phases.p2_proposal.invoke import Answered, Failed, invoke
from setpoint.phases.p2_proposal.routing import TRANSIENT
from setpoint.ports.proposer import Context


async def ask_model(hand: SessionHand, context: Context) -> str:
    """Why no route gave a reply. Nothing ("") when one did; it goes down with what is made of it."""
    why = "no model is left to ask"
    while hand.message.route_index < len(hand.proposers):
        proposer = hand.proposers[hand.message.route_index]
        asked = replace(context, cursor=hand.record.cursors.get(proposer.route, 0))
        kind = "batch" if hand.message.by else "interactive"
        async with hand.slots.hold(f"{hand.record.tenant}/{hand.record.principal}", context.tokens, kind):
            outcome = await invoke(proposer, asked, limits.MODEL_CALL_MS_MAX, hand.clock)
        match outcome:
            case Answered() as answered:
                spilled = hand.journal.spill(encodable_json(answered.reply.document()))
                hand.journal.add(model_replied(proposer, answered, *spilled))
                return ""
            case Failed() as failure:
                why = f"{proposer.route} failed ({failure.fault.kind}): {encodable(failure.fault.message)[:500]}"
                await hand.journal.write(model_failed(proposer, failure))
                await _after(hand, failure, why)
    return why


async def _after(hand: SessionHand, failure: Failed, why: str) -> None:
    """The same route after a pause when that may help, else the next one."""
    failures, asked_for = hand.message.route_failures, failure.fault.retry_after_ms or 0
    is_patient = asked_for <= limits.RETRY_AFTER_MS_MAX and failures <= limits.ROUTE_RETRIES_MAX
    if failure.fault.kind in TRANSIENT and is_patient:
        backoff = min(limits.BACKOFF_MS_BASE * 2 ** (failures - 1), limits.BACKOFF_MS_MAX)
        await hand.clock.sleep_ms(max(backoff, asked_for))
        return
    index = hand.message.route_index + 1
    route = hand.proposers[index].route if index < len(hand.proposers) else ""
    hand.journal.add(Routed(route=route, index=index, reason=why))


def recorded_reply(hand: SessionHand) -> Reply:
    """The reply that is pending, as the log holds it."""
    pending = hand.message.pending
    assert pending is not None
    document: dict[str, Any] = hand.journal.value(pending.reply, pending.reply_ref)
    return Reply.of(msgspec.convert(document, dict[str, Any]))
