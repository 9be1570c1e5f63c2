"""May another turn start? The worked examples, the stages, the projected call (DEFINITIONS 12, NUMBERS B01, B06)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.kernel.contract import Budget
from setpoint.kernel.record import Record, Spent
from setpoint.phases.p1_context.continuation import Go, Projected, Stop, may_continue, project, usage
from setpoint.ports.proposer import RouteLimits

NOTHING = Projected(0, 0)
WORKED = Budget(turns=80, tokens=1_500_000, usd_micros=3_000_000, wall_ms=900_000)


def record(turn: int = 0, tokens: int = 0, usd: int = 0, calls: int = 0, **more: object) -> Record:
    spent = Spent(input_tokens=tokens, usd_micros=usd, model_calls=calls)
    return Record(trajectory_id="t", turn=turn, spent=spent, **more)  # type: ignore[arg-type]


def test_the_worked_budget_binds_on_turns_with_a_cache() -> None:
    """R232, B06: 62.5 % of turns, 53.8 % of tokens, 51.1 % of time, 19.0 % of dollars."""
    used = usage(record(50, 790_000 + 17_500, 568_620), WORKED, 460_000)
    assert (used.turns, used.tokens, used.wall, used.usd) == (625, 538, 511, 189)
    assert (used.rho, used.binding) == (625, "turns")
    assert may_continue(record(50, 807_500, 568_620), WORKED, 460_000, NOTHING) == Go("nominal", used)


def test_the_worked_budget_binds_on_dollars_without_a_cache_and_steers() -> None:
    """R232, B06: 87.8 % of dollars."""
    spent = record(50, 807_500, 2_632_500)
    used = usage(spent, WORKED, 460_000)
    assert (used.usd, used.binding) == (877, "usd")
    assert may_continue(spent, WORKED, 460_000, NOTHING) == Go("steer", used)


def test_twenty_four_turns_pass_and_the_twenty_fifth_is_refused() -> None:
    """R078, B01: $0.20736 a turn under $5."""
    budget = Budget(turns=1000, tokens=10**9, usd_micros=5_000_000, wall_ms=10**9)
    cost, spent = 207_360, 0
    for turn in range(1, 25):
        now = record(turn - 1, 100 * (turn - 1), spent, turn - 1, last_call=(90, 10, cost) if turn > 1 else (0, 0, 0))
        assert isinstance(may_continue(now, budget, 0, project(now, 0, RouteLimits())), Go), turn
        spent += cost
    assert spent == 4_976_640
    now = record(24, 2400, spent, 24, last_call=(90, 10, cost))
    stop = may_continue(now, budget, 0, project(now, 0, RouteLimits()))
    assert isinstance(stop, Stop) and stop.dimension == "usd"
    assert "$4.9766" in stop.message and "$0.2074" in stop.message and "$5.0000" in stop.message


@pytest.mark.parametrize(
    ("turns_used", "stage"),
    [(0, "nominal"), (699, "nominal"), (700, "steer"), (899, "steer"), (900, "restrict"), (999, "restrict")],
)
def test_stages_change_exactly_at_their_thresholds(turns_used: int, stage: str) -> None:
    """R091: 0.70 steer, 0.90 restrict."""
    go = may_continue(record(turns_used), Budget(turns=1000), 0, NOTHING)
    assert isinstance(go, Go) and go.stage == stage


@pytest.mark.parametrize("dimension", ["turns", "tokens", "usd", "wall"])
def test_each_ceiling_stops_by_its_own_name_exactly_when_reached(dimension: str) -> None:
    """R091, R105: at the ceiling, not one beyond; a ceiling that is not reached does not stop."""
    budget = Budget(turns=10, tokens=1000, usd_micros=1000, wall_ms=1000)

    def at(part: int) -> Go | Stop:
        now = record(
            part if dimension == "turns" else 0,
            part * 100 if dimension == "tokens" else 0,
            part * 100 if dimension == "usd" else 0,
        )
        one = Projected(1 if dimension == "tokens" else 0, 1 if dimension == "usd" else 0)
        return may_continue(now, budget, part * 100 if dimension == "wall" else 0, one)

    assert isinstance(at(9), Go)
    stop = at(10)
    assert isinstance(stop, Stop) and stop.dimension == dimension and stop.message


@given(
    st.integers(0, 50),
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.integers(0, 500),
    st.integers(0, 500),
)
def test_a_call_that_would_cross_a_ceiling_is_never_made(
    turn: int, tokens: int, usd: int, elapsed: int, more_tokens: int, more_usd: int
) -> None:
    """R078, R091: `spent + projected <= ceiling` holds after every Go."""
    budget = Budget(turns=30, tokens=1000, usd_micros=1000, wall_ms=1000)
    now = record(turn, tokens, usd)
    match may_continue(now, budget, elapsed, Projected(more_tokens, more_usd)):
        case Go():
            assert turn < 30 and elapsed < 1000
            assert tokens + more_tokens <= 1000 and usd + more_usd <= 1000
        case Stop(dimension=dimension):
            over = {
                "turns": turn >= 30,
                "wall": elapsed >= 1000,
                "tokens": tokens + more_tokens > 1000,
                "usd": usd + more_usd > 1000,
            }
            assert over[dimension]


def test_a_budget_of_zero_admits_nothing() -> None:
    """R109"""
    assert isinstance(may_continue(record(), Budget(turns=0), 0, NOTHING), Stop)
    assert isinstance(may_continue(record(), Budget(wall_ms=0), 0, NOTHING), Stop)
    assert isinstance(may_continue(record(), Budget(tokens=0), 0, Projected(1, 0)), Stop)


@pytest.mark.parametrize("bound", [None, -1, 1.5, "30", True])
def test_a_loop_without_bounds_cannot_be_written(bound: object) -> None:
    """R109: a constructor without limits raises."""
    with pytest.raises(ValueError, match="R109"):
        Budget(turns=bound)  # type: ignore[arg-type]


def test_the_projected_call_is_the_newest_one_plus_what_the_prompt_grew_by_at_the_routes_price() -> None:
    """R078: never below what the newest call really cost."""
    route = RouteLimits(usd_micros_per_mtok_in=3_000_000, usd_micros_per_mtok_out=15_000_000)
    now = record(1, 5000, 100, 1, last_call=(4000, 200, 9000), prompt_tokens=3000)
    grown = project(now, 3500, route)
    assert grown.tokens == 4000 + 500 + 200
    assert grown.usd_micros == -(-(4500 * 3_000_000 + 200 * 15_000_000) // 1_000_000) == 16_500
    assert project(now, 100, RouteLimits()) == Projected(4200, 9000), "a smaller prompt projects no smaller call"
    first = project(record(), 3000, route)
    assert first.tokens == 3000 and first.usd_micros == (3000 * 3 + 4096 * 15)
