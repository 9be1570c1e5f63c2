"""The gate: one pure function from a proposed call to a ruling. The checks in order; the first no wins.

Inputs are the call, the contract, the record and the facts the engine gathered (where the path leads, the budget
stage, the variables of expressions). No model, no clock, no file is read here: the same input gives the same ruling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from setpoint.kernel import limits
from setpoint.kernel.budget import Stage
from setpoint.kernel.contract import Rate, Task, ToolGrant
from setpoint.kernel.keys import short_digest
from setpoint.kernel.proposal import Call, Malformed
from setpoint.kernel.record import Record
from setpoint.kernel.ruling import Effect, Gate, Hold, Permit, Refusal, RefusalReason, Ruling
from setpoint.kernel.units import format_duration
from setpoint.phases.p3_gate.approval import rule_that_holds
from setpoint.phases.p3_gate.reach import check_path, check_preconditions
from setpoint.phases.p3_gate.schema import check_schema, refuse_malformed
from setpoint.phases.p3_gate.tools import ASK_OPERATOR, COMPLETE_TASK, Tool, blast_radius, is_read_only


@dataclass(frozen=True, slots=True)
class Facts:
    """What the engine found out before ruling. ``resolved`` matters only for tools with a path argument."""

    stage: Stage = "nominal"
    resolved: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])


def rule(
    call: Call | Malformed,
    task: Task,
    record: Record,
    tools: Mapping[str, Tool],
    facts: Facts,
) -> Ruling:
    """Rule on one proposed call. A refusal costs a turn, nothing else."""
    if isinstance(call, Malformed):
        return refuse_malformed(call)
    grant, tool = task.grant(call.name), tools.get(call.name)
    if grant is None or tool is None:
        legal = ", ".join(granted.tool for granted in task.actions)
        return _no(call, "syntactic", "UNKNOWN_TOOL", "/name", f"there is no tool {call.name!r}; there are: {legal}")
    refusal = check_schema(call, tool)
    if refusal is not None:
        return refusal
    effect = effect_of(call, tool)  # only now: what follows may rely on the schema
    refusal = (
        _resource(call, grant, record, effect, facts.stage)
        or (check_path(call, tool, grant, task, facts.resolved) if tool.path_argument else None)
        or _read_only(call, grant, effect)
    )
    if refusal is not None:
        return refusal
    about = _call_facts(call, facts.resolved)
    variables = {**facts.variables, "effect": effect, "call": about}
    refusal = check_preconditions(call, grant, variables) or _progress(call, record)
    if refusal is not None:
        return refusal
    path = facts.resolved if tool.path_argument else None
    blast = "high" if about.get("blast") == "high" else ""
    permit = Permit(call, grant, effect, path, tuple(item.address for item in record.items), blast)
    held_by = rule_that_holds(task, variables)  # last: people are asked only about what nothing else forbids
    return permit if held_by is None else Hold(permit, held_by)


def effect_of(call: Call, tool: Tool) -> Effect:
    """The effect class: the tool author's, lowered to read only for commands of the read-only list."""
    if tool.name == "shell_exec" and is_read_only(call.arguments):
        return "read"
    return tool.effect


def legal_tools(task: Task, tools: Mapping[str, Tool], stage: Stage) -> tuple[Tool, ...]:
    """The tools a model is shown in this state, in canonical order (R080, F1)."""
    granted = (tools[grant.tool] for grant in task.actions if grant.tool in tools)
    shown = [tool for tool in granted if stage != "restrict" or tool.name == "shell_exec" or not _writes(tool)]
    return tuple(sorted(shown, key=lambda tool: tool.name))


def _writes(tool: Tool) -> bool:
    return tool.effect not in ("pure", "read")


def _resource(call: Call, grant: ToolGrant, record: Record, effect: Effect, stage: Stage) -> Refusal | None:
    if grant.max_calls is not None and record.calls_by_tool.get(call.name, 0) >= grant.max_calls:
        return _no(call, "resource", "RATE", "/name", f"{call.name} may be called {grant.max_calls} times, and was")
    if grant.rate is not None and (wait_ms := _rate_wait_ms(call.name, grant.rate, record)):
        message = (
            f"{call.name} may be called {grant.rate.calls} times in {format_duration(grant.rate.per_ms)}; "
            f"it is allowed again after {format_duration(wait_ms)} of active time"
        )
        return _no(call, "resource", "RATE", "/name", message)
    if stage == "restrict" and effect not in ("pure", "read"):
        message = "over 90 % of the budget is spent: only reads, questions and the claim are permitted now"
        return _no(call, "resource", "RESTRICTED", "/name", message)
    return None


def _rate_wait_ms(tool: str, rate: Rate, record: Record) -> int:
    """How long until the window has room for one more call; 0 when it has.

    The clock is the active time recorded at the start of the turn: a replay reads the same, and waiting for a person
    frees nothing.
    """
    times = record.call_times.get(tool, ())
    if len(times) < rate.calls:
        return 0
    _, leaves_first = times[-rate.calls]
    return max(0, leaves_first + rate.per_ms - record.spent.elapsed_ms)


def _read_only(call: Call, grant: ToolGrant, effect: Effect) -> Refusal | None:
    if grant.read_only and effect not in ("pure", "read"):
        message = "this task allows single read-only commands without shell metacharacters; this is not one"
        return _no(call, "isolation", "OUTSIDE_GRANT", "/arguments/command", message)
    return None


def _progress(call: Call, record: Record) -> Refusal | None:
    if call.name in (COMPLETE_TASK.name, ASK_OPERATOR.name):
        return None
    mine = short_digest(call.digest)  # the form in which the record holds calls
    outcomes: dict[str, int] = {}
    for seen in record.recent:
        if seen.call_digest == mine and seen.state == record.attempt_state:
            outcomes[seen.outcome] = outcomes.get(seen.outcome, 0) + 1
    repeats = max(outcomes.values(), default=0)
    if repeats >= limits.REPEAT_MAX - 1:
        message = f"this call was made {repeats} times on this very state with the same outcome; do something else"
        return _no(call, "progress", "LOOP_DETECTED", "", message)
    return None


def refuse_blocked(call: Call) -> Refusal:
    """The refusal of a call whose whole proposal was tried and rolled back before."""
    message = "this very proposal was tried, judged and rolled back; choose another way"
    return _no(call, "progress", "BLOCKED", "", message)


def _call_facts(call: Call, resolved: str | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"tool": call.name, "arguments": call.arguments, "path": resolved or ""}
    if call.name == "shell_exec":
        facts["blast"] = blast_radius(call.arguments)
    return facts


def _no(call: Call, gate: Gate, reason: RefusalReason, pointer: str, message: str) -> Refusal:
    return Refusal(call.ordinal, call.name, gate, reason, pointer, message, call.digest)
