"""Ask the models for one proposal: route after route, within one turn (phase 2).

A failed call is recorded and its tokens are charged; it is no turn of its own. Waiting for a server that asked for it
runs neither the turn count nor the wall clock of the budget.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from setpoint.engine.context import build_context, record_context
from setpoint.engine.model_events import model_failed, model_replied
from setpoint.engine.pursuit import Pursuit
from setpoint.kernel import limits
from setpoint.kernel.budget import Stage
from setpoint.kernel.events import Routed
from setpoint.kernel.proposal import Reply
from setpoint.kernel.spelling import encodable, encodable_json
from setpoint.phases.p1_context.compaction import ContextTooLarge
from setpoint.phases.p1_context.continuation import over_spend, project
from setpoint.phases.p2_proposal.invoke import Answered, Failed, invoke
from setpoint.phases.p2_proposal.routing import NextRoute, NoRoute, Retry, after_failure
from setpoint.ports.proposer import Context, Proposer


async def ask_model(p: Pursuit, stage: Stage, context: Context) -> bool:
    """True when a reply was recorded; False when no route is left, or the next call would break the budget."""
    while True:
        proposer = p.proposers[p.record.route_index]
        await p.journal.hand_over()  # the log syncs while the model thinks
        deadline = min(limits.MODEL_CALL_MS_MAX, max(1, p.wall_ms_left()))
        match await invoke(proposer, context, deadline, p.clock):
            case Answered() as answer:
                spilled = p.journal.spill_json(encodable_json(answer.reply.document()))
                p.journal.emit(model_replied(proposer, answer, *spilled))
                return True
            case Failed() as failure:
                following = await _failed(p, failure, proposer, stage, context)
                if following is None:
                    return False
                context = following


def recorded_reply(p: Pursuit) -> Reply:
    """The reply the turn in flight rests on, as the log holds it."""
    pending = p.record.reply
    assert pending is not None
    document = pending.reply
    if document is None:
        assert pending.reply_ref is not None
        document = msgspec.json.decode(p.journal.load(pending.reply_ref), type=dict[str, Any])
    return Reply.of(document)


async def _failed(p: Pursuit, failure: Failed, proposer: Proposer, stage: Stage, context: Context) -> Context | None:
    """Record the failure and find the context of the next call; None when there is none to make."""
    fault = failure.fault
    p.journal.emit(model_failed(proposer, failure))
    if p.wall_ms_left() <= 0:
        return None  # the next boundary says that the wall budget is used up
    match after_failure(p.record, fault.kind, fault.retry_after_ms or 0):
        case Retry(wait_ms):
            if _too_dear(p, context, proposer):
                return None
            await p.journal.hand_over()
            await p.wait(wait_ms)
            return replace(context, cursor=p.record.cursors.get(proposer.route, 0))
        case NextRoute(index, reason):
            p.journal.emit(Routed(route=p.record.models[index], index=index, reason=reason))
            return await _context_of_next_route(p, stage)
        case NoRoute(reason):
            because = f"{reason}: {encodable(fault.message)[: limits.FAILURE_CHARS_MAX]}"
            p.journal.emit(Routed(route="", index=len(p.record.models), reason=because))
            return None


async def _context_of_next_route(p: Pursuit, stage: Stage) -> Context | None:
    """Projected anew: another model may have another window. None: it does not fit, or costs more than is left."""
    try:
        context = await build_context(p, stage)
    except ContextTooLarge:
        return None  # the next turn meets it again and says so
    if _too_dear(p, context, p.proposers[p.record.route_index]):
        return None
    record_context(p, context)
    return context


def _too_dear(p: Pursuit, context: Context, proposer: Proposer) -> bool:
    return over_spend(p.record, p.budget, project(p.record, context.tokens, proposer.limits)) is not None
