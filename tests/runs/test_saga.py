"""What a run did is taken back: all of it, last first, once each, whatever happens on the way; or a person is asked."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any

import pytest

from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.capability import Context, capability
from setpoint.kernel.errors import DuplicateEffect, StoreFault
from setpoint.kernel.retry import RetryPolicy
from setpoint.testing import Crash, CrashingLog, FakeClock, FakeEffector, Trouble

from .harness import RUN, Order, Stage, State, chain, effect, shop

NO = Trouble("permanent", 1000)
NAMES = ("one", "two", "three", "four")


def saga(**troubles: Any) -> tuple[dict[str, FakeEffector], list[str], Stage]:
    """Four effects; ``order`` is the sequence in which their ways back were asked for."""
    worlds = {name: FakeEffector(*troubles.get(name, ())) for name in NAMES}
    order: list[str] = []

    def noting(name: str) -> Any:
        called = effect(name, worlds[name])
        inner = called._compensate
        assert inner is not None

        async def back(ctx: Context, result: dict[str, Any]) -> Any:
            order.append(ctx.key)
            return await inner(ctx, result)

        return dataclasses.replace(called, _compensate=back)

    app, flow = chain(*((name, noting(name)) for name in NAMES))
    return worlds, order, Stage(flow, app=app)


def test_three_effects_and_a_no_to_the_fourth_are_taken_back_last_first_once_each():
    """R190"""

    async def body() -> None:
        worlds, order, stage = saga(four=[NO])
        outcome = await stage.run()
        assert (outcome.record.state, outcome.record.reason, outcome.exit_code) == ("FAILED", "Declined", 11)
        assert order == ["undo:three:A-1", "undo:two:A-1", "undo:one:A-1"]
        assert [fact.node for fact in stage.facts("Compensated")] == ["flow/three", "flow/two", "flow/one"]
        assert all(world.standing == {} for world in worlds.values())
        queued = [fact for fact in stage.facts("EffectQueued") if not fact.compensates]
        assert [fact.compensator for fact in queued] == list(NAMES)  # bound before it was sent (R191)

    asyncio.run(body())


def test_an_unwinding_that_dies_after_each_of_its_events_takes_back_each_effect_once():
    """R191"""
    for events in range(15, 29):

        async def body(events: int = events) -> None:
            worlds, _, stage = saga(four=[NO])
            log = stage.log
            stage.log = CrashingLog(log, events)
            stage.reopened()
            try:
                await stage.run()
            except Crash:
                stage.log = log
                stage.reopened()
            outcome = await stage.run()
            assert (outcome.record.state, outcome.record.reason) == ("FAILED", "Declined")
            assert [fact.node for fact in stage.facts("Compensated")] == ["flow/three", "flow/two", "flow/one"]
            for world in worlds.values():
                assert world.standing == {} and all(count == 1 for count in world.effects.values())

        asyncio.run(body())


@pytest.mark.parametrize("way", ["happened", "not_happened", "resume"])
def test_an_effect_that_cannot_be_taken_back_stops_the_unwinding_until_a_person_has_seen_to_it(way: str):
    """R191: a compensator fails for good."""

    async def body() -> None:
        worlds, order, stage = saga(two=["none", NO], four=[NO])
        outcome = await stage.run()
        assert (outcome.record.state, outcome.record.reason, outcome.exit_code) == ("PAUSED", "CompensationFailed", 16)
        assert order == ["undo:three:A-1", "undo:two:A-1"] and worlds["one"].standing == {"one:A-1": 1}
        stage.reopened()
        assert (await stage.go()).record.state == "PAUSED" and len(order) == 2  # nothing happens by itself
        worlds["two"]._troubles.clear()
        if way == "resume":
            outcome = await stage.told("resume")
        else:
            outcome = await stage.told("settle", {"key": "undo:two:A-1", "verdict": way})
        assert (outcome.record.state, outcome.record.reason) == ("FAILED", "Declined")
        assert outcome.record.message.startswith("flow/four: four:A-1: declined; taken back: ")
        assert worlds["one"].standing == {} and order[-1] == "undo:one:A-1"
        assert worlds["two"].standing == ({"two:A-1": 1} if way == "happened" else {})

    asyncio.run(body())


def test_a_compensator_that_is_out_of_reach_is_tried_again_by_a_timer():
    """R190 R130"""

    async def body() -> None:
        worlds, order, stage = saga(two=["none", Trouble("rate_limited", 1, 9_000), "timeout_after_effect"], four=[NO])
        began = stage.clock.now_ms()
        assert (await stage.run()).record.state == "FAILED"
        assert stage.clock.now_ms() - began >= 9_000
        assert order.count("undo:two:A-1") == 3 and worlds["two"].effects["undo:two:A-1"] == 1

    asyncio.run(body())


def test_a_way_back_that_is_told_after_a_doubt_sends_no_other_key():
    """R191: its own key, derived from the effect's."""

    async def body() -> None:
        worlds, _, stage = saga(four=[NO])
        await stage.run()
        assert worlds["one"].deliveries == ["one:A-1", "undo:one:A-1"]
        assert stage.log.claimant("one:undo:one:A-1") == RUN

    asyncio.run(body())


