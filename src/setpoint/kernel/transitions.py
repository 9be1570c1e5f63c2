"""The state table of a trajectory; docs draw it from here and a test walks every pair.

States are an implementation's view; users see conditions (``conditions.py``).
"""

from __future__ import annotations

from typing import Final, Literal, get_args

State = Literal[
    "READY",
    "CALLING_MODEL",
    "WAITING_TOOL",
    "AWAITING_APPROVAL",
    "PAUSED",
    "FINALIZING",
    "COMPLETED",
    "FAILED",
    "CANCELLED",
]
STATES: Final[tuple[State, ...]] = get_args(State)

LEGAL: Final[dict[State, frozenset[State]]] = {
    "READY": frozenset({"CALLING_MODEL", "PAUSED", "FINALIZING"}),
    # READY again: the reply permitted nothing, or the call failed. AWAITING_APPROVAL: a call is held for a person.
    "CALLING_MODEL": frozenset({"READY", "WAITING_TOOL", "AWAITING_APPROVAL", "FINALIZING"}),
    "WAITING_TOOL": frozenset({"READY", "FINALIZING"}),
    "AWAITING_APPROVAL": frozenset({"WAITING_TOOL", "READY", "FINALIZING"}),
    "PAUSED": frozenset({"READY", "FINALIZING"}),
    # Every exit goes through FINALIZING: leases, processes and staging are released there.
    "FINALIZING": frozenset({"COMPLETED", "FAILED", "CANCELLED"}),
    "COMPLETED": frozenset(),
    "FAILED": frozenset(),
    "CANCELLED": frozenset(),
}

TERMINAL: Final[frozenset[State]] = frozenset(state for state, after in LEGAL.items() if not after)


def is_legal(before: State, after: State) -> bool:
    """Whether a trajectory may go from ``before`` to ``after``. Staying is not a transition."""
    return after in LEGAL[before]
