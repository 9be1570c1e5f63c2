"""What the log knows of one trajectory, gathered once and given to the verbs that look at it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from setpoint.app.runtime import Runtime
from setpoint.cli.wording import open_ticket, status
from setpoint.engine.reading import apply
from setpoint.kernel.conditions import conditions
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.events import Event, EvidenceRecorded, Ref, TaskAccepted, decode
from setpoint.kernel.record import UNKNOWN_PROGRESS, Record
from setpoint.kernel.units import parse_duration_ms, parse_usd_micros
from setpoint.ports.log import Lease, Stored

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Fact:
    """One event with its place in the log."""

    seq: int
    turn: int
    at: str
    event: Event


@dataclass(frozen=True, slots=True)
class Account:
    """A trajectory as its log tells it. ``task`` is the canonical document it was accepted with."""

    trajectory_id: str
    record: Record
    facts: tuple[Fact, ...]
    task: dict[str, Any]
    owner: str  # who holds the lease now, "" when nobody does
    lease_until_ms: int  # when that lease ends unless it is renewed, 0 without one
    load: Callable[[str], bytes]  # payload by digest

    @property
    def status(self) -> str:
        return status(self.record, owned=bool(self.owner))

    @property
    def accepted(self) -> TaskAccepted:
        first = self.facts[0].event
        assert isinstance(first, TaskAccepted)
        return first

    def of_type(self, kind: type[E]) -> list[tuple[Fact, E]]:
        return [(fact, fact.event) for fact in self.facts if isinstance(fact.event, kind)]

    def evidence(self, address: str) -> tuple[Fact, EvidenceRecorded] | None:
        """The newest evidence of a check about the standing state, else the newest of any."""
        found = [(fact, event) for fact, event in self.of_type(EvidenceRecorded) if event.check == address]
        standing = [pair for pair in found if pair[1].fingerprint == self.record.fingerprint]
        return (standing or found or [None])[-1]

    def text(self, value: str | Ref) -> str:
        """A text of an event, fetched when it lies in the payload store."""
        return value if isinstance(value, str) else self.load(value.ref).decode("utf-8", "replace")

    def value(self, inline: Any, ref: Ref | None) -> Any:
        """A JSON value of an event, fetched when it lies in the payload store."""
        return json.loads(self.load(ref.ref)) if inline is None and ref is not None else inline


def read_account(runtime: Runtime, trajectory_id: str) -> Account:
    """Everything, verified: LogCorrupt when the chain does not hold."""
    record, _ = runtime.record(trajectory_id)
    facts = tuple(
        Fact(stored.seq, stored.turn, stored.at, decode(stored.type, stored.data))
        for stored in runtime.log.read(trajectory_id)
    )
    task = json.loads(runtime.log.payload(record.task.ref)) if record.task is not None else {}
    holder = runtime.log.holder(trajectory_id)
    return Account(trajectory_id, record, facts, task, *_lease(holder), runtime.log.payload)


def _lease(holder: Lease | None) -> tuple[str, int]:
    return ("", 0) if holder is None else (holder.owner, holder.expires_at_ms)


def record_at(runtime: Runtime, trajectory_id: str, stop: Callable[[Stored], bool]) -> Record:
    """The record as it was just before the first event for which ``stop`` holds."""
    record = Record(trajectory_id=trajectory_id)
    for stored in runtime.log.read(trajectory_id):
        if stop(stored):
            break
        record = apply(record, stored)
    return record


def require_turn(account: Account, turn: int) -> None:
    if not 0 <= turn <= account.record.turn:
        raise UsageFault(
            f"{account.trajectory_id} has no turn {turn}; it has turns 1 to {account.record.turn}, and 0, the baseline"
            if account.record.turn
            else f"{account.trajectory_id} has no turn {turn}; only 0, the baseline"
        )


def exit_code(record: Record) -> int | None:
    """The code `converge` or `resume` returned for this record; None while it neither ended nor waits for a person."""
    if record.is_terminal:
        return record.finished_code
    if record.state != "PAUSED":
        return 13 if open_ticket(record) is not None else None
    return 14 if record.state == "PAUSED" and record.question is None and record.pause_reason else 13


def budget_of(task: dict[str, Any], record: Record) -> dict[str, int]:
    """The ceilings that hold, of the contract and what a person added: turns, tokens, usd_micros, wall_ms."""
    budget, raised = task["spec"]["budget"], record.raised
    return {
        "turns": budget["turns"] + raised.turns,
        "tokens": budget["tokens"] + raised.tokens,
        "usd_micros": parse_usd_micros(str(budget["usd"])) + raised.usd_micros,
        "wall_ms": parse_duration_ms(budget["wall"]) + raised.wall_ms,
    }


def spent_of(record: Record) -> dict[str, int]:
    return {
        "turns": record.turn,
        "tokens": record.spent.tokens,
        "usd_micros": record.spent.usd_micros,
        "wall_ms": record.spent.elapsed_ms,
    }


def summary(record: Record, *, owned: bool) -> dict[str, Any]:
    """What `get` lists of a trajectory, as a document."""
    return {
        "trajectory_id": record.trajectory_id,
        "task": record.name,
        "status": status(record, owned=owned),
        "state": record.state,
        "turn": record.turn,
        "progress": progress_of(record),
        "reason": record.finished_reason or (record.pause_reason if record.state == "PAUSED" else ""),
        "exit_code": record.finished_code if record.is_terminal else None,
        "parent": record.parent or None,
        "updated_at": record.last_event_at,
    }


def progress_of(record: Record) -> list[int] | None:
    return None if record.progress == UNKNOWN_PROGRESS else list(record.progress)


def record_document(account: Account) -> dict[str, Any]:
    """One trajectory with its conditions."""
    record = account.record
    question = record.question
    return summary(record, owned=bool(account.owner)) | {
        "message": record.finished_message,
        "task_digest": record.task_digest,
        "source": record.source or None,
        "workspace": record.workspace,
        "base_digest": record.base_digest,
        "savepoint": record.savepoint,
        "fingerprint": record.fingerprint,
        "changed": list(record.paths),
        "delta": [delta_item(item) for item in record.items],
        "models": list(record.models),
        "route": record.models[record.route_index] if record.route_index < len(record.models) else None,
        "spent": spent_of(record),
        "budget": budget_of(account.task, account.record),
        "question": None if question is None else {"id": question.question_id, "text": question.question},
        "committed": record.committed or None,
        "undone": record.undone,
        "certificate": None if record.certificate is None else record.certificate.ref,
        "owner": account.owner or None,
        "conditions": [
            {
                "type": c.type,
                "status": c.status,
                "reason": c.reason,
                "message": c.message,
                "observedGeneration": c.observed_generation,
                "lastTransitionTime": c.last_transition,
            }
            for c in conditions(record)
        ],
    }


def delta_item(item: Any) -> dict[str, Any]:
    return {
        "address": item.address,
        "distance": item.distance,
        "verdict": item.verdict,
        "hard": item.hard,
        "reason": item.reason,
    }
