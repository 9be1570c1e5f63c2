"""A run that was killed in doubt leaves its key claimed; a person says what happened, and the key is of use again."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from setpoint import App, Context, IllegalTransition, capability
from setpoint.app.runs import RunOutcome
from setpoint.testing import AppKit, FakeEffector

from .flowkit import played


class Order(BaseModel):
    order: str = "A-1"


class State(BaseModel):
    order: str = "A-1"
    receipt: dict[str, Any] = {}


async def back(ctx: Context, result: dict[str, Any]) -> None:
    await ctx.services["bank"].compensate(ctx.key, result)


@capability(effect="compensable", key=lambda a: f"pay:{a.order}", compensate=back)
async def pay(ctx: Context, order: str) -> dict[str, Any]:
    return await ctx.services["bank"].perform(ctx.key, {"order": order})


async def killed_in_doubt(*troubles: Any) -> tuple[AppKit, str]:
    app = App("shop")
    app.workflow("pay", input=Order, state=State).capability("pay", pay, into="receipt")
    kit = AppKit(app, services={"bank": FakeEffector(*troubles)})
    outcome = await kit.run("pay", {})
    assert outcome.exit_code == 16
    kit.runs.tell(outcome.run_id, "kill", by="ops")
    assert (await kit.go_on(outcome.run_id)).record.reason == "Killed"
    return kit, outcome.run_id


async def again(kit: AppKit) -> RunOutcome:
    return await kit.run("pay", {})


@played
async def test_until_somebody_says_so_another_run_is_told_what_to_do():
    """B5, R138"""
    kit, run_id = await killed_in_doubt("drop")
    outcome = await again(kit)
    assert outcome.record.reason == "EffectConflict"
    assert f"effects settle pay:A-1 --run {run_id}" in outcome.record.message


@played
async def test_what_did_not_happen_gives_its_key_back():
    """B5, R138"""
    kit, run_id = await killed_in_doubt("drop")
    await kit.runs.settle_ended(run_id, "pay:A-1", "not_happened", by="ops", message="not in the ledger")
    assert (await again(kit)).exit_code == 0
    assert kit.services["bank"].effects == {"pay:A-1": 1}
    record = kit.runs.record(run_id)
    assert (record.state, record.reason) == ("CANCELLED", "Killed")
    assert [effect.status for effect in record.effects.values()] == ["declined"]


@played
async def test_what_happened_is_the_result_of_whoever_asks_for_the_same():
    """B5, R138"""
    kit, run_id = await killed_in_doubt("timeout_after_effect")
    await kit.runs.settle_ended(run_id, "pay:A-1", "happened", by="ops", result={"number": 1})
    outcome = await again(kit)
    assert (outcome.exit_code, outcome.output["receipt"]) == (0, {"number": 1})
    assert kit.services["bank"].deliveries == ["pay:A-1"], "nothing was sent again"


@played
async def test_nothing_else_can_be_settled_so():
    kit, run_id = await killed_in_doubt("drop")
    with pytest.raises(IllegalTransition, match="left no effect 'other' in doubt"):
        await kit.runs.settle_ended(run_id, "other", "happened", by="ops")
    await kit.runs.settle_ended(run_id, "pay:A-1", "not_happened", by="ops")
    with pytest.raises(IllegalTransition, match="left no effect"):
        await kit.runs.settle_ended(run_id, "pay:A-1", "not_happened", by="ops")
    kit.services["bank"].trouble("drop")
    waiting = await again(kit)
    with pytest.raises(IllegalTransition, match="goes on"):
        await kit.runs.settle_ended(waiting.run_id, "pay:A-1", "not_happened", by="ops")
