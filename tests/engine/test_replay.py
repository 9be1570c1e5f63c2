"""Strict replay: every decision again without models and tools; the first differing event is named (R183, R186; P1)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from setpoint.adapters.stores.memory import MemoryLog
from setpoint.engine.replay import Replayed, replay
from setpoint.kernel.errors import LogCorrupt, ReplayDiverged
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.ports.log import Draft, Stored
from setpoint.testing.crash import Crash, CrashingLog
from setpoint.testing.replies import ScriptedReplies

from .harness import STREAM, Rig
from .scenarios import SCENARIOS, Scenario, shell, write

DECIDED = {
    "Authorized",
    "Refused",
    "ToolIntent",
    "DeltaMeasured",
    "SavepointKept",
    "RolledBack",
    "ClaimRejected",
    "TurnEnded",
    "Routed",
    "Stalled",
    "QuestionAsked",
    "ControlApplied",
    "CommitPlanned",
    "Finished",
    "ContextBuilt",
}
"""Events that are decisions: replay makes them itself, so that any change of one is found at that very place."""


def told(scenario: Scenario) -> Rig:
    rig = scenario.rig()
    rig.start()
    if scenario.code < 0:
        rig.ask(*(("answer", "that one") if scenario.code == -1 else ("resume",)))
        rig.resume()
    return rig


def again(rig: Rig, log: Any = None) -> Replayed:
    return asyncio.run(replay(rig.task, log or rig.store, STREAM, BUILTIN))


def rewritten(rig: Rig, seq: int, change: Callable[[Any], Any], at: str | None = None) -> MemoryLog:
    """The same log with one event changed, and every hash after it made right again."""
    log = MemoryLog(lambda: 0)
    log.create(STREAM, "trajectory")
    lease = log.claim(STREAM, "forger", 1)
    drafts: list[Draft] = []
    for stored in rig.store.read(STREAM):
        data = stored.data
        if stored.seq == seq:
            data = json.dumps(change(json.loads(data)), sort_keys=True, separators=(",", ":")).encode()
        drafts.append(Draft(stored.turn, stored.type, data, at or stored.at, stored.v))
    payloads = list(rig.store._payloads.values())
    asyncio.run(log.append(lease, log.head(STREAM), drafts, payloads=payloads))
    return log


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_every_story_is_decided_again_exactly(scenario: Scenario) -> None:
    """R183, R172, R175: the same record; the engine's own ports are not touched."""
    rig = told(scenario)
    ran, asked, judged = list(rig.sandbox.ran), len(rig.proposers[0].contexts), list(rig.verifier.judged)
    found = again(rig)
    assert found.record == rig.record
    assert found.events == len(rig.types()) and found.compared >= found.events - 6
    assert (ran, asked, judged) == (rig.sandbox.ran, len(rig.proposers[0].contexts), rig.verifier.judged)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in leaves(item, (*path, index))]
    return [path]


