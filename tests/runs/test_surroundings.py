"""What surrounds a run misbehaves: code that is cancelled or says odd things, hostile messages, a store that fails."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.runs.flowkit import In, Order, Receipt, State, add, bench, fails, new_app, of_type, played
from tests.runs.test_flow import flow

from setpoint import App, Context, Fails, capability
from setpoint.adapters.clock import SystemClock
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.migration import migrate
from setpoint.app.runs import AILING_MS_MAX
from setpoint.engine.control import Request, encode_request
from setpoint.kernel import limits
from setpoint.kernel.effects import EffectDeclined
from setpoint.kernel.errors import LeaseLost, StoreFault
from setpoint.kernel.events import encode
from setpoint.kernel.retry import RetryPolicy
from setpoint.kernel.run_events import EffectDelivered, EffectQueued, LateResult, NodeFailed
from setpoint.ports.log import WAKE_BY_MESSAGE, Draft
from setpoint.testing import ScriptedReplies, call, reply

HALF = "a name of bytes: \udcff"
"""As Python gives a file name that is not UTF-8."""


async def _cancelled() -> Any:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    return await task


# Code that is cancelled


@played
async def test_a_cancellation_from_within_a_capability_is_an_error_of_its_own() -> None:
    """Taken for a cancellation of the run, it would send the effect for ever, one lease after the other."""
    app = new_app()

    @capability(effect="keyed", retry=RetryPolicy(attempts=3, jitter=0))
    async def odd(ctx: Context, order_id: str) -> None:
        await _cancelled()

    flow(app).capability("odd", odd)
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A-1"})
    assert [effect.key for effect in outcome.record.unknown] and outcome.exit_code == 16
    assert len(of_type(kit, outcome.run_id, EffectQueued)) == 3
    assert "cancelled" in of_type(kit, outcome.run_id, NodeFailed)[0].message


@played
async def test_so_is_one_from_within_a_probe_or_a_compensator() -> None:
    app = new_app()

    async def look(ctx: Context) -> Any:
        return await _cancelled()

    async def undo(ctx: Context) -> None:
        await _cancelled()

    quick = RetryPolicy(attempts=2, jitter=0)

    @capability(effect="compensable", probe=look, compensate=undo, retry=quick)
    async def book(ctx: Context, order_id: str) -> Receipt:
        if order_id == "lost":
            raise ConnectionResetError
        return Receipt(number=1, key=ctx.key)

    def refuse(state: State) -> Any:
        raise Fails("No", "on purpose")

    flow(app).capability("book", book).step("refuse", refuse)
    kit = bench(app)
    probed = await kit.run("w", {"order_id": "lost"})
    assert len(probed.record.unknown) == 1 and probed.exit_code == 16
    undone = await kit.run("w", {"order_id": "A-1"})
    assert (undone.record.state, undone.record.reason) == ("PAUSED", "CompensationFailed")


# Words that no event can hold


@played
async def test_half_a_surrogate_in_the_words_of_a_bug_pauses_the_run_like_any_other_bug() -> None:
    app = new_app()

    def buggy(state: State) -> Any:
        raise FileNotFoundError(HALF)

    flow(app).step("buggy", buggy)
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A-1"})
    assert (outcome.record.state, outcome.exit_code) == ("PAUSED", 11)
    assert "\\udcff" in outcome.record.message


@pytest.mark.parametrize("kind", ["declined", "error", "fails"])
def test_words_of_a_capability_are_kept_as_far_as_an_event_can_hold_them(kind: str) -> None:
    @played
    async def play() -> None:
        app = new_app()

        @capability(effect="keyed", retry=RetryPolicy(attempts=1))
        async def talks(ctx: Context, order_id: str) -> None:
            words = HALF + "x" * 100_000
            raise EffectDeclined(words) if kind == "declined" else ValueError(words)

        def fails(state: State) -> Any:
            raise Fails(HALF, HALF)

        chain = flow(app)
        chain.step("fails", fails) if kind == "fails" else chain.capability("talks", talks)
        kit = bench(app)
        outcome = await kit.run("w", {"order_id": "A-1"})
        record = outcome.record
        assert record.unknown if kind == "error" else record.state == "FAILED"
        said = [failed.message for failed in of_type(kit, outcome.run_id, NodeFailed)] or [record.message]
        assert all("\\udcff" in words and len(words) < 3_000 for words in said)

    play()


@played
async def test_what_a_judge_is_shown_may_be_an_object_and_one_that_cannot_be_shown_pauses_the_run() -> None:
    app = new_app()
    flow(app).judge("j", instructions="i", show=lambda state: Order(id="A", cents=1), into="note")
    flow(app, "bad").judge("j", instructions="i", show=lambda state: HALF, into="note")
    kit = bench(app)
    kit.judge = ScriptedReplies([reply(call("answer", answer="fine"))])
    assert (await kit.run("w", {"order_id": "A-1"})).output["note"] == "fine"
    assert (await kit.run("bad", {"order_id": "A-1"})).record.reason == "NodeFailed"


# Messages


@pytest.mark.parametrize("depth", [limits.ARGUMENT_DEPTH_MAX, 200, 900, 15_000])
@pytest.mark.parametrize("action", ["signal", "result", "settle"])
def test_a_message_nested_without_end_is_dropped_on_record_and_the_run_goes_on(action: str, depth: int) -> None:
    @played
    async def play() -> None:
        app = new_app()
        flow(app).wait_for("note", timeout="1h", into="note")
        kit = bench(app)
        outcome = await kit.run("w", {"order_id": "A-1"})
        deep = "[" * depth + "]" * depth
        argument = f'{{"name":"note","key":"k","verdict":"happened","payload":{deep},"result":{deep}}}'
        assert kit.runs.tell(outcome.run_id, action, argument, by="mallory")
        await kit.go_on(outcome.run_id)
        (dropped,) = of_type(kit, outcome.run_id, LateResult)
        assert "nested" in dropped.reason
        kit.signal(outcome.run_id, "note", "hello")
        assert (await kit.go_on(outcome.run_id)).output["note"] == "hello"

    play()


# A store that fails, and a log that cannot be read


class Failing(MemoryLog):
    """Its inbox cannot be looked into a few times; it counts how often a lease is renewed."""

    def __init__(self, now: Any) -> None:
        super().__init__(now)
        self.failures = 0
        self.renewed = asyncio.Event()

    def inbox(self, stream: str, after: int = 0) -> list[tuple[int, str, bytes]]:
        if self.failures:
            self.failures -= 1
            raise StoreFault("the connection is gone")
        return super().inbox(stream, after)

    def renew(self, lease: Any, ttl_ms: int) -> Any:
        self.renewed.set()
        return super().renew(lease, ttl_ms)


@played
async def test_a_store_that_fails_for_a_moment_does_not_end_the_heartbeat() -> None:
    """A dead heartbeat lets every lease of the process lapse, and nobody sees a kill any more."""
    app = new_app()
    log = Failing(SystemClock().now_ms)
    kit = bench(app, log=log)

    @capability(effect="keyed", timeout="20s")
    async def slow(ctx: Context, order_id: str) -> None:
        log.failures = 1
        while log.failures:
            await asyncio.sleep(0.01)
        kit.clock.advance(limits.LEASE_RENEW_MS)
        await log.renewed.wait()

    flow(app).capability("slow", slow)
    kit.restart()
    assert (await asyncio.wait_for(kit.run("w", {"order_id": "A-1"}), 10)).record.state == "COMPLETED"


@played
async def test_a_log_that_no_rule_can_fold_does_not_end_the_worker() -> None:
    app = new_app()
    flow(app).step("one", add(1))
    kit = bench(app)
    broken, sound = [await kit.start("w", {"order_id": name}) for name in ("broken", "sound")]
    lease = kit.log.claim(broken, "test", 1_000)
    odd = EffectDelivered(node="w/nowhere", key="k", status="done")
    draft = Draft(0, "EffectDelivered", encode(odd), "2026-01-01T00:00:00.000Z")
    await kit.log.append(lease, kit.log.head(broken), [draft])
    kit.log.release(lease)
    told: list[str] = []
    await kit.runs.work(until_idle=True, on_fault=lambda run_id, fault: told.append(run_id))
    assert told == [broken]
    assert kit.runs.record(sound).state == "COMPLETED"


@played
async def test_a_worker_forgets_the_runs_that_others_have_finished() -> None:
    ours, theirs = new_app(), App("theirs")
    flow(ours).step("one", add(1))
    flow(theirs, "foreign").step("one", add(1))
    kit = bench(ours)
    other = bench(theirs, log=kit.log, clock=kit.clock)
    for number in range(20):
        await other.start("foreign", {"order_id": str(number)})
    await kit.runs.work(until_idle=True)
    assert len(kit.runs._ailing) == 20
    await other.runs.work(until_idle=True)
    for _ in range(3):
        kit.clock.advance(AILING_MS_MAX)
        await kit.runs.work(until_idle=True)
    assert kit.runs._ailing == {}


# One process


@played
async def test_a_run_that_this_process_works_on_is_not_moved_under_its_feet() -> None:
    app = new_app()
    begun, go = asyncio.Event(), asyncio.Event()

    @capability(effect="keyed")
    async def slow(ctx: Context, order_id: str) -> None:
        begun.set()
        await go.wait()

    flow(app).capability("slow", slow)
    later = app.workflow("w", input=In, state=State, version=2)
    later.capability("slow", slow).step("two", add(1))
    kit = bench(app)
    program = next(one for one in kit.runs.programs.values() if one.definition.version == 1)
    run_id = await kit.runs.start(program, *program.begin({"order_id": "A-1"}))
    work = asyncio.create_task(kit.go_on(run_id))
    await begun.wait()
    with pytest.raises(LeaseLost):
        await migrate(kit.runs, run_id, by="test")
    go.set()
    assert (await work).record.state == "COMPLETED"


# Falling asleep


class Dies(BaseException):
    """The owner's death."""


