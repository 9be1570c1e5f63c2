"""Runs trajectories in processes that are killed on request. A helper script, not a test.

One JSON command a line on stdin; for each a process is forked from this one, in which everything is imported already,
and one JSON answer is written: ``{"signal": 9}`` when it was killed, else what the child said.

    {"do": "start", "task": "/x/task.yaml", "kill": ["emit", 7]}     SIGKILL as event 7 is emitted
    {"do": "start", "task": "/x/task.yaml", "kill": ["append", 3]}   SIGKILL as append 3 has returned
    {"do": "start", "task": "/x/task.yaml", "kill": ["after_ms", 40]}
    {"do": "resume", "known": ["tr-1"]}                              take up what is not among the known ones
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from setpoint.app.manifest import load_task
from setpoint.app.runtime import Outcome, Runtime, open_runtime
from setpoint.certificate.verify import content
from setpoint.kernel.events import Event, ModelReplied
from setpoint.kernel.record import Record


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fuse:
    """Counts emitted events and appends, and kills this process at the one it was set to."""

    def __init__(self, kind: str, number: int) -> None:
        self.events = self.appends = 0
        self._kind, self._number = kind, number

    def observe(self, turn: int, event: Event, record: Record) -> None:
        self.events += 1
        if self._kind == "emit" and self.events == self._number:
            die()

    def watch(self, log: Any) -> None:
        append = log.append

        async def counted(*given: Any, **named: Any) -> Any:
            head = await append(*given, **named)
            self.appends += 1
            if self._kind == "append" and self.appends == self._number:
                die()
            return head

        log.append = counted


async def start(command: dict[str, Any]) -> dict[str, Any]:
    kind, number = command.get("kill") or ("never", 0)
    fuse = Fuse(kind, number)
    runtime = open_runtime()
    fuse.watch(runtime.log)
    async with runtime:
        outcome = await runtime.converge(load_task(command["task"]), observer=fuse.observe)
        return {**told(runtime, outcome), "events": fuse.events, "appends": fuse.appends}


async def resume(command: dict[str, Any]) -> dict[str, Any]:
    async with open_runtime() as runtime:
        await runtime.recover()
        mine = [info.stream for info in runtime.trajectories() if info.stream not in command["known"]]
        if not mine:
            return {"nothing": True}
        assert len(mine) == 1, mine
        return told(runtime, await runtime.resume(mine[0]))


def told(runtime: Runtime, outcome: Outcome) -> dict[str, Any]:
    record = outcome.record
    replies = [
        [stored.turn, json.loads(stored.data).get("cursor")]
        for stored in runtime.log.read(record.trajectory_id)
        if stored.type == ModelReplied.__name__
    ]
    certificate = record.certificate
    return {
        "id": record.trajectory_id,
        "code": outcome.exit_code,
        "reason": record.finished_reason,
        "message": record.finished_message,
        "state_digest": record.state_digest,
        "notes": list(record.notes),
        "replies": replies,
        "types": [stored.type for stored in runtime.log.read(record.trajectory_id)],
        "certificate": content(runtime.log.payload(certificate.ref)) if certificate else None,
    }


def fork(command: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = 1
        try:
            verb = start if command["do"] == "start" else resume
            with os.fdopen(writing, "w") as out:
                json.dump(asyncio.run(verb(command)), out)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    if (command.get("kill") or [""])[0] == "after_ms":
        time.sleep(command["kill"][1] / 1000)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return json.loads(said) if said else {"failed": os.WEXITSTATUS(status)}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
