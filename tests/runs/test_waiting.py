"""How long ``Runs.wait`` waits."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from setpoint import App
from setpoint.adapters.approvers.roster import Roster
from setpoint.adapters.stores import this_owner
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.runs import Runs
from setpoint.testing import FakeClock


class State(BaseModel):
    order: str


class MovingClock(FakeClock):
    """A clock that moves on between any two looks at it, as every real one may."""

    def now_ms(self) -> int:
        self.advance(1)
        return super().now_ms()


def test_a_run_that_waits_for_a_person_is_not_slept_for() -> None:
    clock = MovingClock()
    app = App("shop")
    workflow = app.workflow("refund", input=State, state=State).approval(
        "agree", by=["ops"], show=lambda state: {"order": state.order}
    )
    runs = Runs(MemoryLog(clock.now_ms), clock, this_owner(), app.check(), Roster([], clock))

    async def scenario() -> int:
        input, state = workflow.begin({"order": "A-1"})
        return (await runs.wait(await runs.start(workflow.program, input, state))).exit_code

    assert asyncio.run(scenario()) == 13
    assert clock.slept == []
