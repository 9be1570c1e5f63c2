"""The test kit for applications, used as an application's own tests would use it (R061): nothing but public names."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from pathlib import Path

import pytest
from pydantic import BaseModel

from setpoint import App, Context, capability
from setpoint.testing import AppKit, FakeEffector, ImpureStep, Trouble, crash_everywhere

pytest_plugins = ["setpoint.testing.fixtures"]


class Order(BaseModel):
    order_id: str


class State(BaseModel):
    order_id: str
    receipt: str = ""
    answer: dict[str, object] = {}
    paid: str = ""


async def find(ctx: Context, order_id: str):
    return await ctx.services["bank"].probe(ctx.key)


async def reverse(ctx: Context, order_id: str, result: dict[str, object]) -> None:
    await ctx.services["bank"].compensate(ctx.key, result)


@capability(effect="compensable", key=lambda a: f"refund:{a.order_id}", probe=find, compensate=reverse)
async def refund(ctx: Context, order_id: str) -> dict[str, object]:
    return await ctx.services["bank"].perform(ctx.key, {"order_id": order_id})


def shop() -> App:
    app = App("shop")
    (
        app.workflow("refund", input=Order, state=State)
        .approval("yes", by=["ops"], of="refund", expires="1h")
        .capability("refund", refund, into="answer")
        .sleep("cool-down", "2d")
        .wait_for("paid", timeout="7d", into="paid")
    )
    return app


def kit_of(**options: object) -> AppKit:
    return AppKit(shop(), services={"bank": FakeEffector()}, approvers={"anna": ["ops"], "bob": ["sales"]}, **options)


def test_a_whole_story_takes_no_time_of_its_own():
    """R060, R061: timers are skipped, approvals signed, signals sent."""

    async def story() -> None:
        kit = kit_of()
        began = time.monotonic()
        outcome = await kit.run("refund", {"order_id": "A-1"})
        assert outcome.exit_code == 13
        assert [ticket.capability for ticket in kit.tickets(outcome.run_id)] == ["refund"]
        kit.approve(outcome.run_id, by="anna")
        outcome = await kit.go_on(outcome.run_id)
        assert outcome.is_waiting
        kit.restart()
        await kit.skip("2d")
        assert kit.signal(outcome.run_id, "paid", "today")
        await kit.skip("1ms")
        outcome = await kit.go_on(outcome.run_id)
        assert (outcome.exit_code, outcome.output["paid"]) == (0, "today")
        assert time.monotonic() - began < 30

    asyncio.run(story())


def test_somebody_without_the_role_does_not_approve():
    async def story() -> None:
        kit = kit_of()
        outcome = await kit.run("refund", {"order_id": "A-1"})
        kit.approve(outcome.run_id, by="bob")
        outcome = await kit.go_on(outcome.run_id)
        assert outcome.record.open_tickets
        assert not kit.services["bank"].effects

    asyncio.run(story())


def test_a_death_at_every_event_changes_nothing():
    """R061, A1: the crash-everywhere harness is public, and an application's own tests need no more."""

    def make() -> AppKit:
        return AppKit(
            shop(),
            services={"bank": FakeEffector(Trouble("timeout_after_effect"))},
            approvers={"anna": ["ops"]},
        )

    async def story(kit: AppKit) -> None:
        run_id = await kit.start("refund", {"order_id": "A-1"}, run_id="rn-story")
        await kit.go_on(run_id)
        if not kit.runs.record(run_id).is_terminal and kit.tickets(run_id):
            kit.approve(run_id, by="anna")
        await kit.go_on(run_id)
        if not kit.runs.record(run_id).is_terminal:
            kit.signal(run_id, "paid", "today", key="paid")
            await kit.skip("2d")

    died_at: list[int] = []

    def check(kit: AppKit, at: int) -> None:
        record = kit.runs.record("rn-story")
        assert record.state == "COMPLETED", (at, record)
        assert len(kit.services["bank"].standing) == 1, at
        died_at.append(at)

    total = asyncio.run(crash_everywhere(make, story, check))
    assert died_at == list(range(total + 1))
    assert total > 10


def test_the_trace_of_a_run_is_the_same_every_time(app_kit):
    """R061: golden traces."""

    async def story(kit: AppKit) -> list[str]:
        outcome = await kit.run("refund", {"order_id": "A-1"})
        kit.deny(outcome.run_id, by="anna", reason="no")
        await kit.go_on(outcome.run_id)
        return kit.trace(outcome.run_id)

    def make() -> AppKit:
        return app_kit(shop(), services={"bank": FakeEffector()}, approvers={"anna": ["ops"]})

    trace = asyncio.run(story(make()))
    assert trace == asyncio.run(story(make()))
    assert trace == [
        "RunStarted",
        "ApprovalRequested node=refund/yes",
        "ApprovalSigned verdict=deny",
        "ApprovalResolved node=refund/yes outcome=denied reason=no",
        "UnwindStarted reason=ApprovalDenied",
        "Finished state=FAILED reason=ApprovalDenied",
    ]


class Number(BaseModel):
    n: float = 0


READS = {
    "a file": lambda s: {"n": len(Path("/etc/hostname").read_text())},
    "a socket": lambda s: {"n": socket.socket().fileno()},
    "chance": lambda s: {"n": random.random()},
    "the clock": lambda s: {"n": time.time()},
}


@pytest.mark.parametrize("what", READS)
def test_a_step_that_looks_outside_its_state_fails_the_test(what: str):
    """R030"""
    app = App("impure")
    app.workflow("look", input=Number, state=Number).step("look", READS[what])
    with pytest.raises(ImpureStep, match="a step"):
        asyncio.run(AppKit(app).run("look", {}))


def test_a_step_may_import_and_compute():
    def compute(state: Number) -> dict[str, float]:
        import colorsys  # read from a file by the interpreter, not by the step

        return {"n": colorsys.rgb_to_hsv(1, 0, 0)[2]}

    app = App("pure")
    app.workflow("compute", input=Number, state=Number).step("compute", compute)
    assert asyncio.run(AppKit(app).run("compute", {})).output == {"n": 1}
