"""What the gate may answer: Permit, Hold, Refusal. The first no wins, and every no has a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from setpoint.kernel.contract import ApprovalRule, ToolGrant
from setpoint.kernel.proposal import Call

Gate = Literal["syntactic", "resource", "isolation", "progress"]
Effect = Literal["pure", "read", "reversible", "keyed", "compensable", "irreversible"]

RefusalReason = Literal[
    # syntactic
    "MALFORMED",
    "NO_CALL",
    "UNKNOWN_TOOL",
    "SCHEMA",
    "STRUCTURE",
    "CUT_OFF",
    # resource
    "RATE",
    "TOO_MANY_CALLS",
    "RESTRICTED",
    # isolation
    "OUTSIDE_WORKSPACE",
    "OUTSIDE_GRANT",
    "FORBIDDEN_PATH",
    "PRECONDITION",
    "APPROVAL_REQUIRED",
    "APPROVAL_DENIED",
    "APPROVAL_EXPIRED",
    "APPROVAL_VOID",
    # progress
    "LOOP_DETECTED",
    "BLOCKED",
]


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to dispatch this call, under this grant. Only the gate makes one."""

    call: Call
    grant: ToolGrant
    effect: Effect
    path: str | None = None  # the resolved path, where the tool takes one
    items: tuple[str, ...] = ()  # the delta items this call is allowed to work on (R008)
    blast: str = ""  # high: what a command could destroy goes beyond one file (R073)


@dataclass(frozen=True, slots=True)
class Hold:
    """A person must say yes first, by this rule. ``permit`` is what a yes would allow, and nothing else."""

    permit: Permit
    rule: ApprovalRule

    @property
    def call(self) -> Call:
        return self.permit.call

    @property
    def by(self) -> tuple[str, ...]:
        """The roles that may decide."""
        return self.rule.by


@dataclass(frozen=True, slots=True)
class Refusal:
    """A no. It is an observation, costs a turn and touches nothing."""

    ordinal: int
    tool: str
    gate: Gate
    reason: RefusalReason
    pointer: str
    message: str
    call_digest: str = ""


Ruling = Permit | Hold | Refusal
