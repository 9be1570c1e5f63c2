"""delta = desired - actual, itemised, and compared as a tuple."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.kernel.contract import Criterion, ExprCheck, Invariant, Level, RunCheck
from setpoint.kernel.delta import Progress, measure

HERE, ELSEWHERE = "sha256:here", "sha256:elsewhere"


@dataclass(frozen=True)
class Found:
    level: str = "visible"
    verdict: str = "pass"
    fingerprint: str = HERE
    distance: int = 0
    reason: str = ""


def criterion(name: str = "c", level: Level = Level.VISIBLE, weight: int = 1) -> Criterion:
    return Criterion(name, RunCheck("true"), level, weight=weight)


def invariant(name: str, severity: str = "hard", weight: int = 1) -> Invariant:
    return Invariant(name, ExprCheck("true"), severity, weight=weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "required", "verdict", "distance"),
    [
        (None, Level.VISIBLE, "missing", 1),  # never judged
        (Found(), Level.VISIBLE, None, 0),  # met
        (Found("sealed"), Level.VISIBLE, None, 0),  # stronger than asked
        (Found("visible"), Level.SEALED, "fail", 1),  # a pass below what is asked (R150)
        (Found("static"), Level.VISIBLE, "fail", 1),
        (Found("claim"), Level.STATIC, "fail", 1),  # a claim is no evidence (R152)
        (Found(verdict="fail", distance=4), Level.VISIBLE, "fail", 4),
        (Found(verdict="fail", distance=0), Level.VISIBLE, "fail", 1),  # a failure is never at distance 0
        (Found(verdict="missing", distance=7), Level.VISIBLE, "missing", 7),  # crashed: the distance last known
        (Found(fingerprint=ELSEWHERE), Level.VISIBLE, "missing", 1),  # stale is missing (L4)
        (Found(verdict="fail", distance=5, fingerprint=ELSEWHERE), Level.VISIBLE, "missing", 5),
    ],
)
def test_one_criterion_against_its_evidence(
    found: Found | None, required: Level, verdict: str | None, distance: int
) -> None:
    """R003, R102, R149, R150, L4"""
    evidence = {} if found is None else {"done/c": found}
    items, progress = measure([criterion(level=required)], [], evidence, HERE)
    if verdict is None:
        assert items == () and progress == Progress(0, 0, 0)
    else:
        assert [(item.address, item.verdict, item.distance, item.hard) for item in items] == [
            ("done/c", verdict, distance, False)
        ]
        assert progress == Progress(0, 1, distance)


def test_weights_multiply_and_only_hard_invariants_count_as_hard() -> None:
    """R001, R011"""
    evidence = {
        "done/c": Found(verdict="fail", distance=3),
        "invariants/h": Found(verdict="fail", distance=2),
        "invariants/s": Found(verdict="missing", distance=1),
    }
    items, progress = measure([criterion(weight=5)], [invariant("h"), invariant("s", "soft", 7)], evidence, HERE)
    assert progress == Progress(1, 1, 15 + 2 + 7)
    assert [(item.address, item.hard) for item in items] == [
        ("invariants/h", True),
        ("invariants/s", False),
        ("done/c", False),
    ]


FOUND = st.none() | st.builds(
    Found,
    st.sampled_from(["claim", "static", "visible", "sealed"]),
    st.sampled_from(["pass", "fail", "missing"]),
    st.sampled_from([HERE, ELSEWHERE]),
    st.integers(0, 9),
)


@given(st.lists(st.tuples(st.sampled_from(list(Level)), FOUND), max_size=6), st.lists(FOUND, max_size=4))
def test_the_delta_is_empty_exactly_when_every_check_passed_here_at_its_level(
    criteria: list[tuple[Level, Found | None]], invariants: list[Found | None]
) -> None:
    """R003: D = 0 exactly when all predicates hold."""
    checks = [criterion(str(n), level) for n, (level, _) in enumerate(criteria)]
    rules = [invariant(str(n)) for n in range(len(invariants))]
    evidence = {f"done/{n}": found for n, (_, found) in enumerate(criteria) if found is not None}
    evidence |= {f"invariants/{n}": found for n, found in enumerate(invariants) if found is not None}
    items, progress = measure(checks, rules, evidence, HERE)

    def holds(found: Found | None, level: Level) -> bool:
        return (
            found is not None
            and found.verdict == "pass"
            and found.fingerprint == HERE
            and Level.of(found.level) >= level
        )

    unmet = [level for level, found in criteria if not holds(found, level)]
    broken = [found for found in invariants if not holds(found, Level.CLAIM)]
    assert (progress == Progress(0, 0, 0)) == (not unmet and not broken)
    assert len(items) == len(unmet) + len(broken)
    assert (progress.hard, progress.unmet) == (len(broken), len(unmet))
    assert progress.debt == sum(item.distance for item in items) >= len(items)


@given(st.tuples(*[st.integers(0, 9)] * 6))
def test_progress_is_compared_hard_first_then_unmet_then_debt(numbers: tuple[int, ...]) -> None:
    """R007: no amount of less debt outweighs a broken invariant."""
    one, two = Progress(*numbers[:3]), Progress(*numbers[3:])
    by_hand = one.hard < two.hard or (
        one.hard == two.hard and (one.unmet < two.unmet or (one.unmet == two.unmet and one.debt < two.debt))
    )
    assert (one < two) == by_hand
