"""Stages of a budget (docs/reference/limits.md), and what a person added to its ceilings."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec

from setpoint.kernel.contract import Budget

Stage = Literal["nominal", "steer", "restrict"]
"""Below 0.70 of the binding ceiling, from 0.70, from 0.90."""


class Raised(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Amounts a person added to the ceilings of a trajectory. Never negative: authority of the contract only grows by
    a person's word in the log, and nothing else moves it."""

    turns: int = 0
    tokens: int = 0
    usd_micros: int = 0
    wall_ms: int = 0

    def plus(self, other: Raised) -> Raised:
        return Raised(
            self.turns + other.turns,
            self.tokens + other.tokens,
            self.usd_micros + other.usd_micros,
            self.wall_ms + other.wall_ms,
        )


_NOTHING = Raised()


def raised_budget(budget: Budget, raised: Raised) -> Budget:
    """The ceilings that hold now."""
    if raised == _NOTHING:  # nearly always, and asked several times a turn
        return budget
    return replace(
        budget,
        turns=budget.turns + raised.turns,
        tokens=budget.tokens + raised.tokens,
        usd_micros=budget.usd_micros + raised.usd_micros,
        wall_ms=budget.wall_ms + raised.wall_ms,
    )