# Pivots


def _pivoted(*troubles: Any) -> tuple[dict[str, FakeEffector], Stage]:
    worlds = {name: FakeEffector() for name in NAMES}
    worlds["three"].trouble(*troubles)
    app, flow = chain(
        ("one", effect("one", worlds["one"])),
        ("two", effect("two", worlds["two"], of="irreversible")),
        ("three", effect("three", worlds["three"], of="keyed")),
    )
    return worlds, Stage(flow, app=app)


def test_behind_a_pivot_a_failure_asks_a_person_and_takes_nothing_back():
    """R192"""

    async def body() -> None:
        worlds, stage = _pivoted(Trouble("permanent"))
        outcome = await stage.run()
        assert (outcome.record.state, outcome.record.reason, outcome.exit_code) == ("PAUSED", "AfterPivot", 13)
        assert "flow/two cannot be taken back" in outcome.record.message
        assert worlds["one"].effects == {"one:A-1": 1}
        outcome = await stage.told("resume")  # forward: the declined call is asked again
        assert outcome.record.state == "COMPLETED" and worlds["three"].effects == {"three:A-1": 1}

    asyncio.run(body())


def test_a_cancel_behind_a_pivot_takes_nothing_back_but_leaves_no_doubt_behind():
    """R192 L6"""

    async def body() -> None:
        worlds, stage = _pivoted("drop")
        await stage.start()
        assert (await stage.go(patience_ms=0)).is_waiting and stage.runs.record(RUN).pivot == "flow/two"
        outcome = await stage.told("cancel")
        assert (outcome.record.state, outcome.exit_code) == ("CANCELLED", 11)
        assert "flow/two stands" in outcome.record.message
        assert worlds["one"].standing == {"one:A-1": 1} and not stage.facts("Compensated")
        assert not [e for e in outcome.record.effects.values() if e.status in ("queued", "pending", "unknown")]

    asyncio.run(body())


def test_what_was_made_behind_a_pivot_stays_with_it():
    """R192: the stack is retired; a half taken back would be neither here nor there."""

    async def body() -> None:
        worlds = {name: FakeEffector() for name in ("one", "two", "three")}
        app, flow = chain(
            ("one", effect("one", worlds["one"])),
            ("two", effect("two", worlds["two"], of="irreversible")),
            ("three", effect("three", worlds["three"])),
        )
        stage = Stage(flow.wait_for("go", timeout="9d"), app=app)
        await stage.start()
        assert (await stage.go(patience_ms=0)).is_waiting
        assert (await stage.told("cancel")).record.state == "CANCELLED"
        assert [world.standing for world in worlds.values()] == [{"one:A-1": 1}, {"two:A-1": 1}, {"three:A-1": 1}]

    asyncio.run(body())


def test_a_pivot_in_doubt_is_settled_before_anything_is_taken_back():
    """R192 L6"""

    async def body() -> None:
        worlds, stage = _pivoted()
        worlds["two"].trouble("late")
        await stage.start()
        assert (await stage.go(patience_ms=0)).is_waiting
        worlds["two"].deliver_late()
        outcome = await stage.told("cancel")
        assert outcome.record.state == "CANCELLED" and outcome.record.pivot == "flow/two"
        assert worlds["one"].standing == {"one:A-1": 1}  # what it rests on stays, too

    asyncio.run(body())


# Branches


