"""The refund application dies at every event, and in several processes at random: one refund for an order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.examples.refund_desk import (
    BANKS,
    CHILD,
    Children,
    desk,
    events,
    many,
    paid,
    store_of,
)

from setpoint.app.runs import RunOutcome
from setpoint.demo.refund import refunds
from setpoint.demo.refund.bank import Bank
from setpoint.kernel.run_events import NodeFailed

pytestmark = pytest.mark.timeout(400)  # dozens of processes, each of which syncs; the machine may do other things

SWEPT_BANKS = pytest.mark.parametrize(
    "dedup",
    [
        pytest.param(True, id="a bank that remembers keys", marks=pytest.mark.slow),
        pytest.param(False, id="a naive bank"),  # the one that forgives nothing
    ],
)


# kill -9 at every event


def marks_of(whole: dict[str, Any], first: int = 1) -> list[tuple[str, int]]:
    """Every place to die in a run that was seen whole: as an event is stored, and before an append."""
    events = [("event", n) for n in range(first, whole["events"] + 1)]
    return events + [("append", n) for n in range(first, whole["appends"] + 1)]


@SWEPT_BANKS
def test_a_kill_at_every_event_makes_no_second_refund(place: Path, dedup: bool) -> None:
    """A1 B3"""
    with Bank(place / "bank.db", many(80), dedup=dedup) as bank, Children(place, bank) as children:
        whole = children.run(order="O-1", run="rn-1")
        assert whole["code"] == 0
        marks = marks_of(whole)
        for n, kill in enumerate(marks, 2):
            killed = children.run(order=f"O-{n}", run=f"rn-{n}", kill=kill)
            assert killed == {"signal": 9}, kill
            # The same request again, as a client that got no answer would make it.
            assert children.run(order=f"O-{n}", run=f"rn-{n}")["output"]["refunded_cents"] == 1000 + n, kill
        ledger = bank.ledger()
        assert paid(bank) == {f"O-{n}": 1000 + n for n in range(1, len(marks) + 2)}
        assert len(ledger["letters"]) == len(marks) + 1 and ledger["reversals"] == []
        assert ledger["requests"] == 2 * (len(marks) + 1), "something was sent twice that had arrived"


@SWEPT_BANKS
def test_a_kill_at_every_event_of_an_agent_s_turn_makes_no_second_refund(place: Path, dedup: bool) -> None:
    """A1: the message is given again, the model is not asked again, and its second request pays nothing."""
    with Bank(place / "bank.db", many(120), dedup=dedup) as bank, Children(place, bank) as children:
        whole = children.run(say="O-1", session="s-1")
        assert (whole["code"], whole["text"], whole["model_calls"]) == (0, "It is refunded.", 3)
        marks = [mark for mark in marks_of(whole) if mark[0] == "append"]
        for n, kill in enumerate(marks, 2):
            same = {"say": f"O-{n}", "session": f"s-{n}"}
            assert children.run(**same, kill=kill) == {"signal": 9}, kill
            again = children.run(**same)
            told = {name: again[name] for name in ("code", "text", "actions", "model_calls")}
            assert told == {name: whole[name] for name in told}, kill
        assert paid(bank) == {f"O-{n}": 1000 + n for n in range(1, len(marks) + 2)}
        assert bank.requests == 2 * (len(marks) + 1)


def test_the_program_itself_goes_on_with_what_is_open(place: Path) -> None:
    """B3: killed just before the payment left, so that nobody can tell at once; it waits until it can."""
    with Bank(place / "bank.db", many(2)) as bank, Children(place, bank) as children:
        types = children.run(order="O-1", run="rn-1")["types"]
        kill = ["event", types.index("EffectQueued") + 1]
        assert children.run(order="O-2", run="rn-2", kill=kill) == {"signal": 9}
        assert paid(bank) == {"O-1": 1001}
        program = [sys.executable, refunds.__file__, "--bank", bank.url, "--store", store_of(place)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["refunded_cents"] == 1002
        assert paid(bank) == {"O-1": 1001, "O-2": 1002}


PAID_BY = 8
"""Up to here a run that fails is like one that does not."""


@SWEPT_BANKS
def test_a_kill_at_every_event_of_a_failing_run_takes_its_refund_back_once(place: Path, dedup: bool) -> None:
    """R134: the letter comes back, so the refund is reversed."""
    orders = many(80, customer="customer:31", mail="returned")
    with Bank(place / "bank.db", orders, dedup=dedup) as bank, Children(place, bank) as children:
        same = {"for": "customer:31"}
        whole = children.run(order="O-1", run="rn-1", **same)
        assert (whole["code"], whole["state"], whole["reason"]) == (11, "FAILED", "Declined")
        marks = marks_of(whole, PAID_BY)
        for n, kill in enumerate(marks, 2):
            assert children.run(order=f"O-{n}", run=f"rn-{n}", kill=kill, **same) == {"signal": 9}, kill
            assert children.run(order=f"O-{n}", run=f"rn-{n}", **same)["state"] == "FAILED", kill
        ledger = bank.ledger()
        assert paid(bank) == {}
        assert len(ledger["refunds"]) == len(ledger["reversals"]) == len(marks) + 1
        assert sorted(row["refund_id"] for row in ledger["reversals"]) == [
            row["refund_id"] for row in ledger["refunds"]
        ]


# Many at once, in processes that die

WORKERS = 3
TROUBLE_WEIGHTS = {
    "normal": 24,
    "commit-then-timeout": 2,
    "commit-then-garbage": 1,
    "commit-then-hang": 1,
    "drop": 1,
    "slow:300": 2,
    "rate-limited:1": 1,
    "outage": 1,
    "decline": 1,
}


class Workers:
    """Worker processes over one store, one of which is killed now and then and replaced."""

    def __init__(self, place: Path, bank: Bank) -> None:
        self._command = [sys.executable, str(CHILD), "work", store_of(place), bank.url]
        self._running = [self._start() for _ in range(WORKERS)]
        self.killed = 0

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, env=os.environ.copy())

    def __enter__(self) -> Workers:
        return self

    def kill(self, number: int) -> None:
        worker = self._running[number]
        assert worker.poll() is None, f"a worker ended by itself with {worker.returncode}"
        worker.kill()
        worker.wait()
        self.killed += 1
        self._running[number] = self._start()

    def __exit__(self, *_: object) -> None:
        for worker in self._running:
            worker.kill()
            worker.wait()


def refund_many(place: Path, seed: int, *, orders: int, seconds: float, dedup: bool, late: float) -> None:
    """Start a run for each of ``orders`` (some twice, some with other words), and kill workers for ``seconds``.

    ``late``: how long after that the rest may take. Every run must have ended then, with one refund or the reason why
    there is none.
    """
    chance = random.Random(seed)
    said = f"seed {seed}, dedup {dedup}"
    print(said)
    weights = {**TROUBLE_WEIGHTS, **({"duplicate": 2} if dedup else {})}
    with Bank(place / "bank.db", many(orders), dedup=dedup) as bank:
        bank.trouble(*chance.choices(list(weights), list(weights.values()), k=orders * 3))

        async def scenario() -> dict[str, list[RunOutcome]]:
            found: dict[str, list[RunOutcome]] = {f"O-{n}": [] for n in range(1, orders + 1)}
            async with desk(place, bank) as runtime:
                asked: list[tuple[str, str]] = []
                for order in found:
                    for again in range(1 + (chance.random() < 0.2)):
                        wanted = {"order_id": order, "reason": f"reason {again}"}
                        asked.append((order, await runtime.start("refund", wanted, principal="customer:17")))
                with Workers(place, bank) as workers:
                    began = time.monotonic()
                    open_runs = {run_id for _, run_id in asked}
                    while open_runs or time.monotonic() < began + seconds:
                        await asyncio.sleep(chance.uniform(0.3, 1.2))
                        open_runs = {one for one in open_runs if not runtime.runs.record(one).is_terminal}
                        if time.monotonic() < began + seconds:
                            workers.kill(chance.randrange(WORKERS))
                            bank.trouble(*chance.choices(list(weights), list(weights.values()), k=orders))
                            while len(open_runs) < orders // 2:  # most are done before the time is up: more of them
                                order = f"E-{len(found)}"
                                bank.orders[order] = {**bank.orders["O-1"]}
                                found[order] = []
                                run_id = await runtime.start("refund", {"order_id": order}, principal="customer:17")
                                asked.append((order, run_id))
                                open_runs.add(run_id)
                        left = {one: runtime.runs.record(one) for one in open_runs}
                        for one, record in left.items():
                            if record.state == "PAUSED":  # the bank said no to the way back: a person tells it again
                                last = events(runtime, one, NodeFailed)[-1]
                                assert (record.reason, last.kind) == ("CompensationFailed", "declined"), (said, record)
                                runtime.runs.resume(one, by="ops")
                        assert time.monotonic() < began + seconds + late, (
                            said, {one: (record.state, record.reason, record.waits) for one, record in left.items()}
                        )  # fmt: skip
                print(f"{workers.killed} workers killed, {len(asked)} runs, {bank.requests} requests")
                for order, run_id in asked:
                    found[order].append(await runtime.runs.wait(run_id))
            return found

        outcomes = asyncio.run(scenario())
        ledger = bank.ledger()
        made = paid(bank)
        expected: dict[str, int] = {}
        for order, runs in outcomes.items():
            for run in runs:
                if run.record.state == "COMPLETED" and "refund_id" in run.output:
                    expected[order] = bank.orders[order]["cents"]
                else:  # a declared reason, and none of them is a guess
                    declared = run.output["why_not"] if run.output else run.record.reason
                    reasons = ("Declined", "EffectConflict", "PreconditionUnmet", "AttemptsExhausted")
                    assert declared in reasons or "is refunded already" in declared, (said, order, declared)
        assert made == expected, said
        letters = Counter(row["key"] for row in ledger["letters"])
        assert set(letters) == {f"letter:{order}" for order in expected}, said
        assert len(ledger["reversals"]) == len({row["refund_id"] for row in ledger["reversals"]}), said


def seed_of_the_day() -> int:
    return int(os.environ.get("REFUNDS_SEED") or random.randrange(1 << 32))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("dedup", [False], ids=["a naive bank"])
def test_twenty_refunds_in_three_processes_that_are_killed_are_one_each(place: Path, dedup: bool) -> None:
    """A1 B3 M1"""
    refund_many(place, seed_of_the_day(), orders=20, seconds=8, dedup=dedup, late=90)


@pytest.mark.slow
@pytest.mark.timeout(900)
@BANKS
def test_two_hundred_refunds_in_three_processes_that_are_killed_for_two_minutes_are_one_each(
    place: Path, dedup: bool
) -> None:
    """A1 B3 M1"""
    refund_many(place, seed_of_the_day(), orders=200, seconds=120, dedup=dedup, late=300)
