"""The record of a workflow run: the fold of its log, and nothing a model or a capability can write (L3).

It holds what is open, not what is past: cursors of the blocks that are under way, the state, effects that are not
settled, tickets that are not resolved, and the stack of what would have to be taken back. A run that waits is this
record and no more (L12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from setpoint.kernel.errors import IllegalTransition, LogCorrupt
from setpoint.kernel.events import (
    CheckpointWritten,
    ControlApplied,
    ControlRequested,
    DriftFound,
    Event,
    Finished,
    LeaseClaimed,
    ModelFailed,
    ModelReplied,
    Ref,
)
from setpoint.kernel.record import Control, Spent, Ticketed
from setpoint.kernel.run_events import (
    ApprovalRequested,
    ApprovalResolved,
    ApprovalSigned,
    BlockEntered,
    ChildEnded,
    ChildStarted,
    Compensated,
    EffectDelivered,
    EffectPending,
    EffectQueued,
    EffectReused,
    EffectSettled,
    EffectUnknown,
    LateResult,
    Migrated,
    NodeCompleted,
    NodeFailed,
    RunPaused,
    RunResumed,
    RunStarted,
    SignalAwaited,
    SignalReceived,
    TimerSet,
    UnwindStarted,
)

RunState = Literal["NEW", "RUNNING", "PAUSED", "UNWINDING", "FINALIZING", "COMPLETED", "FAILED", "CANCELLED"]

RUN_LEGAL: Final[dict[RunState, frozenset[RunState]]] = {
    "NEW": frozenset({"RUNNING"}),
    "RUNNING": frozenset({"PAUSED", "UNWINDING", "FINALIZING"}),
    "PAUSED": frozenset({"RUNNING", "UNWINDING", "FINALIZING"}),
    # PAUSED: what has to be taken back cannot be, and a person must look.
    "UNWINDING": frozenset({"PAUSED", "FINALIZING"}),
    "FINALIZING": frozenset({"COMPLETED", "FAILED", "CANCELLED"}),
    "COMPLETED": frozenset(),
    "FAILED": frozenset(),
    "CANCELLED": frozenset(),
}
RUN_TERMINAL: Final = frozenset(state for state, after in RUN_LEGAL.items() if not after)

SIGNALS_KEPT_MAX: Final = 64
"""Signals that came before anybody waited for them; more than any workflow declares. The oldest goes first."""


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """A copy of the state: the root has the whole of it, a parallel block or a map's round what it changed."""

    values: dict[str, Any]
    refs: dict[str, Ref] = {}


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """What a node waits for, and until when (epoch ms)."""

    kind: str  # timer | signal | approval | effect | child
    at_ms: int
    name: str = ""


class Effect(msgspec.Struct, frozen=True):
    """An outside effect that is under way: not sent, in doubt, or reported later."""

    node: str
    capability: str
    effect: str
    key: str
    claim: str
    arguments: Ref
    arguments_digest: str
    attempt: int
    status: str  # queued | pending | unknown | not_sent | happened | declined
    sent_at_ms: int
    doubt_at_ms: int = 0  # when the newest attempt was sent that may still count, though the last did not; 0: none may
    compensates: str = ""
    compensator: str = ""
    result: Ref | None = None
    ticket_id: str = ""
    message: str = ""  # what the other side said, or why it was not sent


class Done(msgspec.Struct, frozen=True):
    """An effect that stands, with what taking it back needs."""

    node: str
    capability: str
    effect: str
    key: str
    claim: str
    arguments: Ref
    arguments_digest: str
    result: Ref | None


