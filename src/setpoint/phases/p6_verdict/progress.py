"""Loops and stalls: when a route leads nowhere, and what is tried next. Pure.

Progress is the delta tuple of savepoints against the best one so far, whatever the arguments of the calls
were: cosmetic changes, A-B-A-B and empty results all leave the tuple where it was.
"""

from __future__ import annotations

from dataclasses import dataclass

from setpoint.kernel import limits
from setpoint.kernel.contract import Policy
from setpoint.kernel.record import Record


@dataclass(frozen=True, slots=True)
class NoStall:
    pass


@dataclass(frozen=True, slots=True)
class Steer:
    """A note to the model; a request, not a guarantee."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Backtrack:
    """Restore the best savepoint, block what was tried, take the next step of ``policy.on_stall``."""

    reason: str
    message: str


def judge_progress(record: Record, policy: Policy) -> NoStall | Steer | Backtrack:
    """Whether the trajectory stalls, judged at the end of a turn."""
    half = (policy.stall_after + 1) // 2
    if record.cycled:
        message = "the workspace returned to a state it was in before: an edit-and-revert loop"
        return Backtrack("EditRevertCycle", message)
    if record.still >= policy.stall_after:
        return Backtrack("NoProgress", f"{record.still} attempts in a row without progress in the delta")
    if record.refused_in_a_row >= limits.REFUSALS_IN_A_ROW_MAX:
        return Backtrack("RefusedOnly", f"{record.refused_in_a_row} turns in a row in which nothing was permitted")
    if record.idle_turns >= 2 * limits.IDLE_TURNS_MAX:
        return Backtrack("Idle", f"{record.idle_turns} turns in a row that changed nothing")
    repeated = _newest_repeats(record)
    if repeated >= limits.REPEAT_MAX:
        return Backtrack("RepeatedAction", f"the same call was made {repeated} times with the same outcome")
    if record.stall_tier == 0 and policy.stall_after > 1:
        if record.still == half and half < policy.stall_after:
            message = (
                f"{record.still} attempts brought no progress in the delta; look at the open items and change course"
            )
            return Steer("NoProgress", message)
        if record.idle_turns == limits.IDLE_TURNS_MAX:
            return Steer("Idle", f"{record.idle_turns} turns changed nothing; propose a change or ask")
        if repeated == limits.REPEAT_MAX - 1:
            return Steer("RepeatedAction", "this call was made before on the same state with the same outcome")
    return NoStall()


def _newest_repeats(record: Record) -> int:
    """How often the newest call occurs among the recent ones on the same state, refusals of it included."""
    if not record.recent:
        return 0
    newest = record.recent[-1]
    return sum(1 for seen in record.recent if seen.call_digest == newest.call_digest and seen.state == newest.state)
