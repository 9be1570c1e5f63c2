"""pytest fixtures: ``pytest_plugins = ["setpoint.testing.fixtures"]`` in a conftest.py.

Nothing is loaded into a test session that does not ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from setpoint.testing.apps import AppKit
from setpoint.testing.clock import FakeClock


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that moves only when told to, at 2026-01-01T00:00:00Z."""
    return FakeClock()


@pytest.fixture
def app_kit(fake_clock: FakeClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., AppKit]]:
    """A maker of kits on ``fake_clock``: ``kit = app_kit(app, services=..., approvers=...)``."""

    def make(*arguments: object, **options: object) -> AppKit:
        options.setdefault("clock", fake_clock)
        return AppKit(*arguments, **options)  # type: ignore[arg-type]

    yield make
