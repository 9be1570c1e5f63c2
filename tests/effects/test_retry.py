"""Pauses, rates, the circuit breaker and the repair rule, with times and chance passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.kernel.effects import Declined, Done, EffectOutcome, InDoubt, NotSent
from setpoint.kernel.limits import BREAKER_FAILURES, BREAKER_OPEN_MS
from setpoint.kernel.retry import (
    Breaker,
    CircuitOpen,
    RatePolicy,
    RetryPolicy,
    is_worth_repairing,
    repair_cost,
    repair_threshold,
)

DOWN = NotSent("refused")
LOST = InDoubt("timeout")
BUSY = NotSent("429", 2_000, is_up=True)
chances = st.floats(0, 1, exclude_max=True)


# Pauses


def test_pauses_double_up_to_their_bound() -> None:
    policy = RetryPolicy(attempts=6, first_ms=100, factor=2, max_ms=500, jitter=0)
    assert [policy.pause_ms(made, 0.9) for made in range(1, 6)] == [100, 200, 400, 500, 500]


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10), st.integers(0, 10**6), chances)
def test_a_pause_stays_inside_its_jitter_and_bound(made, first, factor, most, chance) -> None:
    """L7"""
    policy = RetryPolicy(first_ms=first, factor=factor, max_ms=most, jitter=300)
    whole = policy.pause_ms(made, 0.0)
    assert whole <= most
    assert whole * 0.7 - 1 <= policy.pause_ms(made, chance) <= whole


def test_the_pause_that_was_asked_for_is_never_shortened() -> None:
    """R130"""
    policy = RetryPolicy(first_ms=100, max_ms=500, jitter=1000)
    assert policy.next_pause_ms(NotSent("429", 90_000), 1, 0.99) == 90_000
    assert policy.next_pause_ms(NotSent("429", 1), 1, 0.0) == 100


@pytest.mark.parametrize("outcome", [Done(1), Declined("no"), LOST, InDoubt("in flight", is_up=True)])
def test_only_what_was_surely_not_sent_is_sent_again(outcome: EffectOutcome) -> None:
    """R135"""
    assert RetryPolicy().next_pause_ms(outcome, 1, 0.0) is None


def test_attempts_end() -> None:
    """L7"""
    policy = RetryPolicy(attempts=2)
    assert policy.next_pause_ms(DOWN, 1, 0.0) == 1_000
    assert policy.next_pause_ms(DOWN, 2, 0.0) is None


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first_ms": -1}, {"factor": 0}, {"jitter": 1001}, {"max_ms": -1}])
def test_a_policy_that_makes_no_sense_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match=r"is (0|-1|1001)|are at least"):
        RetryPolicy(**wrong)


# Rates


@given(st.integers(1, 5), st.integers(1, 50), st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_no_window_holds_more_calls_than_the_rate(calls, per_ms, gaps) -> None:
    policy = RatePolicy(calls, per_ms)
    now, kept, sent = 0, (), []
    for gap in gaps:
        now += gap
        now += policy.wait_ms(kept, now)
        assert policy.wait_ms(kept, now) == 0
        kept = policy.kept(kept, now)
        sent.append(now)
    assert len(kept) <= calls
    for first in sent:
        assert sum(first <= at < first + per_ms for at in sent) <= calls


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0), (61, 1)])
def test_a_rate_that_is_none_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match="calls are between 1 and 60"):
        RatePolicy(*wrong)


# The breaker


def folded(breaker: Breaker, *outcomes: EffectOutcome, at: int = 0) -> Breaker:
    for outcome in outcomes:
        breaker = breaker.after(outcome, at)
    return breaker


def test_it_opens_after_failures_in_a_row_and_says_how_long() -> None:
    """R195"""
    breaker = folded(Breaker("bank"), *[DOWN, LOST, DOWN, LOST])
    assert BREAKER_FAILURES == 5 and breaker.state(0) == "closed"
    breaker = breaker.after(DOWN, 1_000)
    refusal = breaker.admit(6_000)
    assert refusal == CircuitOpen("bank", BREAKER_OPEN_MS - 5_000, 5)
    assert refusal.message.startswith("ERR_CIRCUIT_OPEN: bank failed 5 times") and "25000 ms" in refusal.message


@pytest.mark.parametrize("answer", [Done(1), Declined("402"), BUSY, InDoubt("409 in flight", is_up=True)])
def test_an_answer_is_no_transport_failure(answer: EffectOutcome) -> None:
    """R195"""
    breaker = folded(Breaker("bank"), *[DOWN] * 4, answer, *[DOWN] * 4)
    assert breaker.state(0) == "closed" and breaker.failed == 4


def test_half_open_lets_exactly_one_probe_go() -> None:
    """R195"""
    breaker = folded(Breaker("bank"), *[DOWN] * 5)
    now = BREAKER_OPEN_MS
    assert breaker.state(now - 1) == "open" and breaker.state(now) == "half_open"
    probing = breaker.admit(now)
    assert isinstance(probing, Breaker)
    assert isinstance(probing.admit(now + 1), CircuitOpen)

    assert probing.after(Declined("no"), now + 1) == Breaker("bank")
    again = probing.after(LOST, now + 1)
    assert again.state(now + BREAKER_OPEN_MS) == "open"
    assert again.state(now + 1 + BREAKER_OPEN_MS) == "half_open"


def test_a_probe_that_never_reports_gives_way() -> None:
    probing = folded(Breaker("bank"), *[DOWN] * 5).admit(BREAKER_OPEN_MS)
    assert isinstance(probing, Breaker)
    assert isinstance(probing.admit(2 * BREAKER_OPEN_MS - 1), CircuitOpen)
    assert isinstance(probing.admit(2 * BREAKER_OPEN_MS), Breaker)


def test_what_was_under_way_when_it_opened_is_not_heard() -> None:
    breaker = folded(Breaker("bank"), *[DOWN] * 5)
    assert breaker.after(Done(1), 1) == breaker == breaker.after(DOWN, 1)


@given(st.lists(st.tuples(st.integers(0, 20_000), st.sampled_from([Done(1), DOWN, LOST, BUSY, None])), max_size=60))
def test_whatever_happens_it_is_called_again_within_its_time(steps) -> None:
    """R195: and while it is open nothing goes; None is a call whose outcome never comes."""
    breaker, now = Breaker("bank"), 0
    for gap, outcome in steps:
        now += gap
        match breaker.admit(now):
            case CircuitOpen(left_ms=left):
                assert 0 < left <= BREAKER_OPEN_MS
                assert isinstance(breaker.admit(now + left), Breaker)
            case Breaker() as admitted:
                assert breaker.state(now) != "open"
                breaker = admitted if outcome is None else admitted.after(outcome, now)


# Repair


def test_the_worked_repair_is_worth_it_above_4_7_percent_of_time_and_6_1_of_money() -> None:
    """R193, B10"""
    time, money = (4.09, 40.6, 46.0), (0.00987, 0.162, 0.0)
    assert f"{repair_threshold(*time):.2%}" == "4.72%"
    assert f"{repair_threshold(*money):.2%}" == "6.09%"
    assert f"{repair_cost(0.5, *time):.2f}" == "47.39" and f"{repair_cost(0.5, *money):.4f}" == "0.0909"
    assert repair_cost(0.0, 0.0, 40.6, 46.0) == pytest.approx(86.6)


@given(chances, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.1, 1e6))
def test_the_rule_takes_the_cheaper_way(chance, repair, spent, restart) -> None:
    """R193"""
    forward, anew = repair_cost(chance, repair, spent, restart), spent + restart
    if is_worth_repairing(chance, repair, spent, restart):
        assert forward <= anew * (1 + 1e-9)
    else:
        assert forward >= anew * (1 - 1e-9)


def test_costs_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="starting over costs something"):
        repair_threshold(1, 0, 0)
    with pytest.raises(ValueError, match=r"the chance is 1\.5"):
        repair_cost(1.5, 1, 1, 1)
