"""How far a task is exposed (H, S, A), and what closes it. Pure (R149-R151, R241-R243).

The three axes describe the task, never the model, which has no authority at all:

- **H** horizon: the turns the budget allows. Errors compound, so a longer run needs stronger evidence.
- **S** state: S0 nothing carried between turns, S1 the context, S2 files in a sandbox, S3 durable or shared state.
- **A** authority, the worst one action can do: A0 read, A1 change what can be thrown away, A2 an outside effect that
  can be settled or compensated, A3 one that cannot.

Closure is not a fourth axis: it is the bounds and the evidence a position demands. What is missing is a gap, and a
task with a gap does not start.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from setpoint.kernel.contract import TIERS, Level, Task, Tier
from setpoint.kernel.errors import ClosureMissing
from setpoint.kernel.ruling import Effect


class State(enum.IntEnum):
    """Where what is carried between turns lives."""

    S0 = 0
    S1 = 1
    S2 = 2
    S3 = 3


class Authority(enum.IntEnum):
    """The worst one action can do."""

    A0 = 0
    A1 = 1
    A2 = 2
    A3 = 3


@dataclass(frozen=True, slots=True)
class Reach:
    """What one tool can touch."""

    state: State
    authority: Authority


_TALK: Final = Reach(State.S1, Authority.A0)
_STAGED: Final = Reach(State.S2, Authority.A1)

TOOLS: Final[Mapping[str, Reach]] = {
    "shell_exec": _STAGED,
    "file_read": _TALK,
    "file_edit": _STAGED,
    "file_write": _STAGED,
    "ask_operator": _TALK,
    "complete_task": _TALK,
}
BUILTIN_TOOLS: Final = tuple(TOOLS)
TALKING_TOOLS: Final = ("ask_operator", "complete_task")
WRITING_TOOLS: Final = ("shell_exec", "file_edit", "file_write")

HORIZON_LONG: Final = 30
"""Turns up to which visible checks are enough; the default budget. At 0.97 a step, 23 steps already fail more often
than not, so beyond this `lint` asks for a sealed check."""
HORIZON_SEALED: Final = 100
"""Turns from which a sealed check is required: minutes to hours, where errors compound."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """The position of a task, with the reasons that put it there."""

    h: int
    s: State
    a: Authority
    why: tuple[str, ...]

    def __str__(self) -> str:
        return f"H={self.h} {self.s.name} {self.a.name}"


@dataclass(frozen=True, slots=True)
class ClosureGap:
    """One demand of the exposure that the task does not meet."""

    code: str
    message: str
    remedy: str


def reach_of(effect: Effect) -> Reach:
    """The reach of a capability from the effect class its author declared."""
    match effect:
        case "pure" | "read":
            return _TALK
        case "reversible":
            return _STAGED
        case "keyed" | "compensable":
            return Reach(State.S3, Authority.A2)
        case "irreversible":
            return Reach(State.S3, Authority.A3)


def expose(task: Task, *, tier: Tier | None = None, tools: Mapping[str, Reach] = TOOLS) -> Exposure:
    """Place a task. ``tier`` is what the machine really gives, by default the least the task accepts.

    A tool that ``tools`` does not know counts as the worst: nothing is assumed of it.
    """
    effective = _stronger(task.environment.tier, tier)
    state, authority = (State.S0 if task.budget.turns == 1 else State.S1), Authority.A0
    why = [f"H={task.budget.turns}: the budget allows {task.budget.turns} turns"]
    for grant in task.actions:
        reach = tools.get(grant.tool, Reach(State.S3, Authority.A3))
        reason = f"{grant.tool}" if grant.tool in tools else f"{grant.tool}, of which nothing is known,"
        reach, reason = _in_environment(task, effective, reach, reason)
        if reach.state > state:
            why.append(f"{reach.state.name}: {reason} changes {_STATE_WORDS[reach.state]}")
        if reach.authority > authority:
            why.append(f"{reach.authority.name}: {reason} can {_AUTHORITY_WORDS[reach.authority]}")
        state, authority = max(state, reach.state), max(authority, reach.authority)
    return Exposure(task.budget.turns, state, authority, tuple(why))


_STATE_WORDS: Final = {
    State.S0: "nothing",
    State.S1: "the context",
    State.S2: "files in a sandbox",
    State.S3: "durable or shared state",
}
_AUTHORITY_WORDS: Final = {
    Authority.A0: "read",
    Authority.A1: "change what can be thrown away",
    Authority.A2: "cause an outside effect",
    Authority.A3: "do what nothing takes back",
}


def _in_environment(task: Task, tier: Tier, reach: Reach, reason: str) -> tuple[Reach, str]:
    """Without a sandbox a staged change is a real one; with a network a command has outside effects."""
    if reach.authority is not Authority.A1:
        return reach, reason
    if tier == "none":
        return Reach(State.S3, Authority.A3), f"{reason} without a sandbox"
    if task.environment.network:
        # The author named the hosts, so what they take is theirs to settle; still the effect leaves the sandbox.
        return Reach(State.S3, Authority.A2), f"{reason} with a way to {', '.join(task.environment.network)}"
    return reach, reason


def _stronger(minimum: Tier, given: Tier | None) -> Tier:
    return minimum if given is None or TIERS.index(given) <= TIERS.index(minimum) else given


def required_level(exposure: Exposure) -> Level:
    """The evidence that at least one criterion of the task must reach.

    | position | level | why |
    |---|---|---|
    | A0 or A1, up to S2, fewer than 100 turns | visible | what is judged can be thrown away; behaviour must be shown |
    | 100 turns or more | sealed | long enough to find the special case that satisfies a visible test |
    | S3, or A2 and above | sealed | what leaves the sandbox stays; the check must lie out of reach |

    Static checks alone never suffice: well-formed is not right.
    """
    if exposure.h >= HORIZON_SEALED or exposure.s >= State.S3 or exposure.a >= Authority.A2:
        return Level.SEALED
    return Level.VISIBLE


def reached_level(task: Task) -> Level:
    """The strongest level any completion criterion gives; CLAIM when there is none."""
    return max((criterion.level for criterion in task.done), default=Level.CLAIM)


def closure(task: Task, exposure: Exposure, sandbox_tier: Tier) -> tuple[ClosureGap, ...]:
    """Every demand of ``exposure`` that the task does not meet on a machine that isolates at ``sandbox_tier``."""
    gaps: list[ClosureGap] = []
    required = required_level(exposure)
    if not task.done:
        gaps.append(ClosureGap("no-criterion", "nothing says when the task is done", "add a criterion to spec.done"))
    elif reached_level(task) < required:
        gaps.append(
            ClosureGap(
                "evidence-below-exposure",
                f"{exposure} needs {required.label} evidence; the criteria reach {reached_level(task).label} only",
                "add a criterion with `files` (sealed)" if required is Level.SEALED else "add a criterion with `run`",
            )
        )
    if TIERS.index(sandbox_tier) < TIERS.index(task.environment.tier):
        gaps.append(
            ClosureGap(
                "tier-below-contract",
                f"the task demands isolation by {task.environment.tier}; this machine gives {sandbox_tier}",
                "`setpoint doctor` says what is missing",
            )
        )
    if exposure.a >= Authority.A1 and sandbox_tier == "none":
        gaps.append(
            ClosureGap(
                "no-containment",
                f"{exposure.a.name} without a sandbox: nothing holds what an action does",
                "`setpoint doctor` says how to get one",
            )
        )
    if exposure.a >= Authority.A3 and not task.policy.approve:
        gaps.append(
            ClosureGap(
                "no-approval-gate",
                "A3 without an approval gate: an action could do what nothing takes back, and nobody is asked",
                "lower the authority, or add policy.approve: [{when: \"effect == 'irreversible'\", by: [ops]}]",
            )
        )
    return tuple(gaps)


def require_closure(task: Task, sandbox_tier: Tier, *, tools: Mapping[str, Reach] = TOOLS) -> Exposure:
    """The exposure of a task that may start; ClosureMissing (exit 12) names every gap."""
    exposure = expose(task, tier=sandbox_tier, tools=tools)
    gaps = closure(task, exposure, sandbox_tier)
    if gaps:
        listed = "; ".join(gap.message for gap in gaps)
        raise ClosureMissing(f"task {task.name} does not start: {listed}", hint="; ".join(gap.remedy for gap in gaps))
    return exposure
