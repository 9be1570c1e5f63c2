from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from setpoint.kernel.keys import digest_bytes
from setpoint.ports.proposer import Context, Part, ToolSpec, Zone

ContextMaker = Callable[..., Context]

TOOLS = (
    ToolSpec("complete_task", "Ask for judgement.", {"type": "object", "properties": {"summary": {"type": "string"}}}),
    ToolSpec(
        "file_read",
        "Read a file.",
        {"type": "object", "required": ["path"], "properties": {"path": {"type": "string"}, "start": {}}},
    ),
)


def part(zone: Zone, text: str) -> Part:
    return Part(zone, zone, text, len(text) // 4, digest_bytes(text.encode()))


@pytest.fixture
def context() -> ContextMaker:
    """Makes a small prompt in three zones; keyword arguments replace fields of the Context."""

    def make(trunk: str = "GOAL: clamp timeouts", leaf: str = "OBSERVED: nothing yet", **fields: Any) -> Context:
        parts = (part("root", "ROOT RULES"), part("trunk", trunk), part("leaf", leaf))
        values: dict[str, Any] = {
            "trajectory_id": "t-1",
            "turn": 3,
            "parts": parts,
            "tools": TOOLS,
            "tokens": sum(p.tokens for p in parts),
            "digest": digest_bytes("".join(p.digest for p in parts).encode()),
        }
        return Context(**(values | fields))

    return make


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No key, endpoint or proxy of whoever runs the tests."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("OPENAI_", "ANTHROPIC_")):
            monkeypatch.delenv(name)
    return monkeypatch
