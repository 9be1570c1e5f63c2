"""Effects of runs: one for a key, whoever asks, however often it is sent; the health, rate and rights of calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from setpoint.adapters.stores import open_log
from setpoint.app.capability import Context, capability
from setpoint.kernel.effects import EffectDeclined, EffectNotSent
from setpoint.kernel.retry import RatePolicy, RetryPolicy
from setpoint.ports.log import Statement
from setpoint.testing import Crash, CrashingLog, FakeClock, FakeEffector, Trouble

from .harness import QUICK, RUN, Order, Stage, State, chain, effect, every_crash, shop


def one_effect(world: FakeEffector, **declared: Any) -> Stage:
    app, flow = chain(("one", effect("one", world, **declared)))
    return Stage(flow, app=app)


# One key


def test_a_second_run_with_the_same_key_reuses_the_first_ones_result():
    """R138 B4"""

    async def body() -> None:
        world = FakeEffector()
        stage = one_effect(world)
        first = await stage.run(run_id="rn-1")
        second = await stage.run(run_id="rn-2")
        assert first.output == second.output and second.exit_code == 0
        assert world.deliveries == ["one:A-1"]
        assert stage.types("rn-2").count("EffectReused") == 1 and "EffectQueued" not in stage.types("rn-2")

    asyncio.run(body())


def test_the_same_key_with_other_arguments_is_a_conflict_and_nothing_is_sent():
    """R138 R058"""

    async def body() -> None:
        world = FakeEffector()
        stage = one_effect(world, key=lambda arguments: "one key for all")
        assert (await stage.run(order="A-1", run_id="rn-1")).exit_code == 0
        second = await stage.run(order="A-2", run_id="rn-2")
        assert (second.record.state, second.record.reason, second.exit_code) == ("FAILED", "EffectConflict", 15)
        assert "with other arguments" in second.record.message and "rn-1" in second.record.message
        assert len(world.ledger) == 1

    asyncio.run(body())


def test_the_same_key_after_it_was_taken_back_is_a_conflict():
    """R138 R190"""

    async def body() -> None:
        worlds = [FakeEffector(), FakeEffector(Trouble("permanent", 9))]
        app = shop()
        one, four = effect("one", worlds[0]), effect("four", worlds[1])
        _, failing = chain(("one", one), ("four", four), app=app)
        _, single = chain(("one", one), name="single", app=app)
        stage = Stage(failing, single, app=app)
        assert (await stage.run(run_id="rn-1")).record.state == "FAILED"
        assert worlds[0].standing == {}
        second = await stage.run("single", run_id="rn-2")
        assert second.record.reason == "EffectConflict" and "took it back" in second.record.message
        assert worlds[0].effects == {"one:A-1": 1, "undo:one:A-1": 1}

    asyncio.run(body())


def test_a_declined_key_is_free_for_the_next_run():
    async def body() -> None:
        world = FakeEffector("permanent")
        stage = one_effect(world)
        assert (await stage.run(run_id="rn-1")).record.reason == "Declined"
        assert (await stage.run(run_id="rn-2")).record.state == "COMPLETED"
        assert world.effects == {"one:A-1": 1}

    asyncio.run(body())


def test_two_nodes_of_one_run_with_one_key_make_one_effect():
    """R053: the store sees one stream; the run itself keeps the key to one node."""

    async def body() -> None:
        world = FakeEffector()
        same = effect("one", world)
        app, flow = chain(("one", same), ("two", same))
        stage = Stage(flow, app=app)
        outcome = await stage.run()
        assert outcome.output["one"] == outcome.output["two"]
        assert world.effects == {"one:A-1": 1}
        assert stage.types().count("EffectReused") == 1

    asyncio.run(body())


@pytest.mark.parametrize("troubles", [(), ("timeout_after_effect",), ("drop",), ("transient",)])
def test_branches_beside_each_other_with_one_key_make_one_effect(troubles: Any, tmp_path: Any):
    """R053 R058"""

    def make() -> tuple[FakeEffector, Stage]:
        world = FakeEffector(*troubles)
        same = effect("one", world)
        app = shop()
        parts = {name: app.fragment(name, state=State).capability(name, same, into="one") for name in ("left", "right")}
        flow = app.workflow("flow", input=Order, state=State).parallel("both", parts)
        clock = FakeClock()
        return world, Stage(flow, app=app, log=open_log(f"sqlite:///{tmp_path}/log.db", clock.now_ms), clock=clock)

    async def body() -> None:
        world, stage = make()
        try:
            outcome = await stage.run()
            assert outcome.record.state == "COMPLETED", outcome.record
            assert world.effects == {"one:A-1": 1}
        finally:
            await stage.log.close()

    asyncio.run(body())


def test_the_key_of_an_effect_without_one_is_the_same_in_every_process_and_another_in_every_run():
    """R132"""

    async def body() -> None:
        keys = []
        for run_id in ("rn-1", "rn-1", "rn-2"):
            world = FakeEffector()
            await one_effect(world, key=None).run(run_id=run_id)
            keys += world.deliveries
        assert keys[0] == keys[1] != keys[2]

    asyncio.run(body())


def test_an_author_whose_key_cannot_be_told_pauses_the_run_and_sends_nothing():
    async def body() -> None:
        world = FakeEffector()
        stage = one_effect(world, key=lambda arguments: arguments.nothing)
        outcome = await stage.run()
        assert (outcome.record.state, outcome.exit_code) == ("PAUSED", 11)
        assert "the key of flow/one raised" in outcome.record.message
        assert world.deliveries == []

    asyncio.run(body())


# Rights and conditions


def test_a_missing_scope_refuses_the_call_before_anything_is_sent():
    """L8"""

    async def body() -> None:
        world = FakeEffector()
        stage = one_effect(world, scopes=["refunds:write"])
        refused = await stage.run(run_id="rn-1", scopes=("refunds:read",), principal="bob")
        assert (refused.record.reason, refused.exit_code) == ("Forbidden", 12)
        assert "refunds:write" in refused.record.message and "bob" in refused.record.message
        assert world.deliveries == []
        assert (await stage.run(run_id="rn-2", scopes=("refunds:write",))).exit_code == 0

    asyncio.run(body())


def test_an_unmet_precondition_refuses_the_call_and_takes_back_what_was_made():
    async def body() -> None:
        worlds = [FakeEffector(), FakeEffector()]
        app, flow = chain(("one", effect("one", worlds[0])))
        flow.capability("two", effect("two", worlds[1]), into="two", require=lambda state: state.count > 0)
        outcome = await Stage(flow, app=app).run()
        assert (outcome.record.reason, outcome.exit_code) == ("PreconditionUnmet", 12)
        assert worlds[0].standing == {} and worlds[0].effects["undo:one:A-1"] == 1
        assert worlds[1].deliveries == []

    asyncio.run(body())


# When to send again


def test_a_rate_limit_waits_as_long_as_it_was_asked_to():
    """R130 R131"""

    async def body() -> None:
        world = FakeEffector(Trouble("rate_limited", 2, 7_000))
        stage = one_effect(world)
        began = stage.clock.now_ms()
        outcome = await stage.run()
        assert outcome.record.state == "COMPLETED" and world.effects == {"one:A-1": 1}
        assert stage.clock.now_ms() - began >= 14_000
        assert [fact.kind for fact in stage.facts("NodeFailed")] == ["rate_limited"] * 2

    asyncio.run(body())


def test_a_rate_limit_is_kept_by_who_takes_the_run_up_after_a_crash():
    """R130"""

    async def body() -> None:
        world = FakeEffector(Trouble("rate_limited", 1, 50_000))
        stage = one_effect(world)
        await stage.start()
        assert (await stage.go(patience_ms=0)).is_waiting
        stage.reopened()
        assert (await stage.go(patience_ms=0)).is_waiting and len(world.deliveries) == 1
        stage.clock.advance(50_000)
        assert (await stage.go()).record.state == "COMPLETED"

    asyncio.run(body())


def test_attempts_are_bounded_and_counted_over_restarts():
    """L7"""

    async def body() -> None:
        world = FakeEffector(Trouble("transient", 1000))
        stage = one_effect(world)
        await stage.start()
        for _ in range(20):
            outcome = await stage.go(patience_ms=0)
            if outcome.record.is_terminal:
                break
            stage.reopened()
            stage.clock.advance(10_000)
        assert outcome.record.reason == "AttemptsExhausted" and len(world.deliveries) == QUICK.attempts
        assert stage.log.claimant("one:one:A-1") is None  # it surely was not made

    asyncio.run(body())


def test_attempts_that_all_came_to_nothing_by_the_probe_are_bounded_too():
    """L7: each was looked for, found missing for certain, and sent again; not for ever."""

    async def body() -> None:
        world = FakeEffector(Trouble("drop", 1000))
        stage = one_effect(world)
        outcome = await stage.run()
        assert outcome.record.reason == "AttemptsExhausted" and len(world.deliveries) == QUICK.attempts

    asyncio.run(body())


def test_a_rate_is_kept_by_all_runs_together():
    async def body() -> None:
        times: list[int] = []
        clock = FakeClock()

        @capability(effect="read", rate=RatePolicy(2, 10_000))
        async def look(ctx: Context, order: str) -> str:
            times.append(clock.now_ms())
            return order

        app = shop()
        flow = app.workflow("flow", input=Order, state=State).capability("look", look, into="seen")
        stage = Stage(flow, app=app, clock=clock)
        for n in range(5):
            assert (await stage.run(run_id=f"rn-{n}")).exit_code == 0
        assert all(later - earlier >= 10_000 for earlier, later in zip(times, times[2:], strict=False))

    asyncio.run(body())


# Health


def _outage(world_is_up: list[bool], clock: FakeClock) -> tuple[list[str], Stage]:
    calls: list[str] = []

    @capability(effect="read", dependency="ledger", retry=RetryPolicy(attempts=1))
    async def look(ctx: Context, order: str) -> str:
        calls.append(order)
        if not world_is_up[0]:
            raise EffectNotSent("connection refused")
        return order

    app = shop()
    flow = app.workflow("flow", input=Order, state=State).capability("look", look, into="seen")
    return calls, Stage(flow, app=app, clock=clock)


def test_an_outage_opens_the_breaker_for_every_wording_and_half_opens_for_one():
    """R195"""

    async def body() -> None:
        up = [False]
        clock = FakeClock()
        calls, stage = _outage(up, clock)
        for n in range(5):
            assert (await stage.run(order=f"A-{n}", run_id=f"rn-{n}")).record.reason == "AttemptsExhausted"
        assert len(calls) == 5
        await stage.start(order="other words", run_id="rn-5")
        waits = await stage.go("rn-5", patience_ms=0)
        assert len(calls) == 5 and waits.is_waiting  # nothing was sent
        (refused,) = stage.facts("NodeFailed", "rn-5")
        assert refused.kind == "circuit_open" and "ERR_CIRCUIT_OPEN" in refused.message
        clock.advance(30_000)
        up[0] = True
        await stage.start(order="A-6", run_id="rn-6")
        assert (await stage.go("rn-5")).record.state == "COMPLETED"  # the probe of the half-open breaker
        assert (await stage.go("rn-6")).record.state == "COMPLETED"
        assert calls[5:] == ["other words", "A-6"]

    asyncio.run(body())


def test_waiting_for_a_breaker_uses_up_no_attempt():
    """R195"""

    async def body() -> None:
        up = [False]
        clock = FakeClock()
        _, stage = _outage(up, clock)
        for n in range(5):
            await stage.run(order=f"A-{n}", run_id=f"rn-{n}")
        await stage.start(run_id="rn-9")
        for _ in range(4):
            assert (await stage.go("rn-9", patience_ms=0)).is_waiting
            clock.advance(5_000)
        up[0] = True
        assert (await stage.go("rn-9")).record.state == "COMPLETED"

    asyncio.run(body())


def test_a_no_does_not_open_the_breaker():
    """R195"""

    async def body() -> None:
        calls: list[str] = []

        @capability(effect="read", dependency="ledger")
        async def look(ctx: Context, order: str) -> str:
            calls.append(order)
            raise EffectDeclined("no such order")

        app = shop()
        flow = app.workflow("flow", input=Order, state=State).capability("look", look, into="seen")
        stage = Stage(flow, app=app)
        for n in range(8):
            assert (await stage.run(run_id=f"rn-{n}")).record.reason == "Declined"
        assert len(calls) == 8

    asyncio.run(body())


# Rows of the log's own database


def _booking(tmp_path: Any, name: str = "log") -> tuple[Any, Any, FakeClock]:
    import sqlite3

    path = tmp_path / f"{name}.db"
    clock = FakeClock()
    log = open_log(f"sqlite:///{path}", clock.now_ms)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE IF NOT EXISTS seat (number TEXT PRIMARY KEY, holder TEXT NOT NULL)")

    @capability(effect="keyed", key=lambda arguments: f"seat:{arguments.order}", statements=True)
    def book(ctx: Context, order: str) -> Statement:
        return Statement("INSERT INTO seat VALUES (:seat, :run)", {"seat": order, "run": ctx.run_id})

    app = shop()
    flow = app.workflow("flow", input=Order, state=State).capability("book", book)
    return Stage(flow, app=app, log=log, clock=clock), path, clock


def _seats(path: Any) -> list[Any]:
    import sqlite3

    with sqlite3.connect(path) as db:
        return db.execute("SELECT number, holder FROM seat ORDER BY number").fetchall()


def test_rows_stand_or_fall_with_the_log(tmp_path: Any):
    """R052"""

    async def body() -> None:
        for crash in range(9):
            stage, path, _ = _booking(tmp_path, f"log{crash}")
            log = stage.log
            try:
                stage.log = CrashingLog(log, crash)
                runs = stage.reopened()
                try:
                    await stage.run()
                except Crash:
                    done = sum(stored.type == "EffectDelivered" for stored in log.read(RUN)) if crash else 0
                    assert len(_seats(path)) == done
                await runs.close()
                stage.log = log
                stage.reopened()
                assert (await stage.run()).record.state == "COMPLETED"
                assert _seats(path) == [("A-1", RUN)]
            finally:
                await log.close()

    asyncio.run(body())


def test_a_refused_statement_is_a_no_and_nothing_is_left_of_the_intent(tmp_path: Any):
    """R052"""

    async def body() -> None:
        import sqlite3

        stage, path, _ = _booking(tmp_path)
        try:
            with sqlite3.connect(path) as db:
                db.execute("INSERT INTO seat VALUES ('A-1', 'somebody')")
            outcome = await stage.run()
            assert (outcome.record.state, outcome.record.reason) == ("FAILED", "Declined")
            assert "EffectQueued" not in stage.types() and stage.log.claimant("book:seat:A-1") is None
            assert _seats(path) == [("A-1", "somebody")]
        finally:
            await stage.log.close()

    asyncio.run(body())


# Going on


def test_a_step_that_raises_pauses_the_run_and_resume_does_that_node_only():
    """R055 A2"""

    async def body() -> None:
        world = FakeEffector()
        calls: list[str] = []
        is_mended: list[bool] = []

        def before(state: State) -> State:
            calls.append("before")
            return state

        def shaky(state: State) -> State:
            calls.append("shaky")
            if not is_mended:
                raise ZeroDivisionError("oh")
            return state

        app = shop()
        flow = app.workflow("flow", input=Order, state=State).step("before", before)
        flow = flow.capability("one", effect("one", world), into="one").step("shaky", shaky)
        stage = Stage(flow, app=app)
        outcome = await stage.run()
        assert (outcome.record.state, outcome.record.reason, outcome.exit_code) == ("PAUSED", "NodeFailed", 11)
        stage.reopened()
        assert (await stage.go()).record.state == "PAUSED" and calls == ["before", "shaky"]
        is_mended.append(True)
        outcome = await stage.told("resume")
        assert outcome.record.state == "COMPLETED" and calls == ["before", "shaky", "shaky"]
        assert world.deliveries == ["one:A-1"]

    asyncio.run(body())


def test_a_result_that_the_state_cannot_take_is_kept_and_not_asked_for_again():
    """R054: the effect happened; mending the code and resuming must not make it twice."""

    async def body() -> None:
        world = FakeEffector()
        is_mended: list[bool] = []

        @capability(effect="compensable", key=lambda a: f"one:{a.order}", compensate=lambda ctx: None)
        async def one(ctx: Context, order: str) -> Any:
            await world.perform(ctx.key, {"order": order})
            return {"n": 1} if is_mended else 17

        app = shop()
        flow = app.workflow("flow", input=Order, state=State).capability("one", one, into="one")
        stage = Stage(flow, app=app)
        outcome = await stage.run()
        assert (outcome.record.state, outcome.record.reason) == ("PAUSED", "NodeFailed")
        is_mended.append(True)
        outcome = await stage.told("resume")
        assert outcome.record.state == "PAUSED" and world.deliveries == ["one:A-1"]  # the stored 17 is the result
        outcome = await stage.told("cancel")
        assert outcome.record.state == "CANCELLED"

    asyncio.run(body())


def test_resume_in_a_child_lets_its_parent_go_on():
    """R055"""

    async def body() -> None:
        world = FakeEffector()
        is_mended: list[bool] = []

        def shaky(state: State) -> State:
            if not is_mended:
                raise ZeroDivisionError("oh")
            return state

        app = shop()
        child = app.workflow("child", input=Order, state=State).capability("one", effect("one", world), into="one")
        child = child.step("shaky", shaky)
        flow = app.workflow("flow", input=Order, state=State)
        flow = flow.workflow("sub", child, input=lambda state: {"order": state.order})
        stage = Stage(flow, child, app=app)
        outcome = await stage.run()
        (child_id,) = outcome.record.children.values()
        assert outcome.is_waiting and stage.runs.record(child_id).state == "PAUSED"
        is_mended.append(True)
        stage.runs.tell(child_id, "resume", by="ann")
        outcome = await stage.go()
        assert outcome.record.state == "COMPLETED" and world.deliveries == ["one:A-1"]

    asyncio.run(body())


def test_every_crash_of_two_effects_with_one_key_in_one_run_makes_one():
    """R051 R053"""

    def make() -> Any:
        from .harness import Scene

        world = FakeEffector("timeout_after_effect")
        same = effect("one", world)
        app, flow = chain(("one", same), ("two", same), ("three", same))
        return Scene(flow, app, {"one": world})

    for n, calm, crashed in every_crash(make, None):
        assert crashed.ending == calm.ending, (n, crashed.types())
        assert crashed.scene.worlds["one"].effects == {"one:A-1": 1}
