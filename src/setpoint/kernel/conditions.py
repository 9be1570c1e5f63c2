"""What users see of a trajectory: conditions with status, reason and message (never a phase)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from setpoint.kernel.record import Record
from setpoint.kernel.ticket import format_time

ConditionStatus = Literal["True", "False", "Unknown"]
CONDITION_TYPES = (
    "Accepted",
    "Progressing",
    "Converged",
    "Verified",
    "Stalled",
    "AwaitingApproval",
    "BudgetExhausted",
    "Drifted",
    "EffectUnknown",
)


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: ConditionStatus
    reason: str
    message: str
    observed_generation: int  # events folded
    last_transition: str  # time of the newest event


def conditions(record: Record) -> tuple[Condition, ...]:
    """All conditions of a record, in the order of CONDITION_TYPES. Pure."""
    converged = record.best is not None and not record.items and record.measured != "" and not record.undone
    blocking = ", ".join(item.address for item in record.items) or "nothing"
    finished = record.finished_reason

    def one(kind: str, holds: bool | None, reason: str, message: str) -> Condition:
        status: ConditionStatus = "Unknown" if holds is None else ("True" if holds else "False")
        return Condition(kind, status, reason, message, record.seq, record.last_event_at)

    ticket = record.ticket if record.state == "AWAITING_APPROVAL" else None
    awaiting = record.question is not None or ticket is not None
    asked = record.question.question if record.question else ""
    if ticket is not None:
        until = f"until {format_time(ticket.expires_at_ms)}"
        asked = f"call {ticket.node} waits for a decision on {ticket.ticket_id}, {until}; without one it is a no"
    return (
        one("Accepted", bool(record.task_digest), "TaskAccepted", f"task {record.name} {record.task_digest}"),
        one(
            "Progressing",
            not record.is_terminal and record.state != "PAUSED" and not awaiting,
            finished or record.state,
            f"turn {record.turn}, savepoint {record.savepoint}, {record.still} savepoints without progress",
        ),
        one(
            "Converged",
            converged if record.measured else None,
            "Undone" if record.undone else "DeltaEmpty" if converged else "DeltaOpen",
            "its commit was undone: the tree is what it was before" if record.undone else f"open: {blocking}",
        ),
        one("Verified", record.certificate is not None, "Certified" if record.certificate else "NotCertified", ""),
        one("Stalled", finished in STALL_REASONS, finished or "NotStalled", record.finished_message),
        one(
            "AwaitingApproval",
            awaiting,
            "QuestionAsked" if record.question else "ApprovalRequested" if ticket is not None else "None",
            asked,
        ),
        one(
            "BudgetExhausted",
            finished.startswith("Budget"),
            finished if finished.startswith("Budget") else "WithinBudget",
            "",
        ),
        one("Drifted", finished == "Drifted", finished if finished == "Drifted" else "NoDrift", ""),
        one("EffectUnknown", bool(record.in_flight) or None if record.in_flight else False, "None", ""),
    )


STALL_REASONS = ("Stalled", "RoutesExhausted", "RepeatedAction", "NoProgress", "ContextTooLarge")
