"""One turn: the six phases in order. Reading this file is reading the product.

A turn starts only when the budget allows the projected call, and ends with ``TurnEnded``. Between a recorded reply
and its end a crash costs the dispatches of this turn, never the model call: ``run_turn`` takes the recorded reply up
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from setpoint.engine.approving import answer, first_open
from setpoint.engine.ask import ask_model, recorded_reply
from setpoint.engine.context import rebuilt_context, record_context
from setpoint.engine.judge import judge_state, record_changes
from setpoint.engine.pursuit import Pursuit, is_hidden
from setpoint.kernel import limits
from setpoint.kernel.budget import Stage
from setpoint.kernel.delta import Progress, measure
from setpoint.kernel.diagnostics import Diagnostic, diagnose
from setpoint.kernel.errors import ChangeRejected
from setpoint.kernel.events import (
    Authorized,
    ClaimRejected,
    DeltaMeasured,
    QuestionAsked,
    Refused,
    RolledBack,
    SavepointKept,
    ToolIntent,
    ToolResult,
    TurnEnded,
    TurnStarted,
)
from setpoint.kernel.keys import call_key, short_digest
from setpoint.kernel.proposal import ASK_TOOL, CLAIM_TOOL, Call, Malformed, Proposal
from setpoint.kernel.ruling import Hold, Permit, Refusal
from setpoint.kernel.spelling import encodable, encodable_json
from setpoint.phases.p2_proposal.parse import exact, parse_reply
from setpoint.phases.p3_gate.gate import Facts, refuse_blocked, rule
from setpoint.phases.p3_gate.reach import broken_postcondition
from setpoint.phases.p4_dispatch.outcome import Outcome
from setpoint.phases.p4_dispatch.run import Bench
from setpoint.phases.p5_evidence.implicit import IMPLICIT
from setpoint.phases.p5_evidence.observe import shape
from setpoint.phases.p6_verdict.completion import RollBack, corrective_note, decide, postcondition_broken
from setpoint.ports.proposer import Context
from setpoint.ports.workspace import ChangeSet, change_facts


async def run_turn(p: Pursuit, stage: Stage, context: Context | None) -> None:
    """Ask for one proposal and see it through to its verdict. ``context`` None: a turn in flight is taken up."""
    if context is not None:
        p.journal.start_turn(TurnStarted(elapsed_ms=p.elapsed_ms(), stage=stage), p.record.turn + 1)
        record_context(p, context)
    if p.record.reply is None:
        if p.record.route_index < len(p.proposers):
            context = context or await rebuilt_context(p, stage)
        if context is None or not await ask_model(p, stage, context):
            p.journal.emit(TurnEnded(outcome="model_failed", elapsed_ms=p.elapsed_ms()))
            await p.journal.hand_over()
            return
    await see_through(p, parse_reply(recorded_reply(p)), stage)


async def see_through(p: Pursuit, proposal: Proposal, stage: Stage) -> None:
    """Phases 3 to 6 for a proposal whose reply is recorded. One that people decide on is left where it waits."""
    done = await _rule_and_dispatch(p, proposal, stage)
    if done.waits:
        return
    if done.denied:
        await _end(p, "refused", None)
        return
    question = _question(proposal)
    if done.attempted:
        try:
            changes = await asyncio.to_thread(p.workspace.changes)
        except ChangeRejected as fault:
            await _roll_back(p, RollBack("change_rejected", f"rolled back: {fault.message}"), proposal)
            return
        if changes.fingerprint != p.record.fingerprint:
            record_changes(p, changes)
            await judge_state(p, changes, thorough=proposal.claims)
            await _verdict(p, proposal, changes, done.broken_postcondition, question)
            return
        await asyncio.to_thread(p.workspace.discard)
    if done.broken_postcondition is not None:
        await _roll_back(p, postcondition_broken(done.broken_postcondition), proposal, question)
        return
    if proposal.claims and p.record.items:
        _reject_claim(p)
    await _end(p, done.outcome, question)


STAGING = ("shell_exec", "file_edit", "file_write")
"""Tools that work in an attempt; a turn without them needs none."""

NOT_APPROVED = ("APPROVAL_DENIED", "APPROVAL_EXPIRED", "APPROVAL_VOID")
"""Refusals after people were asked: the model goes on with another proposal."""

OUTSIDE = ("keyed", "compensable", "irreversible")
"""Effect classes that leave the workspace: such a turn is not idle although no file changed."""


# Phases 3 and 4


@dataclass(slots=True)
class _Done:
    """What the calls of one proposal came to. ``broken_postcondition`` is the first that did not hold."""

    permits: int = 0
    acted: bool = False  # an effect outside the workspace was dispatched
    attempted: bool = False  # the workspace may have changed
    broken_postcondition: str | None = None
    waits: bool = False  # for people: nothing of the proposal was dispatched
    denied: bool = False  # by people, or by their silence: nothing of it will be

    @property
    def outcome(self) -> str:
        """How a turn ends that changed no file."""
        return "acted" if self.acted else "unchanged" if self.permits else "refused"


async def _rule_and_dispatch(p: Pursuit, proposal: Proposal, stage: Stage) -> _Done:
    """Rule on each call in order and dispatch the permitted ones.

    A broken postcondition ends the turn's dispatches, and so does a call that waits for people, or was not approved.
    """
    done = _Done()
    blocked = short_digest(proposal.digest) in p.record.blocked
    if not proposal.calls:
        message = "the reply holds no call; only calls are acted on, and only `complete_task` asks for judgement"
        p.journal.emit(_refused(Refusal(0, "", "syntactic", "NO_CALL", "", message)))
    open_from = first_open(p)
    for call in proposal.calls:
        if call.ordinal < open_from:
            continue
        resolved = _resolved(p, call)
        ruling = _rule(p, call, stage, blocked, resolved)
        if isinstance(ruling, Hold):
            ruling = await answer(p, ruling, is_first=done.permits == 0)
        match ruling:
            case None:
                done.waits = True
                break
            case Refusal() as refusal:
                p.journal.emit(_refused(refusal, resolved))
                if refusal.reason in NOT_APPROVED:
                    done.denied = True
                    break
            case Permit() as permit:
                done.permits += 1
                done.acted |= permit.effect in OUTSIDE
                if call.name in STAGING and not done.attempted:
                    await asyncio.to_thread(p.workspace.begin)
                    done.attempted = True
                done.broken_postcondition = await _dispatch(p, permit, done.attempted)
                if done.broken_postcondition is not None:
                    break
    return done


def _resolved(p: Pursuit, call: Call | Malformed) -> str | None:
    """Where the call's path leads; None when it takes none or it leads outside. Hidden paths lead nowhere."""
    tool = p.tools.get(call.name) if isinstance(call, Call) else None
    if tool is None or tool.path_argument is None or not isinstance(call, Call):
        return None
    typed = call.arguments.get(tool.path_argument)
    path = p.workspace.resolve(typed) if isinstance(typed, str) else None
    if path is None or is_hidden(p.task.environment, path):
        return None
    return path or "."  # the workspace itself, in a form that the log can tell from "outside"