class Received(msgspec.Struct, frozen=True, array_like=True):
    signal: str
    key: str
    payload: Ref | None
    at_ms: int = 0

    def is_for(self, wait: Wait) -> bool:
        """Whether it ends the wait: of that name, and left before the time was up. A worker may look later."""
        return self.signal == wait.name and self.at_ms < wait.at_ms


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the runtime knows of a run."""

    run_id: str
    # Identity
    workflow: str = ""
    version: int = 1
    definition: Ref | None = None
    definition_digest: str = ""
    input: Ref | None = None
    principal: str = ""
    tenant: str = ""
    scopes_held: tuple[str, ...] = ()
    session: str = ""
    parent: str = ""
    parent_node: str = ""
    # Status
    state: RunState = "NEW"
    reason: str = ""  # why it is paused, unwinding or over
    message: str = ""
    finished_code: int = -1
    end: str = ""  # what an unwinding leads to, and why; a pause on the way has reasons of its own
    end_reason: str = ""
    end_message: str = ""
    step: int = 0  # nodes completed: the turn of an envelope
    last_event_at: str = ""
    # Position
    blocks: dict[str, int] = {}  # path of a block under way -> index of its next node
    labels: dict[str, str] = {}  # node -> the label or round it is in
    lists: dict[str, Ref] = {}  # map node -> its items
    scopes: dict[str, Scope] = {}  # "" is the root
    # Pending
    waits: dict[str, Wait] = {}
    attempts: dict[str, int] = {}  # node -> attempts that came to nothing
    effects: dict[str, Effect] = {}  # by node
    tickets: dict[str, Ticketed] = {}  # by node; of it the newest
    answered: dict[str, Ticketed] = {}  # by the path of the call they were asked for ahead of
    children: dict[str, str] = {}  # node -> run
    signals: tuple[Received, ...] = ()
    undo: tuple[Done, ...] = ()  # effects that stand and can be taken back, last one last
    pivot: str = ""  # the irreversible effect that was made; nothing before it is taken back any more
    controls: tuple[Control, ...] = ()
    inbox_position: int = 0
    spent: Spent = Spent()
    cursors: dict[str, int] = {}  # route of a judge -> its position in a script
    effects_made: int = 0
    # Durability
    fence: int = 0
    seq: int = 0

    @property
    def is_terminal(self) -> bool:
        return self.state in RUN_TERMINAL

    @property
    def unknown(self) -> tuple[Effect, ...]:
        """Effects of which nobody knows whether they happened."""
        return tuple(effect for effect in self.effects.values() if effect.status == "unknown")

    @property
    def open_tickets(self) -> tuple[Ticketed, ...]:
        return tuple(ticket for ticket in self.tickets.values() if not ticket.outcome)


def fold_run(record: RunRecord, event: Event) -> RunRecord:
    """The record after one more event. Pure; IllegalTransition when the table forbids the step."""
    try:
        change = _FOLDS[type(event)]
    except KeyError:
        raise LogCorrupt(f"the log of run {record.run_id} holds a {type(event).__name__}, which no run has") from None
    return replace(change(record, event), seq=record.seq + 1)


def _to(record: RunRecord, state: RunState) -> RunState:
    if state != record.state and state not in RUN_LEGAL[record.state]:
        raise IllegalTransition(f"run {record.run_id} cannot go from {record.state} to {state}")
    return state


def _started(record: RunRecord, event: RunStarted) -> RunRecord:
    return replace(
        record,
        workflow=event.workflow,
        version=event.version,
        definition=event.definition,
        definition_digest=event.definition_digest,
        input=event.input,
        principal=event.principal,
        tenant=event.tenant,
        scopes_held=tuple(event.scopes),
        session=event.session,
        parent=event.parent,
        parent_node=event.parent_node,
        state=_to(record, "RUNNING"),
        blocks={event.workflow: 0},
        scopes={"": Scope(event.values, event.refs)},
    )


def _entered(record: RunRecord, event: BlockEntered) -> RunRecord:
    """Blocks of an earlier round of the same node are over."""
    kept = {path: at for path, at in record.blocks.items() if event.scopes or not _is_within(path, event.node)}
    scopes = record.scopes
    if event.scopes:
        scopes = {**scopes, **{block: Scope(event.values, event.refs) for block in event.blocks}}
    return replace(
        record,
        blocks={**kept, **dict.fromkeys(event.blocks, 0)},
        labels={**record.labels, event.node: event.label},
        scopes=scopes,
        lists=record.lists if event.items is None else {**record.lists, event.node: event.items},
    )


def _completed(record: RunRecord, event: NodeCompleted) -> RunRecord:
    node = event.node
    blocks = record.blocks
    if len(blocks) > 1:
        blocks = {path: at for path, at in blocks.items() if not _is_within(path, node)}
    scopes = record.scopes
    if len(scopes) > 1:
        scopes = {path: scope for path, scope in scopes.items() if not path or not _is_within(path, node)}
    if event.values or event.refs:
        own = scope_of(scopes, node)
        scopes = {**scopes, own: _updated(scopes[own], event)}
    return replace(
        record,
        step=record.step + 1,
        blocks={**blocks, event.block: blocks[event.block] + 1},
        scopes=scopes,
        labels=_outside(record.labels, node),
        lists=_outside(record.lists, node),
        waits=_outside(record.waits, node),
        attempts=_outside(record.attempts, node),
        effects=_outside(record.effects, node),
        tickets=_outside(record.tickets, node),
        answered=_outside(record.answered, node),
        children=_outside(record.children, node),
        signals=_unconsumed(record, node),
    )


def _updated(scope: Scope, event: NodeCompleted) -> Scope:
    values = {name: value for name, value in scope.values.items() if name not in event.refs}
    refs = {name: ref for name, ref in scope.refs.items() if name not in event.values}
    return Scope({**values, **event.values}, {**refs, **event.refs})


def scope_of(scopes: dict[str, Scope], node: str) -> str:
    """The innermost scope a node works in; "" is the root."""
    if len(scopes) == 1:
        return ""
    return max((path for path in scopes if not path or node.startswith(f"{path}/")), key=len)


def _is_within(path: str, node: str) -> bool:
    return path == node or path.startswith(f"{node}/")


def _outside(table: dict[str, Any], node: str) -> dict[str, Any]:
    """The table without what belongs to the node or lies below it."""
    return {path: entry for path, entry in table.items() if not _is_within(path, node)} if table else table


def _without(table: dict[str, Any], node: str) -> dict[str, Any]:
    return {path: entry for path, entry in table.items() if path != node} if node in table else table


def _unconsumed(record: RunRecord, node: str) -> tuple[Received, ...]:
    """The signals that are left when a node that waited for one goes on: it took the first that was for it."""
    wait = record.waits.get(node)
    if wait is None or wait.kind != "signal":
        return record.signals
    for place, received in enumerate(record.signals):
        if received.is_for(wait):
            return record.signals[:place] + record.signals[place + 1 :]
    return record.signals


def _failed(record: RunRecord, event: NodeFailed) -> RunRecord:
    wait = record.waits.get(event.node)
    if event.kind == "refused" and wait is not None and wait.kind == "signal":
        # The signal that came is not fit for the node: it is dropped, and the wait goes on.
        return replace(record, signals=_unconsumed(record, event.node))
    waits = _without(record.waits, event.node)
    if event.retry_at_ms:
        waits = {**waits, event.node: Wait("retry", event.retry_at_ms)}
    return replace(record, attempts={**record.attempts, event.node: event.attempt}, waits=waits)


def _timer(record: RunRecord, event: TimerSet) -> RunRecord:
    return replace(record, waits={**record.waits, event.node: Wait("timer", event.at_ms)})


def _awaited(record: RunRecord, event: SignalAwaited) -> RunRecord:
    return replace(record, waits={**record.waits, event.node: Wait("signal", event.until_ms, event.signal)})


def _received(record: RunRecord, event: SignalReceived) -> RunRecord:
    kept = (*record.signals, Received(event.signal, event.key, event.payload, event.at_ms))[-SIGNALS_KEPT_MAX:]
    return replace(record, signals=kept, inbox_position=event.position)


def _requested(record: RunRecord, event: ApprovalRequested) -> RunRecord:
    ticket = Ticketed(
        event.node, event.ticket_id, event.ticket, event.action_digest, event.expires_at_ms, covers=event.covers
    )
    return replace(
        record,
        tickets={**record.tickets, event.node: ticket},
        waits={**record.waits, event.node: Wait("approval", event.expires_at_ms)},
    )


def _signed(record: RunRecord, event: ApprovalSigned) -> RunRecord:
    record = replace(record, inbox_position=max(record.inbox_position, event.position))
    if not event.counts:
        return record

    def signed(ticket: Ticketed) -> Ticketed:
        return replace(ticket, decisions=(*ticket.decisions, event.decision))

    return replace(record, tickets=_each(record.tickets, event.ticket_id, signed))


def _resolved(record: RunRecord, event: ApprovalResolved) -> RunRecord:
    def resolved(ticket: Ticketed) -> Ticketed:
        return replace(ticket, outcome=event.outcome, by=tuple(event.by), reason=event.reason)

    tickets = _each(record.tickets, event.ticket_id, resolved)
    answered = _each(record.answered, event.ticket_id, resolved)
    for ticket in tickets.values():
        if ticket.ticket_id == event.ticket_id and ticket.covers:
            answered = {**answered, ticket.covers: ticket}
    return replace(record, tickets=tickets, answered=answered, waits=_without(record.waits, event.node))


def _each(table: dict[str, Ticketed], ticket_id: str, change: Callable[[Ticketed], Ticketed]) -> dict[str, Ticketed]:
    """The table with one ticket changed, wherever it stands."""
    if not any(ticket.ticket_id == ticket_id for ticket in table.values()):
        return table
    return {at: change(ticket) if ticket.ticket_id == ticket_id else ticket for at, ticket in table.items()}


def _queued(record: RunRecord, event: EffectQueued) -> RunRecord:
    effect = Effect(
        node=event.node,
        capability=event.capability,
        effect=event.effect,
        key=event.key,
        claim=event.claim,
        arguments=event.arguments,
        arguments_digest=event.arguments_digest,
        attempt=event.attempt,
        status="queued",
        sent_at_ms=event.sent_at_ms,
        doubt_at_ms=event.doubt_at_ms,
        compensates=event.compensates,
        compensator=event.compensator,
        ticket_id=event.ticket_id,
    )

    def used(ticket: Ticketed) -> Ticketed:
        return replace(ticket, used=True)

    if event.ticket_id:
        record = replace(
            record,
            tickets=_each(record.tickets, event.ticket_id, used),
            answered=_each(record.answered, event.ticket_id, used),
        )
    return replace(record, effects={**record.effects, event.node: effect}, waits=_without(record.waits, event.node))


def _delivered(record: RunRecord, event: EffectDelivered) -> RunRecord:
    effect = record.effects[event.node]
    if event.status in ("declined", "not_sent"):  # a no is kept: whoever comes back to the node must not ask again
        record = _with_status(record, event.node, event.status)
        effect = replace(record.effects[event.node], message=event.message, doubt_at_ms=0)
        return replace(record, effects={**record.effects, event.node: effect})
    if effect.status == "happened":  # a person gives another result for the one that was of no use
        return _with_result(record, effect, event.result)
    record = replace(
        record,
        effects={**record.effects, event.node: replace(effect, status="happened", result=event.result)},
        waits=_without(record.waits, event.node),
        effects_made=record.effects_made + 1,
    )
    if effect.compensates or not (effect.compensator or effect.effect == "irreversible"):
        return record
    if effect.effect == "irreversible":  # nothing before a pivot is taken back
        return replace(record, pivot=event.node, undo=())
    done = Done(
        effect.node,
        effect.capability,
        effect.effect,
        effect.key,
        effect.claim,
        effect.arguments,
        effect.arguments_digest,
        event.result,
    )
    return replace(record, undo=(*record.undo, done))


def _with_result(record: RunRecord, effect: Effect, result: Ref | None) -> RunRecord:
    undo = tuple(replace(done, result=result) if done.node == effect.node else done for done in record.undo)
    return replace(record, effects={**record.effects, effect.node: replace(effect, result=result)}, undo=undo)


def _with_status(record: RunRecord, node: str, status: str) -> RunRecord:
    effect = replace(record.effects[node], status=status)
    return replace(record, effects={**record.effects, node: effect}, waits=_without(record.waits, node))


def _pending(record: RunRecord, event: EffectPending) -> RunRecord:
    record = _with_status(record, event.node, "pending")
    return replace(record, waits={**record.waits, event.node: Wait("effect", event.until_ms)})


def _unknown(record: RunRecord, event: EffectUnknown) -> RunRecord:
    return _with_status(record, event.node, "unknown")


def _settled(record: RunRecord, event: EffectSettled) -> RunRecord:
    """``happened`` is followed by the delivery it found. Else it may be sent again, with its doubt or free of it."""
    if event.verdict == "happened":
        return record
    record = _with_status(record, event.node, "not_sent")
    effect = record.effects[event.node]
    effect = replace(effect, doubt_at_ms=effect.sent_at_ms if event.verdict == "resend" else 0)
    attempts = record.attempts if event.by == "probe" else _without(record.attempts, event.node)  # a person: anew
    return replace(record, effects={**record.effects, event.node: effect}, attempts=attempts)


def _late(record: RunRecord, event: LateResult) -> RunRecord:
    return replace(record, inbox_position=max(record.inbox_position, event.position))


def _unwinding(record: RunRecord, event: UnwindStarted) -> RunRecord:
    return replace(
        record,
        state=_to(record, "UNWINDING"),
        reason=event.reason,
        message=event.message,
        end=event.end,
        end_reason=event.reason,
        end_message=event.message,
        finished_code=event.code,
        waits={},
        attempts={},
    )


def _compensated(record: RunRecord, event: Compensated) -> RunRecord:
    undo = tuple(done for done in record.undo if done.node != event.node)
    return replace(record, undo=undo, effects=_without(record.effects, undo_node(event.node)))


def undo_node(node: str) -> str:
    """The name under which taking back a node's effect is recorded."""
    return f"{node}#undo"


