"""Evidence anyone can recheck: the statement of a certificate, built from the log and the contract alone. Pure.

Only evidence rows enter it, never a claim (R144). It says what was checked and at what level, never "correct" (R145).
The signature, the file and its verification are in ``setpoint.certificate``, which shares no code with the runtime.

    match build_statement(task, (*IMPLICIT, *task.invariants), events, keyid):
        case Statement() as statement: ...
        case Uncertifiable() as no: ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from setpoint.certificate.log import head
from setpoint.certificate.statement import COVERS
from setpoint.kernel.contract import Criterion, Invariant, Level, Task
from setpoint.kernel.events import (
    ApprovalRequested,
    ApprovalSigned,
    Authorized,
    BudgetRaised,
    ChangesObserved,
    ClaimRejected,
    Committed,
    DriftFound,
    EventUnion,
    EvidenceRecorded,
    ModelFailed,
    ModelReplied,
    Ref,
    Refused,
    RolledBack,
    SavepointKept,
    TaskAccepted,
    ToolIntent,
    TurnEnded,
    TurnStarted,
    decode,
)
from setpoint.kernel.keys import digest
from setpoint.kernel.record import Record
from setpoint.kernel.trajectory import fold
from setpoint.ports.log import Stored

RUNTIME_NAME: Final = "setpoint"


@dataclass(frozen=True, slots=True)
class Statement:
    """What ``setpoint.certificate.seal`` signs: the predicate, the envelopes it covers, the payloads they need."""

    predicate: dict[str, Any]
    envelopes: tuple[dict[str, Any], ...]
    payloads: tuple[str, ...]  # digests: replies, arguments, change sets too long for their events; tickets, decisions

    @property
    def level(self) -> str:
        """The strongest level any criterion reached."""
        return self.predicate["level"]["reached"]


@dataclass(frozen=True, slots=True)
class Uncertifiable:
    """Why this log certifies nothing. ``verified``: only ceilings were broken; the state itself meets the task, but a
    run over budget is not accepted (R153)."""

    problems: tuple[str, ...]
    verified: bool


@dataclass(frozen=True, slots=True)
class _Row:
    """One evidence event, and where it lies."""

    event: EvidenceRecorded
    seq: int
    digest: str


@dataclass(slots=True)
class _Facts:
    """What one pass over the log gathers."""

    accepted: TaskAccepted | None = None
    committed: Committed | None = None
    committed_at: str = ""
    evidence: dict[int, _Row] = field(default_factory=dict[int, _Row])  # by seq
    drifted_at: int = 0  # seq of the newest drift of the workspace; what was judged before is not what is there
    savepoints: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    used: dict[str, int] = field(default_factory=lambda: {"turns": 0, "tokens": 0, "usd_micros": 0, "wall_ms": 0})
    raised: dict[str, int] = field(default_factory=lambda: {"turns": 0, "tokens": 0, "usd_micros": 0, "wall_ms": 0})
    permits: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    refusals: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    rollbacks: int = 0
    claims_rejected: set[int] = field(default_factory=set[int])
    payloads: dict[str, None] = field(default_factory=dict[str, None])


def build_statement(
    task: Task, invariants: Sequence[Invariant], events: Sequence[Stored], keyid: str
) -> Statement | Uncertifiable:
    """The statement over every event so far, the newest of which is the commit (or follows it only as book-keeping).

    ``invariants`` are all that the runtime judged, implicit ones included. ``events`` are the whole stream from 1.
    """
    facts = _Facts()
    record = Record(trajectory_id=events[0].stream if events else "")
    for stored in events:
        event = decode(stored.type, stored.data)
        record = fold(record, stored.turn, event)  # which evidence stands after roll-backs
        _gather(facts, stored, event)
    accepted, committed = facts.accepted, facts.committed
    if accepted is None or committed is None:
        return Uncertifiable(("the log holds no accepted task or no commit",), verified=False)
    checks: tuple[Criterion | Invariant, ...] = (*task.done, *invariants)
    fresh = [line for line in record.evidence.values() if line.seq > facts.drifted_at]
    rows = {line.check: facts.evidence[line.seq] for line in fresh}
    problems = [problem for check in checks if (problem := _unmet(check, rows, committed.fingerprint))]
    reached = [Level.of(rows[criterion.address].event.level) for criterion in task.done if criterion.address in rows]
    if not reached or max(reached) < Level.of(accepted.required_level):
        problems.append(f"no criterion reached level {accepted.required_level}, which the task's exposure requires")
    limit = {name: amount + facts.raised[name] for name, amount in _limits(task).items()}
    over = [f"{facts.used[name]} {name} were used, the ceiling is {limit[name]}" for name in limit]
    over = [text for name, text in zip(limit, over, strict=True) if facts.used[name] > limit[name]]
    if problems or over:
        return Uncertifiable((*problems, *over), verified=not problems)
    envelopes = tuple(_envelope(stored) for stored in events)
    return Statement(
        {
            "runtime": {"name": RUNTIME_NAME, "version": accepted.runtime},
            "trajectory": events[0].stream,
            "task": {"name": task.name, "digest": task.digest},
            "policy_digest": policy_digest(task),
            "base_digest": accepted.base_digest,
            "state_digest": committed.state_digest,
            "fingerprint": committed.fingerprint,
            "exposure": accepted.exposure,
            "level": {
                "required": accepted.required_level,
                "reached": max(reached).label,
                "weakest": min(reached).label,
            },
            "criteria": [_stated(criterion, rows) for criterion in task.done],
            "invariants": [{**_stated(each, rows), "severity": each.severity} for each in invariants],
            "savepoints": facts.savepoints,
            "log": head(envelopes),
            "counts": {
                "permits": len(facts.permits),
                "refusals": len(facts.refusals),
                "rollbacks": facts.rollbacks,
                "claims_rejected": len(facts.claims_rejected),
            },
            "budget": {"limit": limit, "used": facts.used},
            "isolation": {"tier": accepted.tier, "rung": accepted.rung},
            "started_at": events[0].at,
            "ended_at": facts.committed_at,
            "keyid": keyid,
            "covers": COVERS,
        },
        envelopes,
        tuple(facts.payloads),
    )


def policy_digest(task: Task) -> str:
    """The digest of what the gate rules by: actions, negative scope, budget and policy."""
    spec = task.document["spec"]
    return digest([spec["actions"], spec["goal"]["forbid"], spec["budget"], spec["policy"]])


def _gather(facts: _Facts, stored: Stored, event: EventUnion) -> None:
    match event:
        case TaskAccepted():
            facts.accepted = event
        case TurnStarted(elapsed_ms=elapsed_ms):
            facts.used["turns"] += 1
            facts.used["wall_ms"] = max(facts.used["wall_ms"], elapsed_ms)
        case TurnEnded(elapsed_ms=elapsed_ms):
            facts.used["wall_ms"] = max(facts.used["wall_ms"], elapsed_ms)
        case BudgetRaised():
            for name in facts.raised:
                facts.raised[name] += getattr(event, name)
        case ModelReplied() | ModelFailed():
            facts.used["tokens"] += event.input_tokens + event.output_tokens
            facts.used["usd_micros"] += event.usd_micros
            if isinstance(event, ModelReplied):
                _need(facts, event.reply_ref)
        case Authorized(ordinal=ordinal):
            facts.permits.add((stored.turn, ordinal))
        case Refused(ordinal=ordinal):
            facts.refusals.add((stored.turn, ordinal))
        case ApprovalRequested(ticket=ref, elapsed_ms=elapsed_ms):
            facts.used["wall_ms"] = max(facts.used["wall_ms"], elapsed_ms)
            _need(facts, ref)
        case ApprovalSigned(decision=ref, counts=True):
            _need(facts, ref)
        case ToolIntent(arguments_ref=ref):
            _need(facts, ref)
        case ChangesObserved(changes_ref=ref):
            _need(facts, ref)
        case EvidenceRecorded():
            facts.evidence[stored.seq] = _Row(event, stored.seq, digest(json.loads(stored.data)))
        case DriftFound(what="workspace"):
            facts.drifted_at = stored.seq
        case SavepointKept(savepoint=savepoint, fingerprint=fingerprint):
            facts.savepoints.append({"savepoint": savepoint, "fingerprint": fingerprint, "seq": stored.seq})
        case RolledBack():
            _roll_back(facts, stored.turn, event)
        case ClaimRejected():
            facts.claims_rejected.add(stored.turn)
        case Committed():
            facts.committed, facts.committed_at = event, stored.at
        case _:
            pass


def _roll_back(facts: _Facts, turn: int, event: RolledBack) -> None:
    facts.savepoints = [kept for kept in facts.savepoints if kept["savepoint"] <= event.savepoint]
    if event.reason != "interrupted":
        facts.rollbacks += 1
        return
    # A crash: the same reply is ruled on again, so what was counted of this turn is counted again.
    facts.permits = {key for key in facts.permits if key[0] != turn}
    facts.refusals = {key for key in facts.refusals if key[0] != turn}
    facts.claims_rejected.discard(turn)


def _need(facts: _Facts, ref: Ref | None) -> None:
    if ref is not None:
        facts.payloads[ref.ref] = None


def _unmet(check: Criterion | Invariant, rows: Mapping[str, _Row], fingerprint: str) -> str | None:
    """Why the evidence does not carry this check, None when it does."""
    row = rows.get(check.address)
    if row is None or row.event.fingerprint != fingerprint:
        return f"{check.address}: there is no evidence about the committed state"
    if row.event.verdict != "pass":
        return f"{check.address}: the newest evidence is {row.event.verdict!r}"
    if Level.of(row.event.level) < check.level:
        return f"{check.address}: judged at level {row.event.level}, {check.level.label} is required"
    return None


def _stated(check: Criterion | Invariant, rows: Mapping[str, _Row]) -> dict[str, Any]:
    row = rows[check.address]
    return {
        "id": check.id,
        "level_required": check.level.label,
        "level_reached": row.event.level,
        "verdict": row.event.verdict,
        "check_digest": row.event.check_digest,
        "evidence_digest": row.digest,
        "seq": row.seq,
    }


def _limits(task: Task) -> dict[str, int]:
    budget = task.budget
    return {
        "turns": budget.turns,
        "tokens": budget.tokens,
        "usd_micros": budget.usd_micros,
        "wall_ms": budget.wall_ms,
    }


def _envelope(stored: Stored) -> dict[str, Any]:
    return {
        "stream": stored.stream,
        "seq": stored.seq,
        "turn": stored.turn,
        "type": stored.type,
        "v": stored.v,
        "at": stored.at,
        "prev": stored.prev,
        "hash": stored.hash,
        "data": json.loads(stored.data),
    }
