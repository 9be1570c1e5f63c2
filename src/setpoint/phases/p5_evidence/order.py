"""In which order checks run, and which are left out because a cheaper one already said no. Pure.

Cheap static checks first, then visible, then sealed ones. A claim has every check run, so that its rejection names
everything that is open.
"""

from __future__ import annotations

from dataclasses import dataclass

from setpoint.kernel.contract import Criterion, ExprCheck, Invariant, Level, Task

Check = Criterion | Invariant
SKIPPED = "skipped: "
"""Reason prefix of evidence that is missing because the check was not started."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Checks of one cost class. ``name`` is what a skip names as its cause when one of them fails."""

    name: str
    checks: tuple[Check, ...]


def stages(task: Task) -> tuple[Stage, ...]:
    """All explicit checks in the order they are judged."""
    expressions = tuple(i for i in task.invariants if isinstance(i.predicate, ExprCheck))
    other = tuple(i for i in task.invariants if not isinstance(i.predicate, ExprCheck))
    static = tuple(c for c in task.done if c.level <= Level.STATIC)
    visible = tuple(c for c in task.done if c.level == Level.VISIBLE)
    sealed = tuple(c for c in task.done if c.level >= Level.SEALED)
    cheap = tuple(i for i in other if i.level <= Level.STATIC)
    dear = tuple(i for i in other if i.level > Level.STATIC)
    return (
        Stage("invariant", expressions),
        Stage("static check", (*cheap, *static)),
        Stage("visible check", (*dear, *visible)),
        Stage("sealed check", sealed),
    )
