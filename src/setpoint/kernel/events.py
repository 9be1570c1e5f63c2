"""Every fact the log can hold, one closed union (law L3).

An event holds strings, integers, booleans, null, lists and objects only: no floats, so that its canonical JSON is
unique. ``encode`` gives the canonical bytes that go into the log and under the hash. A long text is replaced by its
``Ref``: the bytes lie in the content-addressed store.

``v`` of the envelope is ``SCHEMA_VERSION``; a change that older readers cannot fold raises it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from setpoint.kernel.budget import Stage
from setpoint.kernel.diagnostics import Diagnostic
from setpoint.kernel.errors import LogCorrupt

SCHEMA_VERSION: Final = 1


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all events. The type name on the wire is the class name."""


class Ref(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes kept in the content-addressed store."""

    ref: str  # sha256:...
    bytes: int


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A delta item on the wire."""

    address: str
    distance: int
    verdict: str
    hard: bool = False
    reason: str = ""


class FailureItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    message: str = ""


# Acceptance


class TaskAccepted(Event, frozen=True):
    """The contract, pinned. ``task`` refers to the canonical document."""

    name: str
    task: Ref
    task_digest: str
    workspace: str
    base_digest: str
    exposure: str  # e.g. "H30 S2 A1"
    required_level: str
    models: list[str]
    tier: str
    rung: str
    runtime: str  # version of the runtime
    directory: str  # where relative paths of the document start
    source: str = ""  # the file it came from
    models_directory: str = ""  # where relative paths of routes start
    parent: str = ""  # the trajectory this one retries or forks
    fork_turn: int = 0


# A turn


class TurnStarted(Event, frozen=True):
    """Phase 1 said yes. ``elapsed_ms`` is active wall time so far; ``stage`` is nominal | steer | restrict."""

    elapsed_ms: int
    stage: Stage = "nominal"


class ContextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    zone: str
    name: str
    digest: str
    tokens: int


class ContextBuilt(Event, frozen=True):
    """The prompt as ordered references plus hash, never as a copy."""

    digest: str
    tokens: int
    parts: list[ContextPart] = []  # those with bytes of their own; the others are projected again from the record
    observations: list[str] = []  # "turn.ordinal" of the observations that entered


class CallDeclined(Event, frozen=True):
    """The projected call would break a ceiling, so it was not made and no turn started. What the decision rests on."""

    dimension: str  # tokens | usd
    message: str
    digest: str
    tokens: int  # of the prompt that was projected
    parts: list[ContextPart] = []


class ModelReplied(Event, frozen=True):
    """A proposer's reply, verbatim: inline when small, else ``reply_ref``."""

    route: str
    stop: str
    reply: dict[str, Any] | None = None
    reply_ref: Ref | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    usd_micros: int = 0
    latency_ms: int = 0
    model: str = ""
    cursor: int | None = None


class ModelFailed(Event, frozen=True):
    """A model call that gave no proposal; its spent tokens are charged all the same."""

    route: str
    kind: str
    message: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    usd_micros: int = 0
    latency_ms: int = 0
    retry_after_ms: int = 0
    cursor: int | None = None


class Authorized(Event, frozen=True):
    """The gate permitted this call. ``items`` are the delta items it may work on."""

    ordinal: int
    tool: str
    call_digest: str
    effect: str
    items: list[str] = []
    path: str = ""
    blast: str = ""  # high: a command that deletes recursively, rewrites history or changes modes of a tree (R073)


class Refused(Event, frozen=True):
    """The gate, or parsing, said no. Nothing outside changed."""

    ordinal: int
    tool: str
    gate: str
    reason: str
    message: str
    pointer: str = ""
    call_digest: str = ""
    path: str = ""  # where the call's path leads, when it was resolved


class ToolIntent(Event, frozen=True):
    """Durable before dispatch (law L2). Arguments are inline when small, else ``arguments_ref``."""

    ordinal: int
    tool: str
    call_digest: str
    key: str
    effect: str
    arguments: dict[str, Any] | None = None
    arguments_ref: Ref | None = None
    items: list[str] = []
    attempt: int = 1
    rate_calls: int = 0  # of the grant's rate, 0 without one: the record keeps the times of so many newest calls


class ToolResult(Event, frozen=True):
    """What came back. ``text`` is the shaped, redacted observation; the full output is a payload when kept."""

    ordinal: int
    tool: str
    status: str  # COMPLETED | TRUNCATED | TRANSPORT_FAILURE
    text: str | Ref = ""
    exit_code: int | None = None
    reason: str = ""
    duration_ms: int = 0
    output_bytes: int = 0
    output_sha256: str = ""
    attempt: int = 1
    diagnostics: list[Diagnostic] = []  # distilled from the text of a command that failed (R116)


class ChangeItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One changed path, as expressions and people see it. Bytes of names that are not UTF-8 are spelled out."""

    path: str
    kind: str
    file_type: str
    mode: int
    size: int
    digest: str = ""
    lines_added: int = 0
    lines_removed: int = 0
    renamed_from: str = ""


class ChangesObserved(Event, frozen=True):
    """The exact difference of the candidate state to the base: inline when small, else ``changes_ref``."""

    fingerprint: str
    changed: int
    changes: list[ChangeItem] | None = None
    changes_ref: Ref | None = None


class EvidenceRecorded(Event, frozen=True):
    """A verdict of a check the runtime ran. ``phase`` is baseline | turn | final."""

    check: str
    level: str
    verdict: str
    fingerprint: str
    check_digest: str
    distance: int = 0
    reason: str = ""
    collected: int | None = None
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    failures: list[FailureItem] = []
    output_sha256: str = ""
    duration_ms: int = 0
    phase: str = "turn"


class DeltaMeasured(Event, frozen=True):
    """The delta of one state; ``progress`` is [hard violations, unmet criteria, weighted debt]."""

    fingerprint: str
    progress: tuple[int, int, int]
    items: list[Item] = []


class SavepointKept(Event, frozen=True):
    """The attempt became the staged state."""

    savepoint: int
    fingerprint: str
    changed: int  # number of changed paths against the base
    paths: list[str] = []  # the first of them
    proposal: str = ""  # digest of the proposal that led here; blocked when a stall goes back behind it


class RolledBack(Event, frozen=True):
    """Workspace and context went back together, as one fact. ``note`` is all that the next prompt holds of it."""

    savepoint: int  # the savepoint that stands now
    fingerprint: str  # of that savepoint
    reason: str  # invariant | postcondition | missing | stall | operator | interrupted | change_rejected
    note: str = ""
    blocked: str = ""  # digest of the proposal that will not be tried again
    changed: int = 0  # changed paths of that savepoint against the base, when it is an older one
    paths: list[str] = []  # the first of them


class TurnEnded(Event, frozen=True):
    """The turn is over. ``outcome`` is kept | rolled_back | unchanged | acted | refused | model_failed | asked."""

    outcome: str
    elapsed_ms: int = 0  # active wall time so far, this turn included


class ClaimRejected(Event, frozen=True):
    """`complete_task` asked for judgement and the evidence said no."""

    note: str
    items: list[str] = []


class Routed(Event, frozen=True):
    """Another route is taken from now on."""

    route: str
    index: int
    reason: str


class Stalled(Event, frozen=True):
    """No progress by this route. ``tier`` is steer | backtrack | next_model | ask | halt."""

    tier: str
    reason: str
    message: str


# People and control


class QuestionAsked(Event, frozen=True):
    question_id: str
    question: str
    source: str = "model"  # model | runtime


class QuestionAnswered(Event, frozen=True):
    question_id: str
    answer: str
    by: str


class ApprovalRequested(Event, frozen=True):
    """A ticket: what exactly people are asked to approve. Nothing of it may change afterwards.

    ``node`` is the path of a run's node, or "turn.ordinal" of a trajectory's call.
    """

    node: str
    ticket_id: str
    ticket: Ref
    action_digest: str
    expires_at_ms: int
    covers: str = ""  # path of the call it is asked for ahead of
    elapsed_ms: int = 0  # active wall time of a trajectory so far: the wait that follows is not counted


class ApprovalSigned(Event, frozen=True):
    """A signed decision came; ``counts`` tells whether it was valid, ``why`` why not."""

    ticket_id: str
    by: str
    verdict: str
    decision: Ref
    position: int
    counts: bool
    why: str = ""


class ApprovalResolved(Event, frozen=True):
    """``outcome``: granted | denied | expired | void (what was approved is not what would be done now)."""

    node: str
    ticket_id: str
    outcome: str
    by: list[str] = []
    reason: str = ""


class ControlRequested(Event, frozen=True):
    """A person asked for pause | resume | cancel | kill | answer | raise | interrupt | decide.

    Applied at a turn boundary; kill at once, and decide at once when a call waits for it.
    """

    request_id: str
    action: str
    by: str
    argument: str = ""
    position: int = 0  # in the inbox; what lies before it has been read


class BudgetRaised(Event, frozen=True):
    """A person allowed more than the contract's ceilings; the amounts are added to them."""

    by: str
    turns: int = 0
    tokens: int = 0
    usd_micros: int = 0
    wall_ms: int = 0


class ControlApplied(Event, frozen=True):
    request_id: str
    action: str


# The end


class CommitPlanned(Event, frozen=True):
    """Intent of the journalled apply to the user's tree; durable before it starts."""

    commit_id: str
    savepoint: int
    fingerprint: str


class Committed(Event, frozen=True):
    commit_id: str
    fingerprint: str
    state_digest: str
    changed: int
    paths: list[str] = []


class Undone(Event, frozen=True):
    """A commit was taken back by a person; the tree is its pre-image again."""

    commit_id: str
    by: str
    changed: int


class Certified(Event, frozen=True):
    """A certificate over every event before this one was signed; its bytes are the payload."""

    certificate: Ref
    keyid: str
    level: str


class Finished(Event, frozen=True):
    """Terminal. ``state`` is COMPLETED | FAILED | CANCELLED; ``code`` the exit code (docs/reference/exit-codes.md)."""

    state: str
    reason: str
    message: str
    code: int


# Durability


class LeaseClaimed(Event, frozen=True):
    owner: str
    fence: int


class RouteTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the decisions of an owner rest on for one route. Prices are micro-dollars per million tokens."""

    prompt_tokens: int  # the most a prompt may have
    output_tokens: int = 0  # reserved before a call, where it is priced
    usd_micros_per_mtok_in: int | None = None
    usd_micros_per_mtok_out: int | None = None


class RoutesOpened(Event, frozen=True):
    """The terms of the routes, in their order, as this owner knows them. Written when they are not the ones known."""

    terms: list[RouteTerms]


class DriftFound(Event, frozen=True):
    """Something the log rests on is not what it was: workspace, sealed files, runtime, prompt template."""

    what: str
    expected: str
    found: str
    decision: str  # refuse | cross_over


class CheckpointWritten(Event, frozen=True):
    """A record snapshot was stored at this position, after the workspace savepoint it names was durable."""

    savepoint: int


EventUnion = (
    TaskAccepted
    | TurnStarted
    | ContextBuilt
    | CallDeclined
    | ModelReplied
    | ModelFailed
    | Authorized
    | Refused
    | ToolIntent
    | ToolResult
    | ChangesObserved
    | EvidenceRecorded
    | DeltaMeasured
    | SavepointKept
    | RolledBack
    | TurnEnded
    | ClaimRejected
    | Routed
    | Stalled
    | QuestionAsked
    | QuestionAnswered
    | ApprovalRequested
    | ApprovalSigned
    | ApprovalResolved
    | ControlRequested
    | BudgetRaised
    | ControlApplied
    | CommitPlanned
    | Committed
    | Undone
    | Certified
    | Finished
    | LeaseClaimed
    | RoutesOpened
    | DriftFound
    | CheckpointWritten
)

EVENT_TYPES: Final[dict[str, type[Event]]] = {cls.__name__: cls for cls in EventUnion.__args__}

_encoder = msgspec.json.Encoder(order="sorted")
_decoders: Final = {name: msgspec.json.Decoder(cls) for name, cls in EVENT_TYPES.items()}


def encode(event: Event) -> bytes:
    """Canonical JSON of the event's data. Lone surrogates in text are a bug of the caller: ValueError."""
    return _encoder.encode(event)


def decode(type_name: str, data: bytes) -> EventUnion:
    """The event of one stored row. LogCorrupt when the type is unknown or the data does not fit it."""
    decoder = _decoders.get(type_name)
    if decoder is None:
        raise LogCorrupt(
            f"the log holds an event of unknown type {type_name!r}",
            hint="It was written by another version of Setpoint; use that version to read it.",
        )
    try:
        return decoder.decode(data)  # type: ignore[return-value]
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise LogCorrupt(f"an event of type {type_name} does not fit its schema: {error}") from error