def test_a_no_in_one_branch_waits_for_the_doubt_in_the_other():
    """R190 L6"""

    async def body() -> None:
        worlds = {"one": FakeEffector("late"), "two": FakeEffector(NO)}
        app = shop()
        parts = {
            name: app.fragment(f"f-{name}", state=State).capability(name, effect(name, worlds[name]), into=name)
            for name in worlds
        }
        flow = app.workflow("flow", input=Order, state=State).parallel("both", parts)
        stage = Stage(flow, app=app)
        await stage.start()
        outcome = await stage.go(patience_ms=0)
        assert outcome.record.state == "UNWINDING" and worlds["one"].effects == {}
        worlds["one"].deliver_late()
        outcome = await stage.go()
        assert (outcome.record.state, outcome.record.reason) == ("FAILED", "Declined")
        assert worlds["one"].effects == {"one:A-1": 1, "undo:one:A-1": 1}

    asyncio.run(body())


def test_the_rounds_of_a_map_are_taken_back_in_the_reverse_order_of_their_making():
    """R190"""

    async def body() -> None:
        world, no = FakeEffector(), FakeEffector(NO)
        app = shop()
        charge = effect("one", world)
        round = app.fragment("body", state=State).capability(
            "charge", charge, args=lambda s: {"order": s.item}, into="one"
        )
        flow = app.workflow("flow", input=Order, state=State).step("list", lambda state: {"items": ["a", "b", "c"]})
        flow = flow.map("each", lambda state: state.items, round, item="item", collect="one", into="all", at_once=1)
        flow = flow.capability("four", effect("four", no), into="four")
        assert (await Stage(flow, app=app).run()).record.state == "FAILED"
        assert world.deliveries == ["one:a", "one:b", "one:c", "undo:one:c", "undo:one:b", "undo:one:a"]

    asyncio.run(body())


# Children


def family(**troubles: Any) -> tuple[dict[str, FakeEffector], Stage]:
    """one; then a child with two and three; then four."""
    worlds = {name: FakeEffector(*troubles.get(name, ())) for name in NAMES}
    app = shop()
    calls = {name: effect(name, world) for name, world in worlds.items()}
    child = app.workflow("child", input=Order, state=State)
    child = child.capability("two", calls["two"], into="two").capability("three", calls["three"], into="three")
    flow = app.workflow("flow", input=Order, state=State).capability("one", calls["one"], into="one")
    flow = flow.workflow("sub", child, input=lambda state: {"order": state.order})
    flow = flow.capability("four", calls["four"], into="four")
    single = app.workflow("single", input=Order, state=State).capability("two", calls["two"], into="two")
    return worlds, Stage(flow, child, single, app=app)


def test_what_a_child_made_is_taken_back_when_its_parent_fails_behind_it():
    """R190: two and three stand in a run that has completed, and the whole is not kept."""

    async def body() -> None:
        worlds, stage = family(four=[NO])
        assert (await stage.run()).record.state == "FAILED"
        assert [fact.key for fact in stage.facts("Compensated")] == [
            "undo:three:A-1",
            "undo:two:A-1",
            "undo:one:A-1",
        ]
        assert all(world.standing == {} for world in worlds.values())
        again = await stage.run("single", run_id="rn-2")  # the key that the child still holds
        assert again.record.reason == "EffectConflict" and "took it back" in again.record.message

    asyncio.run(body())


def test_a_child_that_fails_takes_back_its_own_and_then_its_parent_takes_back_the_rest():
    """R190"""

    async def body() -> None:
        worlds, stage = family(three=[NO])
        outcome = await stage.run()
        assert (outcome.record.state, outcome.record.reason) == ("FAILED", "ChildFailed")
        assert all(world.standing == {} for world in worlds.values())
        assert worlds["four"].deliveries == []
        assert [fact.key for fact in stage.facts("Compensated")] == ["undo:one:A-1"]

    asyncio.run(body())


def test_a_pivot_in_a_child_is_a_pivot_of_its_parent():
    """R192"""

    async def body() -> None:
        worlds = {name: FakeEffector() for name in ("one", "two")}
        no = FakeEffector(NO)
        app = shop()
        child = app.workflow("child", input=Order, state=State)
        child = child.capability("two", effect("two", worlds["two"], of="irreversible"), into="two")
        flow = app.workflow("flow", input=Order, state=State).capability(
            "one", effect("one", worlds["one"]), into="one"
        )
        flow = flow.workflow("sub", child, input=lambda state: {"order": state.order})
        flow = flow.capability("four", effect("four", no, of="keyed"), into="four")
        outcome = await Stage(flow, child, app=app).run()
        assert (outcome.record.state, outcome.record.reason) == ("PAUSED", "AfterPivot")
        assert worlds["one"].standing == {"one:A-1": 1}

    asyncio.run(body())


