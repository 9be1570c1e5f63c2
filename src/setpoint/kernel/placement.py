"""Where a task belongs: in a workflow, in a loop, or with a person; and which intervention a failure calls for. Pure.

Four questions place a task (R244). The first and the last decide: a path that can be fixed before the start is a
workflow; without one, a loop is only as good as the evidence it ends on. What is carried and what one action can do
decide nothing; they set the closure, what has to be there before it may start.

The ladder (R246) is climbed by failures that were measured and attributed, one rung at a time: weights and more agents
come after context, tools and runtime were looked at, since they hide what is wrong below and cost more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, Literal

from setpoint.kernel.contract import Level
from setpoint.kernel.exposure import Authority, State

Form = Literal["workflow", "loop", "person"]


@dataclass(frozen=True, slots=True)
class Questions:
    """The four questions, answered.

    ``is_path_fixed``: can the sequence of steps be fixed before the task starts, cases included? ``carried``: where is
    what is carried between turns kept? ``worst``: what is the worst one action can do? ``evidence``: the strongest the
    runtime itself can collect that the result is right; CLAIM when only the model says so.
    """

    is_path_fixed: bool
    carried: State
    worst: Authority
    evidence: Level


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a task belongs, why, and what has to be there before it may start."""

    form: Form
    why: str
    closure: tuple[str, ...]


def place(answers: Questions) -> Placement:
    """Place a task. Total."""
    if answers.is_path_fixed:
        return Placement(
            "workflow",
            "the steps can be fixed before the start: a model may transform text in them, or pick among labels, and "
            "never the next step, its tools or when to stop",
            _closure(answers, "workflow"),
        )
    if answers.evidence > Level.CLAIM:
        return Placement(
            "loop",
            f"the steps show only on the way, and {answers.evidence.label} evidence says when it is right",
            _closure(answers, "loop"),
        )
    return Placement(
        "person",
        "the steps show only on the way, and nothing but the model's word would say that it is right: a person accepts",
        _closure(answers, "person"),
    )


def _closure(answers: Questions, form: Form) -> tuple[str, ...]:
    """What questions 2 and 3 demand, and what the form itself does."""
    found = [*_CARRIED[answers.carried], *_WORST[answers.worst]]
    if form == "loop":
        found += ["a bound on turns, tokens, money and time", "a rule for when it stalls"]
        if answers.worst >= Authority.A2 and answers.evidence < Level.SEALED:
            found.append("sealed evidence: what leaves the sandbox stays, so the check must lie out of reach")
    if form == "workflow" and answers.evidence <= Level.CLAIM:
        found.append("a person who looks at samples: no check says that the result is right")
    if form == "person":
        found.append("a person who accepts each result, shown what was done and not only what was said")
    return tuple(found)


_CARRIED: Final[Mapping[State, tuple[str, ...]]] = {
    State.S0: (),
    State.S1: ("a bound on the context",),
    State.S2: ("a workspace with savepoints", "a bound on the context"),
    State.S3: ("a durable store with a log", "a rule for how old what was read may be", "a bound on the context"),
}
_WORST: Final[Mapping[Authority, tuple[str, ...]]] = {
    Authority.A0: (),
    Authority.A1: ("a sandbox",),
    Authority.A2: ("a sandbox", "settlement of lost replies by key or probe", "a compensator for each effect"),
    Authority.A3: (
        "a sandbox",
        "settlement of lost replies by key or probe",
        "an approval before what is irreversible",
    ),
}


# The ladder


class Rung(IntEnum):
    """What may be changed about a task that fails, from the cheapest to the last."""

    WORKFLOW = 0
    CONTEXT = 1
    TOOLS = 2
    RUNTIME = 3
    TUNING = 4
    REINFORCEMENT = 5
    MORE_AGENTS = 6


RUNG_WORDS: Final[Mapping[Rung, str]] = {
    Rung.WORKFLOW: "fix the path: a workflow with a model only where it judges",
    Rung.CONTEXT: "give the model what it lacked, and take away what buried or contradicted it",
    Rung.TOOLS: "mend what the model can see and do, and what its tools promise",
    Rung.RUNTIME: "mend what admits, keeps, watches and recovers steps",
    Rung.TUNING: "supervised fine-tuning on demonstrations",
    Rung.REINFORCEMENT: "reinforcement learning against a check",
    Rung.MORE_AGENTS: "more agents, each with a part of the context, authority or budget",
}


