"""The record of a trajectory (the Agent Control Block): everything the runtime knows, and nothing a model can write.

It is bounded whatever the horizon, so that a fold step costs the same at turn 10 and turn 10,000. Only
``trajectory.fold`` makes a new one, from an event of the log (L3, R221).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from setpoint.kernel.budget import Raised, Stage
from setpoint.kernel.diagnostics import Diagnostic
from setpoint.kernel.events import Item, Ref, RouteTerms
from setpoint.kernel.transitions import TERMINAL, State


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One recent call for the progress rules: what was proposed, over which state, with what outcome."""

    turn: int
    call_digest: str
    state: str
    outcome: str


class InFlight(msgspec.Struct, frozen=True, array_like=True):
    """A dispatched call whose result is not recorded: in doubt after a crash."""

    ordinal: int
    call_digest: str
    state: str


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """A recent observation the next prompts may show: text inline or by reference."""

    turn: int
    ordinal: int
    tool: str
    status: str
    exit_code: int | None
    text: str | Ref
    diagnostics: tuple[Diagnostic, ...] = ()


class EvidenceLine(msgspec.Struct, frozen=True, array_like=True):
    """The newest evidence of one check, as much of it as decisions and prompts need."""

    check: str
    level: str
    verdict: str
    fingerprint: str
    distance: int
    reason: str
    collected: int | None
    failures: tuple[tuple[str, str], ...]
    check_digest: str
    seq: int


class BaselineCounts(msgspec.Struct, frozen=True, array_like=True):
    """What a check counted on the base; later states may not count less: deleted tests are no progress."""

    collected: int
    passed: int
    failed: int
    errors: int
    skipped: int


class Best(msgspec.Struct, frozen=True, array_like=True):
    """The best savepoint so far."""

    savepoint: int
    progress: tuple[int, int, int]
    fingerprint: str
    changed: int = 0
    paths: tuple[str, ...] = ()


class PendingReply(msgspec.Struct, frozen=True):
    """A recorded reply whose turn has not ended: after a crash it is used again, the model is not asked."""

    route: str
    reply: dict[str, Any] | None
    reply_ref: Ref | None


class Question(msgspec.Struct, frozen=True, array_like=True):
    question_id: str
    question: str
    source: str


class Ticketed(msgspec.Struct, frozen=True):
    """An approval that was asked for: at the node of a run, or for a call ("turn.ordinal") of a trajectory."""

    node: str
    ticket_id: str
    ticket: Ref
    action_digest: str
    expires_at_ms: int
    decisions: tuple[Ref, ...] = ()  # those that count
    outcome: str = ""  # granted | denied | expired | void
    by: tuple[str, ...] = ()
    reason: str = ""
    used: bool = False  # in a trajectory: the call was ruled on by it
    covers: str = ""


class Control(msgspec.Struct, frozen=True, array_like=True):
    request_id: str
    action: str
    argument: str
    by: str
    position: int = 0  # in the inbox


class Spent(msgspec.Struct, frozen=True, array_like=True):
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    usd_micros: int = 0
    model_calls: int = 0
    elapsed_ms: int = 0
    tool_calls: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


