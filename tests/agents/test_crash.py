"""A process may die after any event: the next one goes on from the log, without asking the model what happened."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agents.shop import Shop

from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.app.turn_reply import TurnReply, read_reply
from setpoint.kernel.keys import digest
from setpoint.testing import Crash, CrashingLog, FakeClock, FakeEffector, call, reply

ROOT = Path(__file__).parents[2]
RETURN = "rn-" + digest(["session:customer-17", 1, 1, 0])[7:23]
"""The run that the second reply starts: its id is fixed by its place."""
REPLIES = [
    reply(call("start_workflow_refund", order_id="A-1001"), call("start_workflow_refund", order_id="A-1002")),
    reply(call("start_workflow_return", order_id="A-1001")),
    reply(call("cancel", run="rn-0")),
    reply(call("provide_input_return_photo", run=RETURN, payload="p.jpg")),
    reply(call("answer_user", text="Two refunds; exchange or voucher?")),
]
TEXT = "Refund A-1001 and A-1002, and I return A-1001"


def story(shop: Shop) -> TurnReply:
    async def tell() -> TurnReply:
        return await shop.say(TEXT, await shop.session())

    return asyncio.run(tell())


def asked(shop: Shop) -> list[int]:
    return [context.cursor for context in shop.script.contexts]


def test_after_a_crash_at_any_event_nothing_is_done_twice_and_no_recorded_reply_is_asked_for_again():
    """R051 R049"""
    whole = Shop(REPLIES)
    expected = story(whole)
    assert expected.waiting_for
    streams = ["session:customer-17", *whole.kit.run_ids()]
    total = sum(whole.log.head(stream).seq for stream in streams)
    for at in range(1, total + 1):
        shop = Shop(REPLIES)
        inner = shop.log
        shop.restart(CrashingLog(inner, at))  # type: ignore[arg-type]
        with pytest.raises(Crash):
            story(shop)
            raise Crash("at the last event, when all was said")
        before = len(asked(shop))
        recorded = _replies(shop, inner)
        shop.restart(inner)
        found = asyncio.run(_go_on(shop))
        assert asked(shop)[before:] == list(range(recorded, 5)), at
        assert (found.text, found.status) == (expected.text, expected.status), at
        assert [(one.action, one.status) for one in found.actions] == [
            (one.action, one.status) for one in expected.actions
        ], at
        assert shop.bank.effects == {"refund:A-1001": 1, "refund:A-1002": 1}, at
        assert len(shop.kit.run_ids()) == 3, at
        assert _replies(shop, inner) == 5, at
        assert shop.kit.runs.record(RETURN).signals == (), at


async def _go_on(shop: Shop) -> TurnReply:
    """The client sends its message again: the one that was begun is gone on with; one that is over is looked at."""
    record = shop.sessions.record("customer-17") if shop.log.head("session:customer-17").seq else None
    if record is not None and record.current is not None and not record.current.is_open:
        async with shop.sessions._owning.hold("customer-17") as journal:
            return read_reply(journal, shop.sessions._reached)
    return await shop.say(TEXT, await shop.session())


def _replies(shop: Shop, log) -> int:
    return sum(1 for stored in log.read("session:customer-17") if stored.type == "ModelReplied")


def test_a_crash_between_the_effect_and_its_record_is_settled_by_the_run_and_the_agent_sees_one_refund():
    """R051"""
    bank = FakeEffector("crash_after_effect")
    shop = Shop(
        [reply(call("start_workflow_refund", order_id="A-1001")), reply(call("complete", text="Done."))], bank=bank
    )
    shop.bank.dedups = True
    with pytest.raises(Crash):
        story(shop)
    shop.restart()
    answer = story(shop)
    assert (answer.status, answer.text) == ("completed", "Done.")
    assert bank.effects == {"refund:A-1001": 1}


def test_another_message_first_brings_the_one_that_was_left_to_its_end():
    shop = Shop([reply(call("start_workflow_refund", order_id="A-1001")), reply(call("complete", text="Done."))])
    inner = shop.log
    shop.restart(CrashingLog(inner, 9))  # type: ignore[arg-type]
    with pytest.raises(Crash):
        story(shop)
    shop.restart(inner)
    shop.then(reply(call("answer_user", text="Hello.")))

    async def tell() -> TurnReply:
        return await shop.say("Hello?", await shop.session())

    assert asyncio.run(tell()).text == "Hello."
    assert shop.bank.effects == {"refund:A-1001": 1}
    assert shop.types().count("MessageAnswered") == 2


def test_a_turn_in_a_process_that_is_killed_is_gone_on_with_by_the_next_one(tmp_path):
    """R049: kill -9 while the second reply is awaited."""
    path = tmp_path / "shop.db"
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.agents.killed_turn", str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert worker.stdout is not None and worker.stdout.readline() == "thinking\n"
        os.kill(worker.pid, signal.SIGKILL)
    finally:
        worker.kill()
        worker.wait()
    clock = FakeClock()
    replies = [reply(call("start_workflow_refund", order_id="A-1001")), reply(call("complete", text="Done."))]
    shop = Shop(replies, log=SqliteLog(str(path), clock.now_ms), clock=clock)
    resumed = asyncio.run(shop.sessions.resume("customer-17"))
    assert resumed is not None and (resumed.text, resumed.status) == ("Done.", "completed")
    assert asked(shop) == [1]
    assert shop.bank.effects == {}  # it was made by the process that died
    assert resumed.runs[0].record.effects_made == 1
    asyncio.run(shop.log.close())
