"""Strict replay: every decision again, with models and tools disconnected, compared event by event.

The engine itself runs, over ports that answer from the log; what it would write is compared with what the log holds.
Durations are the world's and are taken over; everything else must be equal. The first difference is
``ReplayDiverged`` with its position. A call the log does not hold is a difference (R183).

Where the recorded owner crashed, the log shows a new lease; replay stops the engine there and enters the loop again,
as the recorded owner did.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from setpoint.engine.approving import BASE_CHANGED
from setpoint.engine.desk import Stamp
from setpoint.engine.journal import Journal
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.reading import apply
from setpoint.engine.reconcile import converge
from setpoint.engine.recovery import limits_of, settle
from setpoint.kernel.contract import Criterion, Invariant, Level, Task
from setpoint.kernel.errors import ConflictFault, ProposerFault, ReplayDiverged, StoreFault
from setpoint.kernel.events import (
    ApprovalRequested,
    ApprovalResolved,
    ApprovalSigned,
    Authorized,
    CallDeclined,
    Certified,
    ChangeItem,
    ChangesObserved,
    Committed,
    ContextBuilt,
    DriftFound,
    Event,
    EvidenceRecorded,
    Finished,
    ModelFailed,
    ModelReplied,
    Ref,
    Refused,
    RolledBack,
    ToolResult,
    TurnEnded,
    TurnStarted,
    decode,
    encode,
)
from setpoint.kernel.evidence import Counts, Evidence, Failure
from setpoint.kernel.proposal import Reply, Usage
from setpoint.kernel.quorum import Denied, Entitled, Expired, Granted, Waiting
from setpoint.kernel.record import Record
from setpoint.kernel.ruling import Permit
from setpoint.kernel.ticket import SignedDecision, Ticket, read_ticket, seats, ticket_digest
from setpoint.phases.p1_context.projection import FILE_PART, MAP_PART, part_of
from setpoint.phases.p3_gate.tools import Tool
from setpoint.phases.p4_dispatch.outcome import Outcome
from setpoint.phases.p4_dispatch.run import Bench
from setpoint.ports.approver import Rejected
from setpoint.ports.log import Log, Stored
from setpoint.ports.proposer import Context, Part, RouteLimits
from setpoint.ports.verifier import Candidate
from setpoint.ports.workspace import Change, ChangeSet, Survey

EXTERNAL: Final = frozenset(
    {"TaskAccepted", "LeaseClaimed", "RoutesOpened", "ControlRequested", "CheckpointWritten", "Undone"}
)
"""Written by people, by the owner's process or by book-keeping, not decided by the engine."""

RUNTIME: Final = "runtime"
"""Who asks when nobody does (``reconcile``)."""

VOLATILE: Final = frozenset({"elapsed_ms", "latency_ms", "duration_ms"})
"""Fields that come from the world's clock."""


class EndOfLog(Exception):
    """The log holds no further event: the trajectory is in flight, or was, when it was read."""


class Interrupted(Exception):
    """The recorded owner crashed or was killed here."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay came to: the record it ends in, and how many events were decided again and compared."""

    record: Record
    events: int
    compared: int


async def replay(task: Task, log: Log, trajectory_id: str, tools: dict[str, Tool]) -> Replayed:
    """Replay a whole trajectory. ReplayDiverged at the first differing event; LogCorrupt when the chain is broken."""
    tape = Tape(log, list(log.read(trajectory_id)), Record(trajectory_id=trajectory_id))
    tape.take_copied_past()
    while True:
        pursuit = _pursuit(task, tape, tools)
        try:
            if tape.record.is_terminal or tape.at_end:
                break
            await settle(pursuit)
            await converge(pursuit)
            if not tape.at_end and tape.record.state in ("PAUSED", "AWAITING_APPROVAL"):
                tape.take_over()  # it waited, and another owner took it up
            elif not tape.at_end and not tape.record.is_terminal:
                raise tape.divergence("the loop ended")
        except EndOfLog:
            break
        except Interrupted:
            tape.take_over()
    if not tape.at_end:
        raise tape.divergence("nothing more")
    return Replayed(tape.record, len(tape.events), tape.compared)


