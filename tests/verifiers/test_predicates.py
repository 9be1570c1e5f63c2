"""Expressions and probes; scrubbing and disclosure of what failed."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from setpoint.adapters.verifiers.scrub import scrub, scrub_text
from setpoint.adapters.verifiers.verdicts import Judgement
from setpoint.kernel.contract import Criterion, ExprCheck, Invariant, Level, ProbeCheck
from setpoint.kernel.evidence import Counts, Evidence, Failure
from setpoint.ports.workspace import Change, ChangeSet

UNTOUCHED = "!changes.exists(c, c.path.startsWith('tests/'))"


def changed(*paths: str) -> ChangeSet:
    return ChangeSet(tuple(Change(path, "modified", "file", 0o644, 1, "d", 2, 1) for path in paths), "sha256:state")


def test_an_expression_over_the_changes_names_the_paths_to_blame(bench):
    """R142"""
    check = Invariant("tests-untouched", ExprCheck(UNTOUCHED))
    assert bench.judge(check, candidate=bench.candidate(changes=changed("src/a.py"))).passed
    evidence = bench.judge(check, candidate=bench.candidate(changes=changed("src/a.py", "tests/b.py", "tests/c.py")))
    assert (evidence.verdict, evidence.distance, evidence.address) == ("fail", 2, "invariants/tests-untouched")
    assert [failure.name for failure in evidence.failures] == ["tests/b.py", "tests/c.py"]
    assert "tests/b.py" in evidence.reason


@pytest.mark.parametrize(
    ("expr", "verdict"),
    [
        ("state.orders.open == 0", "pass"),
        ("state.orders.open < baseline.orders.open", "pass"),
        ("trajectory.turn > 3", "fail"),
        ("state.nothing == 1", "missing"),
        ("1 + 1", "missing"),
        ("state.orders.open / 0 == 1", "missing"),
        ("not an expression", "missing"),
        ("effect == 'irreversible'", "missing"),
    ],
)
def test_an_expression_that_gives_no_answer_is_missing_evidence(bench, expr, verdict):
    """CASES G5"""
    candidate = bench.candidate(
        state={"orders": {"open": 0}}, baseline={"orders": {"open": 2}}, trajectory={"turn": 1, "spent": {}}
    )
    evidence = bench.judge(Criterion("e", ExprCheck(expr), Level.STATIC), candidate=candidate)
    assert evidence.verdict == verdict and (evidence.reason or verdict == "pass")


@pytest.mark.parametrize(
    ("answer", "verdict", "distance"),
    [
        (True, "pass", 0),
        (False, "fail", 1),
        (0, "pass", 0),
        (0.0, "pass", 0),
        (3, "fail", 3),
        (0.5, "fail", 1),
        (2.5, "fail", 3),
        (-1, "missing", 1),
        (float("nan"), "missing", 1),
        (float("inf"), "missing", 1),
        (None, "missing", 1),
        ("yes", "missing", 1),
        ([], "missing", 1),
        ({"passed": True}, "pass", 0),
        ({"passed": True, "value": {"open": 0}}, "pass", 0),
        ({"passed": False, "failures": [{"name": "a"}, {"name": "b", "message": "m"}]}, "fail", 2),
        ({"passed": False, "distance": 7}, "fail", 7),
        ({"passed": True, "failures": [{"name": "a"}]}, "missing", 1),
        ({"passed": "yes"}, "missing", 1),
        ({"passed": 1}, "missing", 1),
        ({"ok": True}, "missing", 1),
        ({}, "missing", 1),
    ],
)
def test_what_a_probe_may_answer(bench, answer, verdict, distance):
    """R148"""
    bench.probes["m:f"] = lambda facts: answer
    evidence = bench.judge(Criterion("p", ProbeCheck("m:f"), Level.STATIC))
    assert (evidence.verdict, evidence.distance) == (verdict, distance)


def test_a_probe_gets_plain_facts_it_cannot_change_for_others(bench):
    """R148"""
    seen = []

    def probe(facts):
        seen.append(set(facts))
        facts["state"]["x"] = 2
        facts["changes"].clear()
        return len(facts["changes"]) == 0

    bench.probes["m:f"] = probe
    candidate = bench.candidate(changes=changed("a"), state={"x": 1})
    assert bench.judge(Criterion("p", ProbeCheck("m:f"), Level.STATIC), candidate=candidate).passed
    assert seen == [{"changes", "state", "baseline", "trajectory"}]
    assert candidate.state == {"x": 1} and len(candidate.changes.changes) == 1


@pytest.mark.parametrize("fault", [ValueError("no"), StopIteration("no"), KeyboardInterrupt("no"), SystemExit("no")])
def test_a_probe_that_raises_is_missing_evidence(bench, fault):
    """R148, CASES G5"""

    def probe(facts):
        raise fault

    bench.probes["m:f"] = probe
    evidence = bench.judge(Criterion("p", ProbeCheck("m:f"), Level.STATIC))
    assert evidence.verdict == "missing" and "raised" in evidence.reason


def test_a_probe_that_hangs_is_missing_evidence_and_holds_up_nobody(bench):
    """R148, CASES G5"""
    release = threading.Event()
    bench.probes["m:f"] = lambda facts: release.wait(30)
    bench.environment = replace(bench.environment, limits=replace(bench.environment.limits, wall_ms=100))
    try:
        evidence = bench.judge(Criterion("p", ProbeCheck("m:f"), Level.STATIC))
    finally:
        release.set()
    assert evidence.verdict == "missing" and "within 100 ms" in evidence.reason


def test_an_unregistered_probe_is_missing_evidence_that_names_the_registered_ones(bench):
    """R148"""
    bench.probes["m:known"] = lambda facts: True
    evidence = bench.judge(Criterion("p", ProbeCheck("m:f"), Level.STATIC))
    assert evidence.verdict == "missing" and "m:known" in evidence.reason


def test_static_checks_are_evidence_with_their_diagnostics(bench):
    """R146, R116"""
    bench.write({"src/a.py": "def add(:\n"})
    evidence = bench.run("python -m compileall -q src", level=Level.STATIC)
    assert evidence.verdict == "fail" and evidence.level is Level.STATIC
    assert evidence.failures[0].name == "src/a.py:1" and evidence.failures[0].message.startswith("SyntaxError")


EVIDENCE = Evidence(
    "done/golden",
    Level.SEALED,
    "fail",
    "sha256:s",
    3,
    "sha256:c",
    "2 of 42 failed",
    Counts(42, 40, 2, 0, 0),
    (Failure("golden::test_neg", "assert -1.0 == 5.0\nwhere"), Failure("golden::test_two", "")),
)


@pytest.mark.parametrize("parse", ["exit", "pytest"])
def test_sealed_paths_and_lines_never_become_evidence(bench, parse):
    """R140, L9"""
    source = (
        "import calc\n\ndef test_sum():\n    secret_expectation = 5\n    assert calc.add(2, 3) == secret_expectation\n"
    )
    leak = "import os\ndef add(a, b):\n    raise ValueError(open(os.environ['SEALED'] + '/test_calc.py').read())\n"
    bench.write({"calc.py": leak})
    bench.seal({"test_calc.py": source})
    evidence = bench.run("python -m pytest $SEALED", parse, Level.SEALED)
    assert evidence.verdict == "fail"
    said = evidence.reason + "".join(f.name + f.message for f in evidence.failures)
    assert "secret_expectation" not in said and "/sealed" not in said


def test_scrubbing_replaces_paths_and_drops_quoted_lines_only():
    sealed = frozenset({"assert parse('-1.0') == 5.0"})
    text = "at /sealed/golden/t.py:3\n>       assert parse('-1.0') == 5.0\nE       assert -1.0 == 5.0\nsealedness"
    assert scrub_text(text, sealed) == "at <sealed>:3\nE       assert -1.0 == 5.0\nsealedness"


def test_messages_that_cannot_be_compared_with_the_sealed_lines_are_dropped():
    judged = Judgement("fail", "1 failed at /sealed/t.py", 1, None, (Failure("t::a", "quoted"),))
    assert scrub(judged, None) == Judgement("fail", "1 failed at <sealed>", 1, None, (Failure("t::a", ""),))
