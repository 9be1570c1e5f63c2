"""A model call as the log holds it: what was said, or how it failed, and what it cost. Usage is the provider's word."""

from __future__ import annotations

from typing import Any

from setpoint.kernel.events import ModelFailed, ModelReplied, Ref
from setpoint.kernel.proposal import Usage
from setpoint.kernel.spelling import encodable
from setpoint.phases.p2_proposal.invoke import Answered, Failed, price
from setpoint.ports.proposer import Proposer


def model_replied(
    proposer: Proposer, answered: Answered, inline: dict[str, Any] | None, ref: Ref | None
) -> ModelReplied:
    """``inline`` or ``ref``: the reply's document, as the journal keeps it."""
    reply = answered.reply
    return ModelReplied(
        route=proposer.route,
        stop=reply.stop,
        reply=inline,
        reply_ref=ref,
        input_tokens=reply.usage.input_tokens,
        output_tokens=reply.usage.output_tokens,
        cached_tokens=reply.usage.cached_tokens,
        usd_micros=price(reply.usage, proposer.limits),
        latency_ms=answered.latency_ms,
        model=encodable(reply.model),
        cursor=reply.cursor,
    )


def model_failed(proposer: Proposer, failure: Failed) -> ModelFailed:
    fault = failure.fault
    spent = fault.usage if isinstance(fault.usage, Usage) else Usage()
    return ModelFailed(
        route=proposer.route,
        kind=fault.kind,
        message=encodable(fault.message)[:500],
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cached_tokens=spent.cached_tokens,
        usd_micros=price(spent, proposer.limits),
        latency_ms=failure.latency_ms,
        retry_after_ms=fault.retry_after_ms or 0,
        cursor=fault.cursor,
    )