def _rule(
    p: Pursuit, call: Call | Malformed, stage: Stage, blocked: bool, resolved: str | None
) -> Permit | Hold | Refusal:
    if blocked and isinstance(call, Call) and call.name not in (CLAIM_TOOL, ASK_TOOL):
        return refuse_blocked(call)
    return rule(call, p.task, p.record, p.tools, Facts(stage, resolved, _variables(p)))


async def _dispatch(p: Pursuit, permit: Permit, attempted: bool) -> str | None:
    """Intent, dispatch, result. Returns the postcondition that does not hold, if one does not."""
    call, record = permit.call, p.record
    p.journal.emit(
        Authorized(
            ordinal=call.ordinal,
            tool=call.name,
            call_digest=short_digest(call.digest),
            effect=permit.effect,
            items=list(permit.items),
            path=encodable(permit.path or ""),
            blast=permit.blast,
        )
    )
    if call.name in (CLAIM_TOOL, ASK_TOOL):
        return None  # judged at the end of the turn; nothing is dispatched
    arguments, ref = p.journal.spill_json(encodable_json(call.arguments))
    key = call_key(record.trajectory_id, record.turn, call.ordinal, call.name, exact(call.arguments))
    p.journal.emit(
        ToolIntent(
            ordinal=call.ordinal,
            tool=call.name,
            call_digest=short_digest(call.digest),
            key=key,
            effect=permit.effect,
            arguments=arguments,
            arguments_ref=ref,
            items=list(permit.items),
            attempt=record.attempt,
            rate_calls=permit.grant.rate.calls if permit.grant.rate else 0,
        )
    )
    if permit.effect not in ("pure", "read"):
        await p.journal.barrier()  # law L2: the intent is durable before anything happens
    bench = Bench(p.workspace, p.sandbox, p.task.environment, p.bodies)
    outcome = await p.dispatch(permit, bench, p.wall_ms_left())
    _record_result(p, call, outcome)
    return await _broken_postcondition(p, permit, outcome, attempted) if permit.grant.ensure else None


async def _broken_postcondition(p: Pursuit, permit: Permit, outcome: Outcome, attempted: bool) -> str | None:
    """Judge the grant's postconditions on what the call really did, which is recorded with them."""
    facts = _variables(p)
    facts["call"] = {"tool": permit.call.name, "arguments": permit.call.arguments, "exit_code": outcome.exit_code}
    if attempted:
        try:
            changes = await asyncio.to_thread(p.workspace.changes)
        except ChangeRejected as fault:
            return f"that the change can be taken at all ({fault.message})"
        record_changes(p, changes)
        facts["changes"] = change_facts(changes)
    return broken_postcondition(permit.grant.ensure, facts)


