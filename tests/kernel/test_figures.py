"""The worked numbers of model cache and checkpoints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.kernel.figures import checkpoint_cadence_s, kv_bytes, kv_bytes_per_token
from setpoint.kernel.limits import CHECKPOINT_EVERY_TURNS

MODEL = (80, 8, 128, 2)  # layers, key-value heads, head dimension, bytes of a value


def test_one_token_of_the_worked_model_holds_320_kib() -> None:
    """R165, N07"""
    assert kv_bytes_per_token(*MODEL) == 327_680 == 320 * 1024


def test_a_session_of_160_000_tokens_holds_52_43_gigabytes() -> None:
    """R165, N08: 51.2 GB when a KiB is read as a kB."""
    held = kv_bytes(160_000, *MODEL)
    assert held == 52_428_800_000 == 51_200_000 * 1024
    assert f"{held / 1e9:.4g}" == "52.43" and f"{held / 2**30:.4g}" == "48.83"
    assert held / 1024 * 1000 / 1e9 == 51.2


def test_a_waiting_session_that_was_released_holds_nothing() -> None:
    """R165"""
    assert kv_bytes(0, *MODEL) == 0


def test_half_a_second_and_an_hour_make_a_minute() -> None:
    """R177, B20"""
    assert checkpoint_cadence_s(0.5, 3600) == 60


def test_our_own_cadence_is_no_longer_than_the_best_for_its_stated_costs() -> None:
    """R177: in turns; what a crash costs is folding them anew."""
    checkpoint_ms, fold_ms, turns_between_crashes = 1.0, 0.03, 1_200
    best = checkpoint_cadence_s(checkpoint_ms / fold_ms, turns_between_crashes)
    assert round(best) == 283 and best >= CHECKPOINT_EVERY_TURNS


@given(st.floats(1e-6, 1e3), st.floats(1, 1e8))
def test_the_cadence_is_where_both_costs_are_equal(cost: float, mtbf: float) -> None:
    """R177: the overhead cost/T + T/(2 mtbf) is least there."""

    def overhead(interval: float) -> float:
        return cost / interval + interval / (2 * mtbf)

    best = checkpoint_cadence_s(cost, mtbf)
    assert overhead(best) <= overhead(best * 1.1) and overhead(best) <= overhead(best * 0.9)


@pytest.mark.parametrize(("cost", "mtbf"), [(0, 1), (1, 0), (-1, 1), (float("nan"), 1), (1, float("inf"))])
def test_figures_of_nothing_are_refused(cost: float, mtbf: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        checkpoint_cadence_s(cost, mtbf)
    with pytest.raises(ValueError, match="kv_heads is 0"):
        kv_bytes(1, 80, 0, 128, 2)
    with pytest.raises(ValueError, match="tokens is -1"):
        kv_bytes(-1, *MODEL)
