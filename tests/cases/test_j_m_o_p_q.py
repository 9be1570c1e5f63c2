"""J. Models. L. Timeouts. M. Concurrency. O. Observability. P. Testing. Q. Schemas."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

import pytest

from setpoint.adapters.stores import open_log
from setpoint.app.manifest import load_task
from setpoint.app.runtime import open_runtime
from setpoint.kernel.errors import LeaseLost

from .conftest import CLAIM, MENDED, Case, say, shell, write
from .test_a_lost_state import processes


@pytest.mark.parametrize("kind", ["overloaded", "rate_limited"])
def test_j1_an_overloaded_model_is_waited_for_briefly_then_the_next_route_is_taken(
    case: Case, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J1: not on the same model for ever; waiting costs no turn."""
    slept: list[int] = []

    async def sleep_ms(self: object, ms: int) -> None:
        slept.append(ms)

    monkeypatch.setattr("setpoint.adapters.clock.SystemClock.sleep_ms", sleep_ms)
    case.script(*[{"error": kind, "retry_after": "2s"}] * 9)
    case.script(MENDED, name="second.yaml")
    outcome = case.converge(models=["scripted:script.yaml", "scripted:second.yaml"])
    assert outcome.exit_code == 0 and outcome.record.turn == 1
    assert [event.kind for event in case.events("ModelFailed")] == [kind] * 3 and slept == [2000, 2000]
    assert case.events("Routed")[0].reason == kind


def test_l1_after_a_timeout_the_whole_process_tree_is_gone(case: Case) -> None:
    """L1: also a grandchild that ignores SIGTERM and has left the session."""
    mark = f"case-l1-{os.getpid()}"
    grandchild = f"trap '' TERM HUP INT; : {mark}; while :; do sleep 1; done"
    command = f'setsid sh -c "{grandchild}" & sh -c "{grandchild}" & wait'
    start = time.monotonic()
    outcome = case.converge(
        {"calls": [{"name": "shell_exec", "arguments": {"command": command, "timeout": 1}}]}, MENDED
    )
    assert outcome.exit_code == 0 and time.monotonic() - start < 20
    result = case.events("ToolResult")[0]
    assert (result.status, result.reason, result.exit_code) == ("TRANSPORT_FAILURE", "wall", None)
    assert processes(mark) == []


def test_m1_a_second_worker_on_one_run_is_turned_away_before_any_effect(case: Case) -> None:
    """M1: LeaseLost; the history does not fork."""
    case.script(say(shell("sleep 0.5; echo 1 > src/one")), MENDED)
    task = case.task()

    async def race() -> tuple[Any, int]:
        async with case.runtime() as one, case.runtime() as two:
            two._worker.owner = "another-host/boot:1/1/1"  # a live worker elsewhere, by all that can be told
            running = asyncio.create_task(one.converge(load_task(str(task))))
            while not (owned := [i.stream for i in one.log.streams() if i.seq > 3]):
                await asyncio.sleep(0.01)
            before = one.log.head(owned[0]).seq
            with pytest.raises(LeaseLost):
                await two.resume(owned[0])
            assert two.log.head(owned[0]).seq >= before
            return await running, len(case.prompts)

    outcome, asked = asyncio.run(race())
    assert outcome.exit_code == 0 and asked == 2
    case.trajectory_id = outcome.trajectory_id
    assert len(case.events("LeaseClaimed")) == 1 and len(case.events("ToolIntent")) == 2


def test_m1_a_worker_that_was_superseded_cannot_write_any_more(case: Case) -> None:
    """M1, R180: its fencing token is stale; the newer owner's history stands."""
    case.converge(say({"name": "ask_operator", "arguments": {"question": "?"}}))

    async def stale() -> None:
        runtime = open_runtime()
        log = open_log(runtime.places.store_url, runtime.clock.now_ms)
        old = log.claim(case.trajectory_id, "a", 15_000)
        log.release(old)
        log.claim(case.trajectory_id, "b", 15_000)
        head = log.head(case.trajectory_id)
        from setpoint.ports.log import Draft

        with pytest.raises(LeaseLost):
            await log.append(old, head, [Draft(1, "Forged", b"{}", "2026-01-01T00:00:00.000Z")])
        assert log.head(case.trajectory_id) == head
        await log.close()
        await runtime.close()

    asyncio.run(stale())


