"""Authority, and how it only shrinks (law L8). Pure.

A ``Scope`` says what may be done: rights, over objects, up to a cost, until a time. The gate rules by the scopes it
makes of a task's tool grants. A ``Capability`` is a scope that travels: signed by the runtime for one holder, so that
whoever is shown it (a child trajectory, a broker outside this process) can check it without asking back.

``approve`` says yes when five things hold: the signature is the runtime's, the right is granted, the target lies in
the objects, the cost is within the ceiling, the time has not come. ``attenuate`` makes a child from a parent, and only
inside it in every dimension; so no chain of them ever widens.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from setpoint.kernel.contract import Task, ToolGrant
from setpoint.kernel.globs import is_inside, matches
from setpoint.kernel.keys import canonical

Right = Literal["read", "write", "execute", "effect"]
"""``execute`` runs a program in the sandbox; ``effect`` reaches something outside the workspace."""
Denial = Literal["signature", "right", "object", "cost", "expired"]
EVERYWHERE: Final = ("**",)
KEY_BYTES_MIN: Final = 32
"""As long as the digest: a shorter key is the weaker part of HMAC-SHA256."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What may be done. ``objects`` are path patterns; a right over no object is no right."""

    rights: frozenset[Right]
    objects: tuple[str, ...]
    cost_max: int  # micro-dollars
    expires_ms: int  # on the clock of whoever approves

    def denies(self, right: Right, target: str, cost: int, now_ms: int) -> Denial | None:
        """The first condition that does not hold, None when all do. ``target`` is a resolved workspace path."""
        if right not in self.rights:
            return "right"
        if not self._holds(target):
            return "object"
        if cost > self.cost_max:
            return "cost"
        return "expired" if now_ms >= self.expires_ms else None

    def _holds(self, target: str) -> bool:
        try:
            return any(matches(glob, target) for glob in self.objects)
        except ValueError:  # not a resolved path inside the workspace, so in no scope
            return False

    def sticks_out(self, outer: Scope) -> Denial | None:
        """The dimension in which this is not provably inside ``outer``, None when it is."""
        if not self.rights <= outer.rights:
            return "right"
        if not all(any(is_inside(glob, wider) for wider in outer.objects) for glob in self.objects):
            return "object"
        if self.cost_max > outer.cost_max:
            return "cost"
        return "expired" if self.expires_ms > outer.expires_ms else None


@dataclass(frozen=True, slots=True)
class Capability:
    """A scope for one holder, under the runtime's signature (hex). Anyone may carry it; changing it voids it."""

    holder: str
    scope: Scope
    signature: str


@dataclass(frozen=True, slots=True)
class Widened:
    """A child was asked for that is not inside its parent, or of a parent that is not the runtime's own."""

    dimension: Denial
    message: str


def scope_of(task: Task, grant: ToolGrant, right: Right) -> Scope:
    """What one tool grant allows: the whole workspace where it names no paths; the task's own money and time."""
    objects = EVERYWHERE if grant.paths is None else grant.paths
    return Scope(frozenset({right}), objects, task.budget.usd_micros, task.budget.wall_ms)


def mint(holder: str, scope: Scope, key: bytes) -> Capability:
    """A capability for ``holder``. ValueError for a key that is too short to protect anything."""
    return Capability(holder, scope, _signature(holder, scope, key))


def approve(capability: Capability, right: Right, target: str, cost: int, now_ms: int, key: bytes) -> Denial | None:
    """None: yes. Otherwise the first of the five conditions that does not hold; a forged token is told nothing else."""
    if not _is_signed(capability, key):
        return "signature"
    return capability.scope.denies(right, target, cost, now_ms)


def attenuate(parent: Capability, holder: str, scope: Scope, key: bytes) -> Capability | Widened:
    """A child of ``parent`` for ``holder``, inside it in rights, objects, cost and time; else what sticks out."""
    if not _is_signed(parent, key):
        return Widened("signature", f"the capability of {parent.holder} is not this runtime's; nothing comes of it")
    dimension = scope.sticks_out(parent.scope)
    if dimension is not None:
        return Widened(dimension, f"{holder} may not get more than {parent.holder} has: {_compared(dimension, scope)}")
    return mint(holder, scope, key)


def _compared(dimension: Denial, scope: Scope) -> str:
    match dimension:
        case "right":
            return f"rights {', '.join(sorted(scope.rights))}"
        case "object":
            return f"objects {', '.join(scope.objects)}"
        case "cost":
            return f"cost up to {scope.cost_max} micro-dollars"
        case _:
            return f"until {scope.expires_ms} ms"


def _is_signed(capability: Capability, key: bytes) -> bool:
    return hmac.compare_digest(capability.signature, _signature(capability.holder, capability.scope, key))


def _signature(holder: str, scope: Scope, key: bytes) -> str:
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"the key has {len(key)} bytes; a runtime signs with at least {KEY_BYTES_MIN}")
    said = canonical([holder, sorted(scope.rights), list(scope.objects), scope.cost_max, scope.expires_ms])
    return hmac.new(key, said, sha256).hexdigest()
