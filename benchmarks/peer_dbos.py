"""a) and e) DBOS on SQLite: a workflow whose steps are recorded. Prints one JSON line.

``--steps 2``: a turn is a model step and a tool step, so that neither is repeated after a crash; ``--steps 1``: one
bare step a turn; ``--steps 0``: a step that does nothing and returns a number. ``--concurrent C`` starts as many
workflows of ``--turns`` such steps, on its own pool of threads or, with ``--aio``, as coroutines. The journal mode is
set to WAL before DBOS opens the file (it keeps what it finds; its own default is a rollback journal, ``--journal
delete``, which syncs four times a step).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sqlite3
import sys
import tempfile
import time
from importlib.metadata import version

SQLITE_NEEDED = (3, 42)  # the SQL of DBOS 3 uses the `subsec` modifier
if sqlite3.sqlite_version_info < SQLITE_NEEDED:
    import pysqlite3  # type: ignore[import-not-found]

    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2
    sqlite3 = pysqlite3

import sqlalchemy  # noqa: E402
from dbos import DBOS  # noqa: E402
from dbos._dbos import _get_dbos_instance  # noqa: E402

MESSAGE = "x" * 200
WARM_UP_TURNS = 20


@DBOS.step()
def model(turn: int) -> str:
    return MESSAGE


@DBOS.step()
def tool(message: str) -> str:
    return "done"


@DBOS.workflow()
def agent(turns: int, steps: int) -> int:
    for turn in range(turns):
        said = model(turn)
        if steps == 2:
            tool(said)
    return turns


@DBOS.step()
def noop(n: int) -> int:
    return n + 1


@DBOS.step()
async def noop_aio(n: int) -> int:
    return n + 1


@DBOS.workflow()
def counting(turns: int) -> int:
    n = 0
    for _ in range(turns):
        n = noop(n)
    return n


@DBOS.workflow()
async def counting_aio(turns: int) -> int:
    n = 0
    for _ in range(turns):
        n = await noop_aio(n)
    return n


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(path: str, options: argparse.Namespace) -> dict[str, object]:
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA journal_mode={options.journal}")
    db.close()
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{path}",
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    try:
        pragmas = pragmas_of_dbos()
        work(WARM_UP_TURNS, options.steps)
        used, began = cpu_s(), time.perf_counter()
        if options.concurrent == 1:
            work(options.turns, options.steps)
        elif options.aio:
            asyncio.run(in_coroutines(options.turns, options.concurrent))
        else:
            in_threads(options.turns, options.concurrent)
        cpu, wall = cpu_s() - used, time.perf_counter() - began
    finally:
        DBOS.destroy()
    total = options.turns * options.concurrent
    size = sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end))
    return {
        "turns": total,
        "cpu_ms": cpu * 1000 / total,
        "turns_per_s": total / wall,
        "bytes": size / (total + WARM_UP_TURNS),
        **pragmas,
    }


def work(turns: int, steps: int) -> None:
    if steps:
        agent(turns, steps)
    else:
        counting(turns)


def in_threads(turns: int, count: int) -> None:
    handles = [DBOS.start_workflow(counting, turns) for _ in range(count)]
    assert all(handle.get_result() == turns for handle in handles)


async def in_coroutines(turns: int, count: int) -> None:
    handles = [await DBOS.start_workflow_async(counting_aio, turns) for _ in range(count)]
    results = await asyncio.gather(*(handle.get_result() for handle in handles))
    assert results == [turns] * count


def pragmas_of_dbos() -> dict[str, object]:
    """What durability a connection of its own pool really has."""
    with _get_dbos_instance()._sys_db.engine.connect() as connection:
        return {
            "journal_mode": connection.execute(sqlalchemy.text("PRAGMA journal_mode")).scalar(),
            "synchronous": connection.execute(sqlalchemy.text("PRAGMA synchronous")).scalar(),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--steps", type=int, choices=(0, 1, 2), default=2)
    parser.add_argument("--journal", choices=("wal", "delete"), default="wal")
    parser.add_argument("--concurrent", type=int, default=1)
    parser.add_argument("--aio", action="store_true")
    options = parser.parse_args()
    if options.concurrent > 1 and options.steps:
        parser.error("--concurrent goes with --steps 0")
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        path = os.path.join(directory, "dbos.sqlite")
        found = measure(path, options)
    print(json.dumps({**found, "version": f"dbos {version('dbos')}, sqlite {sqlite3.sqlite_version}"}))


if __name__ == "__main__":
    main()