def altered(path: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Change the value at ``path`` to another of its type."""

    def change(data: Any) -> Any:
        inner = data
        for step in path[:-1]:
            inner = inner[step]
        value = inner[path[-1]]
        inner[path[-1]] = (
            (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}x"
        )
        return data

    return change


VOLATILE = {"elapsed_ms", "latency_ms", "duration_ms"}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_any_change_of_any_decision_is_found_at_that_event(scenario: Scenario) -> None:
    """R183: re-chained, so that only the content gives it away. Every field of every decision, one at a time."""
    rig = told(scenario)
    tried = 0
    for stored in list(rig.store.read(STREAM)):
        if stored.type not in DECIDED:
            continue
        for path in leaves(json.loads(stored.data)):
            if path[-1] in VOLATILE or path[-1] == "path" or (path[0] == "parts" and path[-1] == 1):
                continue  # where a path led, and which file a part is of, are observations
            log = rewritten(rig, stored.seq, altered(path))
            with pytest.raises((ReplayDiverged, LogCorrupt)) as caught:
                again(rig, log)
            if isinstance(caught.value, ReplayDiverged):
                found = re.search(r"differs at event (\d+)", str(caught.value))
                assert found is not None and int(found[1]) == stored.seq, (stored, path, str(caught.value))
            tried += 1
    assert tried > 10


def observed(stored: Stored) -> list[tuple[str, Callable[[Any], Any]]]:
    """Changes of what came from outside that must lead to another decision later."""
    match stored.type:
        case "EvidenceRecorded":
            flip = {"pass": "fail", "fail": "pass", "missing": "pass"}
            return [("verdict", lambda data: {**data, "verdict": flip[data["verdict"]], "distance": 1})]
        case "ModelReplied":
            other = {"stop": "tool_use", "calls": [{"name": "file_read", "arguments": '{"path":"z"}', "id": ""}]}
            return [("reply", lambda data: {**data, "reply": other})]
        case "ChangesObserved":
            return [("fingerprint", lambda data: {**data, "fingerprint": "sha256:other"})]
        case _:
            return []


@pytest.mark.parametrize("scenario", SCENARIOS[:3], ids=str)
def test_another_observation_leads_to_another_decision_and_that_is_found(scenario: Scenario) -> None:
    """R183: at the first event that follows from it, never before it."""
    rig = told(scenario)
    for stored in list(rig.store.read(STREAM)):
        for name, change in observed(stored):
            with pytest.raises(ReplayDiverged) as caught:
                again(rig, rewritten(rig, stored.seq, change))
            found = re.search(r"differs at event (\d+)", str(caught.value))
            assert found is not None and int(found[1]) >= stored.seq, (stored.type, name, str(caught.value))


@pytest.mark.parametrize("surplus", ["ToolIntent", "ModelReplied", "EvidenceRecorded", "SavepointKept"])
def test_an_event_left_out_is_found(surplus: str) -> None:
    """R183: a call the log does not hold is a difference."""
    rig = told(SCENARIOS[1])
    seq = next(stored.seq for stored in rig.store.read(STREAM) if stored.type == surplus)
    log = MemoryLog(lambda: 0)
    log.create(STREAM, "trajectory")
    lease = log.claim(STREAM, "forger", 1)
    drafts = [Draft(s.turn, s.type, s.data, s.at, s.v) for s in rig.store.read(STREAM) if s.seq != seq]
    asyncio.run(log.append(lease, log.head(STREAM), drafts, payloads=list(rig.store._payloads.values())))
    with pytest.raises(ReplayDiverged):
        again(rig, log)


def test_replay_reads_no_clock() -> None:
    """R186: under another clock the same decisions come out."""
    rig = told(SCENARIOS[1])
    later = rewritten(rig, -1, lambda data: data, at="2038-01-19T03:14:08.000Z")
    assert again(rig, later).record.state == rig.record.state


def test_another_contract_or_another_tool_set_is_found() -> None:
    """R182, R183: a patched harness fails at the turn where it decides otherwise."""
    rig = told(SCENARIOS[0])
    patched = {name: tool for name, tool in BUILTIN.items() if name != "shell_exec"}
    with pytest.raises(ReplayDiverged, match="differs at event"):
        asyncio.run(replay(rig.task, rig.store, STREAM, patched))


@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.code >= 0], ids=str)
def test_the_log_of_a_crashed_and_resumed_trajectory_replays_too(scenario: Scenario) -> None:
    """R183, R178: where the owner died, replay stops and enters again as the next owner did."""
    rig = scenario.rig()
    rig.start()
    for events in range(2, len(rig.types()), 3):
        crashed = scenario.rig()
        crashed.log = CrashingLog(crashed.store, events)
        with pytest.raises(Crash):
            crashed.start()
        crashed.log.left = None
        crashed.resume()
        try:
            found = again(crashed)
        except ReplayDiverged as fault:
            raise AssertionError(f"crash after {events}: {fault}: {crashed.types()}") from fault
        assert found.record == crashed.record


@pytest.mark.parametrize(("context", "price"), [(3_000, None), (128_000, 3_000_000), (2_400, 30_000_000)])
def test_a_route_with_a_small_window_and_a_price_replays_like_any_other(context: int, price: int | None) -> None:
    """R183, R186: what a model can take and costs is a fact the decisions rest on."""
    from setpoint.kernel.contract import Budget, Policy
    from setpoint.kernel.proposal import Usage
    from setpoint.ports.proposer import RouteLimits
    from setpoint.testing.tasks import make_task

    usage = Usage(1000, 100, 0, None)
    script = [shell("much"), *[write("src/a", "x" * 3000 + str(n), usage=usage) for n in range(9)]]
    proposer = ScriptedReplies(script, limits=RouteLimits(context, 200, price, price))
    budget = Budget(usd_micros=20_000 if price else 2_000_000)
    rig = Rig([proposer], task=make_task(budget=budget, policy=Policy(stall_after=20)))
    rig.sandbox._commands = {"much": lambda: (0, "line\n" * 999)}  # type: ignore[assignment]
    rig.start()
    assert again(rig).record == rig.record
