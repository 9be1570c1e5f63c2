"""How much of a check's outcome may reach a prompt: one place for the prompt's state, its notes and its data. Pure.

The verifier has already taken the paths and the lines of sealed files out of what it recorded; this decides which of
the rest is said. A check under ``none`` is not even named: its address is known to the contract's author only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from setpoint.kernel.contract import Criterion, Disclosure, Invariant, OracleCheck, RunCheck, Task
from setpoint.kernel.events import Item
from setpoint.kernel.record import EvidenceLine

UNDISCLOSED = "a check that is not disclosed"
NAMES_IN_NOTE = 4


def policy_of(task: Task, address: str) -> Disclosure:
    """The policy of a check; ``full`` for the invariants every task has."""
    check = _check(task, address)
    return check.disclose if check is not None else "full"


def disclosed_line(task: Task, item: Item, line: EvidenceLine | None) -> str | None:
    """An open item as the prompt's state shows it; None when nothing of it may be said."""
    match policy_of(task, item.address):
        case "none":
            return None
        case "verdict":
            return f"{item.address}: not met"
        case "names":
            names = [name for name, _ in line.failures] if line is not None else []
            tail = f"; failing: {', '.join(names)}{_more(item, line)}" if names else ""
            return f"{item.address}: {item.verdict}, distance {item.distance}{tail}"
        case "full":
            reason = f"; {item.reason}" if item.reason else ""
            failures = line.failures if line is not None else ()
            tail = "".join(f"\n  {name}: {message}" if message else f"\n  {name}" for name, message in failures)
            return f"{item.address}: {item.verdict}, distance {item.distance}{reason}{tail}"


def disclosed_word(task: Task, item: Item, line: EvidenceLine | None) -> str | None:
    """An open item as a note names it after a roll-back; None when nothing of it may be said.

    Only names and the runtime's own reasons: what a command printed may quote the failed text, which must not come
    back into a prompt (law L5).
    """
    policy = policy_of(task, item.address)
    if policy == "none":
        return None
    if policy in ("names", "full") and line is not None and line.failures:
        return f"{item.address} ({', '.join(name for name, _ in line.failures[:NAMES_IN_NOTE])})"
    check = _check(task, item.address)
    said_by_command = check is not None and isinstance(check.predicate, (RunCheck, OracleCheck))
    if policy == "full" and item.reason and not said_by_command:
        return f"{item.address} ({item.reason[:160]})"
    return item.address


def disclosed_data(task: Task, item: Item) -> Mapping[str, Any] | None:
    """An open item as data for a program that proposes; None when nothing of it may be said."""
    match policy_of(task, item.address):
        case "none":
            return None
        case "full":
            return {"address": item.address, "hard": item.hard, "distance": item.distance, "reason": item.reason}
        case _:
            return {"address": item.address, "hard": item.hard}


def _check(task: Task, address: str) -> Criterion | Invariant | None:
    return next((check for check in (*task.done, *task.invariants) if check.address == address), None)


def _more(item: Item, line: EvidenceLine | None) -> str:
    left_out = (line.distance - len(line.failures)) if line is not None else 0
    return f" and {left_out} more" if left_out > 0 else ""
