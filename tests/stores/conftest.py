"""Every store of the conformance suite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.adapters.stores import open_log

from .words import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/state/log.db"


@pytest.fixture
def run(url: str, clock: Clock) -> Iterator[Callable[[Callable[[Any], Coroutine[Any, Any, Any]]], Any]]:
    """Runs ``async body(log)`` against a fresh store and closes it."""

    def run_body(body: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def whole() -> Any:
            log = open_log(url, clock)
            try:
                return await body(log)
            finally:
                await log.close()

        return asyncio.run(whole())

    yield run_body
