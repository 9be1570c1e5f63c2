"""a) and e) LangGraph: a graph over its SQLite checkpointer in ``sync`` mode. Prints one JSON line.

``--nodes 2``: a turn is a model node and a tool node, as its own agents are built, so that a turn records what ours
records: the reply, and the result of the action. ``--nodes 1``: one bare node a turn. ``--state list`` keeps every
message in the state (the usual reducer), ``--state last`` only the newest, ``--state count`` only a number: with one
node that is a workflow whose steps do nothing, and with ``--chain`` it has a node for each of them in place of a loop.
``--concurrent C`` runs as many graphs at once, in threads over one saver or, with ``--aio``, as coroutines over the
asynchronous saver.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import os
import resource
import sqlite3
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

MESSAGE = "x" * 200
WARM_UP_TURNS = 20


class Newest(TypedDict):
    n: int
    message: str


class Count(TypedDict):
    n: int


class Messages(TypedDict):
    n: int
    message: Annotated[list[str], operator.add]


def graph(state: str, nodes: int, turns: int, saver: Any, *, chain: bool = False) -> Any:
    """``turns`` turns from ``n = 0``; a later ``n`` starts nearer to the end, unless it is a chain."""

    def say(text: str) -> Any:
        return [text] if state == "list" else text

    def model(at: Any) -> Any:
        if state == "count":
            return {"n": at["n"] + 1}
        return {"n": at["n"] + 1, "message": say(MESSAGE)}

    def tool(at: Any) -> Any:
        return {"message": say("done")}

    def following(at: Any) -> str:
        return END if at["n"] >= turns else "model"

    if chain:
        return _row(turns, saver)
    built = StateGraph({"list": Messages, "last": Newest, "count": Count}[state])
    built.add_node("model", model)
    built.add_edge(START, "model")
    last = "model"
    if nodes == 2:
        built.add_node("tool", tool)
        built.add_edge("model", "tool")
        last = "tool"
    built.add_conditional_edges(last, following)
    return built.compile(checkpointer=saver)


def _row(turns: int, saver: Any) -> Any:
    """``turns`` nodes, one after the other."""
    built = StateGraph(Count)
    last = START
    for number in range(turns):
        built.add_node(f"s{number}", lambda at: {"n": at["n"] + 1})
        built.add_edge(last, f"s{number}")
        last = f"s{number}"
    built.add_edge(last, END)
    return built.compile(checkpointer=saver)


def started(state: str, n: int) -> dict[str, object]:
    if state == "count":
        return {"n": n}
    return {"n": n, "message": [] if state == "list" else ""}


def settings(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 1 << 30}


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def one(path: str, options: argparse.Namespace) -> dict[str, object]:
    connection = sqlite3.connect(path, check_same_thread=False)
    saver = SqliteSaver(connection)
    app = graph(options.state, options.nodes, options.turns, saver, chain=options.chain)
    short = graph(options.state, options.nodes, WARM_UP_TURNS, saver, chain=options.chain)
    short.invoke(started(options.state, 0), settings("warm-up"), durability="sync")
    used, began = cpu_s(), time.perf_counter()
    app.invoke(started(options.state, 0), settings("measured"), durability="sync")
    cpu, wall = cpu_s() - used, time.perf_counter() - began
    pragmas = {
        "journal_mode": connection.execute("PRAGMA journal_mode").fetchone()[0],
        "synchronous": connection.execute("PRAGMA synchronous").fetchone()[0],
    }
    connection.close()
    return {
        "turns": options.turns,
        "cpu_ms": cpu * 1000 / options.turns,
        "turns_per_s": options.turns / wall,
        "bytes": os.path.getsize(path) / (options.turns + WARM_UP_TURNS),
        **pragmas,
    }


def in_threads(path: str, options: argparse.Namespace) -> float:
    """Wall seconds of ``--concurrent`` graphs, one thread each."""
    connection = sqlite3.connect(path, check_same_thread=False)
    app = graph(options.state, options.nodes, options.turns, SqliteSaver(connection))
    app.invoke(started(options.state, options.turns - 1), settings("warm-up"), durability="sync")
    with ThreadPoolExecutor(options.concurrent) as pool:
        began = time.perf_counter()
        list(
            pool.map(
                lambda n: app.invoke(started(options.state, 0), settings(f"t-{n}"), durability="sync"),
                range(options.concurrent),
            )
        )
        wall = time.perf_counter() - began
    connection.close()
    return wall


async def in_coroutines(path: str, options: argparse.Namespace) -> float:
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        app = graph(options.state, options.nodes, options.turns, saver)
        await app.ainvoke(started(options.state, options.turns - 1), settings("warm-up"), durability="sync")
        began = time.perf_counter()
        await asyncio.gather(
            *(
                app.ainvoke(started(options.state, 0), settings(f"t-{n}"), durability="sync")
                for n in range(options.concurrent)
            )
        )
        return time.perf_counter() - began


def many(path: str, options: argparse.Namespace) -> dict[str, object]:
    used = cpu_s()
    wall = asyncio.run(in_coroutines(path, options)) if options.aio else in_threads(path, options)
    total = options.turns * options.concurrent
    return {"turns": total, "cpu_ms": (cpu_s() - used) * 1000 / total, "turns_per_s": total / wall}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--state", choices=("list", "last", "count"), default="list")
    parser.add_argument("--chain", action="store_true", help="a node for each turn, with --state count")
    parser.add_argument("--concurrent", type=int, default=1)
    parser.add_argument("--aio", action="store_true")
    options = parser.parse_args()
    if (options.state == "count" and options.nodes == 2) or (options.chain and options.state != "count"):
        parser.error("--state count goes with --nodes 1, and --chain with both")
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        path = os.path.join(directory, "checkpoints.db")
        found = many(path, options) if options.concurrent > 1 else one(path, options)
    names = ("langgraph", "langgraph-checkpoint-sqlite")
    print(json.dumps({**found, "version": ", ".join(f"{name} {version(name)}" for name in names)}))


if __name__ == "__main__":
    main()
