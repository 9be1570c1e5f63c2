"""Real processes over a real store and a real server: killed between the bank's commit and the record, or racing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.effects.servers import bank_module
from tests.runs.paying import shop

from setpoint.adapters.approvers.roster import Roster
from setpoint.adapters.clock import SystemClock
from setpoint.adapters.effectors.http import HttpClient
from setpoint.adapters.stores import this_owner
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.runs import Runs
from setpoint.kernel.run_events import decode

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Any]:
    with bank_module().Bank(tmp_path / "bank.db") as bank:
        bank.change({"dedup": False})  # it does whatever it is told: what prevents the second refund is the runtime
        yield bank


@pytest.fixture
def worker(tmp_path: Path, bank: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    home = tmp_path / "home"

    def start(run_id: str, order: str = "A-1001", probes: str = "probes") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.runs.paying", f"sqlite:///{tmp_path}/log.db", bank.url]
        environment = {**os.environ, "SETPOINT_HOME": str(home), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src"}
        one = subprocess.Popen(
            [*command, run_id, order, probes], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        started.append(one)
        return one

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait()
        if one.stdout is not None:
            one.stdout.close()


def said(worker: subprocess.Popen[str]) -> list[Any]:
    output, _ = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0
    return json.loads(output)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.01)


def kill_after_commit(bank: Any, start: Callable[[], subprocess.Popen[str]], marker: Path) -> None:
    """The bank has moved the money, durably, and has not answered yet: there the caller is killed."""
    bank.change({"pause_after_commit": str(marker)})
    victim = start()
    wait_until(marker.exists)
    victim.send_signal(signal.SIGKILL)
    victim.wait(PATIENCE_S)
    marker.unlink()


def test_killed_between_the_banks_commit_and_the_record_the_refund_is_made_once(bank, worker, tmp_path):
    """B3 R049 R051 R052 R134"""
    kill_after_commit(bank, lambda: worker("rn-1"), tmp_path / "committed")
    assert len(bank.ledger()["refunds"]) == 1
    state, reason, code, output = said(worker("rn-1"))
    assert (state, reason, code) == ("COMPLETED", "Completed", 0)
    assert output["steps"] == 2 and output["receipt"]["order_id"] == "A-1001"
    assert len(bank.ledger()["refunds"]) == 1


def test_killed_there_without_a_probe_nothing_is_sent_again_and_a_person_is_asked(bank, worker, tmp_path):
    """B5 R135 R136"""
    kill_after_commit(bank, lambda: worker("rn-1", probes="blind"), tmp_path / "committed")
    state, _, code, _ = said(worker("rn-1", probes="blind"))
    assert (state, code) == ("RUNNING", 16)
    assert len(bank.ledger()["refunds"]) == 1


def events(store: Path) -> int:
    """How many the store holds, for somebody who only looks."""
    if not store.exists():
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        try:
            return db.execute("SELECT count(*) FROM event").fetchone()[0]
        except sqlite3.OperationalError:  # the tables are not there yet
            return 0


def test_killed_again_and_again_the_refund_is_made_once(bank, worker, tmp_path):
    """R049 R051 R056: each time when it has recorded a little more; the last one finds the run over, or ends it."""
    store = tmp_path / "log.db"
    for _ in range(3):
        before = events(store)
        victim = worker("rn-1")
        wait_until(lambda before=before, victim=victim: events(store) > before or victim.poll() is not None)
        victim.send_signal(signal.SIGKILL)
        victim.wait(PATIENCE_S)
    assert said(worker("rn-1"))[:3] == ["COMPLETED", "Completed", 0]
    assert len(bank.ledger()["refunds"]) == 1


def test_two_processes_refund_one_order_at_once_and_the_bank_hears_of_it_once(bank, worker, tmp_path):
    """R058 R138: the first is held while its request is under way, so the second meets it there."""
    marker = tmp_path / "committed"
    bank.change({"pause_after_commit": str(marker)})
    first = worker("rn-1")
    wait_until(marker.exists)
    second = said(worker("rn-2"))
    assert second[:3] == ["FAILED", "EffectConflict", 15]
    marker.unlink()
    assert said(first)[:3] == ["COMPLETED", "Completed", 0]
    assert len(bank.ledger()["refunds"]) == 1
    assert said(worker("rn-3"))[:3] == ["COMPLETED", "Completed", 0]  # afterwards, its stored result is good for all
    assert len(bank.ledger()["refunds"]) == 1


def test_many_processes_race_for_one_order_and_one_refund_is_made(bank, worker):
    """R058 R138"""
    racers = [worker(f"rn-{n}") for n in range(4)]
    ends = [said(racer) for racer in racers]
    assert len(bank.ledger()["refunds"]) == 1
    assert sum(end[0] == "COMPLETED" for end in ends) >= 1
    assert all(end[:2] in (["COMPLETED", "Completed"], ["FAILED", "EffectConflict"]) for end in ends)


# One process, a real server with troubles


@pytest.mark.parametrize(
    ("mode", "refunds", "kinds"),
    [
        ("commit-then-timeout", 1, ["in_doubt"]),
        ("commit-then-hang", 1, ["in_doubt"]),
        ("commit-then-garbage", 1, ["in_doubt"]),
        ("drop", 1, ["in_doubt"]),
        ("rate-limited:1", 1, ["rate_limited"]),
        ("outage", 1, ["rate_limited"]),
        ("decline", 0, ["declined"]),
    ],
)
def test_whatever_the_bank_does_to_a_request_the_refund_is_made_once_or_declined(
    bank: Any, mode: str, refunds: int, kinds: list[str]
) -> None:
    """R130 R133 R134 R136 R137: with a bank that remembers no keys."""
    asyncio.run(_through(bank, mode, refunds, kinds))


async def _through(bank: Any, mode: str, refunds: int, kinds: list[str]) -> None:

    app, flow = shop(probes=True)
    clock = SystemClock()
    log = MemoryLog(clock.now_ms)
    async with HttpClient(bank.url, timeout_ms=700) as client:
        runs = Runs(log, clock, this_owner(), app.programs(), Roster([], clock), {"bank": client})
        values, state = flow.begin({"order_id": "A-1001"})
        run_id = await runs.start(flow.program, values, state)
        bank.trouble(mode)
        outcome = await runs.wait(run_id)
        await runs.close()
    assert outcome.record.state == ("COMPLETED" if refunds else "FAILED")
    assert len(bank.ledger()["refunds"]) == refunds
    failed = [decode(stored.type, stored.data) for stored in log.read(run_id) if stored.type == "NodeFailed"]
    assert [fact.kind for fact in failed][: len(kinds)] == kinds  # type: ignore[attr-defined]