def _paused(record: RunRecord, event: RunPaused) -> RunRecord:
    return replace(record, state=_to(record, "PAUSED"), reason=event.reason, message=event.message)


def _resumed(record: RunRecord, event: RunResumed) -> RunRecord:
    """The nodes that stopped it are done anew: attempts are counted from 0, and what was declined is asked again."""
    state: RunState = "UNWINDING" if record.end else "RUNNING"
    effects = {node: effect for node, effect in record.effects.items() if effect.status != "declined"}
    reason, message = record.end_reason, record.end_message
    return replace(record, state=_to(record, state), reason=reason, message=message, attempts={}, effects=effects)


def _child(record: RunRecord, event: ChildStarted) -> RunRecord:
    return replace(record, children={**record.children, event.node: event.run_id})


def _child_ended(record: RunRecord, event: ChildEnded) -> RunRecord:
    """What the child made and did not take back is this run's to take back, unless there is no way back any more."""
    children = _without(record.children, event.node)
    if event.pivot:
        return replace(record, children=children, pivot=event.pivot, undo=())
    known = {done.node for done in record.undo}
    made = (
        Done(m.node, m.capability, m.effect, m.key, m.claim, m.arguments, m.arguments_digest, m.result)
        for m in event.made
    )
    return replace(record, children=children, undo=(*record.undo, *(done for done in made if done.node not in known)))


