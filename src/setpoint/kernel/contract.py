"""What was asked: the task contract in its five parts, plus invariants, budget and policy.

A contract is immutable for the life of a trajectory (R084); its digest is in every certificate. Units are fixed
here: durations in milliseconds, sizes in bytes, money in micro-dollars, so that every number is an integer.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Literal

Tier = Literal["none", "namespaces", "container"]
TIERS: tuple[Tier, ...] = ("none", "namespaces", "container")  # ascending strength
Disclosure = Literal["none", "verdict", "names", "full"]
ParserName = Literal["pytest", "junit", "exit", "tap", "json"]
Severity = Literal["hard", "soft"]
OnExceed = Literal["fail", "pause"]
CommitPolicy = Literal["converged", "progress"]
StallStep = Literal["next_model", "narrow", "ask"]
DriftPolicy = Literal["detect", "propose", "heal"]


class Level(enum.IntEnum):
    """Evidence levels in order of strength (docs/explanation/evidence.md). A judge model adds none.

    ``PROOF`` means here: every input of a declared finite domain was run and judged. It is a proof over that domain,
    and over nothing else.
    """

    CLAIM = 0
    STATIC = 1
    VISIBLE = 2
    SEALED = 3
    PROOF = 4

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Level:
        return cls[label.upper()]


@dataclass(frozen=True, slots=True)
class Mount:
    """A read-only host path shown inside the sandbox at ``at``."""

    host: str
    at: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one sandboxed action."""

    wall_ms: int = 60_000
    cpu_ms: int = 60_000
    memory_bytes: int = 1 << 30
    pids: int = 128
    output_bytes: int = 64 * 1024  # kept of each stream: half head, half tail
    output_kill_bytes: int = 16 << 20  # an action that writes more than this is ended
    disk_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Goal:
    """The desired end state in words, and the paths no kept mutation may touch."""

    text: str
    forbid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Environment:
    """The reproducible substrate. ``workspace`` is an absolute path."""

    workspace: str
    base: str | None = None  # a git commit to require
    toolchain: tuple[str, ...] = ("python",)
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    tier: Tier = "namespaces"
    network: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    hidden: tuple[str, ...] = ()  # workspace-relative paths no action may see: the manifest, sealed files (L9)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``calls`` in any ``per_ms`` of the trajectory's active time."""

    calls: int
    per_ms: int


@dataclass(frozen=True, slots=True)
class ToolGrant:
    """One allowed tool. ``paths`` bounds what it may write; None means: the tool takes no path bound.

    ``require`` are preconditions (CEL over call, state, changes, trajectory) judged before dispatch; ``ensure`` are
    postconditions judged after it. ``max_calls`` bounds calls over the whole trajectory, ``rate``
    calls in a window of it. ``read_only`` lets
    shell_exec run single commands of a read-only list, nothing else.
    """

    tool: str
    paths: tuple[str, ...] | None = None
    require: tuple[str, ...] = ()
    ensure: tuple[str, ...] = ()
    max_calls: int | None = None
    rate: Rate | None = None
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Observe:
    """What of an observation may reach a prompt."""

    max_tokens: int = 4000
    redact: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunCheck:
    """A command run by ``sh -c`` in the candidate state."""

    command: str
    parse: ParserName = "exit"
    timeout_ms: int | None = None  # None: the environment's wall limit


@dataclass(frozen=True, slots=True)
class ExprCheck:
    """A CEL expression over changes, state, baseline, trajectory; must be true."""

    expr: str


@dataclass(frozen=True, slots=True)
class ProbeCheck:
    """A registered Python function ``name`` (module:function) of the host, given the candidate's facts."""

    name: str


@dataclass(frozen=True, slots=True)
class OracleCheck:
    """A judge file in ``files`` that never imports the candidate: it names calls, the runtime executes them in a
    candidate sandbox, and the judge compares the values in a sandbox of its own. At level proof the judge declares
    a finite domain instead, and the runtime enumerates it."""

    judge: str
    timeout_ms: int | None = None


Predicate = RunCheck | ExprCheck | ProbeCheck | OracleCheck


@dataclass(frozen=True, slots=True)
class Criterion:
    """One addressable predicate of the desired state."""

    id: str
    predicate: Predicate
    level: Level
    files: str | None = None  # absolute host directory of sealed files
    files_digest: str | None = None  # pinned at acceptance
    disclose: Disclosure = "names"
    weight: int = 1

    @property
    def address(self) -> str:
        return f"done/{self.id}"


@dataclass(frozen=True, slots=True)
class Invariant:
    """Must hold at every savepoint and commit."""

    id: str
    predicate: Predicate
    severity: Severity = "hard"
    level: Level = Level.STATIC
    files: str | None = None
    files_digest: str | None = None
    disclose: Disclosure = "full"
    weight: int = 1

    @property
    def address(self) -> str:
        return f"invariants/{self.id}"


@dataclass(frozen=True, slots=True)
class Budget:
    """Ceilings of the whole trajectory; None is not possible: a loop without bounds cannot be written (R109)."""

    turns: int = 30
    tokens: int = 200_000
    usd_micros: int = 2_000_000
    wall_ms: int = 1_200_000
    on_exceed: OnExceed = "fail"

    def __post_init__(self) -> None:
        for name in ("turns", "tokens", "usd_micros", "wall_ms"):
            bound: Any = getattr(self, name)
            if type(bound) is not int or bound < 0:
                raise ValueError(f"budget.{name} is {bound!r}; a budget is a whole number of zero or more (R109)")


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """A call for which ``when`` (CEL) holds waits for people: ``quorum`` different ones with a role of ``by``.

    ``each_role``: every role of ``by`` must be among them, each by another person (R129).
    """

    when: str
    by: tuple[str, ...]
    quorum: int = 1
    expires_ms: int = 86_400_000
    each_role: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    commit: CommitPolicy = "converged"
    stall_after: int = 4
    on_stall: tuple[StallStep, ...] = ("next_model",)
    approve: tuple[ApprovalRule, ...] = ()
    drift: DriftPolicy = "detect"


@dataclass(frozen=True, slots=True)
class Task:
    """The contract. ``document`` is the canonical manifest as accepted, ``digest`` its digest with pinned files."""

    name: str
    goal: Goal
    environment: Environment
    actions: tuple[ToolGrant, ...]
    observe: Observe
    done: tuple[Criterion, ...]
    invariants: tuple[Invariant, ...]
    budget: Budget
    policy: Policy
    models: tuple[str, ...]
    document: dict[str, Any]
    digest: str
    source: str | None = None  # the file it came from

    def grant(self, tool: str) -> ToolGrant | None:
        return next((grant for grant in self.actions if grant.tool == tool), None)