class Overtaken(MemoryLog):
    """A message comes between the last look of a run that goes to sleep and its sleep; then its owner dies."""

    message: tuple[str, bytes] | None = None

    async def append(self, lease: Any, expected: Any, events: Any, **rest: Any) -> Any:
        beside = rest.get("beside")
        if self.message is None or beside is None or beside.wake_ms != WAKE_BY_MESSAGE:
            return await super().append(lease, expected, events, **rest)
        self.deliver(lease.stream, *self.message)
        await super().append(lease, expected, events, **rest)
        raise Dies


@played
async def test_a_message_that_comes_while_a_run_falls_asleep_wakes_it_wherever_its_owner_dies() -> None:
    app = new_app()
    flow(app).wait_for("note", timeout="1h", into="note").step("stop", fails("Never"))
    log = Overtaken(SystemClock().now_ms)
    kit = bench(app, log=log)
    run_id = await kit.start("w", {"order_id": "A-1"})
    kit.runs.tell(run_id, "pause", by="test")
    log.message = ("again", encode_request(Request("resume", "test")))
    with pytest.raises(Dies):
        await kit.go_on(run_id)
    log.message = None
    kit.restart()
    assert log.due("run", 0, 10) == [(run_id, 0)]
    kit.signal(run_id, "note", "hello")
    await kit.runs.work(until_idle=True)
    assert kit.runs.record(run_id).reason == "Never"


