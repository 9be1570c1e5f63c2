"""Runs the refund application in processes that are killed on request. A helper script, not a test.

One JSON command a line on stdin; for each a process is forked from this one, in which everything is imported already,
and one JSON answer is written: ``{"signal": 9}`` when it was killed, else what the child said.

    {"store": URL, "bank": URL, "order": "A-1001", "run": "rn-1", "kill": ["event", 7]}   dies as event 7 is stored
    {"store": URL, "bank": URL, "order": "A-1001", "run": "rn-1", "kill": ["append", 3]}  dies before append 3
    {"store": URL, "bank": URL, "say": "A-1001", "session": "s-1", "kill": ...}           by way of the agent
    {"store": URL, "bank": URL}                                                           all that is open

As ``refund_child.py work STORE BANK`` it is a worker: it takes up what is due until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from typing import Any

from setpoint import Runtime
from setpoint.adapters.clock import SystemClock
from setpoint.adapters.effectors.http import HttpClient
from setpoint.adapters.stores import open_log
from setpoint.app.places import find_places
from setpoint.demo.refund import refunds
from setpoint.kernel.proposal import Reply
from setpoint.testing import Crash, CrashingLog, ScriptedReplies, call, reply

WORKER_RUNS = 8
"""Runs a worker has at once: the bank writes one after the other, and must answer within its time."""


class Fuse(CrashingLog):
    """Counts what is stored, and kills this process at the mark."""

    def __init__(self, inner: Any, kind: str, number: int) -> None:
        super().__init__(inner, number if kind == "event" else None)
        self._before = number if kind == "append" else 0
        self.appends = self.events = 0

    async def append(self, lease: Any, expected: Any, events: Any, **named: Any) -> Any:
        self.appends += 1
        self.events += len(events)
        if self.appends == self._before:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return await super().append(lease, expected, events, **named)
        except Crash:
            os.kill(os.getpid(), signal.SIGKILL)


async def obey(command: dict[str, Any]) -> dict[str, Any]:
    kind, number = command.get("kill") or ("never", 0)
    places, clock = find_places(command["store"]), SystemClock()
    places.make()
    log = Fuse(open_log(places.store_url, clock.now_ms), kind, number)
    models = [ScriptedReplies(replies_about(command["say"]))] if "say" in command else None
    async with (
        HttpClient(command["bank"]) as bank,
        Runtime(places, log, clock, refunds.app, {"bank": bank}, models) as runtime,
    ):
        if "say" in command:
            return {**await say(runtime, command), "events": log.events, "appends": log.appends}
        if "order" not in command:
            await runtime.runs.work(until_idle=True)
            return {}
        asked = {name: command[name] for name in ("reason", "asked_cents", "idempotency_key") if name in command}
        outcome = await runtime.run(
            refunds.refund,
            {"order_id": command["order"], **asked},
            run_id=command["run"],
            principal=command.get("for", "customer:17"),
        )
        record = outcome.record
        return {
            "code": outcome.exit_code,
            "state": record.state,
            "reason": record.reason,
            "output": outcome.output,
            "types": [stored.type for stored in log.read(record.run_id)],
            "events": log.events,
            "appends": log.appends,
        }


async def say(runtime: Runtime, command: dict[str, Any]) -> dict[str, Any]:
    """One message to the agent; the same again is the same message."""
    session = await runtime.session(command["session"], principal="customer:17")
    reply = await runtime.turn(refunds.support, session, f"Please refund {command['say']}", key="message-1")
    return {
        "code": reply.exit_code,
        "text": reply.text,
        "actions": [taken.status for taken in reply.actions],
        "model_calls": runtime.sessions.record(command["session"]).spent.model_calls,
    }


def replies_about(order: str) -> list[Reply]:
    """A model that asks for the same refund twice."""
    return [
        reply(call("start_workflow_refund", order_id=order)),
        reply(call("start_workflow_refund", order_id=order, reason="once more, to be sure")),
        reply(call("complete", text="It is refunded.")),
    ]


def fork(command: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = 1
        try:
            with os.fdopen(writing, "w") as out:
                json.dump(asyncio.run(obey(command)), out)
            code = 0
        except BaseException:  # noqa: BLE001  # whatever it was, the test wants to read it
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return json.loads(said) if said else {"failed": os.WEXITSTATUS(status)}


async def work(store: str, bank_url: str) -> None:
    async with (
        HttpClient(bank_url) as bank,
        Runtime.open(store, refunds.app, services={"bank": bank}) as runtime,
    ):
        await runtime.runs.work(at_once=WORKER_RUNS)


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        asyncio.run(work(*sys.argv[2:4]))
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
