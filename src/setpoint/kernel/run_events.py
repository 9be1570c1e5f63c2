"""Every fact the log of a workflow run can hold, one closed union.

The rules are those of ``events``: no floats, long values as references, one schema version. What runs share with
trajectories (control, leases, models, the end) are the same events.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from setpoint.kernel.errors import LogCorrupt
from setpoint.kernel.events import (
    ApprovalRequested,
    ApprovalResolved,
    ApprovalSigned,
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
from setpoint.kernel.events import decode as decode_trajectory_event

Values = dict[str, Any]
"""Fields of the state that changed, as plain JSON. One that is long, or holds a fraction, is in ``refs`` instead."""
Refs = dict[str, Ref]


class RunStarted(Event, frozen=True):
    """The definition and the input, pinned."""

    workflow: str
    version: int
    definition: Ref
    definition_digest: str
    input: Ref
    values: Values  # the state to begin with
    refs: Refs = {}
    principal: str = ""
    tenant: str = ""
    scopes: list[str] = []
    session: str = ""
    parent: str = ""  # the run that waits for this one, or the one this is a retry of
    parent_node: str = ""  # "" for a retry
    runtime: str = ""


class BlockEntered(Event, frozen=True):
    """A node chose, or began, a block: a branch with its label, a round of a repetition, the blocks of a parallel."""

    node: str
    blocks: list[str]  # their paths
    label: str = ""
    scopes: bool = False  # each block works on its own copy of the state
    values: Values = {}  # what a scope begins with
    refs: Refs = {}
    items: Ref | None = None  # of a map; its rounds are entered one by one


class NodeCompleted(Event, frozen=True):
    """The node is done and its result recorded; it is never done again. ``block`` goes on behind it."""

    node: str
    block: str
    values: Values = {}
    refs: Refs = {}
    result: Ref | None = None  # of a call whose result goes nowhere in the state


class NodeFailed(Event, frozen=True):
    """An attempt came to nothing. ``kind``: transient | rate_limited | circuit_open | in_doubt | declined |
    bug | refused."""

    node: str
    kind: str
    message: str
    attempt: int = 1
    retry_at_ms: int = 0  # 0: no other attempt by itself


class TimerSet(Event, frozen=True):
    node: str
    at_ms: int
    why: str  # sleep | probe


class SignalAwaited(Event, frozen=True):
    node: str
    signal: str
    until_ms: int


class SignalReceived(Event, frozen=True):
    """A message for a waiting node, in the order of the inbox."""

    signal: str
    key: str
    position: int
    payload: Ref | None = None
    at_ms: int = 0  # when it was left for the run; 0: not known


class EffectQueued(Event, frozen=True):
    """The intent of an outside effect, durable before it is sent (law L2), together with the state and its claim."""

    node: str
    capability: str
    effect: str
    key: str
    claim: str
    arguments: Ref
    arguments_digest: str
    sent_at_ms: int = 0
    attempt: int = 1
    doubt_at_ms: int = 0  # when an earlier attempt was sent that may still count; 0: none may
    compensator: str = ""  # what takes it back, bound before it is sent
    compensates: str = ""  # the node whose effect this takes back
    ticket_id: str = ""  # the approval it used up


class EffectDelivered(Event, frozen=True):
    """What came of it. ``status``: done | declined | not_sent.

    ``how`` it is known: reply | reconstructed (by a probe) | inbox | stored (by another run) | person.
    """

    node: str
    key: str
    status: str
    how: str = "reply"
    result: Ref | None = None
    message: str = ""
    duration_ms: int = 0


class EffectPending(Event, frozen=True):
    """The other side has accepted it and will report later, by the inbox."""

    node: str
    key: str
    until_ms: int


class EffectUnknown(Event, frozen=True):
    """It may or may not have happened and nothing the runtime may do can tell. A person settles it."""

    node: str
    key: str
    reason: str


class EffectSettled(Event, frozen=True):
    """How an effect in doubt was settled. ``verdict``: happened | not_happened | resend.

    resend: nobody looked, or it was too early, but the other side acts once for a key; the doubt goes along with it.
    """

    node: str
    key: str
    verdict: str
    by: str = "probe"
    message: str = ""


class EffectReused(Event, frozen=True):
    """Another run has made this very effect already; its stored result is this node's, and nothing was sent."""

    node: str
    key: str
    holder: str


class LateResult(Event, frozen=True):
    """A result that no pending effect waits for: dropped, and on record."""

    key: str
    position: int
    reason: str


class UnwindStarted(Event, frozen=True):
    """The run will not go on; what it did is taken back, last first."""

    reason: str
    message: str
    end: str  # FAILED | CANCELLED
    code: int


class Compensated(Event, frozen=True):
    """The effect of ``node`` is taken back."""

    node: str
    capability: str
    key: str


class RunPaused(Event, frozen=True):
    """It waits for a person: nothing happens by itself. ``reason``: NodeFailed | Pause | AfterPivot |
    CompensationFailed."""

    reason: str
    message: str
    node: str = ""


class RunResumed(Event, frozen=True):
    by: str


class ChildStarted(Event, frozen=True):
    node: str
    run_id: str


class Made(msgspec.Struct, frozen=True):
    """An effect of a child that stands and can be taken back. ``node`` is its path behind that of the child's node."""

    node: str
    capability: str
    effect: str
    key: str
    claim: str
    arguments: Ref
    arguments_digest: str
    result: Ref | None = None


class ChildEnded(Event, frozen=True):
    """A child has ended. What it made is now its parent's to take back; ``pivot``: it made what nothing takes back."""

    node: str
    run_id: str
    made: list[Made] = []
    pivot: str = ""


class Migrated(Event, frozen=True):
    """The run goes on under another definition."""

    definition: Ref
    definition_digest: str
    version: int
    by: str


RunEventUnion = (
    RunStarted
    | BlockEntered
    | NodeCompleted
    | NodeFailed
    | TimerSet
    | SignalAwaited
    | SignalReceived
    | ApprovalRequested
    | ApprovalSigned
    | ApprovalResolved
    | EffectQueued
    | EffectDelivered
    | EffectPending
    | EffectUnknown
    | EffectSettled
    | EffectReused
    | LateResult
    | UnwindStarted
    | Compensated
    | RunPaused
    | RunResumed
    | ChildStarted
    | ChildEnded
    | Migrated
    | ControlRequested
    | ControlApplied
    | DriftFound
    | Finished
    | LeaseClaimed
    | CheckpointWritten
    | ModelReplied
    | ModelFailed
)

RUN_EVENT_TYPES: Final[dict[str, type[Event]]] = {cls.__name__: cls for cls in RunEventUnion.__args__}

_decoders: Final = {name: msgspec.json.Decoder(cls) for name, cls in RUN_EVENT_TYPES.items()}


def decode(type_name: str, data: bytes) -> Event:
    """The event of one stored row of a run. LogCorrupt when the type is unknown or the data does not fit it."""
    decoder = _decoders.get(type_name)
    if decoder is None:
        return decode_trajectory_event(type_name, data)  # raises in the words for an unknown type
    try:
        return decoder.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise LogCorrupt(f"an event of type {type_name} does not fit its schema: {error}") from error
