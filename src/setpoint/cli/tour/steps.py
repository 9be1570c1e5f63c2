"""What the calls of one turn came to, read from the log, and told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from setpoint.cli.account import Account
from setpoint.cli.tour.narration import Narrator
from setpoint.kernel.events import Authorized, Event, EvidenceRecorded, ModelReplied, Refused, ToolResult


@dataclass(slots=True)
class Step:
    """One call of a proposal: what was asked, how the gate ruled, what came back."""

    tool: str
    arguments: dict[str, Any]
    ruling: str = "permitted"
    reason: str = ""  # of a refusal
    message: str = ""
    status: str = ""
    exit_code: int | None = None
    text: str = ""


def steps_of(account: Account, turn: int) -> list[Step]:
    """The calls of one turn of the log (which counts from 1), in order."""
    steps: dict[int, Step] = {}
    asked: list[dict[str, Any]] = []
    for event in events_of(account, turn):
        match event:
            case ModelReplied(reply=reply, reply_ref=ref):
                asked = [json.loads(call["arguments"]) for call in account.value(reply, ref)["calls"]]
            case Authorized(ordinal=ordinal, tool=tool):
                steps[ordinal] = Step(tool, asked[ordinal])
            case Refused(ordinal=ordinal, tool=tool, reason=reason, message=message):
                steps[ordinal] = Step(tool, asked[ordinal], "refused", reason, message, "REFUSED")
            case ToolResult(ordinal=ordinal, status=status, exit_code=code, text=text):
                step = steps[ordinal]
                step.status, step.exit_code, step.text = status, code, account.text(text)
            case _:
                pass
    return [steps[ordinal] for ordinal in sorted(steps)]


def events_of(account: Account, turn: int) -> list[Event]:
    return [fact.event for fact in account.facts if fact.turn == turn]


def evidence_of(account: Account, turn: int) -> dict[str, EvidenceRecorded]:
    """The verdicts of one turn by address."""
    return {event.check: event for event in events_of(account, turn) if isinstance(event, EvidenceRecorded)}


def tell_step(narrator: Narrator, step: Step, *, output: bool = True) -> None:
    """One call as three lines: what the model asked, the ruling, what came back."""
    narrator.row("model", f"{step.tool}  {_asked(step)}".rstrip())
    if step.ruling == "refused":
        narrator.row("gate", f"refused ({step.reason}): {step.message}")
        return
    narrator.row("gate", "permitted")
    if step.status:
        code = "" if step.exit_code is None else f", exit {step.exit_code}"
        narrator.row("result", f"{step.status}{code}")
    if output and step.text:
        narrator.quote(step.text)


def _asked(step: Step) -> str:
    arguments = step.arguments
    if "command" in arguments:
        return str(arguments["command"])
    path = str(arguments.get("path", ""))
    if "new_str" in arguments:
        return f"{path}: {str(arguments['old_str']).strip()!r} becomes {str(arguments['new_str']).strip()!r}"
    if "content" in arguments:
        return f"{path}: {str(arguments['content'])!r}"
    return path
