"""A crash after any event: what comes back is what would have come anyway (R049, R051, R172-R175, R178; A1, A2, C5).

The owner dies after exactly n events are stored, for every n, also in the middle of an append, which no real store
does. Another process takes the log up; both ports and clock are fresh.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from setpoint.kernel.contract import ToolGrant
from setpoint.kernel.events import Authorized, DeltaMeasured, ModelReplied, ToolIntent
from setpoint.testing.crash import Crash, CrashingLog, DiaryLog
from setpoint.testing.replies import call

from .harness import TOOLS, Rig
from .scenarios import SCENARIOS, Scenario, write

ENDING = [scenario for scenario in SCENARIOS if scenario.code >= 0]


def totals(rig: Rig) -> dict[str, Any]:
    """What may not depend on where the owner died."""
    record = rig.record
    return {
        "state": (record.state, record.finished_reason, record.finished_code, record.finished_message),
        "tree": rig.workspace.user,
        "digest": record.state_digest,
        "spent": (record.spent.input_tokens, record.spent.output_tokens, record.spent.usd_micros),
        "notes": record.notes,
        "blocked": record.blocked,
        "calls": record.calls_by_tool,
        "routes": (record.route_index, record.cursors),
        "commits": rig.workspace.commits,
    }


def run_with_crash(scenario: Scenario, events: int, again: int | None = None) -> Rig | None:
    """The story with the owner's death after ``events`` events, and a second death ``again`` events later.

    None when the story is shorter than that.
    """
    crashing: list[CrashingLog] = []

    def wrap(log: Any) -> Any:
        crashing.append(CrashingLog(log, events))
        return crashing[0]

    rig = scenario.rig()
    rig.wrap = wrap
    rig.log = wrap(rig.store)
    try:
        rig.start()
        return None
    except Crash:
        pass
    if again is not None:
        rig.log.left = again
        with contextlib.suppress(Crash):
            rig.resume()
    rig.log.left = None
    rig.resume()
    return rig


def boundaries(scenario: Scenario) -> tuple[dict[str, Any], int, set[int]]:
    """Totals of the undisturbed story, its length, and where its appends end."""
    rig = scenario.rig()
    rig.log = DiaryLog(rig.store)
    record = rig.start()
    assert record.is_terminal and record.finished_code == scenario.code, record.finished_message
    ends, position = set[int](), 0
    for _, types in rig.log.appends:
        position += len(types)
        ends.add(position)
    return totals(rig), position, ends


@pytest.mark.parametrize("scenario", ENDING, ids=str)
def test_a_crash_between_any_two_appends_changes_nothing(scenario: Scenario) -> None:
    """R049, R051, R175: same state, tree, spend, notes and routes; the first append accepts the task."""
    expected, _, ends = boundaries(scenario)
    for events in sorted(ends)[:-1]:
        rig = run_with_crash(scenario, events)
        assert rig is not None
        assert totals(rig) == expected, f"after {events} events: {rig.types()}"


@pytest.mark.parametrize("scenario", ENDING, ids=str)
def test_a_crash_after_any_event_ends_alike_and_repeats_no_recorded_call(scenario: Scenario) -> None:
    """R051, A1: also when an append is torn, which no store does. A turn may be lost then, a recorded reply never."""
    expected, length, _ = boundaries(scenario)
    for events in range(2, length):
        rig = run_with_crash(scenario, events)
        assert rig is not None
        found = totals(rig)
        for name in ("state", "tree", "commits"):
            assert found[name] == expected[name], f"{name} after {events} events: {rig.types()}"
        assert_no_recorded_call_repeated(rig, events)


def assert_no_recorded_call_repeated(rig: Rig, events: int) -> None:
    for route, proposer in enumerate(rig.proposers):
        recorded = [c for c in rig.events(ModelReplied) if c.route == proposer.route]
        positions = [c.cursor for c in recorded]
        assert len(positions) == len(set(positions)), f"a reply is recorded twice after {events}"
        asked = [context.cursor for context in proposer.contexts]
        lost = len(asked) - len(set(asked))
        assert lost <= 1, f"route {route} was asked {lost} times again after one crash at {events}"


@pytest.mark.parametrize("scenario", ENDING[:3], ids=str)
def test_a_second_crash_during_recovery_changes_nothing(scenario: Scenario) -> None:
    """R051"""
    expected, _length, ends = boundaries(scenario)
    for events in sorted(ends)[1:-1:2]:
        for again in (1, 2, 5):
            rig = run_with_crash(scenario, events, again)
            assert rig is not None
            found = totals(rig)
            for name in ("state", "tree", "commits"):
                assert found[name] == expected[name], f"{name} after {events} and {again}: {rig.types()}"


def test_a_taken_up_reply_is_dispatched_as_another_attempt_with_the_same_key() -> None:
    """R132, R173: the key comes from what was fixed before; the attempt counts dispatches."""
    scenario = SCENARIOS[0]
    rig = scenario.rig()
    undisturbed = rig.start()
    position = rig.types().index("ToolIntent", rig.types().index("ToolIntent") + 1) + 1
    crashed = run_with_crash(scenario, position)
    assert crashed is not None and undisturbed.finished_code == 0
    intents = [intent for intent in crashed.events(ToolIntent) if intent.tool == "file_write"]
    assert [intent.attempt for intent in intents] == [1, 2]
    assert len({intent.key for intent in intents}) == 1


def test_a_second_dispatch_is_linked_to_the_delta_of_the_savepoint_not_of_the_dead_attempt() -> None:
    """R008: the attempt had met every criterion when its owner died; its delta is gone with it."""
    scenario = SCENARIOS[0]
    rig = scenario.rig()
    rig.start()
    position = rig.types().index("SavepointKept")  # everything up to the delta of the attempt
    crashed = run_with_crash(scenario, position)
    assert crashed is not None
    items = [event.items for event in crashed.events(Authorized, ToolIntent) if event.tool == "file_write"]
    assert len(items) == 4 and all(items), items
    base, _, again = crashed.events(DeltaMeasured)[:3]
    assert again == base, "measured again from the savepoint's own evidence, nothing of it missing"


def test_a_crash_spends_no_call_of_a_bounded_tool_and_is_no_repetition() -> None:
    """R074, R110: however often the owner dies, the one call it was dispatching stays one call."""
    task = {"actions": (ToolGrant("shell_exec", max_calls=1), *TOOLS[1:])}
    scenario = Scenario("x", [write("src/a", "1", call("shell_exec", command="look"))], task=task)
    rig = scenario.rig()
    rig.start()
    position = len(rig.types()) - rig.types()[::-1].index("ToolResult")
    crashed = run_with_crash(scenario, position, 4)
    assert crashed is not None
    assert "Refused" not in crashed.types(), crashed.types()
    assert crashed.record.finished_code == 0
