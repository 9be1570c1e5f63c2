"""Loops and stalls, whatever the arguments were (R110, R194; C1, C2)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from setpoint.kernel import limits
from setpoint.kernel.contract import Policy
from setpoint.kernel.errors import ProposerFault
from setpoint.kernel.record import Record, Seen
from setpoint.phases.p2_proposal.routing import NextRoute, NoRoute, Retry, after_failure
from setpoint.phases.p6_verdict.progress import Backtrack, NoStall, Steer, judge_progress

RECORD = Record(trajectory_id="t", models=("a", "b"))
POLICY = Policy(stall_after=4)


def judged(policy: Policy = POLICY, **fields: object) -> object:
    return judge_progress(replace(RECORD, **fields), policy)


@pytest.mark.parametrize(
    ("fields", "tier", "reason"),
    [
        ({"still": 1}, NoStall, ""),
        ({"still": 2}, Steer, "NoProgress"),  # half of stall_after
        ({"still": 3, "stall_tier": 1}, NoStall, ""),  # steered once already
        ({"still": 4, "stall_tier": 1}, Backtrack, "NoProgress"),
        ({"cycled": True}, Backtrack, "EditRevertCycle"),
        ({"refused_in_a_row": limits.REFUSALS_IN_A_ROW_MAX - 1}, NoStall, ""),
        ({"refused_in_a_row": limits.REFUSALS_IN_A_ROW_MAX}, Backtrack, "RefusedOnly"),
        ({"idle_turns": limits.IDLE_TURNS_MAX - 1}, NoStall, ""),
        ({"idle_turns": limits.IDLE_TURNS_MAX}, Steer, "Idle"),
        ({"idle_turns": 2 * limits.IDLE_TURNS_MAX - 1, "stall_tier": 1}, NoStall, ""),
        ({"idle_turns": 2 * limits.IDLE_TURNS_MAX}, Backtrack, "Idle"),
        ({"recent": (Seen(1, "x", "s", "o"),)}, NoStall, ""),
        ({"recent": (Seen(1, "x", "s", "o"),) * 2}, Steer, "RepeatedAction"),
        ({"recent": (Seen(1, "x", "s", "o"),) * 3}, Backtrack, "RepeatedAction"),
        ({"recent": tuple(Seen(1, d, "s", "o") for d in "xyxyx")}, Backtrack, "RepeatedAction"),  # A-B-A-B-A
        ({"recent": tuple(Seen(1, d, "s", "o") for d in "xxxy")}, NoStall, ""),  # something else was tried
        ({"recent": tuple(Seen(1, "x", s, "o") for s in "abc")}, NoStall, ""),  # on another state each time
    ],
)
def test_the_tiers_of_a_stall(fields: dict[str, object], tier: type, reason: str) -> None:
    """C1, C2"""
    found = judged(**fields)
    assert isinstance(found, tier), found
    assert getattr(found, "reason", "") == reason


@pytest.mark.parametrize("after", [1, 2, 3, 7])
def test_a_stall_is_judged_at_exactly_the_number_the_task_says(after: int) -> None:
    """C2: no change in the delta tuple for k savepoints."""
    policy = Policy(stall_after=after)
    assert not isinstance(judged(policy, still=after - 1, stall_tier=1), Backtrack)
    assert isinstance(judged(policy, still=after, stall_tier=1), Backtrack)


TRANSIENT = ("overloaded", "rate_limited", "broken_stream", "timeout")
FINAL = ("refused", "exhausted", "auth", "invalid", "never heard of")


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_transient_failure_is_tried_again_with_growing_pauses_then_left_for_the_next_route(kind: str) -> None:
    """J1, R130: never for ever on the same model."""
    found = [after_failure(replace(RECORD, route_failures=n), kind, 0) for n in (1, 2, 3)]
    assert found == [Retry(500), Retry(1000), NextRoute(1, kind)]
    last = replace(RECORD, route_failures=3, route_index=1)
    assert isinstance(after_failure(last, kind, 0), NoRoute)


@pytest.mark.parametrize("kind", FINAL)
def test_any_other_failure_goes_to_the_next_route_at_once(kind: str) -> None:
    """J1"""
    assert after_failure(replace(RECORD, route_failures=1), kind, 0) == NextRoute(1, kind)


def test_a_server_is_waited_for_as_long_as_it_asks_but_not_without_bound() -> None:
    """R130, L7"""
    once = replace(RECORD, route_failures=1)
    assert after_failure(once, "rate_limited", 7_000) == Retry(7_000)
    assert after_failure(once, "rate_limited", 100) == Retry(500), "never shorter than our own pause"
    assert after_failure(once, "rate_limited", limits.RETRY_AFTER_MS_MAX) == Retry(limits.RETRY_AFTER_MS_MAX)
    assert after_failure(once, "rate_limited", limits.RETRY_AFTER_MS_MAX + 1) == NextRoute(1, "rate_limited")
    long_ago = replace(RECORD, route_failures=limits.ROUTE_RETRIES_MAX)
    assert after_failure(long_ago, "timeout", 0) == Retry(1000)


def test_every_kind_a_proposer_may_raise_is_classified_here() -> None:
    """J1: the port's docstring names them."""
    named = (ProposerFault.__doc__ or "").split("kinds:")[1].split()
    kinds = {word for word in named if word.isidentifier()}
    assert kinds == set(TRANSIENT) | set(FINAL) - {"never heard of"}
