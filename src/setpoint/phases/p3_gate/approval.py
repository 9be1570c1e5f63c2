"""Must a person say yes first? Decided from facts, never from the model's description (R128)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from setpoint.kernel.contract import ApprovalRule, Task
from setpoint.kernel.expression import evaluate


def rule_that_holds(task: Task, variables: Mapping[str, Any]) -> ApprovalRule | None:
    """The first approval rule that applies. A rule that cannot be evaluated applies: fail closed (law L10)."""
    for rule in task.policy.approve:
        if evaluate(rule.when, variables) is not False:
            return rule
    return None