def test_a_cancelled_parent_ends_its_child_first():
    """R190"""

    async def body() -> None:
        worlds, stage = family(three=["late"])
        await stage.start()
        assert (await stage.go(patience_ms=0)).is_waiting
        (child,) = stage.runs.record(RUN).children.values()
        worlds["three"].deliver_late()
        outcome = await stage.told("cancel")
        assert outcome.record.state == "CANCELLED" and stage.runs.record(child).state == "CANCELLED"
        assert all(world.standing == {} for world in worlds.values())
        assert worlds["three"].effects == {"three:A-1": 1, "undo:three:A-1": 1}

    asyncio.run(body())


def test_a_parent_that_died_before_its_child_was_started_can_be_cancelled_and_killed():
    """R051"""

    async def body(action: str) -> None:
        worlds, stage = family()
        log = stage.log
        stage.log = CrashingLog(log, 6)
        stage.reopened()
        with pytest.raises(Crash):
            await stage.run()
        assert stage.types()[-1] == "ChildStarted"
        stage.log = log
        stage.reopened()
        assert [info.stream for info in log.streams("run") if info.seq] == [RUN]  # the child holds no event
        outcome = await stage.told(action)
        assert outcome.record.state == "CANCELLED"
        assert worlds["two"].deliveries == []
        assert worlds["one"].standing == ({} if action == "cancel" else {"one:A-1": 1})

    asyncio.run(body("cancel"))
    asyncio.run(body("kill"))


# Cancel and kill in every state


STATES: dict[str, dict[str, list[Any]]] = {
    "between attempts": {"two": [Trouble("rate_limited", 1, 9_000)]},
    "in doubt": {"two": ["drop"]},
    "in doubt, made": {"two": ["late"]},
    "unwinding": {"two": ["none", Trouble("transient", 1)], "four": [NO]},
    "unwinding, stuck": {"two": ["none", NO], "four": [NO]},
}


@pytest.mark.parametrize("state", STATES)
def test_a_cancel_leaves_nothing_behind(state: str):
    """R190 L6"""

    async def body() -> None:
        worlds, _, stage = saga(**STATES[state])
        await stage.start()
        outcome = await stage.go(patience_ms=0)
        assert outcome.is_waiting
        worlds["two"].deliver_late()
        was = outcome.record.state
        outcome = await stage.told("cancel")
        if state == "unwinding, stuck":
            assert outcome.is_waiting and outcome.exit_code == 16
            worlds["two"]._troubles.clear()
            outcome = await stage.told("resume")
        assert outcome.record.state == ("CANCELLED" if was == "RUNNING" else "FAILED")
        assert outcome.record.end_reason == ("Cancelled" if was == "RUNNING" else "Declined")
        assert all(world.standing == {} for world in worlds.values())
        for world in worlds.values():
            assert all(count == 1 for count in world.effects.values())

    asyncio.run(body())


@pytest.mark.parametrize("state", STATES)
def test_a_kill_ends_the_run_at_once_and_touches_nothing(state: str):
    async def body() -> None:
        worlds, _, stage = saga(**STATES[state])
        await stage.start()
        await stage.go(patience_ms=0)
        before = {name: list(world.deliveries) for name, world in worlds.items()}
        outcome = await stage.told("kill")
        assert (outcome.record.state, outcome.record.reason) == ("CANCELLED", "Killed")
        assert {name: world.deliveries for name, world in worlds.items()} == before

    asyncio.run(body())


def test_a_kill_cuts_off_a_call_and_its_key_stays_taken():
    """L6: nobody knows whether it arrived, so no other run may send it."""

    async def body() -> None:
        started = asyncio.Event()

        @capability(effect="keyed", key=lambda a: f"one:{a.order}")
        async def one(ctx: Context, order: str) -> dict[str, Any]:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

        app, flow = chain(("one", one))
        stage = Stage(flow, app=app)
        await stage.start()
        going = asyncio.create_task(stage.go())
        await started.wait()
        stage.runs.tell(RUN, "kill", by="ann")
        outcome = await going
        assert (outcome.record.state, outcome.record.reason) == ("CANCELLED", "Killed")
        assert stage.log.claimant("one:one:A-1") == RUN
        assert (await stage.run(run_id="rn-2")).record.reason == "EffectConflict"

    asyncio.run(body())


