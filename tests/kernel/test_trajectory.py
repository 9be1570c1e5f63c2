"""fold: total over what the engine writes, legal, pure, and bounded whatever the horizon (L3)."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.kernel import limits
from setpoint.kernel.conditions import CONDITION_TYPES, conditions
from setpoint.kernel.errors import IllegalTransition
from setpoint.kernel.events import (
    Authorized,
    ChangesObserved,
    ClaimRejected,
    ContextBuilt,
    DeltaMeasured,
    Event,
    EvidenceRecorded,
    Finished,
    Item,
    ModelReplied,
    Refused,
    RolledBack,
    SavepointKept,
    Stalled,
    ToolIntent,
    ToolResult,
    TurnEnded,
    TurnStarted,
)
from setpoint.kernel.record import Record
from setpoint.kernel.trajectory import _FOLDS, fold
from setpoint.kernel.transitions import LEGAL, STATES, TERMINAL, is_legal

from . import strategies

BOUNDARIES = ("READY", "FINALIZING")
"""Events that carry a trajectory over a boundary at once: through READY (a question, an interrupted attempt), through
FINALIZING (the end)."""


def is_lawful(before: str, after: str) -> bool:
    if before == after or is_legal(before, after):  # type: ignore[arg-type]
        return True
    return any(is_legal(before, mid) and is_legal(mid, after) for mid in BOUNDARIES)  # type: ignore[arg-type]


# The table


def test_the_table_is_the_published_one() -> None:
    """R106: DEFINITIONS 12, written out by hand once more."""
    wanted = """
        READY: CALLING_MODEL PAUSED FINALIZING
        CALLING_MODEL: READY WAITING_TOOL AWAITING_APPROVAL FINALIZING
        WAITING_TOOL: READY FINALIZING
        AWAITING_APPROVAL: WAITING_TOOL READY FINALIZING
        PAUSED: READY FINALIZING
        FINALIZING: COMPLETED FAILED CANCELLED
        COMPLETED:
        FAILED:
        CANCELLED:
    """
    table = {line.split(":")[0].strip(): set(line.split(":")[1].split()) for line in wanted.strip().splitlines()}
    assert {state: set(after) for state, after in LEGAL.items()} == table


@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
def test_every_pair_of_states_is_judged_by_the_table(before: str, after: str) -> None:
    """R106, R107, R222: terminal states lead nowhere, every exit goes through FINALIZING."""
    legal = is_legal(before, after)  # type: ignore[arg-type]
    assert legal == (after in LEGAL[before])  # type: ignore[index]
    if before in TERMINAL or before == after:
        assert not legal
    if after in TERMINAL:
        assert legal == (before == "FINALIZING")


def test_every_state_is_reachable_and_every_live_state_can_end() -> None:
    """R105, R106"""

    def reach(start: str) -> set[str]:
        found, todo = {start}, [start]
        while todo:
            for after in LEGAL[todo.pop()]:  # type: ignore[index]
                if after not in found:
                    found.add(after)
                    todo.append(after)
        return found

    assert reach("READY") == set(STATES)
    assert all(reach(state) & TERMINAL for state in STATES)


# fold


def test_every_event_has_a_fold() -> None:
    """R172"""
    from setpoint.kernel.events import EVENT_TYPES

    assert set(_FOLDS) == set(EVENT_TYPES.values())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(STATES), st.lists(strategies.any_event(words=True), min_size=1, max_size=25))
def test_fold_is_total_and_never_makes_a_step_the_table_forbids(start: str, events: list[Event]) -> None:
    """R106, R107, R172: any event in any state folds lawfully or is refused by name; nothing else can happen."""
    record = Record(trajectory_id="t", state=start)  # type: ignore[arg-type]
    for turn, event in enumerate(events):
        try:
            after = fold(record, turn, event)
        except IllegalTransition:
            continue
        assert is_lawful(record.state, after.state), f"{type(event).__name__}: {record.state} -> {after.state}"
        assert after.seq == record.seq + 1
        assert fold(record, turn, event) == after, "the same input gives the same record"
        record = after


@pytest.mark.parametrize("terminal", sorted(TERMINAL))
@settings(max_examples=60, deadline=None)
@given(event=strategies.any_event(words=True))
def test_nothing_reopens_a_trajectory_that_has_ended(terminal: str, event: Event) -> None:
    """R107"""
    record = Record(trajectory_id="t", state=terminal)  # type: ignore[arg-type]
    try:
        assert fold(record, 1, event).state == terminal
    except IllegalTransition:
        return


@settings(max_examples=60, deadline=None)
@given(st.lists(strategies.any_event(words=True), max_size=12))
def test_a_record_survives_its_snapshot(events: list[Event]) -> None:
    """R172, R176: a checkpoint is the record, byte for byte."""
    record = Record(trajectory_id="t")
    for turn, event in enumerate(events):
        try:
            record = fold(record, turn, event)
        except IllegalTransition:
            continue
    data = msgspec.json.encode(record)
    again = msgspec.json.decode(data, type=Record)
    assert again == record and msgspec.json.encode(again) == data


# Bounded


def one_turn(turn: int, *, kept: bool) -> list[Event]:
    """What a turn writes, each with texts of its own."""
    state = "sha256:" + f"{turn:064d}"
    events: list[Event] = [
        TurnStarted(elapsed_ms=turn * 1000),
        ContextBuilt(digest="d", tokens=2000),
        ModelReplied(
            route="scripted:a", stop="tool_use", reply={"calls": []}, input_tokens=9, output_tokens=1, cursor=turn
        ),
        Authorized(ordinal=0, tool="file_edit", call_digest=f"{turn:032d}", effect="reversible", path=f"src/{turn}.py"),
        ToolIntent(ordinal=0, tool="file_edit", call_digest=f"{turn:032d}", key="k", effect="reversible"),
        ToolResult(ordinal=0, tool="file_edit", status="COMPLETED", text=f"edited {turn}", exit_code=0),
        Refused(ordinal=1, tool="shell_exec", gate="resource", reason="RATE", message=f"not {turn}"),
        ChangesObserved(fingerprint=state, changed=1),
        EvidenceRecorded(
            check="done/unit", level="visible", verdict="fail", fingerprint=state, check_digest="c", distance=3
        ),
        DeltaMeasured(fingerprint=state, progress=(0, 1, 3), items=[Item("done/unit", 3, "fail")]),
        ClaimRejected(note=f"the claim of turn {turn} was rejected", items=["done/unit"]),
    ]
    if kept:
        events.append(SavepointKept(savepoint=turn, fingerprint=state, changed=1, paths=[f"src/{turn}.py"]))
    else:
        events.append(
            RolledBack(
                savepoint=0,
                fingerprint="sha256:0",
                reason="invariant",
                note=f"no {turn}",
                blocked=f"sha256:{turn:064d}",
            )
        )
    events += [TurnEnded(outcome="kept"), Stalled(tier="steer", reason="NoProgress", message=f"turn {turn}")]
    return events


def sizes(turns: int, *, kept: bool) -> dict[int, int]:
    record = Record(trajectory_id="tr-0000000000000001", name="clamp-negative-timeout", models=("scripted:a",))
    found: dict[int, int] = {}
    for turn in range(1, turns + 1):
        for event in one_turn(turn, kept=kept):
            record = fold(record, turn, event)
        found[turn] = len(msgspec.json.encode(record))
    return found


def test_the_record_does_not_grow_with_the_horizon() -> None:
    """R040, L7: over ten thousand folds it stays where it was after the first windows were full."""
    size = sizes(750, kept=True)  # 14 events a turn: 10,500 folds
    assert size[50] <= 8 * 1024
    assert size[750] <= size[50] * 1.02 + 64, (size[50], size[750])


def test_the_list_of_blocked_proposals_is_bounded() -> None:
    """R017, L7: 256 digests and not one more, the newest of them."""
    size = sizes(2 * limits.BLOCKED_MAX, kept=False)
    assert size[2 * limits.BLOCKED_MAX] <= size[limits.BLOCKED_MAX] + 64


def test_a_fresh_record_of_a_small_task_is_small() -> None:
    """L12: what waits costs a few kilobytes."""
    assert sizes(3, kept=True)[3] < 4096


# Conditions


@settings(max_examples=60, deadline=None)
@given(st.lists(strategies.any_event(words=True), max_size=15))
def test_the_conditions_of_any_record_are_the_nine_in_order(events: list[Event]) -> None:
    """R024"""
    record = Record(trajectory_id="t")
    for turn, event in enumerate(events):
        try:
            record = fold(record, turn, event)
        except IllegalTransition:
            continue
    found = conditions(record)
    assert tuple(condition.type for condition in found) == CONDITION_TYPES
    assert all(condition.status in ("True", "False", "Unknown") and condition.reason for condition in found)
    assert all(condition.observed_generation == record.seq for condition in found)


def finished(reason: str, code: int, state: str = "FAILED") -> Record:
    record = fold(
        Record(trajectory_id="t", task_digest="d"),
        0,
        DeltaMeasured(fingerprint="f", progress=(0, 1, 1), items=[Item("done/unit", 1, "fail")]),
    )
    return fold(record, 0, Finished(state=state, reason=reason, message="m", code=code))


@pytest.mark.parametrize(
    ("reason", "code", "condition"),
    [
        ("Stalled", 11, "Stalled"),
        ("RoutesExhausted", 11, "Stalled"),
        ("ContextTooLarge", 11, "Stalled"),
        ("Budget:turns", 14, "BudgetExhausted"),
        ("Budget:usd", 14, "BudgetExhausted"),
        ("Drifted", 17, "Drifted"),
    ],
)
def test_a_reason_to_end_shows_as_its_condition_and_only_as_that(reason: str, code: int, condition: str) -> None:
    """R023, R024"""
    statuses = {found.type: found.status for found in conditions(finished(reason, code))}
    ends = {"Stalled", "BudgetExhausted", "Drifted"}
    assert {name for name in ends if statuses[name] == "True"} == {condition}
    assert statuses["Progressing"] == "False" and statuses["Converged"] == "False"


def test_converged_is_unknown_before_anything_was_measured() -> None:
    """R024, L4: no evidence is not a no, and never a yes."""
    statuses = {found.type: found.status for found in conditions(Record(trajectory_id="t"))}
    assert statuses["Converged"] == "Unknown" and statuses["Verified"] == "False"
