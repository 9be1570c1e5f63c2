"""Where a task belongs, and which rung a failure calls for (R244, R246; DEFINITIONS 10 and 11)."""

from __future__ import annotations

from itertools import product

import pytest

from setpoint.kernel.contract import Level
from setpoint.kernel.exposure import Authority, State
from setpoint.kernel.placement import (
    RUNG_FOR,
    RUNG_WORDS,
    Cause,
    Climb,
    Measured,
    Questions,
    Rung,
    Stay,
    place,
    recommend,
)

CLEAN = {rung: Measured(0, 50) for rung in (Rung.CONTEXT, Rung.TOOLS, Rung.RUNTIME)}


def test_triage_of_pull_requests_is_a_workflow():
    """R244: 10,000 a day, the same steps every time; labels can be set back."""
    found = place(Questions(is_path_fixed=True, carried=State.S0, worst=Authority.A2, evidence=Level.STATIC))
    assert found.form == "workflow"
    assert "never the next step" in found.why
    assert "settlement of lost replies by key or probe" in found.closure


def test_a_flaky_concurrency_test_is_a_loop():
    """R244: nobody knows the steps, and running the test often says whether it is mended."""
    found = place(Questions(is_path_fixed=False, carried=State.S2, worst=Authority.A1, evidence=Level.VISIBLE))
    assert found.form == "loop"
    assert "a sandbox" in found.closure and "a workspace with savepoints" in found.closure
    assert "a bound on turns, tokens, money and time" in found.closure


def test_without_a_fixed_path_and_without_a_check_a_person_accepts():
    """R244"""
    found = place(Questions(is_path_fixed=False, carried=State.S1, worst=Authority.A0, evidence=Level.CLAIM))
    assert found.form == "person"
    assert any("a person who accepts" in one for one in found.closure)


def test_the_first_and_the_last_question_decide_and_the_others_only_set_the_closure():
    """R244"""
    for fixed, evidence in product((True, False), Level):
        forms = {place(Questions(fixed, carried, worst, evidence)).form for carried, worst in product(State, Authority)}
        assert len(forms) == 1
        assert forms == ({"workflow"} if fixed else {"loop"} if evidence > Level.CLAIM else {"person"})


def test_more_authority_never_asks_for_less():
    """R244"""
    for fixed, carried, evidence in product((True, False), State, Level):
        found = [place(Questions(fixed, carried, worst, evidence)).closure for worst in Authority]
        assert [len(one) for one in found[:3]] == sorted(len(one) for one in found[:3])
        assert "an approval before what is irreversible" in found[3]
        assert not any("approval" in one for closure in found[:3] for one in closure)


def test_a_loop_with_outside_effects_asks_for_sealed_evidence():
    answers = Questions(is_path_fixed=False, carried=State.S3, worst=Authority.A2, evidence=Level.VISIBLE)
    assert any("sealed evidence" in one for one in place(answers).closure)


def test_rejected_arguments_call_for_the_tools_and_nothing_higher():
    """R246"""
    found = recommend(Cause.ARGUMENTS_REJECTED, {Rung.TOOLS: Measured(7, 40)})
    assert isinstance(found, Climb)
    assert (found.rung, int(found.rung)) == (Rung.TOOLS, 2)
    assert found.why.startswith("7 of 40 attempts failed because its arguments were rejected")


@pytest.mark.parametrize("cause", list(Cause))
def test_a_failure_that_nobody_measured_calls_for_nothing(cause: Cause):
    """R246"""
    found = recommend(cause, {})
    assert isinstance(found, Stay)
    assert RUNG_FOR[cause] in found.missing
    clean = recommend(cause, {**CLEAN, RUNG_FOR[cause]: Measured(0, 10)})
    assert isinstance(clean, Stay) and not clean.missing


@pytest.mark.parametrize("cause", [Cause.FAILS_WITH_DEMONSTRATIONS, Cause.FAILS_VERIFIABLY, Cause.TOO_MUCH_FOR_ONE])
def test_no_rung_is_skipped_that_was_not_measured(cause: Cause):
    """R246"""
    rung = RUNG_FOR[cause]
    for below in CLEAN:
        known = {**CLEAN, rung: Measured(20, 40)}
        del known[below]
        found = recommend(cause, known)
        assert isinstance(found, Stay)
        assert found.missing == (below,)
        assert f"rung {int(below)}" in found.why
    found = recommend(cause, {**CLEAN, rung: Measured(20, 40), Rung.TOOLS: Measured(3, 40)})
    assert isinstance(found, Stay) and found.first == Rung.TOOLS
    assert recommend(cause, {**CLEAN, rung: Measured(20, 40)}) == Climb(
        rung, f"20 of 40 attempts failed because {cause.value}: {RUNG_WORDS[rung]}"
    )


def test_a_measurement_says_how_many_of_how_many():
    for failed, attempts in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(ValueError, match="attempts failed"):
            Measured(failed, attempts)


def test_every_cause_has_its_rung():
    assert set(RUNG_FOR) == set(Cause)
    assert set(RUNG_WORDS) == set(Rung) == set(RUNG_FOR.values())
