"""Desired minus actual, until empty: the outer loop.

Every decision is a function of the record, so that the loop entered anew after a crash decides the same. It returns
when the trajectory is terminal or waits for a person; a waiting trajectory holds nothing but its record (law L12).
"""

from __future__ import annotations

import asyncio

from setpoint.engine.approving import is_decided
from setpoint.engine.context import build_context, stored_parts
from setpoint.engine.control import apply_controls
from setpoint.engine.finalize import fail, roll_back_to_best, succeed
from setpoint.engine.journal import Journal
from setpoint.engine.judge import judge_state
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.turn import run_turn
from setpoint.kernel import limits
from setpoint.kernel.events import (
    CallDeclined,
    CheckpointWritten,
    ControlApplied,
    ControlRequested,
    QuestionAsked,
    Routed,
    Stalled,
)
from setpoint.kernel.record import Record
from setpoint.phases.p1_context.compaction import ContextTooLarge
from setpoint.phases.p1_context.continuation import Go, Stop, may_continue, project
from setpoint.phases.p2_proposal.routing import NextRoute, next_route
from setpoint.phases.p6_verdict.progress import Backtrack, NoStall, Steer, judge_progress


async def converge(p: Pursuit) -> Record:
    """Run turns until the delta is empty, a bound is reached or a person is needed."""
    if p.record.best is None:
        await baseline(p)
    while True:
        await apply_controls(p)
        record = p.record
        waits = record.state == "PAUSED" or (record.state == "AWAITING_APPROVAL" and not await is_decided(p))
        if record.is_terminal or waits:
            await p.journal.barrier()
            return record
        if record.state == "READY":
            if record.seal_broken:
                await fail(p, "Drifted", record.seal_broken, 17)
                continue
            if record.is_met:
                await succeed(p)
                continue
            if record.route_index >= len(record.models):
                await _routes_exhausted(p)
                continue
            if record.halted:
                await fail(p, "Stalled", record.halted, 11)
                continue
            if await _stalled(p):
                continue
        await _one_turn(p)
        await _checkpoint(p)


async def baseline(p: Pursuit) -> None:
    """Judge the base itself: it may already be what is desired, and it is what later counts are compared with."""
    await asyncio.to_thread(p.workspace.begin)
    changes = await asyncio.to_thread(p.workspace.changes)
    await judge_state(p, changes, thorough=True, phase="baseline")
    await asyncio.to_thread(p.workspace.discard)
    await p.journal.barrier()


async def _one_turn(p: Pursuit) -> None:
    if p.record.state != "READY":  # a turn in flight, taken up after a crash: it was admitted when it started
        await run_turn(p, p.record.stage, None)
        return
    admitted = may_continue_now(p, 0)
    if isinstance(admitted, Stop):
        await _budget_exhausted(p, admitted)
        return
    try:
        context = await build_context(p, admitted.stage)
    except ContextTooLarge as fault:
        await fail(p, "ContextTooLarge", str(fault), 11)
        return
    admitted = may_continue_now(p, context.tokens)
    if isinstance(admitted, Stop):
        p.journal.emit(
            CallDeclined(
                dimension=admitted.dimension,
                message=admitted.message,
                digest=context.digest,
                tokens=context.tokens,
                parts=stored_parts(p, context),
            )
        )
        await _budget_exhausted(p, admitted)
        return
    await run_turn(p, admitted.stage, context)


def may_continue_now(p: Pursuit, prompt_tokens: int) -> Go | Stop:
    route = p.proposers[p.record.route_index]
    projected = project(p.record, prompt_tokens, route.limits)
    return may_continue(p.record, p.budget, p.elapsed_ms(), projected)


async def _budget_exhausted(p: Pursuit, stop: Stop) -> None:
    if p.task.budget.on_exceed == "pause":
        request = f"budget-{p.record.turn}"
        p.journal.emit(ControlRequested(request_id=request, action="pause", by="runtime", argument=stop.dimension))
        p.journal.emit(ControlApplied(request_id=request, action="pause"))
        await p.journal.barrier()
        return
    await fail(p, f"Budget:{stop.dimension}", f"budget exhausted ({stop.dimension}): {stop.message}", 14)


async def _stalled(p: Pursuit) -> bool:
    """Take the next stall tier when there is no progress; True when the loop must look again."""
    match judge_progress(p.record, p.task.policy):
        case NoStall():
            return False
        case Steer(reason, message):
            p.journal.emit(Stalled(tier="steer", reason=reason, message=message))
            return False
        case Backtrack(reason, message):
            await _backtrack(p, reason, message)
            return True


async def _backtrack(p: Pursuit, reason: str, message: str) -> None:
    """Back to the best savepoint, and the next step of ``policy.on_stall``: another route, a person, or the end.

    All of it is decided before any of it is durable, and becomes durable at once: a crash cannot take the roll-back
    without the step that follows it.
    """
    p.journal.emit(Stalled(tier="backtrack", reason=reason, message=f"back to the best savepoint: {message}"))
    roll_back_to_best(p, "stall")
    _next_step(p, reason, message)
    await p.journal.barrier()
    await asyncio.to_thread(p.workspace.restore, p.record.savepoint)


def _next_step(p: Pursuit, reason: str, message: str) -> None:
    for step in p.task.policy.on_stall:
        if step == "next_model":
            following = next_route(p.record, reason)
            if isinstance(following, NextRoute):
                p.journal.emit(Routed(route=p.record.models[following.index], index=following.index, reason=reason))
                return
        elif step == "narrow":
            p.journal.emit(Stalled(tier="narrow", reason="NotInThisRelease", message=""))
        elif step == "ask" and p.record.question is None:
            blocking = ", ".join(item.address for item in p.record.items)
            question = f"No progress ({message}). Still open: {blocking}. How shall it go on?"
            p.journal.emit(Stalled(tier="ask", reason=reason, message=""))
            p.journal.emit(QuestionAsked(question_id=f"s{p.record.turn}", question=question, source="runtime"))
            return
    p.journal.emit(Stalled(tier="halt", reason=reason, message=message))


async def _routes_exhausted(p: Pursuit) -> None:
    why = f": {p.record.no_route}" if p.record.no_route else ""
    await fail(p, "RoutesExhausted", f"no model has a further proposal{why}", 11)


async def _checkpoint(p: Pursuit) -> None:
    """A record snapshot every so many turns, at a turn boundary only, after its savepoint is durable (R176)."""
    record = p.record
    if record.state != "READY" or record.turn - record.checkpoint_turn < limits.CHECKPOINT_EVERY_TURNS:
        return
    if isinstance(p.journal, Journal):
        p.journal.emit(CheckpointWritten(savepoint=record.savepoint))
        await p.journal.checkpoint()
