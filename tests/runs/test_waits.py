"""A wait is a record with a time: nothing is lost while it lasts, wherever its owner dies."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.runs.flowkit import (
    State,
    add,
    bench,
    done,
    new_app,
    of_type,
    pay,
    played,
    why,
    world,
)
from tests.runs.test_flow import flow

from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.app.runs import KIND
from setpoint.kernel.run_events import NodeFailed, SignalReceived, TimerSet
from setpoint.kernel.run_record import SIGNALS_KEPT_MAX
from setpoint.ports.log import WAKE_BY_MESSAGE
from setpoint.testing import FakeClock
from setpoint.testing.effector import Trouble

ROOT = Path(__file__).resolve().parents[2]


# Sleeping


@played
async def test_a_sleep_ends_at_its_time_and_not_before_also_after_a_restart() -> None:
    """R060"""
    app = new_app()
    flow(app).step("a", add(1)).sleep("z", "3h").step("b", add(1))
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert (outcome.exit_code, outcome.is_waiting) == (13, True)
    assert kit.log.next_wake(KIND) == kit.clock.now_ms() + 3 * 3_600_000
    kit.restart()
    await kit.skip("179m")
    assert kit.runs.record(outcome.run_id).step == 1
    kit.restart()
    await kit.skip("1m")
    assert kit.runs.record(outcome.run_id).state == "COMPLETED"
    assert [event.why for event in of_type(kit, outcome.run_id, TimerSet)] == ["sleep"]
    assert kit.log.next_wake(KIND) is None


@played
async def test_a_retry_waits_by_a_timer_of_the_log() -> None:
    """R130"""
    app = new_app()
    flow(app).capability("pay", pay)
    kit = bench(app, Trouble("rate_limited", retry_after_ms=7_200_000))
    outcome = await kit.run("w", {"order_id": "A"})
    assert outcome.is_waiting
    [failed] = of_type(kit, outcome.run_id, NodeFailed)
    assert (failed.kind, failed.retry_at_ms) == ("rate_limited", kit.clock.now_ms() + 7_200_000)
    kit.restart()
    await kit.skip("119m")
    assert len(world(kit).deliveries) == 1
    await kit.skip("1m")
    assert kit.runs.record(outcome.run_id).state == "COMPLETED"
    assert world(kit).effects == {"refund:A:0": 1}


# Signals


def waiting(**options: Any) -> Any:
    app = new_app()
    given = {"timeout": "1d", "into": "note", **options}
    flow(app).step("a", add(1)).wait_for("paid", **given).step("b", add(1))
    return bench(app)


@played
async def test_a_signal_goes_on_with_the_run_and_its_payload_into_the_state() -> None:
    """R060"""
    kit = waiting()
    outcome = await kit.run("w", {"order_id": "A"})
    assert outcome.is_waiting
    kit.restart()
    assert kit.signal(outcome.run_id, "paid", "by card")
    await kit.runs.work(until_idle=True)
    assert (await kit.go_on(outcome.run_id)).output["note"] == "by card"


@played
async def test_a_signal_that_comes_before_anybody_waits_for_it_is_kept() -> None:
    kit = waiting()
    run_id = await kit.start("w", {"order_id": "A"})
    kit.signal(run_id, "paid", "early")
    kit.signal(run_id, "paid", "second")
    outcome = await kit.go_on(run_id)
    assert outcome.output["note"] == "early"


@played
async def test_each_wait_takes_one_signal_in_the_order_they_came() -> None:
    app = new_app()
    flow(app).wait_for("one", "s", timeout="1d", into="left").wait_for("two", "s", timeout="1d", into="right")
    kit = bench(app)
    run_id = await kit.start("w", {"order_id": "A"})
    for word in ("first", "second", "third"):
        kit.signal(run_id, "s", word)
    outcome = await kit.go_on(run_id)
    assert (outcome.output["left"], outcome.output["right"]) == ("first", "second")


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@played
async def test_two_branches_that_wait_for_one_signal_never_take_the_same_message(store: str, tmp_path: Path) -> None:
    app = new_app()
    left = app.fragment("l", state=State).wait_for("w", "s", timeout="1d", into="left")
    right = app.fragment("r", state=State).wait_for("w", "s", timeout="1d", into="right")
    flow(app).parallel("p", {"l": left, "r": right})
    clock = FakeClock()
    log = SqliteLog(str(tmp_path / "runs.db"), clock.now_ms) if store == "sqlite" else None
    kit = bench(app, clock=clock, log=log)
    run_id = await kit.start("w", {"order_id": "A"})
    kit.signal(run_id, "s", "one")
    outcome = await kit.go_on(run_id)
    assert outcome.is_waiting
    kit.signal(run_id, "s", "two")
    outcome = await kit.go_on(run_id)
    assert {outcome.output["left"], outcome.output["right"]} == {"one", "two"}
    await kit.log.close()


@played
async def test_a_signal_of_a_key_that_came_before_is_the_same_signal() -> None:
    app = new_app()
    flow(app).wait_for("one", "s", timeout="1d", into="left").wait_for("two", "s", timeout="1d", into="right")
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert kit.signal(outcome.run_id, "s", "x", key="mail-7")
    outcome = await kit.go_on(outcome.run_id)
    assert not kit.signal(outcome.run_id, "s", "y", key="mail-7")
    outcome = await kit.go_on(outcome.run_id)
    assert outcome.is_waiting
    assert len(of_type(kit, outcome.run_id, SignalReceived)) == 1


@played
async def test_a_signal_of_another_name_wakes_nobody() -> None:
    kit = waiting()
    outcome = await kit.run("w", {"order_id": "A"})
    kit.signal(outcome.run_id, "piad", "typo")
    outcome = await kit.go_on(outcome.run_id)
    assert outcome.is_waiting
    assert [received.signal for received in outcome.record.signals] == ["piad"]


@pytest.mark.parametrize("payload", [5, {"deep": 1}, None, ["x"], 1.5])
@played
async def test_a_payload_that_does_not_fit_is_dropped_and_the_wait_goes_on(payload: Any) -> None:
    """The sender's mistake is not the workflow's: the run is not stopped by it, and the next signal counts."""
    kit = waiting()
    outcome = await kit.run("w", {"order_id": "A"})
    kit.signal(outcome.run_id, "paid", payload)
    outcome = await kit.go_on(outcome.run_id)
    assert outcome.record.state == "RUNNING"
    [failed] = of_type(kit, outcome.run_id, NodeFailed)
    assert failed.kind == "refused"
    assert failed.message.startswith("a signal 'paid' came with a payload that does not fit: ")
    until = outcome.record.waits["w/paid"].at_ms
    kit.restart()
    await kit.skip("1h")
    assert kit.runs.record(outcome.run_id).waits["w/paid"].at_ms == until  # it does not wait any longer for it
    kit.signal(outcome.run_id, "paid", "right")
    assert (await kit.go_on(outcome.run_id)).output["note"] == "right"


@played
async def test_a_signal_without_a_field_needs_no_payload() -> None:
    kit = waiting(into=None)
    outcome = await kit.run("w", {"order_id": "A"})
    kit.signal(outcome.run_id, "paid")
    assert (await kit.go_on(outcome.run_id)).record.state == "COMPLETED"


@played
async def test_a_wait_that_nobody_answers_fails_the_run_when_its_time_is_up() -> None:
    """L7"""
    kit = waiting()
    outcome = await kit.run("w", {"order_id": "A"})
    kit.restart()
    await kit.skip("23h")
    assert not kit.runs.record(outcome.run_id).is_terminal
    await kit.skip("1h")
    assert why(await kit.go_on(outcome.run_id)) == (
        "FAILED",
        "SignalTimeout",
        "w/paid waited for the signal 'paid' until its time was up",
    )


@played
async def test_a_wait_that_may_go_unanswered_goes_on_and_a_late_signal_changes_nothing() -> None:
    app = new_app()
    flow(app).wait_for("paid", timeout="1h", into="note", on_timeout="continue").sleep("z", "1d").step("b", add(1))
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    await kit.skip("1h")
    kit.signal(outcome.run_id, "paid", "late")
    await kit.skip("1d")
    outcome = await kit.go_on(outcome.run_id)
    assert (outcome.record.state, outcome.output["note"]) == ("COMPLETED", "")
    assert done(kit, outcome.run_id) == ["w/paid", "w/z", "w/b"]


@played
async def test_signals_nobody_waits_for_are_bounded_and_the_newest_stay() -> None:
    """L7"""
    kit = waiting()
    outcome = await kit.run("w", {"order_id": "A"})
    for number in range(SIGNALS_KEPT_MAX + 10):
        kit.signal(outcome.run_id, "other", number)
    outcome = await kit.go_on(outcome.run_id)
    assert len(outcome.record.signals) == SIGNALS_KEPT_MAX
    kit.signal(outcome.run_id, "paid", "x")
    assert (await kit.go_on(outcome.run_id)).output["note"] == "x"


# Races


class Interrupting:
    """A log that does something in the very moment a run writes down when it wants attention, before or behind it."""

    def __init__(self, inner: Any, act: Any, moment: str) -> None:
        self.inner, self.act, self.moment = inner, act, moment
        self.durability = inner.durability

    async def append(self, lease: Any, expected: Any, events: Any, **beside: Any) -> Any:
        parks = beside.get("beside") is not None and beside["beside"].wake_ms == WAKE_BY_MESSAGE
        parks = parks or (beside.get("beside") is not None and beside["beside"].wake_ms > 0)
        if parks and self.moment == "before":
            self.act()
        head = await self.inner.append(lease, expected, events, **beside)
        if parks and self.moment == "behind":
            self.act()
        return head

    def inbox(self, stream: str, after: int = 0) -> Any:
        found = self.inner.inbox(stream, after)
        if self.moment == "after the last look":
            self.act()
        return found

    def release(self, lease: Any) -> None:
        if self.moment == "at the release":
            self.act()
        self.inner.release(lease)
        if self.moment == "behind the release":
            self.act()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("moment", ["before", "behind", "after the last look", "at the release", "behind the release"])
@played
async def test_a_signal_that_comes_while_the_run_is_being_parked_is_not_lost(
    moment: str, store: str, tmp_path: Path
) -> None:
    kit = waiting()
    if store == "sqlite":
        kit = bench(kit.app, clock=kit.clock, log=SqliteLog(str(tmp_path / "runs.db"), kit.clock.now_ms))
    run_id = await kit.start("w", {"order_id": "A"})
    inner, said = kit.log, []

    def act() -> None:
        if not said and not kit.runs.record(run_id).is_terminal:
            said.append(kit.signal(run_id, "paid", "just now", key="s-1"))

    kit.restart(Interrupting(inner, act, moment))  # type: ignore[arg-type]
    await kit.runs.work(until_idle=True)
    await kit.runs.work(until_idle=True)
    assert said == [True]
    outcome = await kit.go_on(run_id)
    assert (outcome.record.state, outcome.output["note"]) == ("COMPLETED", "just now")
    await inner.close()


# A process that dies

WAITER = """
    import asyncio, sys, time
    from tests.runs.flowkit import State, In, add, new_app
    from setpoint import Runtime

    app = new_app()
    app.workflow("w", input=In, state=State).step("a", add(1)).sleep("z", sys.argv[2]).step("b", add(1))

    async def main():
        async with Runtime.open("sqlite:///" + sys.argv[1], app) as runtime:
            outcome = await runtime.run("w", {"order_id": "A"}) if sys.argv[3] == "start" else None
            print(outcome.run_id if outcome else "", flush=True)
            await runtime.runs.work()

    asyncio.run(main())
