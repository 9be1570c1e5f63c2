"""e) Take up a run of 1,000 steps whose worker was killed behind the last of them. Prints one JSON line.

``--make`` plays the worker: a workflow of so many pure steps and one effect under a key, in the middle of which it
kills itself with SIGKILL, so that the intent is durable and nobody knows what became of the effect. Without it another
process takes the run up: the workflow proved and the store opened, the run folded to look and folded again under the
lease claimed from the dead worker, the effect in doubt settled by its probe, the run completed. Only declaring the
workflow, which is what importing the user's module does, is told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time

from flowing import of_steps, opened
from pursuing import cpu_s

from setpoint import App, Context, capability
from setpoint.app.runs import KIND


async def was_made(ctx: Context, n: int) -> int:
    return n + 1


@capability(effect="keyed", key=lambda arguments: f"last:{arguments.n}", probe=was_made)
async def kill(ctx: Context, n: int) -> int:
    """The effect of the dying worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it cannot come to this")


def application(steps: int) -> App:
    app = App("bench")
    of_steps(app, steps).capability("last", kill, into="n")
    return app


async def make(directory: str, steps: int) -> None:
    async with opened(directory, application(steps)) as (runtime, _):
        await runtime.run("steps", {})


async def resume(directory: str, steps: int) -> dict[str, object]:
    used = cpu_s()
    app = application(steps)
    declared = cpu_s() - used
    used, began = cpu_s(), time.perf_counter()
    async with opened(directory, app) as (runtime, log):
        opening = cpu_s() - used
        run_id = log.streams(KIND)[0].stream
        outcome = await runtime.runs.wait(run_id)
        cpu, wall = cpu_s() - used, time.perf_counter() - began
        record = outcome.record
        assert outcome.output == {"n": steps + 1} and record.effects_made == 1 and record.fence > 1, outcome
        settled = [stored for stored in log.read(run_id) if stored.type == "EffectSettled"]
        assert len(settled) == 1, settled
    return {
        "steps": steps,
        "events": record.seq,
        "cpu_ms": cpu * 1000,
        "opening_cpu_ms": opening * 1000,
        "declaring_cpu_ms": declared * 1000,
        "wall_ms": wall * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="the directory of the store")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--make", action="store_true", help="be the worker that is killed")
    options = parser.parse_args()
    if options.make:
        asyncio.run(make(options.store, options.steps))
    else:
        print(json.dumps(asyncio.run(resume(options.store, options.steps))))


if __name__ == "__main__":
    main()
