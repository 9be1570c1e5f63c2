"""Claim against evidence: what becomes of an attempt. Pure; the model's word counts nothing."""

from __future__ import annotations

from dataclasses import dataclass

from setpoint.kernel import limits
from setpoint.kernel.contract import Task
from setpoint.kernel.delta import Progress
from setpoint.kernel.disclosure import UNDISCLOSED, disclosed_word
from setpoint.kernel.events import Item
from setpoint.kernel.record import EvidenceLine


@dataclass(frozen=True, slots=True)
class Keep:
    """The attempt becomes a savepoint. ``converged``: the delta is empty."""

    converged: bool


@dataclass(frozen=True, slots=True)
class RollBack:
    reason: str
    note: str


def decide(progress: Progress, items: tuple[Item, ...], broken_post: str | None, note: str) -> Keep | RollBack:
    """Keep or roll back a changed state. A broken hard invariant or postcondition restores the savepoint."""
    if broken_post is not None:
        return postcondition_broken(broken_post)
    if progress.hard:
        return RollBack("invariant", note)
    return Keep(not items)


def postcondition_broken(expression: str) -> RollBack:
    return RollBack("postcondition", f"rolled back: the postcondition {expression} did not hold")


def corrective_note(task: Task, items: tuple[Item, ...], evidence: dict[str, EvidenceLine], lead: str) -> str:
    """One short note that names what failed as far as each check's disclosure allows; never the failed text."""
    said = [disclosed_word(task, item, evidence.get(item.address)) for item in items]
    words = [word for word in said if word is not None]
    if None in said:
        words.append(UNDISCLOSED)
    return f"{lead}: {'; '.join(words)}"[: limits.NOTE_CHARS_MAX]
