"""People: questions and answers, pause and resume, cancel and kill, each recorded and each applied once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from setpoint.engine.control import Request, encode_request
from setpoint.kernel.events import (
    ControlApplied,
    ControlRequested,
    Finished,
    QuestionAnswered,
    QuestionAsked,
    TurnEnded,
)
from setpoint.phases.p4_dispatch.run import dispatch
from setpoint.testing.replies import ScriptedReplies, call, claim, reply

from .harness import STREAM, Rig


def write(path: str, content: str, *more: Any) -> Any:
    return reply(call("file_write", path=path, content=content), *more)


QUESTION = reply(call("ask_operator", question="which value?"))


def asking(key: str, action: str, argument: str = "", after_turn: int = 1, **parts: Any) -> Rig:
    """A rig whose request arrives while turn ``after_turn`` is being dispatched."""
    rig: Rig

    async def watched(permit: Any, bench: Any, wall_ms: int) -> Any:
        if rig.proposers[0].contexts[-1].turn == after_turn:
            rig.store.deliver(STREAM, key, encode_request(Request(action, "ops", argument)))
        return await dispatch(permit, bench, wall_ms)

    rig = Rig(
        [ScriptedReplies([write("src/b", "1"), write("src/b", "2"), write("src/a", "1")])], dispatch=watched, **parts
    )
    return rig


def test_a_question_pauses_and_its_answer_is_in_the_next_prompt() -> None:
    """R122: nothing is asked of the model while it waits; the wait survives a restart."""
    rig = Rig([ScriptedReplies([QUESTION, write("src/a", "1")])])
    record = rig.start()
    assert record.state == "PAUSED" and record.question is not None
    assert rig.events(QuestionAsked)[0].question == "which value?" and rig.types()[-1] == "TurnEnded"
    assert rig.events(TurnEnded)[0].outcome == "asked"
    assert rig.resume().state == "PAUSED", "without an answer it goes on waiting"
    assert len(rig.proposers[0].contexts) == 1
    rig.ask("answer", "the value 1")
    record = rig.resume()
    assert record.state == "COMPLETED" and "the value 1" in rig.prompt(1)
    assert [event.answer for event in rig.events(QuestionAnswered)] == ["the value 1"]


def test_what_was_changed_beside_a_question_is_judged_before_it_waits() -> None:
    """R122, R131: the savepoint is kept and is there after the answer."""
    rig = Rig([ScriptedReplies([write("src/a", "1", call("ask_operator", question="ok?"))])])
    assert rig.start().state == "PAUSED"
    assert rig.record.savepoint == 1 and rig.record.items == ()
    rig.ask("answer", "yes")
    assert rig.resume().state == "COMPLETED" and rig.workspace.user["src/a"] == b"1"


def test_an_answer_is_taken_once_however_often_it_is_delivered() -> None:
    """R181: the inbox deduplicates by key; an answer to nothing is recorded and does nothing."""
    rig = Rig([ScriptedReplies([QUESTION, write("src/a", "1")])])
    rig.start()
    for _ in range(3):
        rig.ask("answer", "1", key="same")
    rig.ask("answer", "2", key="late")
    rig.resume()
    assert [event.answer for event in rig.events(QuestionAnswered)] == ["1"]
    assert [(event.request_id, event.action) for event in rig.events(ControlApplied)] == [
        ("same", "answer"),
        ("late", "none"),
    ]


def test_a_pause_stands_at_the_turn_boundary_and_keeps_context_and_workspace() -> None:
    """R131, R226, R228: the turn under way is finished first."""
    rig = asking("p", "pause")
    record = rig.start()
    assert record.state == "PAUSED" and record.turn == 1 and record.savepoint == 1
    assert rig.types()[-3:] == ["TurnEnded", "ControlRequested", "ControlApplied"]
    before = (record.fingerprint, record.notes, record.shown, rig.workspace.candidate)
    rig.ask("resume")
    rig.dispatch = dispatch
    paused = rig.record
    assert before == (paused.fingerprint, paused.notes, paused.shown, rig.workspace.candidate)
    assert rig.resume().state == "COMPLETED"


@pytest.mark.parametrize("action", ["cancel", "kill"])
def test_an_end_by_a_person_is_terminal_and_leaves_the_tree_alone(action: str) -> None:
    """R226, R227: late requests are read no more, and a resume changes nothing."""
    rig = asking("c", action)
    record = rig.start()
    assert record.state == "CANCELLED" and rig.workspace.user == rig.workspace.base
    assert rig.events(Finished)[0].reason == {"cancel": "Cancelled", "kill": "Killed"}[action]
    events = len(rig.types())
    rig.ask("resume")
    assert rig.resume().state == "CANCELLED" and len(rig.types()) == events


def test_a_cancel_reaches_a_paused_trajectory() -> None:
    """R226"""
    rig = Rig([ScriptedReplies([QUESTION])])
    rig.start()
    rig.ask("cancel")
    assert rig.resume().state == "CANCELLED"


def test_requests_are_applied_in_order_and_each_once_across_restarts() -> None:
    """R181, R216: what was read is remembered by position."""
    rig = Rig([ScriptedReplies([QUESTION, write("src/a", "1")])])
    rig.start()
    rig.ask("pause", key="a")
    rig.ask("resume", key="b")
    rig.ask("answer", "1", key="c")
    rig.resume()
    assert [event.request_id for event in rig.events(ControlRequested)] == ["a", "b", "c"]
    assert [event.position for event in rig.events(ControlRequested)] == [1, 2, 3]
    assert rig.record.controls == () and rig.record.inbox_position == 3 and rig.record.state == "COMPLETED"


def test_waiting_costs_no_wall_clock() -> None:
    """L12, DESIGN 12: a week of silence is not active time."""
    rig = Rig([ScriptedReplies([QUESTION, write("src/a", "1", claim())])])
    rig.start()
    before = rig.record.spent.elapsed_ms
    rig.clock.advance(7 * 86_400_000)
    rig.ask("answer", "1")
    record = rig.resume()
    assert record.state == "COMPLETED" and record.spent.elapsed_ms == before


def test_the_loop_returns_when_it_waits_and_holds_nothing() -> None:
    """L12: no task, no thread, no timer is left."""

    async def count() -> tuple[int, int]:
        rig = Rig([ScriptedReplies([QUESTION])])
        before = len(asyncio.all_tasks())
        await rig._start()
        return before, len(asyncio.all_tasks())

    before, after = asyncio.run(count())
    assert before == after
