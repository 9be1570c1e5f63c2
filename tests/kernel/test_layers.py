"""Four ordered layers of a state; a lower failure voids what lies above it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from setpoint.kernel.contract import (
    Budget,
    Criterion,
    Environment,
    ExprCheck,
    Goal,
    Invariant,
    Level,
    Observe,
    Policy,
    RunCheck,
    Task,
)
from setpoint.kernel.events import Refused, Routed
from setpoint.kernel.layers import LAYERS, boundary_attempts, layers
from setpoint.kernel.record import EvidenceLine, Record, Spent

PARSES = Invariant("parses", RunCheck("compile"), level=Level.STATIC)
UNIT = Criterion("unit", RunCheck("pytest"), Level.VISIBLE)
ONLY = Invariant("only-a", ExprCheck("changes.all(c, c.path == 'a')"))
TASK = Task(
    "t",
    Goal("g"),
    Environment("/nonexistent"),
    (),
    Observe(),
    (UNIT,),
    (PARSES, ONLY),
    Budget(turns=3),
    Policy(),
    (),
    {},
    "sha256:t",
)


def line(address: str, level: str, verdict: str = "pass", fingerprint: str = "s", reason: str = "") -> EvidenceLine:
    return EvidenceLine(address, level, verdict, fingerprint, 0, reason, None, (), "d", 1)


def record(**verdicts: str) -> Record:
    """A record at state ``s`` whose checks passed, but for those given."""
    lines = (
        line("invariants/parses", "static", verdicts.get("parses", "pass")),
        line("done/unit", "visible", verdicts.get("unit", "pass"), reason="1 of 2 failed"),
        line("invariants/only-a", "static", verdicts.get("only", "pass")),
        line("invariants/@forbid", "static", verdicts.get("forbid", "pass")),
    )
    return Record(trajectory_id="t", fingerprint="s", turn=2, evidence={one.check: one for one in lines})


def outcomes(found: Record, attempts: int = 0, task: Task = TASK) -> list[str]:
    said = layers(task, found, attempts)
    assert [layer.name for layer in said] == list(LAYERS)
    return [layer.outcome for layer in said]


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({}, ["pass", "pass", "pass", "pass"]),
        ({"parses": "fail"}, ["fail", "void", "void", "void"]),
        ({"unit": "fail"}, ["pass", "fail", "void", "void"]),
        ({"unit": "missing"}, ["pass", "fail", "void", "void"]),
        ({"only": "fail"}, ["pass", "pass", "fail", "void"]),
        ({"forbid": "fail"}, ["pass", "pass", "fail", "void"]),
        ({"parses": "fail", "unit": "fail", "only": "fail"}, ["fail", "void", "void", "void"]),
    ],
)
def test_a_lower_failure_voids_the_higher_layers(broken: dict[str, str], expected: list[str]) -> None:
    """R154"""
    assert outcomes(record(**broken)) == expected


def test_a_verified_run_over_its_budget_or_out_of_bounds_fails_the_constraints_alone() -> None:
    """R154, R153"""
    assert outcomes(replace_spent(record(), Spent(input_tokens=10**9))) == ["pass", "pass", "pass", "fail"]
    assert outcomes(record(), attempts=1) == ["pass", "pass", "pass", "fail"]


def replace_spent(found: Record, spent: Spent) -> Record:
    from msgspec.structs import replace as with_fields

    return with_fields(found, spent=spent)


def test_the_layer_report_says_what_failed_and_what_that_voids() -> None:
    """R154: golden"""
    report = [(one.name, one.outcome, one.checked, one.grounds) for one in layers(TASK, record(unit="fail"), 0)]
    assert report == [
        ("syntactic", "pass", 1, ()),
        ("execution", "fail", 1, ("done/unit is fail: 1 of 2 failed",)),
        ("state delta", "void", 2, ("the execution layer failed",)),
        ("constraints", "void", 5, ("the execution layer failed",)),
    ]


def test_evidence_of_another_state_or_below_its_level_is_a_failure_of_its_layer() -> None:
    """R154, L4, R150"""
    stale = record()
    stale.evidence["done/unit"] = line("done/unit", "visible", fingerprint="other")
    assert outcomes(stale) == ["pass", "fail", "void", "void"]
    sealed = replace(TASK, done=(replace(UNIT, level=Level.SEALED),))
    assert outcomes(record(), task=sealed) == ["pass", "fail", "void", "void"]
    unjudged = record()
    del unjudged.evidence["invariants/only-a"]
    assert layers(TASK, unjudged, 0)[2].grounds == ("invariants/only-a was not judged",)


def test_a_layer_in_which_nothing_is_asked_is_empty_and_voids_nothing() -> None:
    """R154"""
    assert outcomes(record(), task=replace(TASK, invariants=())) == ["empty", "pass", "pass", "pass"]


def test_only_refusals_for_reaching_outside_count_as_boundary_attempts() -> None:
    def refused(reason: str) -> Refused:
        return Refused(ordinal=0, tool="t", gate="isolation", reason=reason, message="")

    reasons = ("OUTSIDE_WORKSPACE", "OUTSIDE_GRANT", "FORBIDDEN_PATH", "SCHEMA", "LOOP_DETECTED", "BUDGET")
    assert boundary_attempts([*map(refused, reasons), Routed(route="r", index=0, reason="x")]) == 3
