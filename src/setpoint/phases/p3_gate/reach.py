"""Do path and preconditions stay inside what was granted? (the third gate)

A path is judged where it leads: the workspace has followed every link and ``..`` before this module sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from setpoint.kernel.contract import Task, ToolGrant
from setpoint.kernel.expression import ExprError, evaluate
from setpoint.kernel.globs import matches
from setpoint.kernel.grants import scope_of
from setpoint.kernel.proposal import Call
from setpoint.kernel.ruling import Refusal, RefusalReason
from setpoint.phases.p3_gate.tools import Tool, right_of


def check_path(call: Call, tool: Tool, grant: ToolGrant, task: Task, resolved: str | None) -> Refusal | None:
    """Rule on the path argument of a file tool. ``resolved`` None: it leads outside the workspace."""
    assert tool.path_argument is not None
    typed = call.arguments[tool.path_argument]

    def no(reason: RefusalReason, message: str) -> Refusal:
        pointer = f"/arguments/{tool.path_argument}"
        return Refusal(call.ordinal, call.name, "isolation", reason, pointer, message, call.digest)

    if resolved is None:
        return no("OUTSIDE_WORKSPACE", f"{typed!r} leads outside the workspace; give a path inside it")
    if resolved in ("", "."):
        return no("OUTSIDE_GRANT", f"{typed!r} is the workspace itself; give a path to a file in it")
    right = right_of(tool)
    scope = scope_of(task, grant, right)
    if scope.denies(right, resolved, 0, 0):  # money and time were ruled on before the turn began
        where = f"{typed!r}" if resolved == typed else f"{typed!r} leads to {resolved!r}, which"
        return no("OUTSIDE_GRANT", f"{where} may not be used with {call.name}; allowed: {', '.join(scope.objects)}")
    if tool.effect != "read":
        forbidden = next((glob for glob in task.goal.forbid if matches(glob, resolved)), None)
        if forbidden is not None:
            return no("FORBIDDEN_PATH", f"{resolved!r} must not be touched in this task ({forbidden})")
    return None


def check_preconditions(call: Call, grant: ToolGrant, variables: Mapping[str, Any]) -> Refusal | None:
    """The first precondition of the grant that does not hold; one that cannot be evaluated does not hold."""
    for expression in grant.require:
        held = evaluate(expression, variables)
        if held is True:
            continue
        why = f" ({held.message})" if isinstance(held, ExprError) else ""
        message = f"precondition does not hold: {expression}{why}"
        return Refusal(call.ordinal, call.name, "isolation", "PRECONDITION", "", message, call.digest)
    return None


def broken_postcondition(expressions: Sequence[str], variables: Mapping[str, Any]) -> str | None:
    """The first postcondition that does not hold, with why; None when all hold."""
    for expression in expressions:
        held = evaluate(expression, variables)
        if held is not True:
            return expression + (f" ({held.message})" if isinstance(held, ExprError) else "")
    return None
