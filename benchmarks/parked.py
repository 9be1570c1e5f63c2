"""d) A thousand trajectories that wait for a person. Prints one JSON line.

Each is accepted, asks its operator a question in its first turn, and is parked; the process that holds the store goes
on. What it then holds for each of them is measured: memory, threads, file descriptors.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import tempfile
import threading
import tracemalloc
from pathlib import Path

from pursuing import open_pursuit

from setpoint.adapters.clock import SystemClock
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.engine.reconcile import converge
from setpoint.kernel.contract import ToolGrant
from setpoint.kernel.proposal import ASK_TOOL, RawCall, Reply
from setpoint.phases.p3_gate.tools import ASK_OPERATOR
from setpoint.testing.stubs import ReplyProposer

WARM_UP = 200


async def park(log: SqliteLog, clock: SystemClock) -> str:
    """One trajectory, asked and parked; only its id is kept."""
    asks = Reply(calls=(RawCall(ASK_TOOL, '{"question":"Which of the two shall it be?"}'),))
    pursuit = open_pursuit(log, clock, ReplyProposer([asks], "endless:noop"))
    pursuit.tools = {**pursuit.tools, ASK_TOOL: ASK_OPERATOR}
    pursuit.task = _may_ask(pursuit.task)
    record = await converge(pursuit)
    assert record.state == "PAUSED" and record.question is not None, record
    log.release(pursuit.journal.lease)  # type: ignore[attr-defined]
    return record.trajectory_id


def _may_ask(task: object) -> object:
    from dataclasses import replace

    return replace(task, actions=(*task.actions, ToolGrant(ASK_TOOL)))  # type: ignore[type-var, attr-defined]


def held() -> dict[str, int]:
    gc.collect()
    traced, _ = tracemalloc.get_traced_memory()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "traced": traced,
        "resident": resident,
        "threads": len(os.listdir("/proc/self/task")),
        "python_threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
    }


async def measure(path: str, count: int, trace: bool) -> dict[str, object]:
    clock = SystemClock()
    log = SqliteLog(path, clock.now_ms)
    for _ in range(WARM_UP):
        await park(log, clock)
    # The store's one writing thread starts when an append first has company; it belongs to the store, not to a wait.
    await asyncio.gather(*(park(log, clock) for _ in range(8)))
    if trace:
        tracemalloc.start()
    before = held()
    ids = [await park(log, clock) for _ in range(count)]
    after = held()
    waiting = sum(info.stream in set(ids) for info in log.streams("trajectory"))
    assert waiting == count
    await log.close()
    grown = {name: after[name] - before[name] for name in before}
    return {
        "parked": count,
        "traced_bytes_each": grown["traced"] / count,
        "resident_bytes_each": grown["resident"] / count,
        "threads": grown["threads"],
        "python_threads": grown["python_threads"],
        "files": grown["files"],
        "tasks": grown["tasks"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--trace", action="store_true", help="count Python's own allocations instead of resident pages")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        print(json.dumps(asyncio.run(measure(f"{directory}/bench.db", options.count, options.trace))))


if __name__ == "__main__":
    main()
