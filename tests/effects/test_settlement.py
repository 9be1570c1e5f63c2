"""Classes, outcomes and the table that settles a doubt: every combination."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.kernel import ruling
from setpoint.kernel.effects import (
    EFFECT_CLASSES,
    AttemptState,
    CannotTell,
    Declined,
    DidNotHappen,
    Done,
    EffectClass,
    EffectDeclined,
    EffectInDoubt,
    EffectNotSent,
    Happened,
    InDoubt,
    NotSent,
    ProbeAnswer,
    ProbeLater,
    Reconstructed,
    Resend,
    Settlement,
    Stands,
    Unknown,
    is_mutation,
    lease_bound_ms,
    of_the_effect,
    outcome_of,
    raises_only,
    settle,
    worst_execution_ms,
)
from setpoint.kernel.errors import Fault, UsageFault

classes = st.sampled_from(EFFECT_CLASSES)


def test_the_classes_are_those_of_a_ruling_in_order() -> None:
    assert EFFECT_CLASSES == ("pure", "read", "reversible", "keyed", "compensable", "irreversible")
    assert get_args(ruling.Effect) == EFFECT_CLASSES


@given(classes, st.none() | classes)
def test_a_hint_never_lowers_a_class(author: EffectClass, hint: EffectClass | None) -> None:
    """L8"""
    held = raises_only(author, hint)
    assert EFFECT_CLASSES.index(held) >= EFFECT_CLASSES.index(author)
    assert held in (author, hint)
    if hint is not None:
        assert held == raises_only(hint, author)


@pytest.mark.parametrize("words", [("harmless", None), ("read", "harmless"), ("harmless", "irreversible")])
def test_a_word_that_is_no_class_is_refused(words) -> None:
    """L10"""
    with pytest.raises(ValueError, match="'harmless' is no effect class"):
        raises_only(*words)


# What an exception says


@pytest.mark.parametrize(
    ("error", "outcome", "effect"),
    [
        (EffectDeclined("no funds", code="402"), Declined("no funds"), "settled"),
        (EffectNotSent("busy", retry_after_ms=9, is_up=True), NotSent("busy", 9, True), "not_sent"),
        (EffectInDoubt("cut"), InDoubt("cut"), "in_doubt"),
        (EffectInDoubt("in flight", is_up=True), InDoubt("in flight", True), "in_doubt"),
    ],
)
def test_a_capability_may_say_itself_what_is_known(error, outcome, effect) -> None:
    assert outcome_of(error, "compensable") == outcome
    assert error.effect == effect


@pytest.mark.parametrize("effect", EFFECT_CLASSES)
@pytest.mark.parametrize("error", [KeyError("id"), Fault("says not_sent by default"), UsageFault("bad"), OSError(104)])
def test_any_other_exception_leaves_a_mutation_in_doubt(error: Exception, effect: EffectClass) -> None:
    """R136, L6"""
    match outcome_of(error, effect):
        case InDoubt(reason=reason):
            assert is_mutation(effect) and type(error).__name__ in reason
        case NotSent():
            assert not is_mutation(effect)
        case other:
            raise AssertionError(other)


def test_a_read_is_never_in_doubt() -> None:
    assert outcome_of(EffectInDoubt("cut"), "read") == NotSent("EffectInDoubt: cut")


# Settlement

STATES: tuple[AttemptState, ...] = get_args(AttemptState)
ANSWERS: tuple[ProbeAnswer | None, ...] = (Happened({"id": 7}), DidNotHappen(), CannotTell("half of it"), None)
BOTH = (False, True)
MUTATIONS = tuple(effect for effect in EFFECT_CLASSES if is_mutation(effect))

# (state, answer, does the other side remember keys, is it in flight) -> settlement, for a mutation; None: either.
TABLE: tuple[tuple[AttemptState, type | None, bool | None, bool | None, type[Settlement]], ...] = (
    ("settled", Happened, None, None, Stands),
    ("settled", DidNotHappen, None, None, Stands),
    ("settled", CannotTell, None, None, Stands),
    ("settled", None, None, None, Stands),
    ("not_sent", Happened, None, None, Resend),
    ("not_sent", DidNotHappen, None, None, Resend),
    ("not_sent", CannotTell, None, None, Resend),
    ("not_sent", None, None, None, Resend),
    ("in_doubt", Happened, None, None, Reconstructed),
    ("in_doubt", DidNotHappen, True, None, Resend),
    ("in_doubt", DidNotHappen, False, True, ProbeLater),
    ("in_doubt", DidNotHappen, False, False, Resend),
    ("in_doubt", CannotTell, None, None, Unknown),
    ("in_doubt", None, True, None, Resend),
    ("in_doubt", None, False, None, Unknown),
)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
@pytest.mark.parametrize("effect", EFFECT_CLASSES)
def test_every_combination_meets_exactly_one_row(state, answer, effect) -> None:
    """R134, R137"""
    for dedups, in_flight in itertools.product(BOTH, BOTH):
        got = settle(state, answer, effect, dedups=dedups, is_in_flight=in_flight)
        if not is_mutation(effect):
            assert type(got) is (Stands if state == "settled" else Resend)
            continue
        remembers = dedups or effect == "keyed"
        kind = None if answer is None else type(answer)
        rows = [
            row[4]
            for row in TABLE
            if row[:2] == (state, kind) and row[2] in (None, remembers) and row[3] in (None, in_flight)
        ]
        assert rows == [type(got)]


def test_what_a_probe_found_is_the_result() -> None:
    """R134"""
    got = settle("in_doubt", Happened({"id": 7}), "irreversible", dedups=False, is_in_flight=True)
    assert got == Reconstructed({"id": 7})


@pytest.mark.parametrize("effect", MUTATIONS)
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
@pytest.mark.parametrize("in_flight", BOTH)
def test_no_doubt_is_sent_again_blindly(effect, answer, in_flight) -> None:
    """R135: only after a look that found the state as before for good, or to a side that acts once for a key."""
    got = settle("in_doubt", answer, effect, dedups=False, is_in_flight=in_flight)
    if isinstance(got, Resend):
        assert effect == "keyed" or (isinstance(answer, DidNotHappen) and not in_flight)


def test_an_effect_that_cannot_be_probed_is_unknown() -> None:
    """B5"""
    assert isinstance(settle("in_doubt", None, "compensable", dedups=False, is_in_flight=False), Unknown)


@given(
    effect=st.sampled_from([effect for effect in MUTATIONS if effect != "keyed"]),
    dedups=st.booleans(),
    has_probe=st.booleans(),
    losses=st.lists(st.sampled_from(["drop", "sever", "late", "arrives"]), max_size=12),
)
def test_random_losses_never_act_twice(effect, dedups, has_probe, losses) -> None:
    """R135: drops, lost replies and deliveries that arrive after the probe has looked, in any order."""
    effects, delayed, in_flight = 0, 0, False

    def act() -> None:
        nonlocal effects
        effects += 0 if dedups and effects else 1

    for loss in losses:
        # Send with the key.
        if loss == "arrives":
            act()
            break
        if loss == "sever":
            act()
        elif loss == "late":
            delayed, in_flight = delayed + 1, True
        # Settle until it says resend, or stops.
        while True:
            answer = (Happened(1) if effects else DidNotHappen()) if has_probe else None
            got = settle("in_doubt", answer, effect, dedups=dedups, is_in_flight=in_flight)
            if not isinstance(got, ProbeLater):
                break
            for _ in range(delayed):  # the bound has passed: what was under way has arrived
                act()
            delayed, in_flight = 0, False
        if not isinstance(got, Resend):
            break
    for _ in range(delayed):
        act()
    assert effects <= 1


# Several attempts, one effect


@pytest.mark.parametrize(
    ("outcome", "doubt", "in_flight", "whole"),
    [
        (Done(1), True, True, Done),
        (InDoubt("cut"), False, False, InDoubt),
        (NotSent("429"), False, False, NotSent),
        (NotSent("429"), True, True, InDoubt),
        (NotSent("429"), True, False, InDoubt),
        (Declined("402"), False, True, Declined),
        (Declined("402"), True, True, InDoubt),
        (Declined("402"), True, False, Declined),
    ],
)
def test_a_later_attempt_does_not_hide_the_doubt_of_an_earlier_one(outcome, doubt, in_flight, whole) -> None:
    """R136, L6"""
    got = of_the_effect(outcome, is_earlier_in_doubt=doubt, was_in_flight=in_flight)
    assert type(got) is whole
    assert got == outcome or outcome.reason in got.reason


# The bound


def test_the_worked_lease_bound_is_2155_ms() -> None:
    """R139, B07"""
    worst = worst_execution_ms(450, 6, 80)
    assert worst == 930
    assert lease_bound_ms(timeout_ms=1_200, skew_ms=25, worst_ms=worst) == 2_155


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(ValueError, match="skew is -1 ms"):
        lease_bound_ms(1, -1, 1)
