"""delta = desired - actual, itemised; and progress as a tuple compared lexicographically (docs/explanation/loop.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from setpoint.kernel.contract import Criterion, Invariant, Level
from setpoint.kernel.events import Item


class Progress(NamedTuple):
    """(hard violations, unmet criteria, weighted debt); smaller is better, all zero is converged."""

    hard: int
    unmet: int
    debt: int


class Judged(Protocol):
    """What measuring needs of an evidence: whether, at what level, of which state."""

    @property
    def level(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def distance(self) -> int: ...
    @property
    def reason(self) -> str: ...


def measure(
    criteria: Iterable[Criterion],
    invariants: Iterable[Invariant],
    evidence: Mapping[str, Judged],
    fingerprint: str,
) -> tuple[tuple[Item, ...], Progress]:
    """The delta of the state ``fingerprint``.

    Evidence of another state is stale and stale is missing; missing counts as unmet at the distance last known, at
    least 1. A verdict below the required level does not meet its criterion (R150).
    """
    items: list[Item] = []
    hard = unmet = debt = 0
    for invariant in invariants:
        found = evidence.get(invariant.address)
        if _holds(found, fingerprint, Level.CLAIM):
            continue
        distance = invariant.weight * max(1, found.distance if found else 1)
        hard += invariant.severity == "hard"
        debt += distance
        items.append(_item(invariant.address, found, fingerprint, distance, hard=invariant.severity == "hard"))
    for criterion in criteria:
        found = evidence.get(criterion.address)
        if _holds(found, fingerprint, criterion.level):
            continue
        distance = criterion.weight * max(1, found.distance if found else 1)
        unmet += 1
        debt += distance
        items.append(_item(criterion.address, found, fingerprint, distance, hard=False))
    return tuple(items), Progress(hard, unmet, debt)


def _holds(found: Judged | None, fingerprint: str, level: Level) -> bool:
    return (
        found is not None
        and found.verdict == "pass"
        and found.fingerprint == fingerprint
        and Level.of(found.level) >= level
    )


def _item(address: str, found: Judged | None, fingerprint: str, distance: int, *, hard: bool) -> Item:
    if found is None:
        return Item(address, distance, "missing", hard, "not judged yet")
    if found.fingerprint != fingerprint:
        return Item(address, distance, "missing", hard, "the evidence is of another state")
    if found.verdict == "pass":
        return Item(address, distance, "fail", hard, f"evidence of level {found.level} is below what is required")
    return Item(address, distance, found.verdict, hard, found.reason)
