"""Judge an ``expr`` check: true passes, false fails, anything else is missing evidence."""

from __future__ import annotations

from typing import Any, Final

from setpoint.adapters.verifiers.facts import facts_of
from setpoint.adapters.verifiers.parsers import bounded
from setpoint.adapters.verifiers.verdicts import Judgement
from setpoint.kernel.contract import ExprCheck
from setpoint.kernel.evidence import Failure
from setpoint.kernel.expression import BadExpression, ExprError, evaluate, named_variables
from setpoint.ports.verifier import Candidate

CULPRITS_SOUGHT_AMONG: Final = 1_000
"""One evaluation a change, about 10 us each: naming the culprits stays below 10 ms."""


def judge(check: ExprCheck, candidate: Candidate) -> Judgement:
    """Pure. A false expression about changes names the paths that are to blame, so that the next turn can act."""
    facts = facts_of(candidate)
    match evaluate(check.expr, facts):
        case ExprError(message=message):
            return Judgement.missing(f"the expression gives no answer: {message}")
        case True:
            return Judgement.passing()
        case _:
            culprits = _culprits(check.expr, facts)
            reason = "the expression is false"
            if culprits:
                reason += " because of " + ", ".join(c.name for c in culprits[:5]) + (", …" if culprits[5:] else "")
            return Judgement.failing(reason, len(culprits), failures=bounded(culprits))


def _culprits(expr: str, facts: dict[str, Any]) -> list[Failure]:
    """Changes for which the expression is false even when each is the only one, while with none it is true.

    Exact for rules of the form "no change may ..." and "every change must ..."; for others the list may be empty.
    """
    changes: list[dict[str, Any]] = facts["changes"]
    try:
        if "changes" not in named_variables(expr) or len(changes) > CULPRITS_SOUGHT_AMONG:
            return []
    except BadExpression:
        return []
    if evaluate(expr, facts | {"changes": []}) is not True:
        return []
    return [
        Failure(change["path"], f"{change['kind']}, +{change['lines_added']} -{change['lines_removed']} lines")
        for change in changes
        if evaluate(expr, facts | {"changes": [change]}) is False
    ]