def _record_result(p: Pursuit, call: Call, outcome: Outcome) -> None:
    text = shape(outcome.text, p.task.observe.redact)
    p.journal.emit(
        ToolResult(
            ordinal=call.ordinal,
            tool=call.name,
            status=outcome.status,
            text=p.journal.spill_text(text),
            exit_code=outcome.exit_code,
            reason=outcome.reason,
            duration_ms=outcome.duration_ms,
            output_bytes=outcome.total_bytes,
            output_sha256=outcome.sha256[:32],
            attempt=p.record.attempt,
            diagnostics=_diagnostics(call, outcome, text),
        )
    )


def _diagnostics(call: Call, outcome: Outcome, text: str) -> list[Diagnostic]:
    """What a command that failed complained of, distilled from the redacted text; what passed complains of nothing."""
    if call.name != "shell_exec" or outcome.exit_code in (None, 0):
        return []
    return list(diagnose(text)[: limits.DIAGNOSTICS_IN_RESULT_MAX])


# Phases 5 and 6


async def _verdict(
    p: Pursuit, proposal: Proposal, changes: ChangeSet, broken: str | None, question: str | None
) -> None:
    record = p.record
    hard = _hard(record.items)
    new = [item for item in hard if (known := record.kept_evidence.get(item.address)) and known.verdict == "pass"]
    lead = "rolled back, because it broke" if new or not hard else "rolled back: still broken, as before it"
    note = corrective_note(p.task, tuple(new) or hard, record.evidence, lead)
    match decide(Progress(*record.progress), record.items, broken, note):
        case RollBack() as back:
            if proposal.claims:
                _reject_claim(p)
            await _roll_back(p, back, proposal, question)
        case _:
            if proposal.claims and record.items:
                _reject_claim(p)
            savepoint = record.savepoints + 1
            await asyncio.to_thread(p.workspace.keep, savepoint)
            paths = [encodable(change.path) for change in changes.changes]
            p.journal.emit(
                SavepointKept(
                    savepoint=savepoint,
                    fingerprint=changes.fingerprint,
                    changed=len(paths),
                    paths=paths[: limits.PATHS_RECORDED_MAX],
                    proposal=short_digest(proposal.digest),
                )
            )
            await _end(p, "kept", question)


def _hard(items: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(item for item in items if item.hard)


def _reject_claim(p: Pursuit) -> None:
    items = p.record.items
    note = corrective_note(p.task, items, p.record.evidence, "the claim was rejected; not met")
    p.journal.emit(ClaimRejected(note=note, items=[item.address for item in items]))


async def _roll_back(p: Pursuit, back: RollBack, proposal: Proposal, question: str | None = None) -> None:
    """Workspace and context together to the last savepoint, then the delta of that state again (R014)."""
    record = p.record
    p.journal.emit(
        RolledBack(
            savepoint=record.savepoint,
            fingerprint=record.fingerprint,
            reason=back.reason,
            note=back.note,
            blocked=short_digest(proposal.digest),
        )
    )
    await asyncio.to_thread(p.workspace.discard)
    measure_again(p)
    await _end(p, "rolled_back", question)


def measure_again(p: Pursuit) -> None:
    """The delta of the savepoint the record stands at, from its own evidence."""
    record = p.record
    judged = tuple(check for check in IMPLICIT if check.address in record.evidence)
    items, progress = measure(p.task.done, (*judged, *p.task.invariants), record.evidence, record.fingerprint)
    p.journal.emit(
        DeltaMeasured(
            fingerprint=record.fingerprint, progress=(progress.hard, progress.unmet, progress.debt), items=list(items)
        )
    )


async def _end(p: Pursuit, outcome: str, question: str | None) -> None:
    if question is not None:
        p.journal.emit(QuestionAsked(question_id=f"q{p.record.turn}", question=question))
        p.journal.emit(TurnEnded(outcome="asked", elapsed_ms=p.elapsed_ms()))
        await p.journal.barrier()
        return
    p.journal.emit(TurnEnded(outcome=outcome, elapsed_ms=p.elapsed_ms()))
    await p.journal.hand_over()


def _question(proposal: Proposal) -> str | None:
    for call in proposal.calls:
        if isinstance(call, Call) and call.name == ASK_TOOL and isinstance(call.arguments.get("question"), str):
            return call.arguments["question"]
    return None


# Forms


def _refused(refusal: Refusal, path: str | None = None) -> Refused:
    return Refused(
        ordinal=refusal.ordinal,
        tool=encodable(refusal.tool)[:128],
        gate=refusal.gate,
        reason=refusal.reason,
        message=encodable(refusal.message),
        pointer=encodable(refusal.pointer),
        call_digest=short_digest(refusal.call_digest),
        path=encodable(path or ""),
    )


def _variables(p: Pursuit) -> dict[str, Any]:
    record = p.record
    return {
        "trajectory": {
            "turn": record.turn,
            "spent": {"tokens": record.spent.tokens, "usd_micros": record.spent.usd_micros},
            "savepoint": record.savepoint,
        },
        "state": {line.check.split("/", 1)[1]: {"verdict": line.verdict} for line in record.evidence.values()},
        "baseline": {},
        "changes": [{"path": path} for path in record.paths],
    }
