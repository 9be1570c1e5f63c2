"""The end of a run that failed says what was taken back and what stands."""

from __future__ import annotations

import pytest

from .flowkit import In, State, bench, fails, load_order, mark, new_app, pay, played


@played
async def test_the_end_names_what_was_taken_back_and_what_nothing_takes_back():
    app = new_app()
    flow = app.workflow("flow", input=In, state=State)
    flow.capability("order", load_order).capability("pay", pay).capability("mark", mark).step("stop", fails("NoMore"))
    kit = bench(app)
    outcome = await kit.run("flow", {"order_id": "A-1", "cents": 5})
    assert outcome.record.message == (
        "NoMore on purpose; taken back: flow/pay; still stands, since nothing takes it back: flow/mark"
    )


@played
async def test_a_run_that_made_nothing_says_nothing_of_effects():
    app = new_app()
    app.workflow("flow", input=In, state=State).capability("order", load_order).step("stop", fails("NoMore"))
    assert (await bench(app).run("flow", {"order_id": "A-1"})).record.message == "NoMore on purpose"


@played
async def test_what_a_child_made_is_named_too():
    app = new_app()
    inner = app.workflow("inner", input=In, state=State).capability("pay", pay).capability("mark", mark)
    flow = app.workflow("flow", input=In, state=State)
    flow.workflow("child", inner, input=lambda s: {"order_id": s.order_id, "cents": 3}).step("stop", fails("NoMore"))
    outcome = await bench(app).run("flow", {"order_id": "A-1"})
    assert outcome.record.message == (
        "NoMore on purpose; taken back: flow/child>inner/pay; still stands, since nothing takes it back: "
        "flow/child>inner/mark"
    )


@played
async def test_many_effects_are_counted():
    app = new_app()
    body = app.fragment("body", state=State).capability("mark", mark)
    flow = app.workflow("flow", input=In, state=State)
    flow.map("each", lambda s: list(range(20)), body, item="item", at_once=1).step("stop", fails("NoMore"))
    message = (await bench(app).run("flow", {"order_id": "A-1"})).record.message
    assert "flow/each/0/mark, flow/each/1/mark" in message and message.endswith(" and 12 more")


@pytest.mark.parametrize("action", ["cancel", "kill"])
@played
async def test_a_run_that_is_ended_by_a_person_says_it_too(action):
    app = new_app()
    flow = app.workflow("flow", input=In, state=State)
    flow.capability("pay", pay).capability("mark", mark).wait_for("word", timeout="1d")
    kit = bench(app)
    outcome = await kit.run("flow", {"order_id": "A-1"})
    kit.runs.tell(outcome.run_id, action, by="ann")
    message = (await kit.go_on(outcome.run_id)).record.message
    if action == "cancel":
        assert message.endswith("; taken back: flow/pay; still stands, since nothing takes it back: flow/mark")
    else:
        assert message.endswith("nothing was taken back; still stands: flow/pay, flow/mark")