class Tape:
    """The recorded events as a Scribe: emitting compares, the record is the fold of what was recorded."""

    def __init__(self, log: Log, events: Sequence[Stored], record: Record) -> None:
        self._log = log
        self.events = events
        self.position = 0
        self.compared = 0
        self._record = record

    # What the stub ports ask.

    @property
    def at_end(self) -> bool:
        self._take_external()
        return self.position >= len(self.events)

    def peek(self) -> Event:
        """The next event the engine has to decide. Interrupted where the recorded owner ended, EndOfLog at the end."""
        stored = self._next()
        return decode(stored.type, stored.data)

    def expect(self, kind: type[Any], what: str) -> Any:
        event = self.peek()
        if not isinstance(event, kind):
            raise self.divergence(what)
        return event

    def find_ahead(self, kind: type[Any]) -> Any | None:
        """The next recorded event of a kind, without moving; None when there is none."""
        for stored in self.events[self.position :]:
            if stored.type == kind.__name__:
                return decode(stored.type, stored.data)
        return None

    def context_at_hand(self) -> tuple[int, ContextBuilt | CallDeclined] | None:
        """The recorded context the engine is about to build, with its position: the one that comes next, or, when a
        new owner builds the context of the call in flight again, the newest one that was recorded."""
        following = self._next()
        if following.type in ("TurnStarted", "ContextBuilt", "CallDeclined"):
            candidates = self.events[self.position :]
        else:
            candidates = self.events[: self.position][::-1]
        for stored in candidates:
            event = decode(stored.type, stored.data)
            if isinstance(event, (ContextBuilt, CallDeclined)):
                return stored.seq, event
        return None

    def divergence(self, instead: str) -> ReplayDiverged:
        at = self.events[self.position] if self.position < len(self.events) else None
        seq = at.seq if at is not None else len(self.events) + 1
        found = at.type if at is not None else "the end of the log"
        return ReplayDiverged(f"replay differs at event {seq}: the log holds {found}, replay gives {instead}")

    def take_copied_past(self) -> None:
        """Fold what lies before the first lease: the acceptance, and for a fork the past it copied from its parent,
        which was decided there and is replayed there."""
        while self.position < len(self.events) and self.events[self.position].type != "LeaseClaimed":
            self._fold(self.events[self.position])

    def take_over(self) -> None:
        """Fold what a new owner recorded when it took over, up to where it entered the loop."""
        start = self.position
        self._fold_taking_over()
        if self.position == start:
            raise self.divergence("nothing before another owner takes over")

    def _fold_taking_over(self) -> None:
        while self.position < len(self.events):
            stored = self.events[self.position]
            event = decode(stored.type, stored.data)
            if _is_external(stored) or _is_kill(event, self._record):
                self._fold(stored)
            elif isinstance(event, RolledBack) and event.reason == "operator":
                self._fold_visit()
            else:
                return

    def _fold_visit(self) -> None:
        """A person's roll-back and the fresh judgement after it: what they asked for, not what the loop chose."""
        while self.position < len(self.events) and self.events[self.position].type != "LeaseClaimed":
            self._fold(self.events[self.position])

    # Scribe

    @property
    def record(self) -> Record:
        self._take_external()
        return self._record

    def emit(self, event: Event) -> None:
        stored = self._next()
        if stored.type != type(event).__name__ or _masked(stored.data) != _masked(encode(event)):
            raise self.divergence(f"{type(event).__name__} {encode(event).decode()[:400]}")
        self.compared += 1
        self._fold(stored)

    def start_turn(self, event: Event, turn: int) -> None:
        if self._next().turn != turn:
            raise self.divergence(f"the start of turn {turn}")
        self.emit(event)

    async def barrier(self) -> None:
        return None

    async def hand_over(self) -> None:
        return None

    spill_text = Journal.spill_text
    spill_json = Journal.spill_json
    spill_list = Journal.spill_list

    def store(self, data: bytes) -> Ref:
        from setpoint.kernel.keys import digest_bytes

        return Ref(digest_bytes(data), len(data))

    def is_stored(self, digest: str) -> bool:
        return True  # nothing is stored here

    def load(self, ref: Ref) -> bytes:
        return self._log.payload(ref.ref)

    # Inner

    def _next(self) -> Stored:
        self._take_external()
        if self.position >= len(self.events):
            raise EndOfLog
        stored = self.events[self.position]
        if _is_external(stored):
            raise Interrupted
        return stored

    def _take_external(self) -> None:
        """Fold people's requests and book-keeping; stop before a new lease or a kill, which end an owner."""
        while self.position < len(self.events):
            stored = self.events[self.position]
            if not _is_external(stored):
                return
            event = decode(stored.type, stored.data)
            first = self._record.fence == 0
            if (stored.type == "LeaseClaimed" and not first) or _is_kill(event, self._record):
                return
            self._fold(stored)

    def _fold(self, stored: Stored) -> None:
        self._record = apply(self._record, stored)
        self.position += 1


