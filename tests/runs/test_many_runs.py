"""Many runs at once, and many workers: each run has one owner, all of them come to their end, none waits for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.runs.flowkit import add, bench, done, mark, new_app, of_type, played, world
from tests.runs.test_flow import flow

from setpoint import App, Context, Runtime, capability
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.app.runs import DUE_LOOKED_AT, Runs
from setpoint.kernel.effects import DidNotHappen, Happened
from setpoint.kernel.errors import LeaseLost, LogCorrupt
from setpoint.kernel.run_events import EffectQueued
from setpoint.testing import FakeClock

ROOT = Path(__file__).resolve().parents[2]


# In one process


@played
async def test_runs_are_taken_up_in_the_order_they_became_due() -> None:
    """R229: first come, first served; nobody is overtaken by those who come later."""
    app, order = new_app(), []

    @capability(effect="read")
    async def note(ctx: Context, order_id: str) -> None:
        order.append(order_id)

    flow(app).capability("note", note)
    flow(app, "sleeper").sleep("z", "3s").capability("note", note)
    kit = bench(app)
    sleeper = await kit.start("sleeper", {"order_id": "sleeper"})
    await kit.runs.work(until_idle=True)
    for number in range(6):
        kit.clock.advance(1_000)
        await kit.start("w", {"order_id": str(number)})
    await kit.runs.work(at_once=1, until_idle=True)
    assert order == ["0", "1", "sleeper", "2", "3", "4", "5"] or order == ["0", "1", "2", "sleeper", "3", "4", "5"]
    assert kit.runs.record(sleeper).state == "COMPLETED"


@played
async def test_a_call_that_takes_long_holds_nobody_else_up() -> None:
    app, gate, under_way, most = new_app(), asyncio.Event(), set(), []

    @capability(effect="read")
    async def slow(ctx: Context, order_id: str) -> None:
        under_way.add(order_id)
        most.append(len(under_way))
        if order_id == "slow":
            await gate.wait()
        await asyncio.sleep(0)
        under_way.discard(order_id)

    flow(app).capability("slow", slow)
    kit = bench(app)
    hung = await kit.start("w", {"order_id": "slow"})
    rest = [await kit.start("w", {"order_id": str(number)}) for number in range(40)]
    working = asyncio.create_task(kit.runs.work(at_once=4, until_idle=True))
    for _ in range(10_000):
        if all(kit.runs.record(run_id).is_terminal for run_id in rest):
            break
        await asyncio.sleep(0)
    assert all(kit.runs.record(run_id).is_terminal for run_id in rest)
    assert not kit.runs.record(hung).is_terminal
    gate.set()
    await working
    assert kit.runs.record(hung).state == "COMPLETED"
    assert max(most) <= 4


@played
async def test_runs_that_are_not_known_here_are_left_alone_and_hide_nobody() -> None:
    """N1"""
    other, mine = new_app(), new_app()
    flow(other, "other").step("a", add(1))
    flow(mine).capability("mark", mark)
    kit = bench(other)
    strangers = [await kit.start("other", {"order_id": "A"}) for _ in range(DUE_LOOKED_AT + 20)]
    kit.app = mine
    kit.restart()
    run_id = await kit.start("w", {"order_id": "A"})
    await kit.runs.work(until_idle=True)
    assert kit.runs.record(run_id).state == "COMPLETED"
    assert all(kit.log.head(stranger).seq == 1 for stranger in strangers)
    assert all(kit.log.holder(stranger) is None for stranger in strangers)


class Torn:
    """A log one stream of which cannot be read."""

    def __init__(self, inner: Any, torn: str) -> None:
        self.inner, self.torn = inner, torn

    def read(self, stream: str, after: int = 0, **how: Any) -> Any:
        if stream == self.torn:
            raise LogCorrupt("torn", stream=stream, seq=1)
        return self.inner.read(stream, after, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@played
async def test_a_run_whose_log_is_damaged_keeps_no_other_waiting() -> None:
    app = new_app()
    flow(app).step("a", add(1))
    kit = bench(app)
    first = await kit.start("w", {"order_id": "A"})
    rest = [await kit.start("w", {"order_id": str(number)}) for number in range(10)]
    inner, told = kit.log, []
    kit.restart(Torn(inner, first))  # type: ignore[arg-type]
    await kit.runs.work(until_idle=True, on_fault=lambda run_id, fault: told.append((run_id, type(fault))))
    assert {kit.runs.record(run_id).state for run_id in rest} == {"COMPLETED"}
    assert told == [(first, LogCorrupt)]


@played
async def test_hundreds_of_runs_in_one_process_come_to_their_end() -> None:
    """R230"""
    app = new_app()
    flow(app).step("a", add(1)).capability("mark", mark).step("b", add(1))
    kit = bench(app)
    run_ids = [await kit.start("w", {"order_id": str(number)}) for number in range(400)]
    await kit.runs.work(until_idle=True)
    assert {kit.runs.record(run_id).state for run_id in run_ids} == {"COMPLETED"}
    assert len(world(kit).ledger) == 400


# In several processes, over one file


class Place(BaseModel):
    order_id: str
    ledger: str
    hold: str = ""


class PlaceState(Place):
    count: int = 0


async def was_written(ctx: Context, ledger: str) -> Any:
    lines = Path(ledger).read_text().split("\n") if Path(ledger).exists() else []
    return Happened(None) if any(line.startswith(f"{ctx.key} ") for line in lines) else DidNotHappen()


@capability(effect="keyed", key=lambda a: f"write:{a.order_id}", probe=was_written)
async def write(ctx: Context, order_id: str, ledger: str, hold: str) -> None:
    """A line in a file: append is atomic, and nothing else deduplicates it."""
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{ctx.key} {os.getpid()}\n".encode())
    finally:
        os.close(file)
    if hold:
        Path(hold).touch()
        await asyncio.sleep(3600)
    await asyncio.sleep(0.002)


def crowd() -> App:
    app = App("crowd")
    w = app.workflow("w", input=Place, state=PlaceState)
    for number in range(3):
        w.step(f"s{number}", lambda s: {"count": s.count + 1})
    w.capability("write", write).step("end", lambda s: {"count": s.count + 1})
    return app


WORKER = """
    import asyncio, sys
    from setpoint import Runtime
    from tests.runs.test_many_runs import crowd

    async def main():
        async with Runtime.open("sqlite:///" + sys.argv[1], crowd()) as runtime:
            print("up", flush=True)
            await runtime.runs.work(until_idle=len(sys.argv) > 2, at_once=4)

    asyncio.run(main())