class Cause(Enum):
    """What a measured failure was attributed to (by replay, R247)."""

    PATH_IS_ENUMERABLE = "the steps were the same every time"
    CONTEXT_MISSING = "the model lacked information it needed"
    CONTEXT_BURIED = "what it needed was buried or contradicted"
    COULD_NOT_OBSERVE = "it could not observe what mattered"
    COULD_NOT_ACT = "it could not do what was needed"
    ARGUMENTS_REJECTED = "its arguments were rejected: the tool's contract misled it"
    OBSERVATION_TRUNCATED = "the tool cut off what it needed"
    INVALID_STEP_ADMITTED = "the runtime admitted an invalid step"
    PROGRESS_LOST = "progress was lost"
    LOOPED = "it looped"
    COULD_NOT_RECOVER = "it could not recover"
    FAILS_WITH_DEMONSTRATIONS = "it fails with all that in order, and demonstrations exist"
    FAILS_VERIFIABLY = "it fails with all that in order; a check exists and demonstrations do not"
    TOO_MUCH_FOR_ONE = "one agent's context, authority or budget cannot hold the task"


RUNG_FOR: Final[Mapping[Cause, Rung]] = {
    Cause.PATH_IS_ENUMERABLE: Rung.WORKFLOW,
    Cause.CONTEXT_MISSING: Rung.CONTEXT,
    Cause.CONTEXT_BURIED: Rung.CONTEXT,
    Cause.COULD_NOT_OBSERVE: Rung.TOOLS,
    Cause.COULD_NOT_ACT: Rung.TOOLS,
    Cause.ARGUMENTS_REJECTED: Rung.TOOLS,
    Cause.OBSERVATION_TRUNCATED: Rung.TOOLS,
    Cause.INVALID_STEP_ADMITTED: Rung.RUNTIME,
    Cause.PROGRESS_LOST: Rung.RUNTIME,
    Cause.LOOPED: Rung.RUNTIME,
    Cause.COULD_NOT_RECOVER: Rung.RUNTIME,
    Cause.FAILS_WITH_DEMONSTRATIONS: Rung.TUNING,
    Cause.FAILS_VERIFIABLY: Rung.REINFORCEMENT,
    Cause.TOO_MUCH_FOR_ONE: Rung.MORE_AGENTS,
}
MEASURED_BELOW: Final[tuple[Rung, ...]] = (Rung.CONTEXT, Rung.TOOLS, Rung.RUNTIME)
"""What must have been measured before weights are touched or agents added: each can look like a weak model."""


@dataclass(frozen=True, slots=True)
class Measured:
    """``failed`` of ``attempts`` attempts failed for causes of one rung, as replays attributed them."""

    failed: int
    attempts: int

    def __post_init__(self) -> None:
        if not 0 <= self.failed <= self.attempts or self.attempts < 1:
            raise ValueError(f"{self.failed} of {self.attempts} attempts failed; it is 0 to at least 1 of them")


@dataclass(frozen=True, slots=True)
class Climb:
    """Take this rung."""

    rung: Rung
    why: str


@dataclass(frozen=True, slots=True)
class Stay:
    """Take no rung yet: ``missing`` have to be measured, or ``first`` comes before it."""

    asked: Rung
    why: str
    missing: tuple[Rung, ...] = ()
    first: Rung | None = None


def recommend(cause: Cause, measured: Mapping[Rung, Measured]) -> Climb | Stay:
    """The rung for a failure of that cause. ``measured``: what is known of failures by the rung they call for.

    A failure that nobody measured calls for nothing. From TUNING on, the rungs below must have been measured and be
    clean: a failure that is left there is mended first.
    """
    rung = RUNG_FOR[cause]
    missing: list[Rung] = [below for below in MEASURED_BELOW if below not in measured] if rung > Rung.RUNTIME else []
    if rung not in measured:
        missing.append(rung)
    if missing:
        names = ", ".join(_shown(one) for one in missing)
        return Stay(rung, f"{_shown(rung)} is not taken on a guess: not measured are {names}", tuple(missing))
    if not measured[rung].failed:
        return Stay(rung, f"none of {measured[rung].attempts} attempts failed because {cause.value}")
    for below in MEASURED_BELOW if rung > Rung.RUNTIME else ():
        if measured[below].failed:
            found = measured[below]
            why = f"{found.failed} of {found.attempts} attempts still fail for causes of {_shown(below)}; that first"
            return Stay(rung, why, first=below)
    found = measured[rung]
    return Climb(rung, f"{found.failed} of {found.attempts} attempts failed because {cause.value}: {RUNG_WORDS[rung]}")


def _shown(rung: Rung) -> str:
    return f"rung {int(rung)} ({rung.name.lower().replace('_', ' ')})"
