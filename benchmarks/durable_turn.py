"""a) Our side: durable no-op turns. Prints one JSON line.

``--turns N`` one trajectory; ``--concurrent C`` that many at once; ``--windows`` cost and growth at the given turns of
one long trajectory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
import time
from pathlib import Path

from pursuing import MarkingProposer, between, cpu_s, open_pursuit, stored_bytes

from setpoint.adapters.clock import SystemClock
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.engine.reconcile import converge

WARM_UP_TURNS = 20
SLICE_TURNS = 50  # a checkpoint of the record falls into every slice
WINDOW_TURNS = 200


async def pursue(log: SqliteLog, clock: SystemClock, proposer: MarkingProposer) -> None:
    """One trajectory to the end of its proposer."""
    pursuit = open_pursuit(log, clock, proposer)
    await converge(pursuit)
    log.release(pursuit.journal.lease)  # type: ignore[attr-defined]


async def one(path: str, turns: int) -> dict[str, object]:
    clock = SystemClock()
    log = SqliteLog(path, clock.now_ms)
    await pursue(log, clock, MarkingProposer(WARM_UP_TURNS, frozenset()))
    proposer = MarkingProposer(turns, frozenset({1, turns + 1}))
    pursuit = open_pursuit(log, clock, proposer)
    seen: list[tuple[int, int]] = []
    proposer.on_mark = lambda turn: seen.append((log.syncs, pursuit.journal.waits))  # type: ignore[attr-defined]
    await converge(pursuit)
    cpu, wall = between(proposer.marks, 1, turns + 1)
    pragmas = pragmas_of(log)
    await log.close()
    (syncs, waits), (syncs_after, waits_after) = seen
    return {
        "turns": turns,
        "cpu_ms": cpu * 1000,
        "turns_per_s": 1 / wall,
        "syncs": (syncs_after - syncs) / turns,
        "waits": (waits_after - waits) / turns,
        "bytes": stored_bytes(path) / (turns + WARM_UP_TURNS),
        **pragmas,
    }


async def many(path: str, turns: int, concurrent: int) -> dict[str, object]:
    clock = SystemClock()
    log = SqliteLog(path, clock.now_ms)
    await pursue(log, clock, MarkingProposer(WARM_UP_TURNS, frozenset()))
    syncs, used, started = log.syncs, cpu_s(), time.perf_counter()
    await asyncio.gather(*(pursue(log, clock, MarkingProposer(turns, frozenset())) for _ in range(concurrent)))
    wall, cpu, total = time.perf_counter() - started, cpu_s() - used, turns * concurrent
    made = log.syncs - syncs
    await log.close()
    return {
        "turns": total,
        "cpu_ms": cpu * 1000 / total,
        "turns_per_s": total / wall,
        "syncs": made / total,
        "bytes": stored_bytes(path) / (total + WARM_UP_TURNS),
    }


async def windows(path: str, around: list[int]) -> dict[str, object]:
    """CPU a turn in slices around each of the turns, and how much the store grew across each."""
    clock = SystemClock()
    log = SqliteLog(path, clock.now_ms)
    await pursue(log, clock, MarkingProposer(10 * WARM_UP_TURNS, frozenset()))
    half = WINDOW_TURNS // 2
    starts = {turn: max(1, turn - half + 1) for turn in around}
    slices = {turn: range(start, start + WINDOW_TURNS, SLICE_TURNS) for turn, start in starts.items()}
    at = {edge for cuts in slices.values() for cut in cuts for edge in (cut, cut + SLICE_TURNS)}
    size: dict[int, int] = {}
    proposer = MarkingProposer(max(at), frozenset(at), on_mark=lambda turn: size.__setitem__(turn, pages_of(path)))
    await pursue(log, clock, proposer)
    await log.close()
    return {
        "cpu_ms": {
            str(turn): [between(proposer.marks, cut, cut + SLICE_TURNS)[0] * 1000 for cut in cuts]
            for turn, cuts in slices.items()
        },
        "bytes": {
            str(turn): (size[start + WINDOW_TURNS] - size[start]) / WINDOW_TURNS for turn, start in starts.items()
        },
    }


def pages_of(path: str) -> int:
    """Bytes of the database as its pages count them, those still in the write-ahead log included."""
    with sqlite3.connect(path) as db:
        count, size = db.execute("PRAGMA page_count").fetchone()[0], db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    return count * size


def pragmas_of(log: SqliteLog) -> dict[str, object]:
    """What durability the writing connection really has."""
    db = log._batches.connection
    return {
        "journal_mode": db.execute("PRAGMA journal_mode").fetchone()[0],
        "synchronous": db.execute("PRAGMA synchronous").fetchone()[0],
        "sqlite": sqlite3.sqlite_version,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True, help="where the store is made")
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--concurrent", type=int, default=1)
    parser.add_argument("--windows", type=int, nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        path = str(Path(directory) / "bench.db")
        if options.windows:
            found = asyncio.run(windows(path, options.windows))
        elif options.concurrent > 1:
            found = asyncio.run(many(path, options.turns, options.concurrent))
        else:
            found = asyncio.run(one(path, options.turns))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
