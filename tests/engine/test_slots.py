"""Model slots: held while the model works and at no other time."""

from __future__ import annotations

import asyncio

import pytest

from setpoint.engine.slots import ModelSlots
from setpoint.testing import FakeClock


def test_a_run_that_waits_for_a_tool_leaves_the_only_slot_to_another():
    """R119"""

    async def story() -> list[str]:
        slots = ModelSlots(FakeClock(), 1, 0)
        said: list[str] = []
        tool = asyncio.Event()

        async def first() -> None:
            async with slots.hold("first", 10):
                said.append("first calls")
            await tool.wait()
            async with slots.hold("first", 10):
                said.append("first calls again")

        async def second() -> None:
            async with slots.hold("second", 10):
                said.append("second calls")
            tool.set()

        await asyncio.gather(first(), second())
        return said

    assert asyncio.run(story()) == ["first calls", "second calls", "first calls again"]


@pytest.mark.parametrize("has_its_turn", [False, True])
def test_a_cancelled_call_gives_its_slot_back(has_its_turn: bool):
    async def story() -> None:
        slots = ModelSlots(FakeClock(), 1, 0)
        inside = asyncio.Event()

        async def long() -> None:
            async with slots.hold("long", 10):
                inside.set()
                await asyncio.Event().wait()

        one = asyncio.create_task(long())
        await inside.wait()
        two = asyncio.create_task(long())
        await asyncio.sleep(0)
        (one if has_its_turn else two).cancel()
        await asyncio.sleep(0)
        if not has_its_turn:
            one.cancel()
        else:
            two.cancel()
        await asyncio.gather(one, two, return_exceptions=True)
        async with asyncio.timeout(1), slots.hold("next", 10):
            pass

    asyncio.run(story())


def test_calls_are_paced_under_the_providers_limit():
    """R229"""

    async def story() -> FakeClock:
        clock = FakeClock()
        slots = ModelSlots(clock, 4, 0, tokens_per_minute=1000)
        for _ in range(3):
            async with slots.hold("a", 1000):
                pass
        return clock

    assert asyncio.run(story()).slept == [60_000, 60_000]
