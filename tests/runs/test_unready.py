"""A capability that cannot begin, or whose result nobody can use: the run pauses with a clear word, and goes on."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from setpoint import App, Context, capability
from setpoint.kernel.run_events import EffectDelivered, EffectQueued, EffectUnknown
from setpoint.testing import AppKit

from .flowkit import fails, of_type, played


class In(BaseModel):
    order: str = "A-1"


class State(BaseModel):
    order: str = "A-1"
    said: str = ""


async def look(ctx: Context) -> Any:
    return ctx.services["bank"].get(ctx.key)


async def back(ctx: Context) -> None:
    ctx.services["bank"].clear()


@capability(effect="compensable", key=lambda a: f"pay:{a.order}", probe=look, compensate=back)
async def pay(ctx: Context, order: str) -> str:
    ctx.services["bank"][ctx.key] = order
    return order


@capability(effect="keyed", key=lambda a: f"tell:{a.order}")
async def tell(ctx: Context, order: str) -> str:
    ctx.services["bank"][ctx.key] = order
    return order


@capability(effect="irreversible", key=lambda a: f"burn:{a.order}")
async def burn(ctx: Context, order: str) -> str:
    ctx.services["bank"][ctx.key] = order
    return order


@capability(effect="read")
async def read(ctx: Context) -> str:
    return ctx.services["bank"]["A-1"]


def with_services(kit: AppKit, **services: Any) -> AppKit:
    kit.runs.serve(services)
    return kit


@pytest.mark.parametrize("called", [pay, tell, read])
@played
async def test_a_missing_service_pauses_the_run_before_anything_is_sent_and_it_goes_on_when_it_is_there(called):
    app = App("shop")
    app.workflow("flow", input=In, state=State).capability("call", called, into="said")
    kit = AppKit(app)
    outcome = await kit.run("flow", {})
    record = outcome.record
    assert (record.state, record.reason, outcome.exit_code) == ("PAUSED", "NodeFailed", 11)
    assert "no service 'bank'" in record.message and "services=" in record.message
    assert not record.unknown and not [e for e in of_type(kit, record.run_id, EffectDelivered) if e.status == "done"]
    bank: dict[str, str] = {"A-1": "A-1"}
    with_services(kit, bank=bank)
    kit.runs.tell(record.run_id, "resume", by="ann")
    assert (await kit.go_on(record.run_id)).output["said"] == "A-1"
    assert len(bank) == (1 if called is read else 2)
    assert len(of_type(kit, record.run_id, EffectQueued)) == (0 if called is read else 2)


@played
async def test_a_service_that_is_missed_after_another_was_used_leaves_a_doubt_that_is_settled_on_resume():
    sent: list[str] = []

    @capability(effect="compensable", key=lambda a: f"two:{a.order}", probe=lambda ctx: sent or None, compensate=back)
    async def two(ctx: Context, order: str) -> list[str]:
        ctx.services["first"].append(order)
        return ctx.services["second"]

    app = App("shop")
    app.workflow("flow", input=In, state=State).capability("call", two, into="")
    kit = with_services(AppKit(app), first=sent)
    outcome = await kit.run("flow", {})
    assert outcome.record.state == "PAUSED" and "no service 'second'" in outcome.record.message
    assert not [e for e in of_type(kit, outcome.run_id, EffectDelivered) if e.status == "not_sent"]
    kit.runs.tell(outcome.run_id, "resume", by="ann")
    assert (await kit.go_on(outcome.run_id)).record.state == "COMPLETED"
    assert sent == ["A-1"]


@played
async def test_a_service_that_a_compensator_misses_pauses_the_way_back():
    app = App("shop")
    app.workflow("flow", input=In, state=State).capability("call", pay, into="said").step("stop", fails("NoMore"))
    kit = AppKit(app)
    run_id = await kit.start("flow", {})
    bank: dict[str, str] = {}
    with_services(kit, bank=bank)
    kit.runs.around_step = lambda call: (with_services(kit) if bank else None, call())[1]
    outcome = await kit.go_on(run_id)
    assert (outcome.record.state, outcome.record.reason) == ("PAUSED", "NodeFailed")
    assert "no service 'bank'" in outcome.record.message and not outcome.record.unknown
    kit.runs.around_step = lambda call: call()
    with_services(kit, bank=bank)
    kit.runs.tell(run_id, "resume", by="ann")
    outcome = await kit.go_on(run_id)
    assert (outcome.record.state, outcome.record.reason, bank) == ("FAILED", "NoMore", {})


# Results


class Odd:
    pass


@pytest.mark.parametrize(
    "given", [None, 7, Odd(), float("nan"), "\ud800"], ids=["None", "7", "odd", "nan", "half a surrogate"]
)
@pytest.mark.parametrize("effect", ["keyed", "compensable", "irreversible"])
@played
async def test_an_effect_whose_result_cannot_be_used_is_made_once_and_a_person_gives_the_result(given, effect):
    made: list[str] = []

    @capability(
        effect=effect,
        key=lambda a: f"odd:{a.order}",
        compensate=(lambda ctx: made.clear()) if effect == "compensable" else None,
    )
    async def odd(ctx: Context, order: str) -> str:
        made.append(order)
        return given

    app = App("shop")
    flow = app.workflow("flow", input=In, state=State)
    if effect == "irreversible":
        flow.approval("ask", of="call", by=["ops"])
    flow.capability("call", odd, into="said")
    kit = AppKit(app, approvers={"ann": ["ops"]})
    outcome = await kit.run("flow", {})
    if effect == "irreversible":
        kit.approve(outcome.run_id, by="ann")
        outcome = await kit.go_on(outcome.run_id)
    run_id, record = outcome.run_id, outcome.record
    assert (record.state, record.reason, made) == ("PAUSED", "NodeFailed", ["A-1"])
    assert "was made" in record.message and "effects settle odd:A-1 --happened --result" in record.message
    assert [e.status for e in of_type(kit, run_id, EffectDelivered)] == ["done"]
    assert not of_type(kit, run_id, EffectUnknown)
    kit.runs.tell(run_id, "resume", by="ann")
    outcome = await kit.go_on(run_id)
    assert (outcome.record.state, made) == ("PAUSED", ["A-1"]) and "effects settle" in outcome.record.message
    kit.runs.tell(run_id, "settle", {"key": "odd:A-1", "verdict": "happened", "result": 7}, by="ann")
    assert (await kit.go_on(run_id)).record.state == "PAUSED"  # it does not fit either
    kit.runs.tell(run_id, "settle", {"key": "odd:A-1", "verdict": "happened", "result": "yes"}, by="ann")
    outcome = await kit.go_on(run_id)
    assert (outcome.record.state, outcome.output["said"], made) == ("COMPLETED", "yes", ["A-1"])
    assert outcome.record.effects_made == 1 and len(outcome.record.undo) == (effect == "compensable")


@played
async def test_a_look_whose_result_cannot_be_used_is_a_bug_and_not_tried_again_by_itself():
    looked: list[int] = []

    @capability(effect="read")
    async def odd(ctx: Context) -> str:
        looked.append(1)
        return Odd() if len(looked) == 1 else "yes"  # type: ignore[return-value]

    app = App("shop")
    app.workflow("flow", input=In, state=State).capability("call", odd, into="said")
    kit = AppKit(app)
    outcome = await kit.run("flow", {})
    assert (outcome.record.state, outcome.record.reason, len(looked)) == ("PAUSED", "NodeFailed", 1)
    kit.runs.tell(outcome.run_id, "resume", by="ann")
    assert (await kit.go_on(outcome.run_id)).output["said"] == "yes"


@played
async def test_a_capability_that_promises_no_result_may_give_anything():
    @capability(effect="keyed", key=lambda a: f"none:{a.order}")
    async def silent(ctx: Context, order: str) -> None:
        return Odd()  # type: ignore[return-value]

    app = App("shop")
    app.workflow("flow", input=In, state=State).capability("call", silent)
    assert (await AppKit(app).run("flow", {})).record.state == "COMPLETED"