def _migrated(record: RunRecord, event: Migrated) -> RunRecord:
    return replace(
        record,
        definition=event.definition,
        definition_digest=event.definition_digest,
        version=event.version,
    )


def _control_requested(record: RunRecord, event: ControlRequested) -> RunRecord:
    control = Control(event.request_id, event.action, event.argument, event.by)
    return replace(
        record, controls=(*record.controls, control), inbox_position=max(record.inbox_position, event.position)
    )


def _control_applied(record: RunRecord, event: ControlApplied) -> RunRecord:
    rest = tuple(control for control in record.controls if control.request_id != event.request_id)
    return replace(record, controls=rest)


def _charged(record: RunRecord, event: ModelReplied | ModelFailed) -> RunRecord:
    spent = record.spent
    return replace(
        record,
        cursors=record.cursors if event.cursor is None else {**record.cursors, event.route: event.cursor},
        spent=replace(
            spent,
            input_tokens=spent.input_tokens + event.input_tokens,
            output_tokens=spent.output_tokens + event.output_tokens,
            cached_tokens=spent.cached_tokens + event.cached_tokens,
            usd_micros=spent.usd_micros + event.usd_micros,
            model_calls=spent.model_calls + 1,
        ),
    )


def _finished(record: RunRecord, event: Finished) -> RunRecord:
    record = replace(record, state=_to(record, "FINALIZING"))
    state: RunState = event.state  # type: ignore[assignment]
    return replace(
        record,
        state=_to(record, state),
        reason=event.reason,
        message=event.message,
        finished_code=event.code,
        waits={},
        blocks={},
        signals=(),
    )


