"""The state that stands, seen in four ordered layers. Pure; a report, never a verdict of its own.

- *syntactic*: what was made is well-formed (checks of level static that run something).
- *execution*: it behaves (checks that run code at level visible or above, probes, oracles).
- *state delta*: what changed against the base is what was asked for, and nothing else changed (expressions over the
  changes; the implicit invariants of every task).
- *constraints*: it was reached inside every ceiling, without an attempt to leave what was granted.

A lower layer that does not pass voids the higher ones: tests that pass on code which does not parse, or a fine result
reached out of bounds, mean nothing. A layer in which the task asks nothing is empty, and voids nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from setpoint.kernel.contract import Criterion, ExprCheck, Invariant, Level, Task
from setpoint.kernel.delta import Judged
from setpoint.kernel.events import Event, Refused
from setpoint.kernel.record import Record

LayerName = Literal["syntactic", "execution", "state delta", "constraints"]
LAYERS: Final[tuple[LayerName, ...]] = ("syntactic", "execution", "state delta", "constraints")
Outcome = Literal["pass", "fail", "empty", "void"]
IMPLICIT_PREFIX: Final = "invariants/@"
BOUNDARY_REASONS: Final = frozenset({"OUTSIDE_WORKSPACE", "OUTSIDE_GRANT", "FORBIDDEN_PATH"})
"""Refusals of a call that reached for something outside what the task grants."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. ``grounds`` say what failed, by address; of a void layer, which lower layer voids it."""

    name: LayerName
    outcome: Outcome
    checked: int  # how many things were asked here
    grounds: tuple[str, ...] = ()


def layers(task: Task, record: Record, boundary_attempts: int) -> tuple[Layer, ...]:
    """The four layers of the state that stands, lowest first. ``boundary_attempts`` is of the whole trajectory."""
    asked: dict[LayerName, list[str]] = {name: [] for name in LAYERS}  # per thing asked: "", or what failed
    for check in (*task.invariants, *task.done):
        required = check.level if isinstance(check, Criterion) else Level.CLAIM
        asked[layer_of(check)].append(_failed(check.address, record.evidence, record.fingerprint, required))
    for address in record.evidence:
        if address.startswith(IMPLICIT_PREFIX):
            asked["state delta"].append(_failed(address, record.evidence, record.fingerprint, Level.CLAIM))
    asked["constraints"] = [*_ceilings(task, record), _attempts(boundary_attempts)]
    return tuple(_voided(Layer(name, *_outcome(said)) for name, said in asked.items()))


def layer_of(check: Criterion | Invariant) -> LayerName:
    """In which layer a check asks its question."""
    if isinstance(check.predicate, ExprCheck):
        return "state delta"
    return "syntactic" if check.level <= Level.STATIC else "execution"


def boundary_attempts(events: Iterable[Event]) -> int:
    """How many calls of a trajectory reached outside what was granted. Each was refused; that they were made counts."""
    return sum(isinstance(event, Refused) and event.reason in BOUNDARY_REASONS for event in events)


def _failed(address: str, evidence: Mapping[str, Judged], fingerprint: str, required: Level) -> str:
    found = evidence.get(address)
    if found is None:
        return f"{address} was not judged"
    if found.fingerprint != fingerprint:
        return f"{address} was judged on another state"
    if found.verdict != "pass":
        return f"{address} is {found.verdict}" + (f": {found.reason}" if found.reason else "")
    return "" if Level.of(found.level) >= required else f"{address} passed at level {found.level} only"


def _ceilings(task: Task, record: Record) -> Iterator[str]:
    budget, spent = task.budget, record.spent
    used = {
        "turns": (record.turn, budget.turns),
        "tokens": (spent.tokens, budget.tokens),
        "usd_micros": (spent.usd_micros, budget.usd_micros),
        "wall_ms": (spent.elapsed_ms, budget.wall_ms),
    }
    for name, (amount, ceiling) in used.items():
        yield "" if amount <= ceiling else f"{amount} {name} were used, the ceiling is {ceiling}"


def _attempts(count: int) -> str:
    return f"{count} calls reached outside what was granted, and were refused" if count else ""


def _outcome(said: list[str]) -> tuple[Outcome, int, tuple[str, ...]]:
    grounds = tuple(one for one in said if one)
    return ("fail" if grounds else "pass" if said else "empty"), len(said), grounds


def _voided(found: Iterable[Layer]) -> Iterator[Layer]:
    failed = ""
    for layer in found:
        if failed:
            yield Layer(layer.name, "void", layer.checked, (f"the {failed} layer failed",))
            continue
        failed = layer.name if layer.outcome == "fail" else ""
        yield layer
