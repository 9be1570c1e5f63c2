from __future__ import annotations

import os

import pytest

from setpoint.testing.conformance.proposer import ContextMaker, small_context


@pytest.fixture
def context() -> ContextMaker:
    """Makes a small prompt in three zones; keyword arguments replace fields of the Context."""
    return small_context


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No key, endpoint or proxy of whoever runs the tests."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("OPENAI_", "ANTHROPIC_")):
            monkeypatch.delenv(name)
    return monkeypatch
