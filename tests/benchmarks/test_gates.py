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


def step(cpu_ms: float, rate: float, **more: object) -> dict[str, object]:
    return {"cpu_ms": cpu_ms, "steps_per_s": rate, "bytes": 250.0, **more}


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
        "steps ours": [step(0.12, 5000, waits=1.0), step(0.3, 900, waits=1.0)],
        "steps langgraph": [turn(0.6, 900)],
        "steps langgraph chain": [turn(1.2, 500)],
        "steps dbos": [turn(0.9, 600)],
        "steps restate": [{"cpu_ms": 0.9, "steps_per_s": 900.0, "version": "restate 1"}],
        "calls ours": [step(0.3, 2000, waits=2.0)],
        "runs ours": [step(0.08, 12000, syncs=0.1)],
        "runs dbos threads": [turn(2.0, 300)],
        "runs dbos coroutines": [turn(1.5, 900)],
        "runs restate": [{"cpu_ms": 0.7, "steps_per_s": 1500.0, "version": "restate 1"}],
        "step windows": [{"cpu_ms": {"100": [0.12, 0.2], "10000": [0.125, 0.3]}, "bytes": {"100": 165, "10000": 170}}],
        "steps resume": [{"cpu_ms": 38.0, "opening_cpu_ms": 35.0}],
        "waiting": [
            {
                "resident_bytes_each": 600, "threads": 0, "files": 0, "tasks": 0,
                "cpu_ms_each": 0.9, "disk_bytes_each": 1300,
            }
        ],
        "waiting traced": [{"traced_bytes_each": 90}],
        "step syncs": [{"job": "steps ours", "syncs": 1.01}, {"job": "calls ours", "syncs": 2.04}],
        "machine": [{"cores": 2, "realtime": True, "rounds": 2}],
    }  # fmt: skip


def test_good_results_hold_every_gate_and_the_best_round_counts(modules):
    gates, report = modules
    judged = gates.gates(good())
    assert len(judged) == 25 and all(gate.holds for gate in judged), [g for g in judged if not g.holds]
    assert {gate.part for gate in judged} == {"a", "b", "c", "d", "e"}
    assert "**no**" not in report.page(good(), judged)


BAD = {
    "CPU a turn, LangGraph": ("langgraph", 0, "cpu_ms", 1.5),
    "CPU a turn, DBOS": ("dbos", 0, "cpu_ms", 1.59),
    "turns a second, ours / LangGraph": ("langgraph", 0, "turns_per_s", 700),
    "turns a second, ours / DBOS": ("dbos", 0, "turns_per_s", 700),
    "syncs a turn": ("syncs", 0, "syncs", 2.1),
    "waits for the disk between": ("ours", 1, "waits", 2.0),
    "bytes a turn": ("ours", 0, "bytes", 2600),
    "CPU at turn 10,000": ("windows", 0, "cpu_ms", {"100": [0.4], "10000": [0.5]}),
    "bytes a turn at turn 10,000": ("windows", 0, "bytes", {"100": 2000, "10000": 2400}),
    "100 at once": ("langgraph 100 coroutines", 0, "turns_per_s", 700),
    "CPU of a sandboxed transaction": ("transaction", 0, "cpu_ms_small", 12.0),
    "CPU of it in 100,000": ("transaction", 0, "least_cpu_ms_large", 9.0),
    "CPU to resume": ("resume", 0, "cpu_ms", 101),
    "resident memory": ("parked", 0, "resident_bytes_each", 5000),
    "threads of 1,000": ("parked", 0, "threads", 1),
    "CPU a step, LangGraph": ("steps langgraph", 0, "cpu_ms", 0.47),
    "CPU a step, DBOS": ("steps dbos", 0, "cpu_ms", 0.47),
    "syncs a step": ("step syncs", 0, "syncs", 2.1),
    "waits for the disk, a call": ("calls ours", 0, "waits", 2.1),
    "CPU at step 10,000": ("step windows", 0, "cpu_ms", {"100": [0.12], "10000": [0.15]}),
    "bytes a step at step 10,000": ("step windows", 0, "bytes", {"100": 165, "10000": 200}),
    "1,000 runs at once": ("runs dbos coroutines", 0, "turns_per_s", 2100),
    "CPU to take up": ("steps resume", 0, "cpu_ms", 101),
    "resident memory of a waiting": ("waiting", 0, "resident_bytes_each", 5000),
    "threads of 10,000": ("waiting", 0, "threads", 1),
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


def test_without_restate_nothing_fails_and_the_page_says_why(modules):
    gates, report = modules
    results = good()
    for job in ("steps restate", "runs restate"):
        results[job] = [{"unavailable": "there is no npm to install the server with"}]
    judged = gates.gates(results)
    assert all(gate.holds for gate in judged)
    page = report.page(results, judged)
    assert "Restate was not measured: there is no npm to install the server with." in page
    assert page.count("not measured ") == 2


def test_where_nothing_may_be_traced_the_syncs_of_workflows_are_as_our_store_counts_them(modules):
    gates, report = modules
    results = {**good(), "step syncs": []}
    judged = {gate.what: gate for gate in gates.gates(results)}
    assert judged["syncs a step, checkpoints of the log included"].value == 1.0
    report.page(results, list(judged.values()))


def measured(program: str, *arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_step_of_a_workflow_takes_one_sync_and_a_call_under_a_key_two(tmp_path):
    """R170"""
    steps = measured("workflow_steps.py", "--dir", str(tmp_path), "--steps", "60")
    assert steps["waits"] == 1.0
    calls = measured("workflow_steps.py", "--dir", str(tmp_path), "--steps", "60", "--calls")
    assert calls["waits"] == 2.0
    assert (steps["journal_mode"], steps["synchronous"]) == (calls["journal_mode"], calls["synchronous"]) == ("wal", 2)


def test_runs_at_once_share_their_syncs(tmp_path):
    found = measured("workflow_steps.py", "--dir", str(tmp_path), "--steps", "10", "--concurrent", "50")
    assert found["steps"] == 500 and found["syncs"] < 0.5


def test_a_run_whose_worker_was_killed_behind_its_last_step_is_taken_up(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "workflow_resume.py"), "--store", str(tmp_path), "--steps", "50"]
    killed = subprocess.run([*command, "--make"], capture_output=True, text=True, timeout=100)
    assert killed.returncode == -9, killed.stderr
    found = measured("workflow_resume.py", "--store", str(tmp_path), "--steps", "50")
    assert found["steps"] == 50 and found["cpu_ms"] < 1_000


def test_waiting_runs_take_no_thread_and_no_task(tmp_path):
    """L12"""
    found = measured("workflow_waiting.py", "--dir", str(tmp_path), "--count", "60")
    assert (found["threads"], found["tasks"], found["files"]) == (0, 0, 0)


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
