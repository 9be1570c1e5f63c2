"""Must a person say yes first? Decided from facts, never from the model's description (R128)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from setpoint.kernel.contract import Task
from setpoint.kernel.expression import evaluate
from setpoint.kernel.proposal import Call
from setpoint.kernel.ruling import Hold


def check_approval(call: Call, task: Task, variables: Mapping[str, Any]) -> Hold | None:
    """The first approval rule that applies. A rule that cannot be evaluated applies: fail closed (law L10)."""
    for rule in task.policy.approve:
        if evaluate(rule.when, variables) is not False:
            return Hold(call, rule.when, rule.by)
    return None
