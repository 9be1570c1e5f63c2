"""What an application opens for its capabilities: entered where runs are worked on, left when that ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pydantic import BaseModel

from setpoint import App, Context, Runtime, capability


class Nothing(BaseModel):
    pass


class State(BaseModel):
    said: str = ""


@capability(effect="read")
async def ask(ctx: Context) -> str:
    return ctx.services["oracle"]


def application(seen: list[str]) -> App:
    @asynccontextmanager
    async def services() -> AsyncIterator[dict[str, str]]:
        seen.append("opened")
        try:
            yield {"oracle": "42"}
        finally:
            seen.append("closed")

    app = App("shop", services=services)
    app.workflow("ask", input=Nothing, state=State).capability("ask", ask, into="said")
    return app


def test_services_are_open_as_long_as_the_runtime():
    async def story() -> None:
        seen: list[str] = []
        async with Runtime.open("memory:", application(seen)) as runtime:
            outcome = await runtime.run("ask", {})
            assert (outcome.output, seen) == ({"said": "42"}, ["opened"])
        assert seen == ["opened", "closed"]

    asyncio.run(story())


def test_given_services_stand_in_for_them():
    async def story() -> None:
        seen: list[str] = []
        async with Runtime.open("memory:", application(seen), services={"oracle": "7"}) as runtime:
            assert (await runtime.run("ask", {})).output == {"said": "7"}
        assert seen == []

    asyncio.run(story())


def test_services_that_cannot_be_opened_leave_nothing_open():
    @asynccontextmanager
    async def services() -> AsyncIterator[dict[str, str]]:
        raise ConnectionError("no bank")
        yield {}

    async def story() -> None:
        with pytest.raises(ConnectionError, match="no bank"):
            async with Runtime.open("memory:", App("shop", services=services)):
                pass

    asyncio.run(story())
