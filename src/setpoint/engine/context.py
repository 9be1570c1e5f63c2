"""Build the context of a turn, and record it as ordered references plus hash, never as a copy (phase 1)."""

from __future__ import annotations

from setpoint.engine.pursuit import Pursuit
from setpoint.kernel import limits
from setpoint.kernel.budget import Stage
from setpoint.kernel.events import ContextBuilt, ContextPart, DriftFound
from setpoint.kernel.keys import DIGEST_PREFIX
from setpoint.kernel.spelling import encodable
from setpoint.phases.p1_context.projection import (
    FILE_PART,
    GOAL_PART,
    MAP_PART,
    OBSERVATION_PART,
    ROOT_PART,
    project,
)
from setpoint.phases.p3_gate.gate import legal_tools
from setpoint.ports.proposer import Context


async def build_context(p: Pursuit, stage: Stage) -> Context:
    """The projection of the present record and workspace for the present route."""
    record, route = p.record, p.proposers[p.record.route_index]
    tools = tuple(tool.spec for tool in legal_tools(p.task, p.tools, stage))
    turn = record.turn if record.state != "READY" else record.turn + 1
    window = route.limits.context_tokens - route.limits.output_tokens
    return project(
        p.task,
        record,
        turn,
        tools,
        await p.surroundings(p),
        p.journal.load,
        stage=stage,
        cursor=record.cursors.get(route.route, 0),
        max_tokens=max(1, min(limits.PROMPT_TOKENS_MAX, window)),
    )


_STORED_PARTS = (ROOT_PART, GOAL_PART, MAP_PART)


def stored_parts(p: Pursuit, context: Context) -> list[ContextPart]:
    """References to the parts that cannot be projected again from the record."""
    parts: list[ContextPart] = []
    for part in context.parts:
        if part.name in _STORED_PARTS or part.name.startswith(FILE_PART):
            if not p.journal.is_stored(DIGEST_PREFIX + part.digest):  # most parts are those of the turn before
                p.journal.store(part.text.encode("utf-8", "replace"))
            parts.append(ContextPart(part.zone, encodable(part.name), part.digest, part.tokens))
    return parts


def record_context(p: Pursuit, context: Context) -> None:
    parts = stored_parts(p, context)
    shown = [part.name.removeprefix(OBSERVATION_PART) for part in context.parts if part.zone == "leaf"]
    p.journal.emit(ContextBuilt(digest=context.digest, tokens=context.tokens, parts=parts, observations=shown))


async def rebuilt_context(p: Pursuit, stage: Stage) -> Context:
    """The context of the turn in flight, built again; when it differs from the recorded one, the log says so."""
    context = await build_context(p, stage)
    if context.digest != p.record.context_digest:
        expected = p.record.context_digest
        p.journal.emit(DriftFound(what="context", expected=expected, found=context.digest, decision="cross_over"))
    return context