@pytest.mark.parametrize(
    ("proposals", "spec", "words"),
    [
        ([say(write("src/other", str(n))) for n in range(9)], {"policy": {"stall_after": 2}}, ["Stalled", "done/unit"]),
        ([say({"name": "ask_operator", "arguments": {"question": "which?"}})], {}, ["which?", "done/unit", "answer"]),
        (
            [say(write("src/other", "1"))],
            {"budget": {"turns": 1, "tokens": 9999, "usd": 1.0, "wall": "1m"}},
            ["turns", "done/unit"],
        ),
    ],
    ids=["stalled", "asked", "out-of-budget"],
)
def test_o2_why_is_it_not_done_is_answered(case: Case, proposals: list[Any], spec: Any, words: list[str]) -> None:
    """O2: the items, the last evidence, what happens next."""
    case.converge(*proposals, **spec)
    said = case.cli("why", case.trajectory_id)
    text = said.stdout + said.stderr
    for word in words:
        assert word in text, text
    document = json.loads(case.cli("why", case.trajectory_id, "--json").stdout)
    assert "done/unit" in json.dumps(document)


def test_p1_yesterdays_run_is_replayed_exactly_without_key_or_network(case: Case) -> None:
    """P1: in a process of its own; the project, the script and the sandbox are gone."""
    case.files({"extra": "x" * 3000}, "project/src")
    case.converge(say(shell("cat src/extra")), say(write("src/value", "4"), CLAIM), say(write("src/value", "5"), CLAIM))
    (case.root / "script.yaml").unlink()
    (case.project / "src" / "value").write_text("something else by now")
    said = case.cli("replay", "--strict", case.trajectory_id)
    assert said.returncode == 0


def test_p1_a_divergence_is_named_at_its_first_event(case: Case) -> None:
    """P1: exit 19."""
    from setpoint.kernel.errors import ReplayDiverged
    from setpoint.phases.p3_gate.tools import BUILTIN

    case.converge(say(shell("ls")), MENDED)

    async def patched() -> None:
        from setpoint.engine.replay import replay

        async with case.runtime() as runtime:
            record, _ = runtime.record(case.trajectory_id)
            tools = {name: tool for name, tool in BUILTIN.items() if name != "shell_exec"}
            with pytest.raises(ReplayDiverged, match="differs at event") as caught:
                await replay(runtime.task_of(record), runtime.log, case.trajectory_id, tools)
            first = next(s.seq for s in runtime.log.read(case.trajectory_id) if s.type == "ContextBuilt")
            assert f"event {first}:" in str(caught.value) and caught.value.exit_code == 19

    asyncio.run(patched())


BAD_CALLS = {
    "malformed": ({"raw": '{"name": "shell_exec", "arguments": '}, "/raw"),
    "null": ({"raw": '{"name": "shell_exec", "arguments": null}'}, "/raw/arguments"),
    "double-encoded": ({"raw": '{"name": "shell_exec", "arguments": "{\\"command\\": \\"ls\\"}"}'}, "/raw/arguments"),
    "unknown-tool": (say({"name": "rm_rf", "arguments": {"path": "/"}}), "/name"),
    "unknown-argument": (say({"name": "shell_exec", "arguments": {"command": "ls", "sudo": True}}), "/arguments"),
    "wrong-type": (say({"name": "file_read", "arguments": {"path": 7}}), "/arguments/path"),
    "number-as-argv": (say({"name": "shell_exec", "arguments": {"argv": 0}}), "/arguments/argv"),
    "not-an-object": ({"raw": '"just text"'}, "/raw"),
    "two-documents": ({"raw": '{"name": "ls"} {"name": "ls"}'}, "/raw"),
    "duplicate-key": (
        {"raw": '{"name": "shell_exec", "arguments": {"command": "ls", "command": "rm"}}'},
        "/raw/arguments/command",
    ),
    "nan": (
        {"raw": '{"name": "shell_exec", "arguments": {"command": "ls", "timeout": NaN}}'},
        "/raw/arguments/timeout",
    ),
}


@pytest.mark.parametrize("bad", BAD_CALLS)
def test_q1_arguments_that_are_no_arguments_are_refused_with_their_place(case: Case, bad: str) -> None:
    """Q1: never an exception; the original error reaches the next prompt; nothing was run."""
    said, pointer = BAD_CALLS[bad]
    outcome = case.converge(said, MENDED)
    assert outcome.exit_code == 0 and outcome.record.turn == 2, outcome.record.finished_message
    refusal = case.events("Refused")[0]
    assert refusal.pointer == pointer and refusal.message[:60] in case.prompt(1)
    assert len(case.events("ToolIntent")) == 1


def test_q1_nothing_but_bad_calls_counts_toward_the_stall(case: Case) -> None:
    """Q1"""
    outcome = case.converge(*[{"raw": '{"name": ' + f'"shell_exec{n}"'} for n in range(15)])
    assert outcome.exit_code == 11 and outcome.record.finished_reason == "Stalled" and outcome.record.turn <= 6