def _is_external(stored: Stored) -> bool:
    """A request of the runtime's own, to pause at a budget, is a decision like any other."""
    if stored.type == "ControlRequested":
        return json.loads(stored.data)["by"] != RUNTIME
    return stored.type in EXTERNAL


def _is_kill(event: Event, record: Record) -> bool:
    if type(event).__name__ in ("ControlRequested", "ControlApplied"):
        return getattr(event, "action", "") == "kill" and record.state not in ("READY", "PAUSED")
    killed = any(control.action == "kill" for control in record.controls) or not record.controls
    return isinstance(event, Finished) and event.reason == "Killed" and killed


def _masked(data: bytes) -> Any:
    value = json.loads(data)
    for name in VOLATILE:
        value.pop(name, None)
    return value


# Ports that answer from the tape


def _pursuit(task: Task, tape: Tape, tools: dict[str, Tool]) -> Pursuit:
    return Pursuit(
        task,
        tape,
        _Workspace(tape),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]  # no sandbox: dispatch is replaced
        _Verifier(tape),
        _proposers(tape),
        _Clock(tape),
        tools,
        lambda p: _certificate(tape),
        dispatch=lambda permit, bench, wall_ms: _dispatched(tape, permit, bench, wall_ms),
        surroundings=lambda p: _surroundings(tape),
        desk=_Desk(tape),
    )


class _Desk:
    """What the world and the people said about tickets, as recorded. What follows from it is decided again.

    The log does not say which roles a signer has: who counts for a grant is taken over, and only checked to have said
    yes to this very ticket, in the number it asks for.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def stamp(self) -> Stamp:
        ticket = self._recorded()
        return Stamp(ticket.ticket_id, ticket.nonce, ticket.requested_at_ms)

    def preview(self, draw: Callable[[], str]) -> str:
        return self._recorded().preview

    def _recorded(self) -> Ticket:
        event: ApprovalRequested = self._tape.expect(ApprovalRequested, "a request for approval")
        return read_ticket(self._tape.load(event.ticket))

    def verify(self, signed: SignedDecision, ticket: Ticket) -> Entitled | Rejected:
        event: ApprovalSigned = self._tape.expect(ApprovalSigned, f"a decision on {ticket.ticket_id}")
        if event.counts:
            return Entitled(signed.decision, frozenset(ticket.by), signed.key)
        return Rejected("UNKNOWN_KEY", event.why)

    def rule(self, ticket: Ticket, decisions: Sequence[SignedDecision]) -> Waiting | Granted | Denied | Expired:
        event = self._tape.peek()
        if not isinstance(event, ApprovalResolved):
            # Nothing was recorded: it waits on, or the yes that is on record still held.
            ticketed = self._tape.record.ticket
            return Granted(ticketed.by) if ticketed is not None and ticketed.outcome == "granted" else Waiting(())
        said = {signed.decision.by: signed.decision for signed in decisions if _is_about(signed, ticket)}
        match event.outcome:
            case "granted":
                yes = {by for by, decision in said.items() if decision.verdict == "approve"}
                if not yes.issuperset(event.by) or len(set(event.by)) < len(seats(ticket)):
                    raise self._tape.divergence(f"no grant of {ticket.ticket_id}: too few said yes")
                return Granted(tuple(event.by))
            case "denied":
                for by in event.by:
                    if by in said and said[by].verdict == "deny":
                        return Denied(by, said[by].reason)
                raise self._tape.divergence(f"no denial of {ticket.ticket_id}: nobody said no")
            case "expired":
                return Expired(ticket.expires_at_ms)
            case _:
                return Waiting(())


def _is_about(signed: SignedDecision, ticket: Ticket) -> bool:
    return signed.decision.ticket_digest == ticket_digest(ticket)


class _Clock:
    """Elapsed time as recorded at the next turn; past the ceiling when the next fact is that the wall budget ended."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._start: int | None = None

    def now_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> int:
        if self._start is None:  # asked once when the pursuit is made
            self._start = 0
            self._before = self._tape.record.spent.elapsed_ms
            return 0
        if self._tape.position < len(self._tape.events):
            stored = self._tape.events[self._tape.position]
            event = decode(stored.type, stored.data)
            if isinstance(event, (TurnStarted, TurnEnded, ApprovalRequested)):
                return event.elapsed_ms - self._before
            if isinstance(event, Finished) and event.reason == "Budget:wall":
                return 1 << 50
            if type(event).__name__ == "ControlRequested" and getattr(event, "argument", "") == "wall":
                return 1 << 50
        return max(0, self._tape.record.spent.elapsed_ms - self._before)

    async def sleep_ms(self, ms: int) -> None:
        return None

    def new_id(self, prefix: str) -> str:
        raise ReplayDiverged("replay asked for a fresh identifier; identifiers come from the log")