"""


@played
async def test_a_worker_killed_during_a_wait_leaves_a_run_that_goes_on_at_its_time(tmp_path: Path) -> None:
    """R060, A1, R056"""
    store = tmp_path / "runs.db"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SETPOINT_HOME": str(tmp_path / "home")}
    script = textwrap.dedent(WAITER)

    def worker(what: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(store), "2m", what]
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)

    first = worker("start")
    try:
        assert first.stdout is not None
        run_id = first.stdout.readline().strip()
        assert run_id.startswith("rn-")
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
        if first.stdout is not None:
            first.stdout.close()
    clock = FakeClock(now_ms=int(time.time() * 1000))
    app = new_app()
    flow(app).step("a", add(1)).sleep("z", "2m").step("b", add(1))
    kit = bench(app, clock=clock, log=SqliteLog(str(store), clock.now_ms))
    await kit.skip("1m")
    assert kit.runs.record(run_id).step == 1
    await kit.skip("2m")
    record = kit.runs.record(run_id)
    assert (record.state, record.step) == ("COMPLETED", 3)
    assert done(kit, run_id) == ["w/a", "w/z", "w/b"]
    await kit.log.close()


# Costs


@played
async def test_a_waiting_run_takes_no_task_and_no_thread() -> None:
    """L12, R230"""
    app = new_app()
    flow(app).step("a", add(1)).wait_for("paid", timeout="1d", into="note").step("b", add(1))
    kit = bench(app)
    before = len(asyncio.all_tasks()), threading.active_count()
    run_ids = [await kit.start("w", {"order_id": str(number)}) for number in range(1_000)]
    await kit.runs.work(until_idle=True)
    await asyncio.sleep(0)
    assert {kit.runs.record(run_id).state for run_id in run_ids} == {"RUNNING"}
    await kit.runs.close()
    assert (len(asyncio.all_tasks()), threading.active_count()) == before
    assert kit.runs._active == {}  # what the process remembers of them: nothing
    for run_id in run_ids[::100]:
        kit.signal(run_id, "paid", "x")
    await kit.runs.work(until_idle=True)
    states = [kit.runs.record(run_id).state for run_id in run_ids]
    assert states.count("COMPLETED") == 10


@pytest.mark.slow
@pytest.mark.timeout(900)
@played
async def test_ten_thousand_waiting_runs_stay_on_disk(tmp_path: Path) -> None:
    """L12, R230: memory of the process and bytes of the store for each are printed, not asserted on time."""
    app = new_app()
    flow(app).step("a", add(1)).wait_for("paid", timeout="1d", into="note").step("b", add(1))
    clock = FakeClock()
    kit = bench(app, clock=clock, log=SqliteLog(str(tmp_path / "runs.db"), clock.now_ms))
    await kit.run("w", {"order_id": "warm"})
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tasks = len(asyncio.all_tasks())
    for start in range(0, 10_000, 200):
        await asyncio.gather(*(kit.start("w", {"order_id": str(start + number)}) for number in range(200)))
        await kit.runs.work(at_once=200, until_idle=True)
    gc.collect()
    held = (tracemalloc.get_traced_memory()[0] - before) / 10_000
    tracemalloc.stop()
    size = sum(path.stat().st_size for path in tmp_path.iterdir()) / 10_000
    print(f"\n10,000 waiting runs: {held:.0f} bytes of memory and {size:.0f} bytes of store each")
    assert held < 4096
    assert len(asyncio.all_tasks()) <= tasks + 1  # the heartbeat
    assert kit.log.due(KIND, clock.now_ms(), 10) == []
    await kit.runs.close()
    await kit.log.close()
