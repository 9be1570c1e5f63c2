"""The bounds of the benchmarks: each fails when its measurement is on the wrong side, and the page says so."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gates
    import report

    return gates, report


def turn(cpu_ms: float, rate: float, **more: object) -> dict[str, object]:
    return {"cpu_ms": cpu_ms, "turns_per_s": rate, "bytes": 2000.0, "journal_mode": "wal", "synchronous": 2, **more}


def good() -> dict[str, list[dict[str, object]]]:
    """Results in which everything holds; the noisy second round is worse on every count."""
    ours = {"syncs": 1.02, "waits": 1.0, "sqlite": "3.40"}
    peer = {"version": "peer 1"}
    return {
        "ours": [turn(0.4, 2000, **ours), turn(0.9, 500, **ours)],
        "langgraph": [turn(2.0, 400, **peer), turn(4.0, 100, **peer)],
        "dbos": [turn(1.8, 500, **peer)],
        "langgraph one node": [turn(1.0, 800, **peer)],
        "langgraph newest only": [turn(1.0, 800, **peer)],
        "dbos one step": [turn(0.9, 900, **peer)],
        "ours 100": [turn(0.3, 4000, syncs=0.02)],
        "langgraph 100 threads": [turn(1.5, 500)],
        "langgraph 100 coroutines": [turn(2.5, 400)],
        "langgraph 100 one node": [turn(1.0, 900)],
        "windows": [{"cpu_ms": {"100": [0.4, 0.5], "10000": [0.42, 0.9]}, "bytes": {"100": 2000, "10000": 2010}}],
        "resume": [{"cpu_ms": 50, "events": 7032}],
        "parked": [{"resident_bytes_each": 1800, "threads": 0, "files": 0, "tasks": 0}],
        "parked traced": [{"traced_bytes_each": 320}],
        "transaction": [
            {
                "rung": "overlay",
                "cpu_ms_plain": 1.0, "cpu_ms_small": 7.0, "cpu_ms_large": 7.1,
                "least_cpu_ms_plain": 1.0, "least_cpu_ms_small": 6.5, "least_cpu_ms_large": 6.6,
                "wall_ms_plain": 1.0, "wall_ms_small": 15.0, "wall_ms_large": 16.0,
                "open_cpu_ms_small": 6.0, "open_cpu_ms_large": 2500.0,
            }
        ],
        "syncs": [{"job": "ours", "syncs": 1.03}, {"job": "dbos", "syncs": 2.0}],
        "machine": [{"cores": 2, "realtime": True, "rounds": 2}],
    }  # fmt: skip


def test_good_results_hold_every_gate_and_the_best_round_counts(modules):
    gates, report = modules
    judged = gates.gates(good())
    assert len(judged) == 15 and all(gate.holds for gate in judged), [g for g in judged if not g.holds]
    assert {gate.part for gate in judged} == {"a", "b", "c", "d"}
    assert "**no**" not in report.page(good(), judged)


BAD = {
    "CPU a turn, LangGraph": ("langgraph", 0, "cpu_ms", 1.5),
    "CPU a turn, DBOS": ("dbos", 0, "cpu_ms", 1.59),
    "turns a second, ours / LangGraph": ("langgraph", 0, "turns_per_s", 700),
    "turns a second, ours / DBOS": ("dbos", 0, "turns_per_s", 700),
    "syncs a turn": ("syncs", 0, "syncs", 2.1),
    "waits for the disk": ("ours", 1, "waits", 2.0),
    "bytes a turn": ("ours", 0, "bytes", 2600),
    "CPU at turn 10,000": ("windows", 0, "cpu_ms", {"100": [0.4], "10000": [0.5]}),
    "bytes a turn at turn 10,000": ("windows", 0, "bytes", {"100": 2000, "10000": 2400}),
    "100 at once": ("langgraph 100 coroutines", 0, "turns_per_s", 700),
    "CPU of a sandboxed transaction": ("transaction", 0, "cpu_ms_small", 12.0),
    "CPU of it in 100,000": ("transaction", 0, "least_cpu_ms_large", 9.0),
    "CPU to resume": ("resume", 0, "cpu_ms", 101),
    "resident memory": ("parked", 0, "resident_bytes_each", 5000),
    "threads of 1,000": ("parked", 0, "threads", 1),
}


@pytest.mark.parametrize("what", BAD)
def test_each_gate_fails_by_itself(what, modules):
    gates, report = modules
    job, number, key, value = BAD[what]
    results = copy.deepcopy(good())
    for found in results[job] if job == "langgraph" else [results[job][number]]:
        found[key] = value
    failed = [gate for gate in gates.gates(results) if not gate.holds]
    assert [gate.what.startswith(what) for gate in failed] == [True], failed
    assert failed[0].margin < 1
    assert report.page(results, gates.gates(results)).count("**no**") == 1


def test_without_a_sandbox_its_gates_are_left_out_and_the_page_says_why(modules):
    gates, report = modules
    results = good()
    results["transaction"] = [{"unavailable": "no namespaces here"}]
    judged = gates.gates(results)
    assert "b" not in {gate.part for gate in judged}
    assert "Not measured: no namespaces here." in report.page(results, judged)


def test_our_own_measurement_runs_and_counts_one_sync_and_one_wait_a_turn(tmp_path):
    """R170"""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "durable_turn.py"), "--dir", str(tmp_path), "--turns", "60"],
        capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["waits"] == 1.0
    assert 1.0 <= found["syncs"] <= 2.0
    assert found["bytes"] <= 4_000  # a small store is mostly its fixed pages
    assert (found["journal_mode"], found["synchronous"]) == ("wal", 2)