def _proposers(tape: Tape) -> list[_Proposer]:
    record = tape.record
    known = [limits_of(terms) for terms in record.terms]
    return [
        _Proposer(tape, route, known[index] if index < len(known) else RouteLimits())
        for index, route in enumerate(record.models or ("",))
    ]


class _Proposer:
    def __init__(self, tape: Tape, route: str, limits: RouteLimits) -> None:
        self._tape = tape
        self.route = route
        self.limits = limits

    async def propose(self, context: Context, deadline_ms: int) -> Reply:
        event = self._tape.peek()
        match event:
            case ModelReplied():
                document = event.reply
                if document is None:
                    assert event.reply_ref is not None
                    document = msgspec.json.decode(self._tape.load(event.reply_ref), type=dict[str, Any])
                return Reply.of(document, usage=_usage(event), model=event.model, cursor=event.cursor)
            case ModelFailed():
                retry = event.retry_after_ms or None
                raise ProposerFault(
                    event.kind, event.message, retry_after_ms=retry, usage=_usage(event), cursor=event.cursor
                )
            case _:
                raise self._tape.divergence("a model call")

    async def close(self) -> None:
        return None


def _usage(event: ModelReplied | ModelFailed) -> Usage:
    return Usage(event.input_tokens, event.output_tokens, event.cached_tokens, event.usd_micros)


async def _dispatched(tape: Tape, permit: Permit, bench: Bench, wall_ms: int) -> Outcome:
    event: ToolResult = tape.expect(ToolResult, f"a dispatch of {permit.call.name}")
    text = event.text if isinstance(event.text, str) else tape.load(event.text).decode("utf-8", "replace")
    status: Any = event.status
    return Outcome(
        status, text, event.exit_code, event.reason, event.duration_ms, event.output_bytes, event.output_sha256
    )


async def _surroundings(tape: Tape) -> list[Part]:
    """The workspace's parts as the recorded context holds them; the rest of the context is projected again."""
    found = tape.context_at_hand()
    if found is None:
        return []
    seq, built = found
    try:
        return [
            part_of("trunk", part.name, tape.load(Ref("sha256:" + part.digest, 0)).decode("utf-8", "replace"))
            for part in built.parts
            if part.name == MAP_PART or part.name.startswith(FILE_PART)
        ]
    except StoreFault as fault:
        raise ReplayDiverged(f"replay differs at event {seq}: a part of its context is not there: {fault}") from fault


