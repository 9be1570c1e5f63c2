"""J. The record of a trajectory, its quotas, its end, and the tiers of a stall."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.engine.harness import STREAM, Rig, make_task

from setpoint.engine.journal import Journal
from setpoint.engine.reading import read_record
from setpoint.kernel.contract import Budget, Policy
from setpoint.kernel.events import RolledBack, Stalled, ToolIntent, ToolResult
from setpoint.phases.p4_dispatch.run import dispatch
from setpoint.testing import ScriptedReplies, call, claim, reply


def write(path: str, content: str, *more: Any) -> Any:
    return reply(call("file_write", path=path, content=content), *more)


MENDED = write("src/a", "1")

GROUPS: Mapping[str, set[str]] = {
    "identity": {"trajectory_id", "name", "parent", "task", "task_digest"},
    "status": {"state", "finished_reason", "finished_code", "turn"},
    "limits of a call": {"terms", "cursors"},
    "budgets and spend": {"spent", "raised", "stage"},
    "pending work": {"reply", "in_flight", "question", "controls"},
    "pointers": {"context_digest", "seq", "savepoint", "fingerprint", "checkpoint_turn"},
}
"""The groups of a trajectory's record. The seventh, grants and leases: the grants lie in the task the record points
to and never change; of the lease it holds the fence."""


def test_the_record_holds_every_group_of_the_control_block() -> None:
    """R220: and what of it is no copy but a pointer to what was accepted."""
    rig = Rig([ScriptedReplies([MENDED])])
    record = rig.start()
    fields = set(type(record).__struct_fields__)
    for group, wanted in GROUPS.items():
        assert wanted <= fields, group
    assert "fence" in fields and record.task is not None and record.task_digest == rig.task.digest
    assert "grants" not in fields


def test_the_record_of_a_small_task_stays_below_eight_kilobytes() -> None:
    """R220: not below the four that are asked for: the evidence of the newest, the kept and the best state is in it."""
    script = [write("src/b", str(n)) for n in range(4)]
    rig = Rig([ScriptedReplies(script)], task=make_task(policy=Policy(stall_after=9)))
    assert 4096 < len(msgspec.json.encode(rig.start())) < 8192


# Results that come too late


def test_a_result_that_arrives_after_its_turn_was_given_up_is_not_taken() -> None:
    """R223: the owner is gone while its tool runs on; whatever the tool says then, the log does not hear it."""

    async def story() -> Rig:
        release = asyncio.Event()
        late: list[str] = []

        async def slow(permit: Any, bench: Any, wall_ms: int) -> Any:
            async def tool() -> Any:
                await release.wait()
                late.append("arrived")
                return await dispatch(permit, bench, wall_ms)

            return await asyncio.shield(asyncio.ensure_future(tool()))

        rig = Rig([ScriptedReplies([MENDED])], dispatch=slow)
        running = asyncio.create_task(rig._start())
        while not rig.store.streams() or "ToolIntent" not in rig.types():
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        before = rig.types()
        rig.workspace.reopened()
        release.set()
        while not late:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert rig.types() == before and rig.events(ToolResult) == []
        return rig

    rig = asyncio.run(story())
    rig.dispatch = dispatch
    assert rig.resume().state == "COMPLETED"
    assert [event.attempt for event in rig.events(ToolIntent)] == [1, 2]
    assert [event.attempt for event in rig.events(ToolResult)] == [2], "that of the second attempt, and it alone"


def test_whoever_was_superseded_can_write_no_late_result() -> None:
    """R223: its result bears an old fence."""
    from setpoint.kernel.errors import LeaseLost

    async def story() -> None:
        rig = Rig([ScriptedReplies([reply(call("ask_operator", question="?"))])])
        await rig._start()
        old = rig._claim()
        rig.store.release(old)
        rig.store.claim(STREAM, "another", 15_000)
        record, head = read_record(rig.store, STREAM)
        journal = Journal(rig.store, rig.clock, old, head, record)
        journal.emit(ToolResult(ordinal=0, tool="shell_exec", status="COMPLETED", text="late"))
        with pytest.raises(LeaseLost):
            await journal.barrier()
        assert rig.store.head(STREAM) == head

    asyncio.run(story())


# Loops


def test_an_edit_and_revert_loop_is_caught_by_turn_four() -> None:
    """R234: the state was there before, whatever the edits were called."""
    script = [write("src/b", "x"), write("src/b", "y"), write("src/b", "x"), write("src/b", "y")]
    rig = Rig([ScriptedReplies(script)], task=make_task(policy=Policy(stall_after=9)))
    record = rig.start()
    assert record.turn <= 4 and record.finished_reason == "Stalled"
    assert ("backtrack", "EditRevertCycle") in [(event.tier, event.reason) for event in rig.events(Stalled)]
    assert rig.events(RolledBack)[-1].reason == "stall" and rig.workspace.user == rig.workspace.base


def test_three_calls_alike_are_a_loop_also_when_nothing_is_changed() -> None:
    """R234"""
    rig = Rig([ScriptedReplies([reply(call("shell_exec", command="false"))] * 9)], commands={"false": lambda: (1, "")})
    record = rig.start()
    assert record.turn == 3 and record.finished_reason == "Stalled" and rig.sandbox.ran == ["false", "false"]


def test_a_loop_that_goes_on_meets_the_three_tiers_in_order() -> None:
    """R235: a note to the model, back to the best state, the end; each once."""
    rig = Rig(
        [ScriptedReplies([write("src/b", str(n)) for n in range(30)])], task=make_task(policy=Policy(stall_after=4))
    )
    record = rig.start()
    tiers = [event.tier for event in rig.events(Stalled)]
    assert tiers == ["steer", "backtrack", "halt"] and record.finished_code == 11
    assert "change course" in rig.prompt(2) and record.savepoint == 0


# Quotas


def test_a_budget_that_is_used_up_names_each_ceiling_by_itself() -> None:
    """R217: the other three are wide open."""
    wide = {"turns": 50, "tokens": 10**6, "usd_micros": 10**9, "wall_ms": 10**9}
    tight = {"turns": 2, "tokens": 2300, "usd_micros": 8000, "wall_ms": 25_000}
    for name, ceiling in tight.items():
        rig: Rig

        async def slow(permit: Any, bench: Any, wall_ms: int) -> Any:
            rig.clock.advance(15_000)  # noqa: B023  (called before the next round)
            return await dispatch(permit, bench, wall_ms)

        rig = Rig(
            [ScriptedReplies([write("src/b", str(n), claim()) for n in range(9)])],
            task=make_task(budget=Budget(**{**wide, name: ceiling}), policy=Policy(stall_after=9)),
            dispatch=slow,
        )
        record = rig.start()
        assert record.finished_reason == f"Budget:{name.removesuffix('_micros').removesuffix('_ms')}"
        assert len(rig.proposers[0].contexts) == 2
