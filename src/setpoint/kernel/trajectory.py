"""``fold(record, turn, event)``: state is the fold of the log and nothing else (law L3).

Folding calls no model, no tool, no clock. One small function an event type, and a table of them.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from setpoint.kernel import limits
from setpoint.kernel.budget import Raised
from setpoint.kernel.errors import IllegalTransition
from setpoint.kernel.events import (
    ApprovalRequested,
    ApprovalResolved,
    ApprovalSigned,
    Authorized,
    BudgetRaised,
    CallDeclined,
    Certified,
    ChangesObserved,
    CheckpointWritten,
    ClaimRejected,
    CommitPlanned,
    Committed,
    ContextBuilt,
    ControlApplied,
    ControlRequested,
    DeltaMeasured,
    DriftFound,
    Event,
    EvidenceRecorded,
    Finished,
    LeaseClaimed,
    ModelFailed,
    ModelReplied,
    QuestionAnswered,
    QuestionAsked,
    Refused,
    RolledBack,
    Routed,
    RoutesOpened,
    SavepointKept,
    Stalled,
    TaskAccepted,
    ToolIntent,
    ToolResult,
    TurnEnded,
    TurnStarted,
    Undone,
)
from setpoint.kernel.evidence import SEAL_BROKEN
from setpoint.kernel.keys import digest_bytes
from setpoint.kernel.record import (
    BaselineCounts,
    Best,
    Control,
    EvidenceLine,
    InFlight,
    PendingReply,
    Question,
    Record,
    Seen,
    Shown,
    Spent,
    Ticketed,
)
from setpoint.kernel.transitions import State, is_legal


def fold(record: Record, turn: int, event: Event) -> Record:
    """The record after one more event. Pure; raises IllegalTransition when the table forbids the step."""
    folded = _FOLDS[type(event)](record, turn, event)
    return replace(folded, seq=record.seq + 1)


def _to(record: Record, state: State) -> State:
    if record.state == state:
        return state
    if not is_legal(record.state, state):
        raise IllegalTransition(f"trajectory {record.trajectory_id} cannot go from {record.state} to {state}")
    return state


def _accepted(record: Record, turn: int, event: TaskAccepted) -> Record:
    return replace(
        record,
        name=event.name,
        parent=event.parent,
        task=event.task,
        task_digest=event.task_digest,
        directory=event.directory,
        source=event.source,
        models_directory=event.models_directory or event.directory,
        workspace=event.workspace,
        base_digest=event.base_digest,
        models=tuple(event.models),
    )


def _turn_started(record: Record, turn: int, event: TurnStarted) -> Record:
    return replace(
        record,
        turn=turn,
        stage=event.stage,
        spent=replace(record.spent, elapsed_ms=event.elapsed_ms),
        attempt_state=record.fingerprint,
        attempt=1,
        turn_calls={},
        reply=None,
    )


def _context_built(record: Record, turn: int, event: ContextBuilt) -> Record:
    return replace(record, state=_to(record, "CALLING_MODEL"), context_digest=event.digest, prompt_tokens=event.tokens)


def _charge(record: Record, event: ModelReplied | ModelFailed) -> Spent:
    spent = record.spent
    return Spent(
        spent.input_tokens + event.input_tokens,
        spent.output_tokens + event.output_tokens,
        spent.cached_tokens + event.cached_tokens,
        spent.usd_micros + event.usd_micros,
        spent.model_calls + 1,
        spent.elapsed_ms,
        spent.tool_calls,
    )


def _cursors(record: Record, event: ModelReplied | ModelFailed) -> dict[str, int]:
    if event.cursor is None:
        return record.cursors
    return {**record.cursors, event.route: event.cursor}


def _replied(record: Record, turn: int, event: ModelReplied) -> Record:
    return replace(
        record,
        spent=_charge(record, event),
        last_call=(event.input_tokens, event.output_tokens, event.usd_micros),
        cursors=_cursors(record, event),
        route_failures=0,
        reply=PendingReply(event.route, event.reply, event.reply_ref),
    )


def _failed(record: Record, turn: int, event: ModelFailed) -> Record:
    return replace(  # still CALLING_MODEL: the same turn asks again, or ends
        record,
        spent=_charge(record, event),
        cursors=_cursors(record, event),
        route_failures=record.route_failures + 1,
    )


def _authorized(record: Record, turn: int, event: Authorized) -> Record:
    record = _ruled(record, turn, event.ordinal)
    if not event.path:
        return record
    working = (*(path for path in record.working if path != event.path), event.path)
    return replace(record, working=working[-limits.FILES_IN_PROMPT_MAX :])


def _refused(record: Record, turn: int, event: Refused) -> Record:
    what = event.call_digest or digest_bytes(f"{event.pointer} {event.message}".encode())[7:39]
    seen = Seen(turn, what, record.attempt_state, event.reason)
    shown = Shown(turn, event.ordinal, event.tool, "REFUSED", None, f"{event.reason}: {event.message}"[:2000])
    record = _ruled(record, turn, event.ordinal)
    return replace(record, recent=_recent(record, seen), shown=_shown(record, shown))


def _ruled(record: Record, turn: int, ordinal: int) -> Record:
    """The held call is ruled on by its ticket, which is good for nothing else any more."""
    ticket = record.ticket
    if ticket is None or ticket.node != f"{turn}.{ordinal}":
        return record
    return replace(record, ticket=replace(ticket, used=True))


def _intent(record: Record, turn: int, event: ToolIntent) -> Record:
    calls, turn_calls = record.calls_by_tool, record.turn_calls
    attempt_state = record.attempt_state
    if event.effect not in ("pure", "read"):
        attempt_state = digest_bytes((attempt_state + event.call_digest).encode())[7:39]
    return replace(
        record,
        state=_to(record, "WAITING_TOOL"),
        in_flight=(*record.in_flight, InFlight(event.ordinal, event.call_digest, record.attempt_state)),
        attempt_state=attempt_state,
        attempt=event.attempt,
        calls_by_tool={**calls, event.tool: calls.get(event.tool, 0) + 1},
        turn_calls={**turn_calls, event.tool: turn_calls.get(event.tool, 0) + 1},
        call_times=_call_times(record, turn, event),
    )


def _call_times(record: Record, turn: int, event: ToolIntent) -> dict[str, tuple[tuple[int, int], ...]]:
    if event.rate_calls == 0:
        return record.call_times
    times = (*record.call_times.get(event.tool, ()), (turn, record.spent.elapsed_ms))
    return {**record.call_times, event.tool: times[-min(event.rate_calls, limits.RATE_CALLS_MAX) :]}


def _result(record: Record, turn: int, event: ToolResult) -> Record:
    shown = Shown(turn, event.ordinal, event.tool, event.status, event.exit_code, event.text, tuple(event.diagnostics))
    recent = record.recent
    rest: list[InFlight] = []
    for pending in record.in_flight:
        if pending.ordinal == event.ordinal:
            outcome = f"{event.status}:{event.exit_code}:{event.output_sha256[:16]}"
            recent = _recent(record, Seen(turn, pending.call_digest, pending.state, outcome))
        else:
            rest.append(pending)
    spent = record.spent
    return replace(
        record,
        in_flight=tuple(rest),
        recent=recent,
        spent=replace(spent, tool_calls=spent.tool_calls + 1),
        shown=_shown(record, shown),
    )


def _changes(record: Record, turn: int, event: ChangesObserved) -> Record:
    return record


def _evidence(record: Record, turn: int, event: EvidenceRecorded) -> Record:
    line = EvidenceLine(
        event.check,
        event.level,
        event.verdict,
        event.fingerprint,
        event.distance,
        event.reason,
        event.collected,
        tuple((f.name[:120], f.message[:200]) for f in event.failures[: limits.FAILURES_IN_RECORD_MAX]),
        event.check_digest,
        record.seq + 1,
    )
    baseline = record.baseline_counts
    if event.phase == "baseline" and event.collected is not None:
        counts = BaselineCounts(event.collected, event.passed, event.failed, event.errors, event.skipped)
        baseline = {**baseline, event.check: counts}
    broken = event.reason if event.reason.startswith(SEAL_BROKEN) else record.seal_broken
    evidence = {**record.evidence, event.check: line}
    return replace(record, evidence=evidence, baseline_counts=baseline, seal_broken=broken)


def _delta(record: Record, turn: int, event: DeltaMeasured) -> Record:
    record = replace(record, items=tuple(event.items), progress=event.progress, measured=event.fingerprint)
    if record.best is not None:
        return record
    return replace(  # the baseline: savepoint 0
        record,
        best=Best(0, event.progress, event.fingerprint),
        baseline_progress=event.progress,
        fingerprint=event.fingerprint,
        visited=(event.fingerprint,),
        kept_evidence=record.evidence,
        best_evidence=record.evidence,
    )


def _kept(record: Record, turn: int, event: SavepointKept) -> Record:
    best, still, tier = record.best, record.still + 1, record.stall_tier
    best_evidence = record.best_evidence
    if best is None or record.progress < best.progress:
        best, still, tier = (
            Best(event.savepoint, record.progress, event.fingerprint, event.changed, tuple(event.paths)),
            0,
            0,
        )
        best_evidence = record.evidence
    return replace(
        _over(record),
        savepoint=event.savepoint,
        savepoints=max(record.savepoints, event.savepoint),
        fingerprint=event.fingerprint,
        changed=event.changed,
        paths=tuple(event.paths),
        best=best,
        kept_evidence=record.evidence,
        best_evidence=best_evidence,
        proposals=(*record.proposals, (event.savepoint, event.proposal))[-limits.RECENT_ACTIONS_MAX :],
        still=still,
        stall_tier=tier,
        visited=(*record.visited, event.fingerprint)[-limits.RECENT_ACTIONS_MAX :],
        cycled=event.fingerprint in record.visited,
    )


def _rolled_back(record: Record, turn: int, event: RolledBack) -> Record:
    if event.reason == "interrupted":
        return _interrupted(record, turn)
    # A stall or a person ended this way of going on; the next one is judged by its own repetitions.
    afresh = event.reason in ("stall", "operator")
    best = record.best
    evidence, changed, paths = record.kept_evidence, record.changed, record.paths
    if event.savepoint != record.savepoint:
        changed, paths = event.changed, tuple(event.paths)
        evidence = record.best_evidence if best is not None and event.savepoint == best.savepoint else {}
    return replace(
        _over(record),
        savepoint=event.savepoint,
        fingerprint=event.fingerprint,
        changed=changed,
        paths=paths,
        evidence=evidence,
        kept_evidence=evidence,
        notes=_one_note(record, event),
        blocked=_blocked(record, event),
        proposals=tuple(kept for kept in record.proposals if kept[0] <= event.savepoint),
        claim_noted=False,
        # The failed attempt leaves the prompt: its observations go, one note stays (law L5).
        shown=tuple(shown for shown in record.shown if shown.turn != turn),
        still=0 if afresh else record.still + 1,
        recent=() if afresh else record.recent,
        cycled=False,
    )


def _interrupted(record: Record, turn: int) -> Record:
    """A crash: the recorded reply is ruled on and dispatched again from the savepoint, as if it were the first time.

    What the dead attempt left behind counts for nothing, else a crash would spend a call, look like a repetition, or
    judge by the evidence of a state that is gone.
    """
    ticket = record.ticket if record.ticket is None else replace(record.ticket, used=False)  # its use is gone, too
    # Back at the boundary, and at once into the turn again.
    begun = replace(record, state=_to(record, "READY"), ticket=ticket)
    calls = {tool: count - record.turn_calls.get(tool, 0) for tool, count in record.calls_by_tool.items()}
    return replace(
        begun,
        state=_to(begun, "CALLING_MODEL"),
        in_flight=(),
        attempt=record.attempt + 1,
        attempt_state=record.fingerprint,
        evidence=record.kept_evidence,
        recent=tuple(seen for seen in record.recent if seen.turn != turn),
        shown=tuple(shown for shown in record.shown if shown.turn != turn),
        calls_by_tool={tool: count for tool, count in calls.items() if count},
        turn_calls={},
        call_times={
            tool: tuple(time for time in times if time[0] != turn) for tool, times in record.call_times.items()
        },
    )


def _over(record: Record) -> Record:
    """The proposal in flight is decided: whatever the log holds after this, it is not dispatched again."""
    state: State = record.state if record.state in ("PAUSED", "FINALIZING") else _to(record, "READY")
    return replace(record, state=state, reply=None, in_flight=(), ticket=None)


def _turn_ended(record: Record, turn: int, event: TurnEnded) -> Record:
    idle = record.idle_turns + 1 if event.outcome == "unchanged" else 0
    refused = record.refused_in_a_row + 1 if event.outcome == "refused" else 0
    still = record.still + 1 if event.outcome == "acted" else record.still
    spent = replace(record.spent, elapsed_ms=max(record.spent.elapsed_ms, event.elapsed_ms))
    return replace(_over(record), spent=spent, refused_in_a_row=refused, idle_turns=idle, still=still)


def _claim_rejected(record: Record, turn: int, event: ClaimRejected) -> Record:
    return replace(record, notes=_notes(record, event.note), claim_noted=True)


def _one_note(record: Record, event: RolledBack) -> tuple[str, ...]:
    """A claim rejected in a turn that is rolled back leaves one note, not two (law L5)."""
    if not record.claim_noted:
        return _notes(record, event.note)
    return _notes(replace(record, notes=record.notes[:-1]), f"the claim was rejected, and the change {event.note}")


def _routed(record: Record, turn: int, event: Routed) -> Record:
    why = "" if event.route else event.reason
    record = replace(record, route_index=event.index, route_failures=0, no_route=why)
    return replace(record, still=0, refused_in_a_row=0, idle_turns=0)


def _stalled(record: Record, turn: int, event: Stalled) -> Record:
    if event.tier == "halt":
        return replace(record, halted=f"stalled ({event.reason}): {event.message}")
    return replace(record, stall_tier=record.stall_tier + 1, notes=_notes(record, event.message))


def _asked(record: Record, turn: int, event: QuestionAsked) -> Record:
    question = Question(event.question_id, event.question, event.source)
    record = _over(record)
    return replace(record, state=_to(record, "PAUSED"), question=question)


def _answered(record: Record, turn: int, event: QuestionAnswered) -> Record:
    note = f"The operator answered {event.question_id}: {event.answer}"
    return replace(
        record,
        state=_to(record, "READY"),
        question=None,
        still=0,
        stall_tier=0,
        refused_in_a_row=0,
        idle_turns=0,
        recent=(),
        notes=_notes(record, note),
    )


def _requested(record: Record, turn: int, event: ApprovalRequested) -> Record:
    """The whole proposal waits, and holds nothing but this record (law L12)."""
    ticket = Ticketed(event.node, event.ticket_id, event.ticket, event.action_digest, event.expires_at_ms)
    spent = replace(record.spent, elapsed_ms=max(record.spent.elapsed_ms, event.elapsed_ms))
    return replace(record, state=_to(record, "AWAITING_APPROVAL"), ticket=ticket, spent=spent)


def _signed(record: Record, turn: int, event: ApprovalSigned) -> Record:
    ticket = record.ticket
    if not event.counts or ticket is None or ticket.ticket_id != event.ticket_id or event.decision in ticket.decisions:
        return record
    return replace(record, ticket=replace(ticket, decisions=(*ticket.decisions, event.decision)))


def _resolved(record: Record, turn: int, event: ApprovalResolved) -> Record:
    """Still AWAITING_APPROVAL: the call it was asked for is dispatched from there, or the turn ends."""
    ticket = record.ticket
    if ticket is None or ticket.ticket_id != event.ticket_id:
        return record
    return replace(record, ticket=replace(ticket, outcome=event.outcome, by=tuple(event.by), reason=event.reason))


def _raised(record: Record, turn: int, event: BudgetRaised) -> Record:
    more = Raised(event.turns, event.tokens, event.usd_micros, event.wall_ms)
    return replace(record, raised=record.raised.plus(more))


def _control(record: Record, turn: int, event: ControlRequested) -> Record:
    control = Control(event.request_id, event.action, event.argument, event.by, event.position)
    position = max(record.inbox_position, event.position)
    return replace(record, controls=(*record.controls, control), inbox_position=position)


def _control_applied(record: Record, turn: int, event: ControlApplied) -> Record:
    rest = tuple(control for control in record.controls if control.request_id != event.request_id)
    asked = next((control for control in record.controls if control.request_id == event.request_id), None)
    reason = asked.argument if asked is not None else ""
    notes = record.notes
    state: State = record.state
    pause_reason = record.pause_reason
    match event.action:
        case "pause":
            by_budget = asked is not None and asked.by == "runtime"
            state, pause_reason = _to(record, "PAUSED"), reason if by_budget else ""
        case "resume":
            state = _to(record, "READY")
        case "interrupt":
            notes = _notes(record, f"The operator says: {reason}")
        case _:
            pass
    return replace(record, controls=rest, state=state, pause_reason=pause_reason, notes=notes)


def _planned(record: Record, turn: int, event: CommitPlanned) -> Record:
    return replace(record, commit_planned=event.commit_id)


def _committed(record: Record, turn: int, event: Committed) -> Record:
    return replace(record, committed=event.commit_id, commit_planned="", state_digest=event.state_digest)


def _undone(record: Record, turn: int, event: Undone) -> Record:
    return replace(record, undone=True)


def _certified(record: Record, turn: int, event: Certified) -> Record:
    return replace(record, certificate=event.certificate, keyid=event.keyid)


def _finished(record: Record, turn: int, event: Finished) -> Record:
    state: State = event.state  # type: ignore[assignment]
    if record.state != "FINALIZING":
        record = replace(record, state=_to(record, "FINALIZING"))
    return replace(
        record,
        state=_to(record, state),
        finished_reason=event.reason,
        finished_message=event.message,
        finished_code=event.code,
        in_flight=(),
        question=None,
        ticket=None,
        reply=None,
    )


def _lease(record: Record, turn: int, event: LeaseClaimed) -> Record:
    return replace(record, fence=event.fence)


def _terms(record: Record, turn: int, event: RoutesOpened) -> Record:
    return replace(record, terms=tuple(event.terms))


def _declined(record: Record, turn: int, event: CallDeclined) -> Record:
    return record


def _drift(record: Record, turn: int, event: DriftFound) -> Record:
    # The state judged is not the state that is there: every evidence is stale (law L4).
    return replace(record, evidence={}, base_now=event.found) if event.what == "workspace" else record


def _checkpoint(record: Record, turn: int, event: CheckpointWritten) -> Record:
    return replace(record, checkpoint_turn=turn)


def _recent(record: Record, seen: Seen) -> tuple[Seen, ...]:
    return (*record.recent, seen)[-limits.RECENT_ACTIONS_MAX :]


def _shown(record: Record, shown: Shown) -> tuple[Shown, ...]:
    return (*record.shown, shown)[-limits.OBSERVATIONS_IN_PROMPT_MAX :]


def _notes(record: Record, note: str) -> tuple[str, ...]:
    if not note or (record.notes and record.notes[-1] == note):
        return record.notes
    return (*record.notes, note[: limits.NOTE_CHARS_MAX])[-limits.NOTES_MAX :]


def _blocked(record: Record, event: RolledBack) -> tuple[str, ...]:
    """The rolled-back proposal, and after a stall every one whose savepoint was given up."""
    given_up = [digest for savepoint, digest in record.proposals if savepoint > event.savepoint]
    new = [digest for digest in (event.blocked, *given_up) if digest and digest not in record.blocked]
    return (*record.blocked, *new)[-limits.BLOCKED_MAX :] if new else record.blocked


_FOLDS: Final[dict[type[Event], Any]] = {
    TaskAccepted: _accepted,
    TurnStarted: _turn_started,
    ContextBuilt: _context_built,
    CallDeclined: _declined,
    ModelReplied: _replied,
    ModelFailed: _failed,
    Authorized: _authorized,
    Refused: _refused,
    ToolIntent: _intent,
    ToolResult: _result,
    ChangesObserved: _changes,
    EvidenceRecorded: _evidence,
    DeltaMeasured: _delta,
    SavepointKept: _kept,
    RolledBack: _rolled_back,
    TurnEnded: _turn_ended,
    ClaimRejected: _claim_rejected,
    Routed: _routed,
    Stalled: _stalled,
    QuestionAsked: _asked,
    QuestionAnswered: _answered,
    ApprovalRequested: _requested,
    ApprovalSigned: _signed,
    ApprovalResolved: _resolved,
    BudgetRaised: _raised,
    ControlRequested: _control,
    ControlApplied: _control_applied,
    CommitPlanned: _planned,
    Committed: _committed,
    Undone: _undone,
    Certified: _certified,
    Finished: _finished,
    LeaseClaimed: _lease,
    RoutesOpened: _terms,
    DriftFound: _drift,
    CheckpointWritten: _checkpoint,
}
