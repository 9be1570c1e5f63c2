"""e) Our side: runs of workflows whose nodes do nothing. Prints one JSON line.

One run of ``--steps N`` pure steps, or with ``--calls`` of so many effects under a key; ``--concurrent C`` that many
runs at once, started and ended within the measurement; ``--windows`` cost and growth around the given steps of one
long run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from typing import Any

from durable_turn import pages_of, pragmas_of
from flowing import at_steps, of_calls, of_steps, opened, path_in
from pursuing import cpu_s, stored_bytes

from setpoint import App
from setpoint.app.workflow import Workflow

WARM_UP_STEPS = 20
SLICE_STEPS = 200  # a checkpoint of the record, written every 200 events, falls into every slice of pure steps
WINDOW_STEPS = 400


def measured(app: App, options: argparse.Namespace) -> tuple[Workflow[Any, Any], Workflow[Any, Any]]:
    """The workflow that is measured, and a short one of the same kind to warm up with."""
    of = of_calls if options.calls else of_steps
    return of(app, options.steps, "measured"), of(app, WARM_UP_STEPS, "warm-up")


async def one(directory: str, options: argparse.Namespace) -> dict[str, object]:
    app = App("bench")
    workflow, warm_up = measured(app, options)
    async with opened(directory, app) as (runtime, log):
        await runtime.run(warm_up, {"run": "warm-up"})
        syncs: list[int] = []
        run_id = await runtime.start(workflow, {})
        observer = at_steps(frozenset({1, options.steps}), lambda _: syncs.append(log.syncs))
        used, began = cpu_s(), time.perf_counter()
        outcome = await runtime.runs.wait(run_id, observer=observer)
        cpu, wall = cpu_s() - used, time.perf_counter() - began
        assert outcome.output["n"] == options.steps, outcome
        pragmas = pragmas_of(log)
    return {
        "steps": options.steps,
        "cpu_ms": cpu * 1000 / options.steps,
        "steps_per_s": options.steps / wall,
        "waits": (syncs[1] - syncs[0]) / (options.steps - 1),
        "bytes": stored_bytes(path_in(directory)) / (options.steps + WARM_UP_STEPS),
        **pragmas,
    }


async def many(directory: str, options: argparse.Namespace) -> dict[str, object]:
    app = App("bench")
    workflow, warm_up = measured(app, options)
    async with opened(directory, app) as (runtime, log):
        await runtime.run(warm_up, {"run": "warm-up"})
        syncs, used, began = log.syncs, cpu_s(), time.perf_counter()
        outcomes = await asyncio.gather(*(runtime.run(workflow, {"run": f"r{n}"}) for n in range(options.concurrent)))
        cpu, wall, made = cpu_s() - used, time.perf_counter() - began, log.syncs - syncs
        assert all(outcome.output["n"] == options.steps for outcome in outcomes)
    total = options.steps * options.concurrent
    return {
        "steps": total,
        "cpu_ms": cpu * 1000 / total,
        "steps_per_s": total / wall,
        "syncs": made / total,
        "bytes": stored_bytes(path_in(directory)) / total,
    }


async def windows(directory: str, around: list[int]) -> dict[str, object]:
    """CPU a step in slices around each of the steps, and how much the store grew across each."""
    half = WINDOW_STEPS // 2
    starts = {step: max(1, step - half + 1) for step in around}
    slices = {step: range(start, start + WINDOW_STEPS, SLICE_STEPS) for step, start in starts.items()}
    at = frozenset(edge for cuts in slices.values() for cut in cuts for edge in (cut, cut + SLICE_STEPS))
    cpu: dict[int, float] = {}
    size: dict[int, int] = {}
    app = App("bench")
    workflow, warm_up = of_steps(app, max(at) + 1), of_steps(app, 10 * WARM_UP_STEPS, "warm-up")
    async with opened(directory, app) as (runtime, _):
        await runtime.run(warm_up, {})
        run_id = await runtime.start(workflow, {})

        def mark(step: int) -> None:
            cpu[step], size[step] = cpu_s(), pages_of(path_in(directory))

        await runtime.runs.wait(run_id, observer=at_steps(at, mark))
    return {
        "cpu_ms": {
            str(step): [(cpu[cut + SLICE_STEPS] - cpu[cut]) * 1000 / SLICE_STEPS for cut in cuts]
            for step, cuts in slices.items()
        },
        "bytes": {
            str(step): (size[start + WINDOW_STEPS] - size[start]) / WINDOW_STEPS for step, start in starts.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", required=True, help="where the store is made")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--calls", action="store_true", help="effects under a key instead of pure steps")
    parser.add_argument("--concurrent", type=int, default=1)
    parser.add_argument("--windows", type=int, nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        if options.windows:
            found = asyncio.run(windows(directory, options.windows))
        elif options.concurrent > 1:
            found = asyncio.run(many(directory, options))
        else:
            found = asyncio.run(one(directory, options))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
