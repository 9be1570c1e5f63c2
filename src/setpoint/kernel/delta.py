"""delta = desired - actual, itemised; and progress as a tuple compared lexicographically (DESIGN section 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from setpoint.kernel.contract import Criterion, Invariant
from setpoint.kernel.evidence import Evidence, Verdict


class Progress(NamedTuple):
    """(hard violations, unmet criteria, weighted debt); smaller is better, all zero is converged."""

    hard: int
    unmet: int
    debt: int


@dataclass(frozen=True, slots=True)
class DeltaItem:
    """One unmet criterion or broken invariant."""

    address: str
    hard: bool  # a broken hard invariant
    verdict: Verdict
    distance: int  # weighted
    reason: str


def measure(
    criteria: Iterable[Criterion], invariants: Iterable[Invariant], evidence: Mapping[str, Evidence]
) -> tuple[tuple[DeltaItem, ...], Progress]:
    """The delta of a state from its evidence. No evidence, or missing evidence, counts as unmet (distance 1)."""
    items: list[DeltaItem] = []
    hard = unmet = debt = 0
    for invariant in invariants:
        found = evidence.get(invariant.address)
        if found is not None and found.passed:
            continue
        is_hard = invariant.severity == "hard"
        distance = invariant.weight * max(1, found.distance if found else 1)
        hard += is_hard
        debt += distance
        items.append(_item(invariant.address, is_hard, found, distance))
    for criterion in criteria:
        found = evidence.get(criterion.address)
        if found is not None and found.passed and found.level >= criterion.level:
            continue
        distance = criterion.weight * max(1, found.distance if found else 1)
        unmet += 1
        debt += distance
        items.append(_item(criterion.address, False, found, distance))
    return tuple(items), Progress(hard, unmet, debt)


def _item(address: str, hard: bool, found: Evidence | None, distance: int) -> DeltaItem:
    if found is None:
        return DeltaItem(address, hard, "missing", distance, "not judged yet")
    return DeltaItem(address, hard, found.verdict, distance, found.reason)