# What another process or application would see


TAGGED = """
from pydantic import BaseModel
from setpoint import App, Context, capability

class Inner(BaseModel):
    marks: frozenset[str] = frozenset()

class State(BaseModel):
    tags: set[str]
    more: set[str] | None = None
    inner: Inner | None = None
    order: list[str] = []

@capability(effect="keyed")
async def go(ctx: Context, tags: set[str], inner: Inner, order: list[str]) -> None: ...

program = App("a").workflow("w", input=State, state=State).capability("go", go).program
names = ["b", "a", "d", "c"]
given = {"tags": names, "more": names, "inner": {"marks": names}, "order": names}
print(program.begin(given)[1], program.code["w/go"].arguments(given, given))
"""


def test_a_set_has_one_order_in_every_process() -> None:
    """Else a yes given in one process would be to other arguments in the next, and asked for again for ever."""
    said: list[str] = []
    for seed in ("1", "2", "3"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", TAGGED], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said == said[:1] * 3
    assert "'order': ['b', 'a', 'd', 'c']" in said[0] and "'tags': ['a', 'b', 'c', 'd']" in said[0]


@played
async def test_a_workflow_of_another_application_can_be_started_as_a_part() -> None:
    other, app = new_app("other"), new_app()
    child = flow(other, "child").step("one", add(1))
    flow(app).workflow("c", child, input=lambda state: {"order_id": "x"})
    kit = bench(app)
    assert (await kit.run("w", {"order_id": "A-1"})).record.state == "COMPLETED"
