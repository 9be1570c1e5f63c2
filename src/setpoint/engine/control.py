"""Pause, resume, cancel, answer: asked for at any time, applied at turn boundaries (kill excepted).

Requests reach the owner through the log's inbox; ``apply_controls`` reads it between turns and records each request
with its position, so that none is taken twice after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from setpoint.engine.approving import record_decision
from setpoint.engine.journal import Scribe
from setpoint.engine.pursuit import Pursuit
from setpoint.kernel.budget import Raised
from setpoint.kernel.events import BudgetRaised, ControlApplied, ControlRequested, Finished, QuestionAnswered
from setpoint.kernel.record import Control


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message in the inbox of a trajectory. Actions: pause | resume | cancel | kill | answer | raise | interrupt |
    decide, whose argument is the wire form of a signed decision (``kernel.ticket``)."""

    action: str
    by: str
    argument: str = ""
    at_ms: int = 0  # when it was left, by the clock of whoever left it; 0: not said


def read_request(data: bytes) -> Request:
    return msgspec.json.decode(data, type=Request)


def read_raised(argument: str) -> Raised | None:
    """The amounts of a ``raise`` request; None when they are not readable or take something away."""
    try:
        raised = msgspec.json.decode(argument, type=Raised)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None
    return raised if min(raised.turns, raised.tokens, raised.usd_micros, raised.wall_ms) >= 0 else None


def encode_request(request: Request) -> bytes:
    return msgspec.json.encode(request)


async def apply_controls(p: Pursuit) -> None:
    """Record every new request, then apply those that stand at this boundary."""
    record_requests(p.journal, p.inbox(p.record.inbox_position))
    for control in p.record.controls:
        # A turn in flight that a crash left here is a boundary too: no model is being asked, no call half dispatched.
        # Ending it there spares a kill the turn's dispatches; a pause waits until the turn is over.
        # A decision is about the call in flight itself.
        now = control.action in ("cancel", "kill", "decide")
        if not p.record.is_terminal and (now or p.record.state in ("READY", "PAUSED")):
            await _apply(p, control)


def end_if_asked(journal: Scribe, unread: Iterable[tuple[int, str, bytes]]) -> bool:
    """Finish a trajectory that nobody works on, when a cancel or kill waits for it; True when one did.

    Neither its workspace nor its routes are needed for that, and they may be gone. The caller makes it durable.
    """
    record_requests(journal, unread)
    for control in journal.record.controls:
        if control.action in ("cancel", "kill"):
            _end(journal, control)
            return True
    return False


def _end(journal: Scribe, control: Control) -> None:
    reason = "Killed" if control.action == "kill" else "Cancelled"
    journal.emit(ControlApplied(request_id=control.request_id, action=control.action))
    message = f"{control.action} by a person"
    journal.emit(Finished(state="CANCELLED", reason=reason, message=message, code=11))


def record_requests(journal: Scribe, unread: Iterable[tuple[int, str, bytes]]) -> None:
    """Move requests from the inbox into the log."""
    for position, key, data in unread:
        request = read_request(data)
        journal.emit(
            ControlRequested(
                request_id=key,
                action=request.action,
                by=request.by,
                argument=request.argument,
                position=position,
            )
        )


async def _apply(p: Pursuit, control: Control) -> None:
    record, request_id, action, argument = p.record, control.request_id, control.action, control.argument
    applied = action
    match action:
        case "pause" if record.state == "READY":
            pass
        case "resume" if record.state == "PAUSED" and record.question is None:
            pass
        case "answer" if record.question is not None:
            question = record.question.question_id
            p.journal.emit(QuestionAnswered(question_id=question, answer=argument, by="operator"))
        case "raise" if (more := read_raised(argument)) is not None:
            p.journal.emit(
                BudgetRaised(
                    by=control.by,
                    turns=more.turns,
                    tokens=more.tokens,
                    usd_micros=more.usd_micros,
                    wall_ms=more.wall_ms,
                )
            )
        case "interrupt" if argument:
            pass  # what the person says is a note of the next prompt (`kernel/trajectory.py`)
        case "decide" if record_decision(p, control):
            pass
        case "cancel" | "kill":
            _end(p.journal, control)
            await p.journal.barrier()
            return
        case _:
            applied = "none"  # it does not apply in this state; recorded all the same
    p.journal.emit(ControlApplied(request_id=request_id, action=applied))
    await p.journal.barrier()
