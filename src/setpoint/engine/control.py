"""Pause, resume, cancel, answer: asked for at any time, applied at turn boundaries (kill excepted).

Requests reach the owner through the log's inbox; ``apply_controls`` reads it between turns and records each request
with its position, so that none is taken twice after a restart.
"""

from __future__ import annotations

import msgspec

from setpoint.engine.finalize import finish
from setpoint.engine.pursuit import Pursuit
from setpoint.kernel.events import ControlApplied, ControlRequested, QuestionAnswered


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message in the inbox of a trajectory. Actions: pause | resume | cancel | kill | answer | interrupt."""

    action: str
    by: str
    argument: str = ""


def read_request(data: bytes) -> Request:
    return msgspec.json.decode(data, type=Request)


def encode_request(request: Request) -> bytes:
    return msgspec.json.encode(request)


async def apply_controls(p: Pursuit) -> None:
    """Record every new request, then apply those that stand at this boundary."""
    take_requests(p)
    if p.record.state in ("READY", "PAUSED"):
        for control in p.record.controls:
            if not p.record.is_terminal:
                await _apply(p, control.request_id, control.action, control.argument)


def take_requests(p: Pursuit) -> None:
    """Move new requests from the inbox into the log."""
    for position, key, data in p.inbox(p.record.inbox_position):
        request = read_request(data)
        p.journal.emit(
            ControlRequested(
                request_id=key,
                action=request.action,
                by=request.by,
                argument=request.argument,
                position=position,
            )
        )


async def _apply(p: Pursuit, request_id: str, action: str, argument: str) -> None:
    record = p.record
    applied = action
    match action:
        case "pause" if record.state == "READY":
            pass
        case "resume" if record.state == "PAUSED" and record.question is None:
            pass
        case "answer" if record.question is not None:
            question = record.question.question_id
            p.journal.emit(QuestionAnswered(question_id=question, answer=argument, by="operator"))
        case "interrupt" if argument:
            pass  # what the person says is a note of the next prompt (`kernel/trajectory.py`)
        case "cancel" | "kill":
            p.journal.emit(ControlApplied(request_id=request_id, action=action))
            reason = "Killed" if action == "kill" else "Cancelled"
            await finish(p, "CANCELLED", reason, f"{action} by a person", 11)
            return
        case _:
            applied = "none"  # it does not apply in this state; recorded all the same
    p.journal.emit(ControlApplied(request_id=request_id, action=applied))
    await p.journal.barrier()
