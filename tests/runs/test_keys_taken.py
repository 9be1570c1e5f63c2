"""Why a key cannot be used, and what to do: in words, and before people are asked."""

from __future__ import annotations

import pytest

from setpoint import Context, capability
from setpoint.kernel.run_events import ApprovalRequested, EffectReused
from setpoint.testing import Trouble

from .flowkit import In, State, bench, fails, new_app, of_type, pay, played, world


def shop(**options):
    app = new_app()
    app.workflow("pays", input=In, state=State).capability("pay", pay)
    app.workflow("fails", input=In, state=State).capability("pay", pay).step("stop", fails("NoMore"))
    app.workflow("asks", input=In, state=State).approval("ok", of="pay", by=["ops"]).capability("pay", pay)
    from setpoint.app.workflow import approval_terms

    app.workflow("terms", input=In, state=State).capability("pay", pay, approval=approval_terms(by=["ops"]))
    return bench(app, approvers={"ann": ["ops"]}, **options)


ORDER = {"order_id": "A-1", "cents": 5}


@pytest.mark.parametrize("flow", ["pays", "asks", "terms"])
@played
async def test_a_key_that_was_taken_back_says_so_and_what_to_do(flow: str):
    kit = shop()
    first = await kit.run("fails", ORDER)
    outcome = await kit.run(flow, ORDER)
    assert (outcome.record.state, outcome.record.reason, outcome.exit_code) == ("FAILED", "EffectConflict", 15)
    assert f"run {first.run_id}, which made it and took it back" in outcome.record.message
    assert "attempt" in outcome.record.message and "nothing was sent" in outcome.record.message
    assert not of_type(kit, outcome.run_id, ApprovalRequested)


@pytest.mark.parametrize("flow", ["pays", "asks", "terms"])
@played
async def test_a_key_that_is_under_way_says_so(flow: str):
    kit = shop()
    world(kit).trouble(Trouble("transient", times=5))
    first = await kit.run("pays", ORDER, patience="1ms")
    outcome = await kit.run(flow, ORDER)
    assert f"run {first.run_id}, which has it under way" in outcome.record.message
    assert outcome.record.reason == "EffectConflict" and not of_type(kit, outcome.run_id, ApprovalRequested)


@played
async def test_a_key_in_doubt_says_so():
    kit = shop()
    app = new_app()

    @capability(effect="irreversible", key=lambda a: f"x:{a.order_id}")
    async def unsure(ctx: Context, order_id: str) -> None:
        raise ConnectionError("cut")

    flow = app.workflow("flow", input=In, state=State)
    flow.approval("ok", of="x", by=["ops"]).capability("x", unsure)
    kit = bench(app, approvers={"ann": ["ops"]})
    first = await kit.run("flow", ORDER)
    kit.approve(first.run_id, by="ann")
    assert (await kit.go_on(first.run_id)).record.unknown
    outcome = await kit.run("flow", ORDER)
    assert f"run {first.run_id}, where nobody knows whether it was made" in outcome.record.message
    assert "effects settle x:A-1" in outcome.record.message


@played
async def test_a_key_with_other_arguments_says_so():
    app = new_app()

    @capability(effect="keyed", key=lambda a: f"x:{a.order_id}")
    async def note(ctx: Context, order_id: str, cents: int) -> None: ...

    app.workflow("flow", input=In, state=State).capability("x", note)
    kit = bench(app)
    first = await kit.run("flow", ORDER)
    outcome = await kit.run("flow", {**ORDER, "cents": 6})
    assert f"run {first.run_id}, which has made it with other arguments" in outcome.record.message


@pytest.mark.parametrize("flow", ["asks", "terms"])
@played
async def test_people_are_not_asked_for_what_was_done_already(flow: str):
    kit = shop()
    await kit.run("pays", ORDER)
    outcome = await kit.run(flow, ORDER)
    assert outcome.record.state == "COMPLETED" and world(kit).standing == {"refund:A-1:5": 1}
    assert of_type(kit, outcome.run_id, EffectReused) and not of_type(kit, outcome.run_id, ApprovalRequested)
