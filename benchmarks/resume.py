"""c) Resume a trajectory of 1,000 turns whose worker was killed in the middle of a tool. Prints one JSON line.

``--make`` plays the worker: it writes the turns and kills itself with SIGKILL while the next tool runs. Without it the
store is taken up: opened, the lease claimed from the dead worker, the log read (its whole hash chain checked) twice as
``Runtime.resume`` does it, once to look and once under the lease, and the turn in flight settled durably.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time

from pursuing import LEASE_MS, MarkingProposer, cpu_s, noop, open_pursuit, take_up

from setpoint.adapters.clock import SystemClock
from setpoint.adapters.stores import this_owner
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.engine.reading import read_record
from setpoint.engine.reconcile import converge
from setpoint.engine.recovery import settle
from setpoint.kernel.events import LeaseClaimed
from setpoint.kernel.ruling import Permit
from setpoint.phases.p4_dispatch.outcome import Outcome


async def make(path: str, turns: int) -> None:
    clock = SystemClock()
    log = SqliteLog(path, clock.now_ms)
    proposer = MarkingProposer(turns + 1, frozenset())
    pursuit = open_pursuit(log, clock, proposer)

    async def killed_in_the_last(permit: Permit) -> Outcome:
        if proposer.calls > turns:
            os.kill(os.getpid(), signal.SIGKILL)
        return await noop(permit)

    pursuit.bodies = {"noop": killed_in_the_last}
    await converge(pursuit)


async def resume(path: str) -> dict[str, object]:
    used, began = cpu_s(), time.perf_counter()
    clock = SystemClock()
    log = SqliteLog(path, clock.now_ms)
    trajectory_id = log.streams("trajectory")[0].stream
    looked, _ = read_record(log, trajectory_id)
    lease = log.claim(trajectory_id, this_owner(), LEASE_MS)
    record, head = read_record(log, trajectory_id)
    reading = cpu_s() - used
    pursuit = take_up(log, clock, MarkingProposer(0, frozenset()), lease, head, record)
    pursuit.journal.emit(LeaseClaimed(owner=lease.owner, fence=lease.fence))
    await settle(pursuit)
    await pursuit.journal.barrier()
    cpu, wall = cpu_s() - used, time.perf_counter() - began
    assert looked == record and record.in_flight and pursuit.record.state == "CALLING_MODEL", pursuit.record
    log.release(lease)
    await log.close()
    return {
        "turns": record.turn - 1,
        "events": record.seq,
        "cpu_ms": cpu * 1000,
        "reading_cpu_ms": reading * 1000,
        "wall_ms": wall * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--make", type=int, metavar="TURNS")
    options = parser.parse_args()
    if options.make:
        asyncio.run(make(options.store, options.make))
    else:
        print(json.dumps(asyncio.run(resume(options.store))))


if __name__ == "__main__":
    main()
