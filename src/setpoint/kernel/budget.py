"""Stages of a budget (DEFINITIONS 12): nominal below 0.70 of the binding ceiling, steer, restrict from 0.90."""

from __future__ import annotations

from typing import Literal

Stage = Literal["nominal", "steer", "restrict"]