ZERO_PROGRESS: Final = (0, 0, 0)
UNKNOWN_PROGRESS: Final = (1 << 30, 1 << 30, 1 << 30)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the runtime knows of a trajectory. A few kilobytes, whatever the horizon."""

    # Identity
    trajectory_id: str
    name: str = ""
    parent: str = ""
    task: Ref | None = None
    task_digest: str = ""
    directory: str = ""
    source: str = ""
    models_directory: str = ""
    workspace: str = ""
    base_digest: str = ""
    base_now: str = ""  # of the user's tree when it was last found changed under the trajectory
    # Status
    state: State = "READY"
    turn: int = 0  # turns started
    finished_reason: str = ""
    finished_message: str = ""
    finished_code: int = -1
    last_event_at: str = ""
    # Spend
    spent: Spent = Spent()
    raised: Raised = Raised()  # what a person added to the budget
    last_call: tuple[int, int, int] = (0, 0, 0)  # input tokens, output tokens, micro-dollars of the newest call
    # Routes
    models: tuple[str, ...] = ()
    route_index: int = 0
    cursors: dict[str, int] = {}
    route_failures: int = 0  # in a row, on this route
    no_route: str = ""  # why there is none left: the last one, and how it failed
    terms: tuple[RouteTerms, ...] = ()  # of the routes, in their order; empty: all as by default
    # Workspace
    savepoint: int = 0
    savepoints: int = 0  # the highest number used; numbers are never used twice
    fingerprint: str = ""  # of the newest savepoint
    changed: int = 0
    paths: tuple[str, ...] = ()
    best: Best | None = None
    baseline_progress: tuple[int, int, int] | None = None  # of the base; a commit must be better
    commit_planned: str = ""
    committed: str = ""
    state_digest: str = ""
    undone: bool = False
    # Delta of the newest measurement, and of the newest kept savepoint
    items: tuple[Item, ...] = ()
    progress: tuple[int, int, int] = UNKNOWN_PROGRESS
    measured: str = ""  # the fingerprint of that measurement
    evidence: dict[str, EvidenceLine] = {}  # of the newest state judged
    kept_evidence: dict[str, EvidenceLine] = {}  # of the newest savepoint; comes back with a roll-back
    best_evidence: dict[str, EvidenceLine] = {}
    baseline_counts: dict[str, BaselineCounts] = {}
    seal_broken: str = ""  # why sealed files cannot be trusted any more; nothing is judged by them after that
    # Progress rules
    recent: tuple[Seen, ...] = ()
    blocked: tuple[str, ...] = ()  # short digests of proposals that are not tried again
    proposals: tuple[tuple[int, str], ...] = ()  # of the savepoints since: what a stall blocks when it goes back
    claim_noted: bool = False  # a claim was rejected in the present turn
    still: int = 0  # savepoints in a row without better progress than the best
    refused_in_a_row: int = 0
    idle_turns: int = 0  # turns in a row that changed nothing
    visited: tuple[str, ...] = ()  # fingerprints of recent savepoints; a return is an edit-and-revert loop
    cycled: bool = False  # the newest savepoint was seen before
    attempt_state: str = ""  # fingerprint plus the calls dispatched in this turn
    stall_tier: int = 0
    halted: str = ""  # why no further way is tried; the trajectory is about to end
    # What the next prompt may hold
    notes: tuple[str, ...] = ()
    shown: tuple[Shown, ...] = ()
    working: tuple[str, ...] = ()  # files the model works on, newest last; their text is read afresh every turn
    calls_by_tool: dict[str, int] = {}
    turn_calls: dict[str, int] = {}  # of these, the ones of the present turn
    call_times: dict[str, tuple[tuple[int, int], ...]] = {}  # turn and active ms of calls under a rate, newest last
    # Pending
    reply: PendingReply | None = None
    attempt: int = 1  # of the present turn's dispatches
    in_flight: tuple[InFlight, ...] = ()
    question: Question | None = None
    ticket: Ticketed | None = None  # of the call of the present turn that people decide on, or have decided on
    controls: tuple[Control, ...] = ()
    inbox_position: int = 0
    pause_reason: str = ""  # the exhausted dimension when the budget paused it, "" when a person did
    stage: Stage = "nominal"
    context_digest: str = ""
    prompt_tokens: int = 0
    certificate: Ref | None = None
    keyid: str = ""
    # Durability
    fence: int = 0
    checkpoint_turn: int = 0
    seq: int = 0  # events folded

    @property
    def is_met(self) -> bool:
        """The delta of the state as it is now was measured, and is empty."""
        return not self.items and self.measured == self.fingerprint

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL
