"""e) Ten thousand runs that wait for a signal, in one process. Prints one JSON line.

Each run is started, does one step, awaits its signal durably, and is given up by its worker. What the process that
holds the store then has for each of them is measured: memory, threads, file descriptors, tasks. At the end one of them
gets its signal and completes: they wait, they are not lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import tracemalloc
from typing import Any

from flowing import Count, Named, counted, opened, path_in
from parked import held
from pursuing import cpu_s

from setpoint import App, Runtime
from setpoint.app.runs import BEAT_S
from setpoint.app.workflow import Workflow

WARM_UP = 500
AT_ONCE = 100


def waiting(app: App) -> Workflow[Any, Any]:
    return app.workflow("waiting", input=Named, state=Count).step("a", counted).wait_for("go", timeout="7d")


async def park(runtime: Runtime, workflow: Workflow[Any, Any], count: int) -> str:
    """So many runs that wait; the id of the last one. Nobody keeps the others: the store has them."""
    last = ""

    async def one() -> None:
        nonlocal last
        outcome = await runtime.run(workflow, {})
        assert outcome.is_waiting and outcome.record.waits, outcome
        last = outcome.run_id

    for begun in range(0, count, AT_ONCE):
        await asyncio.gather(*(one() for _ in range(min(AT_ONCE, count - begun))))
    return last


async def at_rest(runtime: Runtime) -> None:
    assert await runtime.runs.rest(1_000)
    await asyncio.sleep(2 * BEAT_S)  # the task that renews leases has seen that there is nothing left to renew


async def measure(directory: str, count: int, trace: bool) -> dict[str, object]:
    app = App("bench")
    workflow = waiting(app)
    async with opened(directory, app) as (runtime, log):
        await park(runtime, workflow, WARM_UP)
        await at_rest(runtime)
        if trace:
            tracemalloc.start()
        before, used = held(), cpu_s()
        last = await park(runtime, workflow, count)
        cpu = cpu_s() - used
        await at_rest(runtime)
        after = held()
        assert len(log.streams("run")) == count + WARM_UP
        runtime.runs.tell(last, "signal", {"name": "go", "payload": None}, by="bench")
        assert (await runtime.runs.wait(last)).exit_code == 0
        disk = os.path.getsize(path_in(directory))
    grown = {name: after[name] - before[name] for name in before}
    return {
        "waiting": count,
        "traced_bytes_each": grown["traced"] / count,
        "resident_bytes_each": grown["resident"] / count,
        "threads": grown["threads"],
        "files": grown["files"],
        "tasks": grown["tasks"],
        "cpu_ms_each": cpu * 1000 / count,
        "disk_bytes_each": disk / (count + WARM_UP),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--trace", action="store_true", help="count Python's own allocations instead of resident pages")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        print(json.dumps(asyncio.run(measure(directory, options.count, options.trace))))


if __name__ == "__main__":
    main()
