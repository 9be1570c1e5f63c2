"""A doubt is settled before anything else: by a probe, by the other side's memory, by a report, or by a person."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from setpoint.adapters.stores import open_log
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.capability import Context, Later, capability
from setpoint.app.runs import RunOutcome
from setpoint.kernel.effects import CannotTell, DidNotHappen, EffectNotSent
from setpoint.kernel.errors import LeaseLost
from setpoint.kernel.retry import RetryPolicy
from setpoint.testing import FakeClock, FakeEffector, Trouble

from .harness import QUICK, RUN, Order, Scene, Stage, State, chain, effect, play, shop

RECEIPT = {"number": 1, "key": "one:A-1", "request": {"order": "A-1"}}


def one_effect(world: FakeEffector, **declared: Any) -> Stage:
    app, flow = chain(("one", effect("one", world, **declared)))
    return Stage(flow, app=app)


# By the probe


def test_a_lost_reply_is_found_by_the_probe_and_recorded_as_reconstructed():
    """R134 R137 B3"""

    async def body() -> None:
        world = FakeEffector("timeout_after_effect")
        stage = one_effect(world)
        outcome = await stage.run()
        assert outcome.record.state == "COMPLETED" and world.deliveries == ["one:A-1"]
        assert [fact.kind for fact in stage.facts("NodeFailed")] == ["in_doubt"]
        assert [(fact.status, fact.how) for fact in stage.facts("EffectDelivered")] == [("done", "reconstructed")]

    asyncio.run(body())


def test_a_dropped_request_is_sent_again_only_when_it_can_no_longer_arrive():
    """R134 R137 R139"""

    async def body() -> None:
        world = FakeEffector("drop")
        stage = one_effect(world, worst="30s")
        began = stage.clock.now_ms()
        outcome = await stage.run()
        assert outcome.record.state == "COMPLETED" and world.deliveries == ["one:A-1"] * 2
        assert stage.clock.now_ms() - began >= 1_000 + 25 + 30_000
        assert [fact.verdict for fact in stage.facts("EffectSettled")] == ["not_happened"]

    asyncio.run(body())


def test_a_request_that_arrives_late_is_found_and_not_made_twice():
    """R134 R139: 'it did not happen' meant 'not yet'."""

    async def body() -> None:
        world = FakeEffector("late")
        stage = one_effect(world, worst="30s")
        await stage.start()
        assert (await stage.go(patience_ms=0)).is_waiting
        assert world.deliver_late() == 1
        assert (await stage.go()).record.state == "COMPLETED"
        assert world.effects == {"one:A-1": 1} and len(world.deliveries) == 1

    asyncio.run(body())


def test_a_probe_that_cannot_tell_leaves_it_to_a_person():
    """R136 R137 B5"""

    async def body() -> None:
        world = FakeEffector("timeout_after_effect")
        world.trouble_probe(CannotTell("half of it is there"))
        stage = one_effect(world)
        outcome = await stage.run()
        assert outcome.exit_code == 16 and outcome.record.unknown[0].key == "one:A-1"
        stage.clock.advance(10**9)
        assert (await stage.go()).exit_code == 16 and len(world.deliveries) == 1  # no time makes it known
        outcome = await stage.told("settle", {"key": "one:A-1", "verdict": "happened", "result": RECEIPT})
        assert outcome.record.state == "COMPLETED" and outcome.output["one"] == RECEIPT
        assert [fact.by for fact in stage.facts("EffectSettled")] == ["ann"]

    asyncio.run(body())


def test_a_probe_that_cannot_look_is_asked_again_and_then_a_person():
    """R134 R136"""

    async def body() -> None:
        world = FakeEffector("timeout_after_effect")
        world.trouble_probe(*[EffectNotSent("the ledger is away")] * 100)
        stage = one_effect(world)
        outcome = await stage.run()
        assert outcome.exit_code == 16 and 1 < len(world.probes) <= QUICK.attempts
        assert len(world.deliveries) == 1

    asyncio.run(body())


# By a person


@pytest.mark.parametrize("trouble", ["timeout_after_effect", "drop", "bug_after_effect"])
def test_without_a_probe_nothing_is_sent_again_before_a_person_has_spoken(trouble: Any):
    """R135 R136 B5"""

    async def body() -> None:
        world = FakeEffector(trouble)
        stage = one_effect(world, probe=False)
        assert (await stage.run()).exit_code == 16
        stage.reopened()
        stage.clock.advance(10**9)
        assert (await stage.go()).exit_code == 16 and len(world.deliveries) == 1
        happened = bool(world.effects)
        said = {"key": "one:A-1", "verdict": "happened" if happened else "not_happened", "result": RECEIPT}
        assert (await stage.told("settle", said)).record.state == "COMPLETED"
        assert world.effects == {"one:A-1": 1} and len(world.deliveries) == (1 if happened else 2)

    asyncio.run(body())


def test_a_settlement_of_nothing_and_one_without_a_verdict_change_nothing():
    async def body() -> None:
        world = FakeEffector("drop")
        stage = one_effect(world, probe=False)
        await stage.run()
        await stage.told("settle", {"key": "another", "verdict": "happened"})
        outcome = await stage.told("settle", {"key": "one:A-1", "verdict": "perhaps"})
        assert outcome.exit_code == 16
        assert [fact.action for fact in stage.facts("ControlApplied")] == ["none", "none"]

    asyncio.run(body())


def test_a_person_gives_a_call_its_attempts_anew():
    async def body() -> None:
        world = FakeEffector("drop", "transient", "transient")
        stage = one_effect(world, probe=False, retry=RetryPolicy(attempts=3, first_ms=1, jitter=0))
        await stage.run()
        outcome = await stage.told("settle", {"key": "one:A-1", "verdict": "not_happened"})
        assert outcome.record.state == "COMPLETED" and len(world.deliveries) == 4

    asyncio.run(body())


# By the other side's memory


def test_a_doubt_goes_along_over_pauses_and_restarts():
    """R135: a later 'not sent' says nothing of the first attempt, whoever sends it."""

    async def body() -> None:
        world = FakeEffector("timeout_after_effect", Trouble("transient", 1000), dedups=True)
        stage = one_effect(world, of="keyed", probe=False)
        await stage.start()
        for _ in range(30):
            outcome = await stage.go(patience_ms=0)
            if outcome.exit_code == 16 or outcome.record.is_terminal:
                break
            stage.reopened()
            stage.clock.advance(5_000)
        assert outcome.exit_code == 16, outcome.record  # not "failed, nothing was done": it was done
        assert world.effects == {"one:A-1": 1} and stage.log.claimant("one:one:A-1") == RUN

    asyncio.run(body())


def test_a_run_that_is_taken_back_settles_a_doubt_that_waits_for_its_next_attempt():
    """R135 R190: what is between two attempts may have been made."""

    async def body() -> None:
        world = FakeEffector("timeout_after_effect", Trouble("transient", 1000), dedups=True)
        world.trouble_probe(DidNotHappen())  # a replica that lags
        stage = one_effect(world, dedups=True)
        await stage.start()
        assert (await stage.go(patience_ms=0)).is_waiting
        assert stage.facts("EffectSettled")[0].verdict == "resend"
        world._troubles.clear()
        outcome = await stage.told("cancel")
        assert outcome.record.state == "CANCELLED"
        assert world.effects == {"one:A-1": 1, "undo:one:A-1": 1} and world.standing == {}

    asyncio.run(body())


def test_a_run_that_is_taken_back_believes_a_probe_only_when_nothing_can_arrive_any_more():
    """R139 R190: the other side remembers keys, but nobody sends again, so the first sending must be waited for."""

    async def body() -> None:
        world = FakeEffector("late", dedups=True)
        stage = one_effect(world, dedups=True, worst="30s", retry=RetryPolicy(attempts=9, first_ms=5_000, jitter=0))
        await stage.start()
        assert (await stage.go(patience_ms=0)).is_waiting
        stage.runs.tell(RUN, "cancel", by="ann")
        assert (await stage.go(patience_ms=0)).record.state == "UNWINDING"
        world.deliver_late()
        assert (await stage.go()).record.state == "CANCELLED"
        assert world.standing == {} and world.effects == {"one:A-1": 1, "undo:one:A-1": 1}

    asyncio.run(body())


# By a report


def shipping(
    world: FakeEffector, during: Any = None, within_ms: int = 60_000, probe: bool = False, back: bool = False
) -> Stage:
    async def look(ctx: Context) -> Any:
        return await world.probe(ctx.key)

    async def undo(ctx: Context, result: dict[str, Any]) -> None:
        await world.compensate(ctx.key, {"request": {"order": "A-1"}, **result})

    @capability(
        effect="compensable" if back else "keyed",
        key=lambda a: f"one:{a.order}",
        probe=look if probe else None,
        compensate=undo if back else None,
    )
    async def ship(ctx: Context, order: str) -> dict[str, Any]:
        await world.perform(ctx.key, {"order": order})
        if during is not None:
            await during()
        return Later(within_ms)  # type: ignore[return-value]

    app, flow = chain(("one", ship))
    return Stage(flow, app=app)


def test_a_report_completes_the_node_without_another_sending():
    """R181"""

    async def body() -> None:
        world = FakeEffector()
        stage = shipping(world)
        assert (await stage.run()).is_waiting
        outcome = await stage.told("result", {"key": "one:A-1", "result": RECEIPT})
        assert outcome.record.state == "COMPLETED" and outcome.output["one"] == RECEIPT
        assert world.deliveries == ["one:A-1"]

    asyncio.run(body())


def test_a_report_that_overtakes_the_reply_is_not_lost():
    """R181: it lies in the inbox before the reply that promised it is recorded."""

    async def body() -> None:
        world = FakeEffector()
        stage: Any = None

        async def at_once() -> None:
            stage.runs.tell(RUN, "result", {"key": "one:A-1", "result": RECEIPT}, by="carrier")

        stage = shipping(world, at_once)
        outcome = await stage.run()
        assert outcome.record.state == "COMPLETED" and not stage.facts("LateResult")

    asyncio.run(body())


def test_a_report_taken_by_a_branch_beside_the_call_counts_once():
    """R181 R053: the other branch reads the inbox while the call is under way."""

    async def body() -> None:
        world = FakeEffector()
        log_has_it = asyncio.Event()
        stage: Any = None

        @capability(effect="compensable", key=lambda a: f"one:{a.order}", compensate=lambda ctx: None)
        async def ship(ctx: Context, order: str) -> dict[str, Any]:
            await world.perform(ctx.key, {"order": order})
            stage.runs.tell(RUN, "result", {"key": ctx.key, "result": RECEIPT}, by="carrier")
            await log_has_it.wait()
            return Later(60_000)  # type: ignore[return-value]

        @capability(effect="read")
        async def look(ctx: Context, order: str) -> str:
            while not world.ledger:
                await asyncio.sleep(0)
            return order

        def seen(state: State) -> dict[str, Any]:
            log_has_it.set()
            return {"count": 1}

        app = shop()
        left = app.fragment("left", state=State).capability("ship", ship, into="one")
        right = app.fragment("right", state=State).capability("look", look, into="seen").step("seen", seen)
        flow = app.workflow("flow", input=Order, state=State).parallel("both", {"left": left, "right": right})
        stage = Stage(flow, app=app)
        outcome = await stage.run()
        assert outcome.record.state == "COMPLETED" and outcome.record.effects_made == 1
        assert len(outcome.record.undo) == 1 and not stage.facts("EffectPending")

    asyncio.run(body())


def test_a_second_report_and_one_of_nothing_are_dropped_and_on_record():
    """R181"""

    async def body() -> None:
        stage = shipping(FakeEffector())
        await stage.run()
        stage.runs.tell(RUN, "result", {"key": "nobody's", "result": 1}, by="carrier")
        stage.runs.tell(RUN, "result", {"key": "one:A-1", "result": RECEIPT}, by="carrier")
        outcome = await stage.told("result", {"key": "one:A-1", "result": {"other": 1}})
        assert outcome.output["one"] == RECEIPT
        assert [fact.key for fact in stage.facts("LateResult")] == ["nobody's", "one:A-1"]

    asyncio.run(body())


def test_a_report_after_a_cancel_is_dropped_and_on_record():
    """R181: the effect was looked for, was not there, and is given up; then the report comes."""

    async def body() -> None:
        world = FakeEffector()
        world.trouble_probe(DidNotHappen())
        stage = shipping(world, probe=True)
        await stage.run()
        stage.clock.advance(40_000)
        outcome = await stage.told("cancel")
        assert outcome.record.state == "CANCELLED"
        assert stage.runs.tell(RUN, "result", {"key": "one:A-1", "result": RECEIPT}, by="carrier")
        outcome = await stage.go()
        assert outcome.record.state == "CANCELLED" and outcome.record.undo == ()
        assert [fact.key for fact in stage.facts("LateResult")] == ["one:A-1"]

    asyncio.run(body())


def test_a_report_that_comes_while_the_run_is_taken_back_says_what_there_is_to_take_back():
    """R181 R190: nobody else could have told."""

    async def body() -> None:
        world = FakeEffector()
        stage = shipping(world, back=True)
        await stage.run()
        outcome = await stage.told("cancel")
        assert outcome.record.state == "UNWINDING" and outcome.exit_code == 16
        outcome = await stage.told("result", {"key": "one:A-1", "result": RECEIPT})
        assert outcome.record.state == "CANCELLED" and world.standing == {}

    asyncio.run(body())


def test_a_report_that_never_comes_is_looked_for():
    """R134 R181"""

    async def body() -> None:
        world = FakeEffector()
        stage = shipping(world, probe=True)
        await stage.run()
        stage.clock.advance(60_000)
        assert (await stage.go()).record.state == "COMPLETED"
        assert len(world.deliveries) == 1

    asyncio.run(body())


# Wake-ups


def test_what_one_branch_hears_wakes_the_one_that_waits_for_it():
    """L12: the message was read by a branch that went on, while the one it is for had parked."""

    async def body() -> None:
        world = FakeEffector("drop")
        told = asyncio.Event()
        stage: Any = None

        @capability(effect="read")
        async def slow(ctx: Context, order: str) -> str:
            for _ in range(20):  # the other branch is at rest by then
                await asyncio.sleep(0)
            stage.runs.tell(RUN, "settle", {"key": "one:A-1", "verdict": "happened", "result": RECEIPT}, by="ann")
            told.set()
            return order

        app = shop()
        left = app.fragment("left", state=State)
        left = left.capability("one", effect("one", world, probe=False), into="one")
        right = app.fragment("right", state=State).capability("slow", slow, into="seen")
        right = right.step("after", lambda state: {"count": 1}).wait_for("never", timeout="9d", on_timeout="continue")
        flow = app.workflow("flow", input=Order, state=State).parallel("both", {"left": left, "right": right})
        stage = Stage(flow, app=app)
        await stage.start()
        outcome = await stage.go(patience_ms=0)
        assert told.is_set() and not outcome.record.unknown
        assert outcome.record.blocks["flow/both/left"] == 1  # it went on

    asyncio.run(body())


def test_a_message_of_another_process_is_never_slept_through(tmp_path: Any):
    """L12: it comes between the last look at the inbox and the wake-up time that parks the run."""

    async def body() -> None:
        clock = FakeClock()
        url = f"sqlite:///{tmp_path}/log.db"
        log, other = open_log(url, clock.now_ms), open_log(url, clock.now_ms)
        try:
            app = shop()
            flow = app.workflow("flow", input=Order, state=State).wait_for("go", timeout="9d", into="seen")
            stage = Stage(flow, app=app, log=_Between(log, other), clock=clock)
            await stage.start()
            outcome = await stage.go(patience_ms=0)
            assert outcome.record.state == "COMPLETED" and outcome.output["seen"] == "now"
        finally:
            await other.close()
            await log.close()

    asyncio.run(body())


class _Between:
    """A store to which another process delivers a signal just before the run is put to sleep."""

    def __init__(self, inner: Any, other: Any) -> None:
        self._inner, self._other = inner, other

    async def append(self, lease: Any, *more: Any, **beside: Any) -> Any:
        parks = beside.get("beside") is not None and beside["beside"].wake_ms > 1
        if parks:
            import msgspec

            from setpoint.engine.control import Request, encode_request

            self._inner.inbox(lease.stream)  # the look that is kept for a while
            said = msgspec.json.encode({"name": "go", "payload": "now"}).decode()
            self._other.deliver(lease.stream, "signal-1", encode_request(Request("signal", "ann", said)))
        return await self._inner.append(lease, *more, **beside)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# One owner


def test_a_second_worker_loses_before_it_sends_anything():
    """M1"""

    async def body() -> None:
        world = FakeEffector()
        started, go_on = asyncio.Event(), asyncio.Event()

        @capability(effect="irreversible", key=lambda a: f"one:{a.order}")
        async def one(ctx: Context, order: str) -> dict[str, Any]:
            started.set()
            await go_on.wait()
            return await world.perform(ctx.key, {"order": order})

        app, flow = chain(("one", one))
        stage = Stage(flow, app=app)
        await stage.start()
        first = asyncio.create_task(stage.go())
        await started.wait()
        second = stage.reopened()
        second.owner = "elsewhere/1/1"
        with pytest.raises(LeaseLost):
            await second.go_on(RUN)
        go_on.set()
        assert (await first).record.state == "COMPLETED" and len(world.deliveries) == 1

    asyncio.run(body())


# Anything


TROUBLES = ("none", "timeout_after_effect", "drop", "transient", "rate_limited", "bug_after_effect", "permanent")
DEATHS = ("crash_before_effect", "crash_after_effect")


def _script(chance: random.Random, dedups: bool) -> list[Any]:
    names = [*TROUBLES, *DEATHS, *(["duplicate"] if dedups else [])]
    return [chance.choice(names) for _ in range(chance.randrange(6))]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_lost_and_whoever_dies_an_effect_is_made_at_most_once(seed: int):
    """R135 R053: and exactly once when the run says that it is complete."""
    for part in range(5):
        _any_story(random.Random(seed * 1000 + part))


def _any_story(chance: random.Random) -> None:
    dedups, has_probe = chance.random() < 0.5, chance.random() < 0.7
    scripts = {name: _script(chance, dedups) for name in ("one", "two", "three")}
    is_parallel = chance.random() < 0.5
    spare = random.Random(chance.random())

    def make() -> Scene:
        worlds = {name: FakeEffector(*script, dedups=dedups) for name, script in scripts.items()}
        calls = {
            name: effect(name, world, probe=has_probe, dedups=dedups, worst="2s") for name, world in worlds.items()
        }
        app = shop()
        flow = app.workflow("flow", input=Order, state=State).capability("one", calls["one"], into="one")
        if is_parallel:
            parts = {n: app.fragment(n, state=State).capability(n, calls[n], into=n) for n in ("two", "three")}
            flow = flow.parallel("both", parts)
        else:
            flow = flow.capability("two", calls["two"], into="two").capability("three", calls["three"], into="three")

        async def people(runs: Any, outcome: RunOutcome) -> bool:
            """Somebody who looks at the real ledger, and settles."""
            for unknown in outcome.record.unknown:
                side = worlds[unknown.node.removesuffix("#undo").rpartition("/")[2]]
                made = [deed for deed in side.ledger if deed.key == unknown.key]
                receipt = {"number": made[0].number, "key": unknown.key, "request": made[0].request} if made else None
                verdict = "happened" if made else "not_happened"
                said = {"key": unknown.key, "verdict": verdict, "result": receipt}
                runs.tell(outcome.run_id, "settle", said, by="ann")
            return bool(outcome.record.unknown)

        return Scene(flow, app, worlds, people)

    crashes = [spare.randrange(1, 12) for _ in range(spare.randrange(4))]
    played = asyncio.run(play(make, None, *crashes))
    what = f"{scripts} dedups={dedups} probe={has_probe} parallel={is_parallel} {crashes}\n{played.types()}"
    assert played.outcome.record.is_terminal, what
    for name, world in played.scene.worlds.items():
        assert all(count <= 1 for count in world.effects.values()), f"{name}: {world.effects}\n{what}"
        wanted = {f"{name}:A-1": 1} if played.ending.state == "COMPLETED" else {}
        assert world.standing == wanted, f"{name}: {world.standing}\n{what}"


def test_a_call_that_the_store_held_up_for_too_long_is_not_sent_any_more():
    """R139: how long it may still arrive is counted from its intent, so whoever settles it may believe that."""

    async def body() -> None:
        clock = FakeClock()

        class Slow(MemoryLog):
            held_up_ms = 1_500

            async def append(self, lease: Any, expected: Any, events: Any, **more: Any) -> Any:
                head = await super().append(lease, expected, events, **more)
                if any(event.type == "EffectQueued" for event in events):
                    clock.advance(self.held_up_ms)
                    self.held_up_ms = 0
                return head

        world = FakeEffector()
        app, flow = chain(("one", effect("one", world)))
        stage = Stage(flow, app=app, log=Slow(clock.now_ms), clock=clock)
        assert (await stage.run()).record.state == "COMPLETED"
        assert [fact.status for fact in stage.facts("EffectDelivered")] == ["not_sent", "done"]
        assert world.deliveries == ["one:A-1"]

    asyncio.run(body())


def test_a_report_that_comes_while_the_probe_looks_wins():
    """R181 R053: the probe's ledger lags behind; what it says must not send anything again."""

    async def body() -> None:
        world = FakeEffector()
        looking, heard = asyncio.Event(), asyncio.Event()
        stage: Any = None

        async def look(ctx: Context) -> Any:
            looking.set()
            await heard.wait()
            return DidNotHappen()

        @capability(effect="keyed", key=lambda a: f"one:{a.order}", probe=look)
        async def ship(ctx: Context, order: str) -> dict[str, Any]:
            await world.perform(ctx.key, {"order": order})
            return Later(60_000)  # type: ignore[return-value]

        @capability(effect="read")
        async def other(ctx: Context, order: str) -> str:
            await looking.wait()
            stage.runs.tell(RUN, "result", {"key": "one:A-1", "result": RECEIPT}, by="carrier")
            return order

        def seen(state: State) -> dict[str, Any]:
            heard.set()
            return {"count": 1}

        app = shop()
        left = app.fragment("left", state=State).capability("ship", ship, into="one")
        right = app.fragment("right", state=State).sleep("a-while", "60s")
        right = right.capability("other", other, into="seen").step("seen", seen)
        flow = app.workflow("flow", input=Order, state=State).parallel("both", {"left": left, "right": right})
        stage = Stage(flow, app=app)
        outcome = await stage.run()
        assert outcome.record.state == "COMPLETED" and world.deliveries == ["one:A-1"]
        assert looking.is_set() and outcome.output["one"] == RECEIPT

    asyncio.run(body())