def _certificate(tape: Tape) -> tuple[bytes, str, str]:
    event: Certified = tape.expect(Certified, "a certificate")
    return tape.load(event.certificate), event.keyid, event.level


class _Verifier:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def judge(
        self, check: Criterion | Invariant, candidate: Candidate, baseline_counts: Counts | None
    ) -> Evidence:
        event: EvidenceRecorded = self._tape.expect(EvidenceRecorded, f"evidence of {check.address}")
        if event.check != check.address:
            raise self._tape.divergence(f"evidence of {check.address}")
        counts = None
        if event.collected is not None:
            counts = Counts(event.collected, event.passed, event.failed, event.errors, event.skipped)
        verdict: Any = event.verdict
        return Evidence(
            event.check,
            Level.of(event.level),
            verdict,
            event.fingerprint,
            event.distance,
            event.check_digest,
            event.reason,
            counts,
            tuple(Failure(failure.name, failure.message) for failure in event.failures),
            event.output_sha256,
            event.duration_ms,
        )

    async def close(self) -> None:
        return None


class _Workspace:
    """The parts of the Workspace port that the engine's decisions touch."""

    root = ""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.base_digest = tape.record.base_digest
        self._committing = False  # between the commit and its event

    def savepoint(self) -> int:
        return self._tape.record.savepoint

    def begin(self) -> None: ...

    def discard(self) -> None: ...

    def keep(self, savepoint: int) -> None: ...

    def restore(self, savepoint: int) -> None: ...

    def base_view(self) -> None: ...

    def candidate_view(self) -> None: ...

    def resolve(self, path: str) -> str | None:
        event, ticketed = self._tape.peek(), self._tape.record.ticket
        match event:
            case Authorized() | Refused():
                return event.path or None
            case ApprovalRequested():
                return read_ticket(self._tape.load(event.ticket)).target
            case ApprovalResolved() if ticketed is not None:
                return read_ticket(self._tape.load(ticketed.ticket)).target
            case _:
                return None

    def changes(self) -> ChangeSet:
        """The change set recorded next; when none is, the state is that of the savepoint."""
        event = self._tape.peek()
        if isinstance(event, ChangesObserved):
            items = event.changes
            if items is None:
                assert event.changes_ref is not None
                items = msgspec.json.decode(self._tape.load(event.changes_ref), type=list[ChangeItem])
            return ChangeSet(tuple(_change(item) for item in items), event.fingerprint)
        if isinstance(event, EvidenceRecorded):  # the baseline, or a drifted final judgement: no change is observed
            return ChangeSet((), event.fingerprint)
        return ChangeSet((), self._tape.record.fingerprint)

    def survey(self) -> Survey:
        """What the recorded owner saw, told by the events that follow: a drift names what was found."""
        event, record = self._tape.peek(), self._tape.record
        committed = self._tape.find_ahead(Committed)
        done = committed.state_digest if committed is not None else ""
        if self._committing:
            return Survey(done, done)
        refused = self._tape.find_ahead(DriftFound)
        if isinstance(event, DriftFound):
            return Survey(event.found, "")
        if isinstance(event, ApprovalResolved) and event.reason == BASE_CHANGED:
            return Survey("", "")
        expected = refused.expected if refused is not None and refused.decision == "refuse" else done
        return Survey(record.base_now or record.base_digest, expected or record.state_digest)

    def commit(self, commit_id: str) -> Any:
        event = self._tape.peek()
        self._committing = True
        if isinstance(event, Committed):
            return _Receipt(tuple(event.paths))
        if isinstance(event, Finished) and event.reason == "Conflict":
            raise ConflictFault("recorded conflict")
        raise self._tape.divergence("a commit")


@dataclass(frozen=True, slots=True)
class _Receipt:
    paths: tuple[str, ...]


def _change(item: ChangeItem) -> Change:
    kind: Any = item.kind
    file_type: Any = item.file_type
    return Change(
        item.path,
        kind,
        file_type,
        item.mode,
        item.size,
        item.digest,
        item.lines_added,
        item.lines_removed,
        item.renamed_from,
    )
