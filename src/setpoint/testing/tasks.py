"""A small task for tests that are about something else."""

from __future__ import annotations

from typing import Any

from setpoint.kernel.contract import (
    Budget,
    Criterion,
    Environment,
    Goal,
    Invariant,
    Level,
    Observe,
    Policy,
    RunCheck,
    Task,
    ToolGrant,
)
from setpoint.kernel.keys import digest

TOOLS = (
    ToolGrant("shell_exec"),
    ToolGrant("file_read"),
    ToolGrant("file_edit", ("src/**", "tests/**")),
    ToolGrant("file_write", ("src/**", "tests/**")),
    ToolGrant("ask_operator"),
    ToolGrant("complete_task"),
)


def criterion(name: str = "unit", level: Level = Level.VISIBLE, **more: Any) -> Criterion:
    return Criterion(name, RunCheck("true"), level, **more)


def invariant(name: str, **more: Any) -> Invariant:
    return Invariant(name, RunCheck("true"), **more)


def make_task(**parts: Any) -> Task:
    """A small task; every part can be replaced."""
    document = {"name": "t", "parts": sorted(parts)}
    given: dict[str, Any] = {
        "name": "t",
        "goal": Goal("make src/a hold 1"),
        "environment": Environment("/nonexistent"),
        "actions": TOOLS,
        "observe": Observe(),
        "done": (criterion(),),
        "invariants": (),
        "budget": Budget(turns=20),
        "policy": Policy(),
        "models": ("replies:1",),
        "document": document,
        "digest": digest(document),
    }
    return Task(**{**given, **parts})
