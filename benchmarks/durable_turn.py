"""a) A durable no-op turn: the whole six-phase turn with one outside effect that does nothing, about 200 B of message.

No sandbox and no workspace, so that what is measured is the loop and its log. Prints one JSON line:
CPU per turn, turns per second, syncs and bytes per turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from pathlib import Path

from setpoint.adapters.clock import SystemClock
from setpoint.adapters.stores import this_owner
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.engine.journal import Journal
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.reconcile import converge
from setpoint.kernel.contract import (
    Budget,
    Criterion,
    Environment,
    ExprCheck,
    Goal,
    Level,
    Observe,
    Policy,
    Task,
    ToolGrant,
)
from setpoint.kernel.events import LeaseClaimed, TaskAccepted
from setpoint.kernel.ruling import Permit
from setpoint.kernel.trajectory import Record
from setpoint.phases.p3_gate.tools import Tool
from setpoint.phases.p4_dispatch.outcome import Outcome, completed
from setpoint.ports.proposer import Part, ToolSpec
from setpoint.testing.stubs import EndlessProposer, FixedVerifier, StillWorkspace

MESSAGE = "x" * 200
NOOP = Tool(
    ToolSpec(
        "noop",
        "Do nothing, durably.",
        {
            "type": "object",
            "properties": {"message": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["message", "n"],
            "additionalProperties": False,
        },
    ),
    "keyed",
)


async def noop(permit: Permit) -> Outcome:
    return completed("done")


async def nothing_around(p: Pursuit) -> list[Part]:
    return []


def task(turns: int) -> Task:
    return Task(
        name="bench",
        goal=Goal("never reached"),
        environment=Environment("/nonexistent"),
        actions=(ToolGrant("noop"),),
        observe=Observe(),
        done=(Criterion("never", ExprCheck("false"), Level.STATIC),),
        invariants=(),
        budget=Budget(turns=turns, tokens=1 << 40, usd_micros=1 << 40, wall_ms=1 << 40),
        policy=Policy(stall_after=1 << 40),
        models=("endless:noop",),
        document={},
        digest="sha256:" + "1" * 64,
    )


async def trajectory(log: SqliteLog, clock: SystemClock, turns: int) -> None:
    trajectory_id = clock.new_id("tr")
    log.create(trajectory_id, "trajectory")
    lease = log.claim(trajectory_id, this_owner(), 3_600_000)
    contract = task(turns)
    journal = Journal(log, clock, lease, log.head(trajectory_id), Record(trajectory_id=trajectory_id))
    journal.emit(
        TaskAccepted(
            name="bench", task=journal.store(b"{}"), task_digest=contract.digest, workspace="/", base_digest="",
            exposure="", required_level="static", models=["endless:noop"], tier="none", rung="none", runtime="0",
            directory="/",
        )
    )
    journal.emit(LeaseClaimed(owner=lease.owner, fence=lease.fence))
    pursuit = Pursuit(
        contract, journal, StillWorkspace(), None, FixedVerifier(), [EndlessProposer("noop", MESSAGE)], clock,
        {"noop": NOOP}, lambda p: (b"", "", ""), {"noop": noop}, surroundings=nothing_around,
    )  # fmt: skip
    await converge(pursuit)


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def run(turns: int, concurrent: int, directory: str) -> dict[str, float]:
    clock = SystemClock()
    path = os.path.join(directory, "bench.db")
    log = SqliteLog(path, clock.now_ms)
    await trajectory(log, clock, 20)  # warm up
    syncs, started, used = log.syncs, time.perf_counter(), cpu()
    await asyncio.gather(*(trajectory(log, clock, turns) for _ in range(concurrent)))
    wall, spent = time.perf_counter() - started, cpu() - used
    total = turns * concurrent
    made = log.syncs - syncs
    await log.close()
    return {
        "turns": total,
        "cpu_ms_per_turn": round(spent * 1000 / total, 4),
        "turns_per_s": round(total / wall, 1),
        "syncs_per_turn": round(made / total, 3),
        "bytes_per_turn": round(Path(path).stat().st_size / (total + 20)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--concurrent", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        print(json.dumps(asyncio.run(run(options.turns, options.concurrent, directory))))


if __name__ == "__main__":
    main()
