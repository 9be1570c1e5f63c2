"""A workflow of another application as a part, and the program that a start takes."""

from __future__ import annotations

import pytest

from setpoint import App, Runtime
from setpoint.app.workflow import Workflow

from .flowkit import In, State, bench, pay, played, world


@played
async def test_a_run_that_started_a_workflow_of_another_application_is_cancelled_with_it():
    inner = App("other").workflow("inner", input=In, state=State).capability("pay", pay).wait_for("word", timeout="1d")
    app = App("mine")
    app.workflow("flow", input=In, state=State).workflow("child", inner, input=lambda s: {"order_id": s.order_id})
    kit = bench(app)
    outcome = await kit.run("flow", {"order_id": "A"})
    assert outcome.record.children and world(kit).standing
    kit.runs.tell(outcome.run_id, "cancel", by="ann")
    outcome = await kit.go_on(outcome.run_id)
    assert (outcome.record.state, world(kit).standing) == ("CANCELLED", {})


@played
async def test_a_start_takes_the_program_that_was_proved(monkeypatch: pytest.MonkeyPatch):
    app = App("mine")
    flow = app.workflow("flow", input=In, state=State).step("s", lambda s: {"note": "x"})
    stranger = App("other").workflow("flow", input=In, state=State).step("t", lambda s: {"note": "y"})
    async with Runtime.open("memory:", app) as runtime:
        proved = next(iter(runtime.runs.programs.values()))
        assert runtime.runs.program_for(stranger) is not proved  # the same name is not the same workflow
        monkeypatch.setattr(Workflow, "program", property(lambda self: pytest.fail("it was built anew")))
        assert runtime.runs.program_for(flow) is proved
        assert (await runtime.run("flow", {"order_id": "A"})).output["note"] == "x"