@pytest.mark.parametrize("action", ["cancel", "kill", "pause"])
def test_what_a_person_asked_for_is_done_wherever_the_owner_dies(action: str):
    """R051: 'applied' on record and nothing done would be a cancel that was lost."""
    for events in range(1, 20):

        async def body(events: int = events) -> None:
            worlds, _, stage = saga(two=[Trouble("rate_limited", 1, 9_000)])
            await stage.start()
            await stage.go(patience_ms=0)
            stage.runs.tell(RUN, action, by="ann")
            log = stage.log
            stage.log = CrashingLog(log, events)
            stage.reopened()
            with contextlib.suppress(Crash):
                await stage.go()
            stage.log = log
            stage.reopened()
            outcome = await stage.go()
            assert outcome.record.state == ("PAUSED" if action == "pause" else "CANCELLED"), (events, stage.types())
            assert worlds["one"].standing == ({} if action == "cancel" else {"one:A-1": 1})

        asyncio.run(body())


# The journal


class _Refusing:
    """A store that lets other blocks run before it refuses a claim, or breaks."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.breaks = False

    async def append(self, *arguments: Any, **named: Any) -> Any:
        for _ in range(5):
            await asyncio.sleep(0)
        if self.breaks:
            self.breaks = False
            raise StoreFault("the disk is full", effect="in_doubt")
        return await self._inner.append(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _journal() -> tuple[Any, Any]:
    from setpoint.engine.runs.journal import RunJournal
    from setpoint.kernel.run_record import RunRecord

    log = MemoryLog(FakeClock().now_ms)
    log.create(RUN, "run")
    refusing = _Refusing(log)
    lease = log.claim(RUN, "me", 60_000)
    return refusing, RunJournal(refusing, FakeClock(), lease, log.head(RUN), RunRecord(run_id=RUN))  # type: ignore[arg-type]


def test_what_other_blocks_added_is_not_lost_with_a_refused_append():
    """L3: a record that holds what the log does not would be another run after the next restart."""
    from setpoint.engine.runs.journal import read_run
    from setpoint.kernel.events import Ref
    from setpoint.kernel.run_events import EffectQueued, LateResult, RunStarted

    async def body() -> None:
        log, journal = _journal()
        log.create("rn-2", "run")
        other = log.claim("rn-2", "me", 60_000)
        from setpoint.ports.log import Beside

        await log.append(other, log.head("rn-2"), [], beside=Beside(claims=("k",)))
        some = Ref("sha256:" + "0" * 64, 1)
        await journal.write(
            RunStarted(workflow="flow", version=1, definition=some, definition_digest="d", input=some, values={})
        )
        queued = EffectQueued(
            node="flow/one",
            capability="one",
            effect="keyed",
            key="k",
            claim="k",
            arguments=some,
            arguments_digest="d",
        )
        journal.add(LateResult(key="before", position=1, reason="-"))

        async def beside() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            journal.add(LateResult(key="beside", position=2, reason="-"))
            journal.store("a payload of its own")

        refused, _ = await asyncio.gather(journal.write(queued, claims=("k",)), beside(), return_exceptions=True)
        assert isinstance(refused, DuplicateEffect)
        await journal.flush()
        record, _ = read_run(log, RUN)
        assert record.inbox_position == journal.record.inbox_position == 2 and record.seq == journal.record.seq
        assert record.effects == journal.record.effects == {}

    asyncio.run(body())


def test_after_a_fault_of_the_store_no_block_writes_on():
    """L3: nobody knows what of it is down; whoever takes the run up reads the log."""
    from setpoint.kernel.run_events import LateResult

    async def body() -> None:
        log, journal = _journal()
        log.breaks = True
        with pytest.raises(StoreFault, match="disk is full"):
            await journal.write(LateResult(key="a", position=1, reason="-"))
        with pytest.raises(StoreFault, match="disk is full"):
            await journal.write(LateResult(key="b", position=2, reason="-"))
        assert log.head(RUN).seq == 0

    asyncio.run(body())


def test_a_retry_policy_of_one_attempt_asks_nobody_twice():
    """L7"""

    async def body() -> None:
        world = FakeEffector("transient")
        app, flow = chain(("one", effect("one", world, retry=RetryPolicy(attempts=1))))
        outcome = await Stage(flow, app=app).run()
        assert outcome.record.reason == "AttemptsExhausted" and len(world.deliveries) == 1

    asyncio.run(body())
