"""A workflow that starts another: a run of its own, started once, waited for, and ended with its parent."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runs.flowkit import (
    In,
    State,
    add,
    bench,
    done,
    fails,
    mark,
    new_app,
    of_type,
    pay,
    played,
    why,
    world,
)
from tests.runs.test_flow import flow

from setpoint import App
from setpoint.app.workflow import approval_terms
from setpoint.kernel.errors import IllegalTransition
from setpoint.kernel.run_events import ChildStarted, RunStarted
from setpoint.testing import AppKit, Crash, CrashingLog


def family(app: App | None = None, fill: Any = None, **options: Any) -> App:
    app = app or new_app()
    child = app.workflow("child", input=In, state=State, output=lambda s: s.count, **options)
    (fill or (lambda w: w.step("one", add(1)).capability("mark", mark)))(child)
    parent = flow(app).step("a", add(10)).workflow("run", child, input=lambda s: {"order_id": s.order_id}, into="cents")
    parent.step("b", lambda s: {"note": f"got {s.cents}"})
    return app


def child_of(kit: AppKit, run_id: str) -> str:
    [started] = of_type(kit, run_id, ChildStarted)
    return started.run_id


@played
async def test_the_output_of_the_child_goes_into_the_state_of_the_parent() -> None:
    kit = bench(family())
    outcome = await kit.run("w", {"order_id": "A"}, principal="customer:17", tenant="t", scopes=("x",))
    assert outcome.output["note"] == "got 1"
    child = child_of(kit, outcome.run_id)
    assert done(kit, child) == ["child/one", "child/mark"]
    [started] = of_type(kit, child, RunStarted)
    assert (started.parent, started.parent_node) == (outcome.run_id, "w/run")
    assert (started.principal, started.tenant, started.scopes) == ("customer:17", "t", ["x"])
    assert kit.runs.record(outcome.run_id).children == {}


@played
async def test_a_child_that_waits_is_worked_on_by_whoever_comes_and_wakes_its_parent() -> None:
    """R060"""
    kit = bench(family(fill=lambda w: w.wait_for("go", timeout="1d").step("one", add(5))))
    outcome = await kit.run("w", {"order_id": "A"})
    assert outcome.is_waiting
    child = child_of(kit, outcome.run_id)
    kit.restart()
    kit.signal(child, "go")
    await kit.runs.work(until_idle=True)
    assert kit.runs.record(outcome.run_id).state == "COMPLETED"
    assert (await kit.go_on(outcome.run_id)).output["note"] == "got 5"


@pytest.mark.parametrize(
    ("fill", "state", "reason"),
    [
        (lambda w: w.step("no", fails("NoStock")), "FAILED", "NoStock"),
        (
            lambda w: w.branch("b", lambda s: "?", {"x": new_app().fragment("f", state=State).step("s", add(1))}),
            "FAILED",
            "UnknownLabel",
        ),
    ],
)
@played
async def test_a_child_that_fails_fails_its_parent_which_is_taken_back(fill: Any, state: str, reason: str) -> None:
    app = new_app()
    child = app.workflow("child", input=In, state=State)
    fill(child)
    flow(app).capability("pay", pay).workflow("run", child, input=lambda s: {"order_id": s.order_id})
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert why(outcome)[:2] == ("FAILED", "ChildFailed")
    assert f"of child ended {state} ({reason}): " in outcome.record.message
    assert world(kit).standing == {}


@pytest.mark.parametrize(
    "given",
    [lambda s: {}, lambda s: None, lambda s: {"order_id": 7}, lambda s: s.order.id],
)
@played
async def test_an_input_that_does_not_fit_the_child_starts_none(given: Any) -> None:
    """R028"""
    app = new_app()
    child = app.workflow("child", input=In, state=State).step("one", add(1))
    flow(app).workflow("run", child, input=given)
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert why(outcome)[:2] == ("PAUSED", "NodeFailed")
    assert "the input of w/run raised " in outcome.record.message
    assert kit.run_ids() == [outcome.run_id]


@played
async def test_a_first_state_that_cannot_be_made_starts_no_child() -> None:
    app = new_app()
    child = app.workflow("child", input=In, state=State, initial=lambda given: 1 / 0).step("one", add(1))  # type: ignore[arg-type, return-value]
    flow(app).workflow("run", child, input=lambda s: {"order_id": "x"})
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert "the first state of w/run raised ZeroDivisionError" in outcome.record.message
    assert kit.run_ids() == [outcome.run_id]


@played
async def test_an_output_that_does_not_fit_the_parent_pauses_it_and_the_child_is_not_run_again() -> None:
    app = new_app()
    child = app.workflow("child", input=In, state=State, output=lambda s: "words").capability("mark", mark)
    flow(app).workflow("run", child, input=lambda s: {"order_id": "x"}, into="cents")
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert "the result of w/run raised ValidationError" in outcome.record.message
    kit.runs.tell(outcome.run_id, "resume", by="anna")
    await kit.go_on(outcome.run_id)
    assert len(kit.run_ids()) == 2
    assert len(world(kit).ledger) == 1


@played
async def test_a_crash_anywhere_starts_the_child_once() -> None:
    """R051, A1"""
    whole = bench(family())
    outcome = await whole.run("w", {"order_id": "A"}, run_id="parent")
    events = sum(whole.log.head(run_id).seq for run_id in whole.run_ids())
    for at in range(1, events + 1):
        kit = bench(family())
        inner = kit.log
        kit.restart(CrashingLog(inner, at))  # type: ignore[arg-type]
        try:
            await kit.run("w", {"order_id": "A"}, run_id="parent")
        except Crash:
            kit.restart(inner)
            await kit.run("w", {"order_id": "A"}, run_id="parent")
            await kit.runs.work(until_idle=True)
        assert kit.runs.record("parent").state == "COMPLETED", at
        assert len(kit.run_ids()) == 2
        assert len(world(kit).standing) == 1
        assert set(world(kit).effects) == set(world(whole).effects)
    assert outcome.record.state == "COMPLETED"


def tree(depth: int) -> App:
    """A chain of runs, the last of which waits behind a payment."""
    app = new_app()
    below = app.workflow("leaf", input=In, state=State).capability("pay", pay).wait_for("go", timeout="9d")
    for number in range(depth):
        node = app.workflow(f"n{number}", input=In, state=State)
        below = node.workflow("run", below, input=lambda s: {"order_id": s.order_id})
    flow(app).workflow("run", below, input=lambda s: {"order_id": s.order_id})
    return app


@pytest.mark.parametrize(("action", "standing"), [("cancel", {}), ("kill", {"refund:A:0": 1})])
@played
async def test_a_cancel_or_a_kill_reaches_every_run_below(action: str, standing: dict[str, int]) -> None:
    """R231, R226"""
    kit = bench(tree(3))
    outcome = await kit.run("w", {"order_id": "A"})
    assert len(kit.run_ids()) == 5
    kit.restart()
    kit.runs.tell(outcome.run_id, action, by="anna")
    await kit.runs.work(until_idle=True)
    states = {run_id: kit.runs.record(run_id).state for run_id in kit.run_ids()}
    assert set(states.values()) == {"CANCELLED"}, states
    assert world(kit).standing == standing
    assert kit.log.next_wake("run") is None


@played
async def test_a_cancel_between_the_intent_to_start_a_child_and_its_start_waits_for_nobody() -> None:
    """R231"""
    kit = bench(tree(0))
    run_id = await kit.start("w", {"order_id": "A"})
    inner = kit.log
    kit.restart(CrashingLog(inner, 2))  # type: ignore[arg-type]  # LeaseClaimed and ChildStarted
    with pytest.raises(Crash):
        await kit.go_on(run_id)
    kit.restart(inner)
    assert kit.run_ids() == [run_id]
    kit.runs.tell(run_id, "cancel", by="anna")
    outcome = await kit.go_on(run_id)
    assert outcome.record.state == "CANCELLED"
    assert kit.run_ids() == [run_id]


@played
async def test_a_child_that_a_person_cancels_ends_its_parent_and_nobody_is_told_twice() -> None:
    kit = bench(tree(1))
    outcome = await kit.run("w", {"order_id": "A"})
    leaf = kit.run_ids()[0]
    assert kit.runs.record(leaf).workflow == "leaf"
    kit.runs.tell(leaf, "cancel", by="anna")
    await kit.runs.work(until_idle=True)
    outcome = await kit.go_on(outcome.run_id)
    assert why(outcome)[:2] == ("FAILED", "ChildFailed")
    assert world(kit).standing == {}
    with pytest.raises(IllegalTransition):
        kit.runs.tell(leaf, "cancel", by="anna")


@played
async def test_children_in_every_round_of_a_map_are_runs_of_their_own() -> None:
    app = new_app()
    child = app.workflow("child", input=In, state=State, output=lambda s: s.cents + 1).step("one", add(1))
    body = app.fragment("body", state=State).workflow(
        "run", child, input=lambda s: {"order_id": "x", "cents": s.item}, into="count"
    )
    flow(app).map("m", lambda s: [5, 6, 7], body, item="item", collect="count", into="doubled", at_once=2)
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert outcome.output["doubled"] == [6, 7, 8]
    assert len(kit.run_ids()) == 4


@played
async def test_an_approval_in_a_child_is_asked_there_and_the_parent_waits() -> None:
    kit = bench(
        family(fill=lambda w: w.capability("pay", pay, approval=approval_terms(by=["ops"])).step("one", add(3))),
        approvers={"anna": ["ops"]},
    )
    outcome = await kit.run("w", {"order_id": "A"})
    child = child_of(kit, outcome.run_id)
    assert kit.tickets(outcome.run_id) == []
    assert world(kit).deliveries == []
    kit.restart()
    kit.approve(child, by="anna")
    await kit.runs.work(until_idle=True)
    assert (await kit.go_on(outcome.run_id)).output["note"] == "got 3"