def _lease(record: RunRecord, event: LeaseClaimed) -> RunRecord:
    return replace(record, fence=event.fence)


def _same(record: RunRecord, event: DriftFound | CheckpointWritten | EffectReused) -> RunRecord:
    return record


_FOLDS: Final[dict[type[Event], Any]] = {
    RunStarted: _started,
    BlockEntered: _entered,
    NodeCompleted: _completed,
    NodeFailed: _failed,
    TimerSet: _timer,
    SignalAwaited: _awaited,
    SignalReceived: _received,
    ApprovalRequested: _requested,
    ApprovalSigned: _signed,
    ApprovalResolved: _resolved,
    EffectQueued: _queued,
    EffectDelivered: _delivered,
    EffectPending: _pending,
    EffectUnknown: _unknown,
    EffectSettled: _settled,
    EffectReused: _same,
    LateResult: _late,
    UnwindStarted: _unwinding,
    Compensated: _compensated,
    RunPaused: _paused,
    RunResumed: _resumed,
    ChildStarted: _child,
    ChildEnded: _child_ended,
    Migrated: _migrated,
    ControlRequested: _control_requested,
    ControlApplied: _control_applied,
    DriftFound: _same,
    Finished: _finished,
    LeaseClaimed: _lease,
    CheckpointWritten: _same,
    ModelReplied: _charged,
    ModelFailed: _charged,
}