"""


@contextmanager
def workers(store: Path, count: int, *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SETPOINT_HOME": str(store.parent / "home")}
    command = [sys.executable, "-c", textwrap.dedent(WORKER), str(store), *arguments]
    started = [subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "up\n"
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()
            if one.stdout is not None:
                one.stdout.close()


async def all_over(runs: Runs, run_ids: list[str], within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not all(runs.record(run_id).is_terminal for run_id in run_ids):
        assert time.monotonic() < end, [runs.record(run_id).state for run_id in run_ids]
        await asyncio.sleep(0.05)


def lines_of(ledger: Path) -> tuple[Counter[str], set[str]]:
    found = [line.split() for line in ledger.read_text().splitlines()]
    return Counter(key for key, _ in found), {pid for _, pid in found}


@played
async def test_several_processes_share_the_runs_of_one_store_and_each_run_has_one_owner(tmp_path: Path) -> None:
    """M1, R058"""
    store, ledger = tmp_path / "runs.db", tmp_path / "ledger"
    async with Runtime.open(f"sqlite:///{store}", crowd()) as runtime:
        given = {"ledger": str(ledger)}
        run_ids = [await runtime.start("w", {**given, "order_id": str(number)}) for number in range(60)]
        with workers(store, 3):
            await all_over(runtime.runs, run_ids)
        assert {runtime.runs.record(run_id).state for run_id in run_ids} == {"COMPLETED"}
        keys, pids = lines_of(ledger)
        assert keys == {f"write:{number}": 1 for number in range(60)}
        assert len(pids) > 1
        owners = [[e for e in runtime.log.read(run_id) if e.type == "LeaseClaimed"] for run_id in run_ids]
        assert all(len(claims) == 1 for claims in owners)


@played
async def test_every_unfinished_run_of_a_killed_worker_is_taken_up(tmp_path: Path) -> None:
    """R056, A1"""
    store, ledger = tmp_path / "runs.db", tmp_path / "ledger"
    async with Runtime.open(f"sqlite:///{store}", crowd()) as runtime:
        given = {"ledger": str(ledger)}
        run_ids = [await runtime.start("w", {**given, "order_id": str(number)}) for number in range(40)]
        for _ in range(2):
            with workers(store, 1) as [one]:
                before = ledger.stat().st_size if ledger.exists() else 0
                end = time.monotonic() + 30
                while not ledger.exists() or ledger.stat().st_size < before + 60:
                    assert time.monotonic() < end
                    await asyncio.sleep(0.002)
                one.send_signal(signal.SIGKILL)
        with workers(store, 1):
            await all_over(runtime.runs, run_ids)
        assert {runtime.runs.record(run_id).state for run_id in run_ids} == {"COMPLETED"}
        keys, _ = lines_of(ledger)
        assert keys == {f"write:{number}": 1 for number in range(40)}


@played
async def test_a_second_worker_gets_the_lease_only_when_the_first_is_dead_and_does_nothing_before(
    tmp_path: Path,
) -> None:
    """M1"""
    store, ledger, hold = tmp_path / "runs.db", tmp_path / "ledger", tmp_path / "held"
    async with Runtime.open(f"sqlite:///{store}", crowd()) as runtime:
        run_id = await runtime.start("w", {"order_id": "A", "ledger": str(ledger), "hold": str(hold)})
        with workers(store, 1) as [one]:
            end = time.monotonic() + 30
            while not hold.exists():
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
            head = runtime.log.head(run_id)
            with pytest.raises(LeaseLost):
                await runtime.runs.go_on(run_id)
            await runtime.runs.work(until_idle=True)
            assert runtime.log.head(run_id) == head
            one.send_signal(signal.SIGKILL)
            one.wait()
            outcome = await runtime.runs.go_on(run_id)
        assert outcome.record.state == "COMPLETED"
        assert lines_of(ledger)[0] == {"write:A": 1}


# Two who want the same


@played
async def test_two_runs_that_want_the_same_effect_make_it_once() -> None:
    """R058"""
    app = new_app()
    made = []

    @capability(effect="keyed", key=lambda a: f"once:{a.order_id}")
    async def once(ctx: Context, order_id: str) -> None:
        made.append(ctx.run_id)
        await asyncio.sleep(0)

    flow(app).capability("once", once).step("b", add(1))
    kit = bench(app)
    run_ids = [await kit.start("w", {"order_id": "A"}) for _ in range(20)]
    await kit.runs.work(until_idle=True)
    states = Counter(kit.runs.record(run_id).state for run_id in run_ids)
    reasons = {kit.runs.record(run_id).reason for run_id in run_ids if kit.runs.record(run_id).state == "FAILED"}
    assert len(made) == 1
    assert states["COMPLETED"] >= 1
    assert reasons <= {"EffectConflict"}
    assert sum(len(of_type(kit, run_id, EffectQueued)) for run_id in run_ids) == 1


@played
async def test_an_owner_that_lost_its_lease_writes_nothing_more(tmp_path: Path) -> None:
    """M1"""
    app = new_app()
    gate = asyncio.Event()

    @capability(effect="read")
    async def waits(ctx: Context) -> None:
        await gate.wait()

    flow(app).capability("waits", waits).capability("mark", mark)
    clock = FakeClock()
    log = SqliteLog(str(tmp_path / "runs.db"), clock.now_ms)
    kit = bench(app, clock=clock, log=log)
    run_id = await kit.start("w", {"order_id": "A"})
    going = asyncio.create_task(kit.runs.go_on(run_id))
    while kit.log.holder(run_id) is None:
        await asyncio.sleep(0)
    stolen = log.claim(run_id, kit.runs.owner, 60_000)  # as a process of the same name that took over does
    gate.set()
    with pytest.raises(LeaseLost):
        await going
    assert world(kit).deliveries == []
    assert done(kit, run_id) == []
    log.release(stolen)
    assert (await kit.go_on(run_id)).record.state == "COMPLETED"
    assert len(world(kit).ledger) == 1
    await kit.runs.close()
    await log.close()
