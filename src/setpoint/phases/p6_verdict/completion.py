"""Claim against evidence: what becomes of an attempt. Pure; the model's word counts nothing."""

from __future__ import annotations

from dataclasses import dataclass

from setpoint.kernel import limits
from setpoint.kernel.contract import OracleCheck, RunCheck, Task
from setpoint.kernel.delta import Progress
from setpoint.kernel.events import Item
from setpoint.kernel.trajectory import EvidenceLine


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
        return RollBack("postcondition", f"rolled back: the postcondition {broken_post} did not hold")
    if progress.hard:
        return RollBack("invariant", note)
    return Keep(not items)


def corrective_note(task: Task, items: tuple[Item, ...], evidence: dict[str, EvidenceLine], lead: str) -> str:
    """One short note that names what failed as far as each check's disclosure allows; never the failed text."""
    words: list[str] = []
    undisclosed = 0
    checks = {check.address: check for check in (*task.done, *task.invariants)}
    for item in items:
        check = checks.get(item.address)
        policy = check.disclose if check is not None else "full"
        if policy == "none":
            undisclosed += 1
            continue
        word = item.address
        line = evidence.get(item.address)
        if policy in ("names", "full") and line is not None and line.failures:
            word += f" ({', '.join(name for name, _ in line.failures[:4])})"
        elif policy == "full" and item.reason and not (check and isinstance(check.predicate, (RunCheck, OracleCheck))):
            # What a command printed may quote the failed text; our own reasons do not.
            word += f" ({item.reason[:160]})"
        words.append(word)
    if undisclosed:
        words.append("a check that is not disclosed")
    return f"{lead}: {'; '.join(words)}"[: limits.NOTE_CHARS_MAX]
