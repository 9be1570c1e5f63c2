"""A model step: it transforms text, or picks one of the labels that the workflow declares."""

from __future__ import annotations

from setpoint.engine.runs.hand import Hand
from setpoint.engine.runs.program import Values
from setpoint.kernel.flow import Judge


async def judge(hand: Hand, node: Judge, path: str, static: str) -> Values:
    raise NotImplementedError(f"judge nodes ({path})")
