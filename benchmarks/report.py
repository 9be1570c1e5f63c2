"""The page ``docs/benchmarks.md`` and the table on the terminal, from the results. Pure: no clock, no machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gates import EARLY, LATE, Gate, Results, Rounds, least, middle, most, rate, step_syncs

Row = Sequence[str]


def table(
    judged: Sequence[Gate], *, marks: Callable[[Gate], str] = lambda gate: "yes" if gate.holds else "**no**"
) -> str:
    rows = [
        (
            gate.part,
            gate.what,
            _number(gate.value, gate.unit),
            f"{'at least' if gate.at_least else 'at most'} {_number(gate.bound, gate.unit)}",
            "" if gate.margin == float("inf") else f"{gate.margin:.2f}",
            marks(gate),
        )
        for gate in judged
    ]
    return _markdown(("part", "what", "measured", "bound", "margin", "holds"), rows)


def page(results: Results, judged: Sequence[Gate]) -> str:
    machine = results["machine"][0]
    priority = "at real-time priority" if machine["realtime"] else "at the usual priority"
    return f"""\
# Benchmarks

Written by `make bench`, which runs everything below and exits 1 when a bound does not hold. The run behind this page
had {machine["cores"]} cores, {machine["rounds"]} rounds, and ran {priority}.

## The bounds

{table(judged)}

*margin* is how many times better than the bound the measurement is.

## a) A durable turn

{_versions(results)}

One turn is what an agent does once: a model is asked and its reply recorded, one action with an effect outside is
performed and its result recorded, with about 200 bytes of message. Model and action do nothing, so what is left is the
cost of being durable. Ours is the whole loop: projection of the prompt, reply recorded, proposal parsed, gate with its
JSON schema, intent durable *before* the effect, result, mailbox looked at. The peers record the reply and the result,
as two nodes of a graph and as two steps of a workflow. Every store is an SQLite file in WAL mode with
`synchronous=FULL`, as a `PRAGMA` on the peer's own connection says ({_pragmas(results)}).

{_turn_table(results)}

CPU is of the whole process, all threads, after a warm-up of 20 turns, over 1,000 turns; wall clock is given as a ratio
only. *best* is the least of the rounds and *median* their middle. The bounds are held against the best, on both sides:
other work on a machine only ever adds.

{_bare(results)}

### Long and many

{_growth_table(results)}

The two rows are slices of 50 turns within 200 turns around turn {EARLY} and turn {LATE:,} of one trajectory. Nothing a
turn touches grows with the number of turns: the record is bounded, the prompt is a projection, the log is appended to.

{_hundred_table(results)}

A hundred trajectories in one process share syncs: {_number(least(results["ours 100"], "syncs"), "plain")} a turn.

## b) A sandboxed transaction

{_transaction_text(results)}

## c) Resume

A worker wrote 1,000 turns and was killed with SIGKILL inside a tool. Another process opens the store, claims the lease
of the dead worker, reads the log and checks its whole hash chain twice (once to look, once under the lease, as
`Runtime.resume` does), and settles the turn in flight durably: {_number(middle(results["resume"], "cpu_ms"), "ms")} of
CPU after import for {int(results["resume"][0]["events"]):,} events. The wall clock has the sync besides.

## d) Waiting

{_parked_text(results)}

## e) Workflows

{_workflow_text(results)}

## What these numbers do not say

- A turn of ours is compared with two recorded steps of a peer, because that is what it records. A peer that is used
  for one bare step a turn, or that keeps no list of messages, does less and costs less; the second table of part a has
  those ratios.
- DBOS stores less than half of our bytes: two results a turn, without rulings, hashes or a chain. Peers hold no
  authorization and no evidence at all; what they would cost with them was not measured.
- The peers are general: LangGraph keeps every version of its state and DBOS runs on Postgres as well. Some of what they
  spend buys things that are not used here.
- A step of ours reads the state as the author's type, checks what the step changed against it, and keeps hash and
  chain; a step of a peer is handed a number and hands one back.
- Restate is a server in Rust with a log and a store of its own, made for many services and machines; its CPU here is of
  server and service, and the server's own clockwork, while nothing is asked of it, is part of that.
- With a real model a turn takes seconds and none of this is felt by one agent. It is felt when one machine runs
  hundreds, when a log is kept for years, and when a crash has to be cheap.
- Where the disk is slow the sync decides: then the ratio of turns a second tends to the ratio of syncs, whatever the
  CPU.
- At the usual priority on a busy machine part a may fail: a process that sleeps once a turn comes back to cold caches,
  and the less a turn costs, the larger the part of it that is. `make bench` asks for real-time priority, for all sides
  alike, and gets it only as root.
- Every 50th turn a snapshot of the record is written between two turns, with a sync of its own; it is in *syncs a turn*
  and in the CPU, and not in *waits between reply and effect*.
- A trajectory that is alone in its process writes its commits on its own thread, so the event loop stands still for the
  length of one sync, unless the last one took longer than 10 ms.
- {_sync_words(results)}
- Parts a, c and d stand on the real engine, gate and store with stand-ins for workspace, sandbox, verifier and model;
  part b on the real workspace and sandbox without the engine; part e is an application as a user writes it.
- Part b measures `true`, which changes nothing. A change costs what its files cost to digest and to sync.
- The first opening of a repository reads all of it once (part b says how long); it is not part of a transaction.

## Run it

```
make bench
```

installs the peers into the project's environment and, where there is npm, the server of Restate into `build/npm`, and
takes ten to fifteen minutes. `python benchmarks/run.py --help` names the rest: another disk, more rounds, what every
process printed as JSON. Each measurement is a small program in `benchmarks/` that can be run by itself.
"""


def _markdown(head: Row, rows: Sequence[Row]) -> str:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Row) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(head), line(["-" * width for width in widths]), *(line(row) for row in rows)])


def _number(value: float, unit: str) -> str:
    match unit:
        case "x":
            return f"{value:.2f} x"
        case "ms":
            return f"{value:.1f} ms"
        case "bytes":
            return f"{value:,.0f} bytes"
        case "syncs" | "waits" | "plain":
            return f"{value:.2f}" if value != int(value) else f"{value:.0f}"
        case _:
            return f"{value:g}"


_NAMES = {
    "ours": "Setpoint",
    "langgraph": "LangGraph, model node and tool node, list of messages",
    "dbos": "DBOS, model step and tool step",
    "langgraph newest only": "LangGraph, two nodes, newest message only",
    "langgraph one node": "LangGraph, one bare node a turn, list of messages",
    "dbos one step": "DBOS, one bare step a turn",
}


def _versions(results: Results) -> str:
    said = f'Peers: {results["langgraph"][0]["version"]}, `durability="sync"`; {results["dbos"][0]["version"]}.'
    return f"{said} Ours: SQLite {results['ours'][0]['sqlite']}."


def _pragmas(results: Results) -> str:
    return "; ".join(
        f"{name}: {found['journal_mode']}, {'FULL' if found['synchronous'] == 2 else found['synchronous']}"
        for name, found in (
            ("ours", results["ours"][0]),
            ("LangGraph", results["langgraph"][0]),
            ("DBOS", results["dbos"][0]),
        )
    )


def _syncs(results: Results, job: str) -> str:
    counted = [item for item in results.get("syncs", ()) if item["job"] == job]
    if counted:
        return f"{float(counted[0]['syncs']):.2f}"
    return _number(middle(results["ours"], "syncs"), "syncs") if job == "ours" else ""


def _turn_table(results: Results) -> str:
    ours = results["ours"]
    rows = [_turn_row(results, job, ours) for job in ("ours", "langgraph", "dbos")]
    return _markdown(_TURN_HEAD, rows)


_TURN_HEAD = (
    "engine",
    "CPU a turn, best",
    "median",
    "CPU, best / ours",
    "turns a second, ours / this",
    "syncs a turn",
    "bytes a turn",
)


def _turn_row(results: Results, job: str, ours: Rounds) -> Row:
    found = results[job]
    return (
        _NAMES[job],
        f"{least(found, 'cpu_ms'):.2f} ms",
        f"{middle(found, 'cpu_ms'):.2f} ms",
        f"{least(found, 'cpu_ms') / least(ours, 'cpu_ms'):.2f}",
        f"{most(ours, 'turns_per_s') / most(found, 'turns_per_s'):.2f}",
        _syncs(results, job),
        f"{middle(found, 'bytes'):,.0f}",
    )


def _bare(results: Results) -> str:
    rows = [
        _turn_row(results, job, results["ours"])
        for job in ("langgraph newest only", "langgraph one node", "dbos one step")
    ]
    return f"""\
The same against peers that do less, for which there is no bound: a whole turn of ours against one bare step that
records one value, and against a graph that forgets all but the newest message.

{_markdown(_TURN_HEAD, rows)}"""


def _growth_table(results: Results) -> str:
    rows: list[Row] = []
    for turn in (str(EARLY), str(LATE)):
        values = sorted(value for found in results["windows"] for value in found["cpu_ms"][turn])
        size = max(float(found["bytes"][turn]) for found in results["windows"])
        rows.append((f"{int(turn):,}", f"{values[0]:.2f} ms", f"{values[len(values) // 2]:.2f} ms", f"{size:,.0f}"))
    return _markdown(("at turn", "CPU a turn, best", "median", "bytes a turn"), rows)


def _hundred_table(results: Results) -> str:
    ours = results["ours 100"]
    names = {
        "ours 100": "Setpoint, 100 trajectories",
        "langgraph 100 threads": "LangGraph, 100 graphs in threads",
        "langgraph 100 coroutines": "LangGraph, 100 graphs as coroutines",
        "langgraph 100 one node": "LangGraph, 100 graphs in threads, one bare node a turn",
    }
    rows = [
        (
            name,
            f"{least(results[job], 'cpu_ms'):.2f} ms",
            f"{most(ours, 'turns_per_s') / most(results[job], 'turns_per_s'):.2f}",
        )
        for job, name in names.items()
    ]
    return _markdown(("at once", "CPU a turn, best", "turns a second, ours / this"), rows)


def _transaction_text(results: Results) -> str:
    found = results["transaction"][0]
    if "unavailable" in found:
        return f"Not measured: {found['unavailable']}."
    rows = [
        (name, f"{found[f'cpu_ms_{key}']:.1f} ms", f"{found[f'wall_ms_{key}'] / found['wall_ms_plain']:.1f}")
        for name, key in (
            ("`subprocess.run`", "plain"),
            ("transaction, 100 files", "small"),
            ("transaction, 100,000 files", "large"),
        )
    ]
    return f"""\
Begin an attempt, run `true` in the sandbox (rung `{found["rung"]}`: own namespaces, overlay, seccomp, limits), take the
exact diff, keep it as a savepoint; the CPU is of this process, of all children and of every helper that still runs.

{_markdown(("what", "CPU, median", "wall clock, this / plain"), rows)}

The wall clock is mostly the kernel making and taking down namespaces. The first opening scans the repository once, for
the digest of the base: {found["open_cpu_ms_small"]:.0f} ms of CPU for
100 files, {found["open_cpu_ms_large"] / 1000:.1f} s for 100,000. It happens once a trajectory."""


def _parked_text(results: Results) -> str:
    resident, traced = results["parked"][0], results["parked traced"][0]
    return f"""\
A thousand trajectories asked their operator a question and wait. The process that holds the store grew by
{resident["resident_bytes_each"]:,.0f} bytes of resident memory for each, most of it the store's page cache, which is
bounded; Python's own allocations are {traced["traced_bytes_each"]:,.0f} bytes each. Threads, file descriptors and
tasks of the thousand: {resident["threads"]}, {resident["files"]}, {resident["tasks"]}. The rest of them is on disk."""


def _sync_words(results: Results) -> str:
    if results.get("syncs"):
        return "Syncs were counted by tracing the system calls of 100 and of 400 turns and taking the difference."
    return (
        "System calls could not be traced here, so our syncs are as the store counts them and the peers' are left out."
    )


# Workflows


def _workflow_text(results: Results) -> str:
    waiting, traced = results["waiting"][0], results["waiting traced"][0]
    return f"""\
A workflow of 1,000 steps that do nothing but add 1 to a number of the state, in one run: ours a chain of 1,000 nodes,
LangGraph's a loop over one node (a chain is the row below it), DBOS' a function that calls 1,000 steps, Restate's a
function of 1,000 `run_typed`. Same durability: each step is on the disk before the next begins.
The last row is a workflow of 1,000 effects under a business key, each of which is an intent with its claim, synced, and
a result, synced. {_step_versions(results)} Syncs beyond whole numbers are checkpoints of the stores' own files.

{_step_table(results)}

{_step_growth_table(results)}

Steps around step {EARLY} and step {LATE:,} of one run of more than {LATE:,} nodes: the record keeps a cursor a block
and forgets a node when it is done.

### A thousand runs at once

1,000 runs of 10 steps, started, run and ended in one process. DBOS in both of its ways: `start_workflow` on its own
pool of threads, and `start_workflow_async` with asynchronous steps.

{_runs_table(results)}

### Taken up, and waiting

A worker ran 1,000 steps and was killed with SIGKILL inside the effect behind them. Another process proves the workflow,
opens the store, claims the run, folds it from its newest snapshot (at most 200 events), settles the effect by its probe
and completes the run: {_taken_up(results)}

Ten thousand runs that wait for a signal: {waiting["resident_bytes_each"]:,.0f} bytes of resident memory each, of which
{traced["traced_bytes_each"]:,.0f} are Python's own allocations. Threads, file descriptors and tasks of them all:
{waiting["threads"]}, {waiting["files"]}, {waiting["tasks"]}. Starting one, its step and its wait took
{waiting["cpu_ms_each"]:.2f} ms of CPU, and each is {waiting["disk_bytes_each"]:,.0f} bytes on disk."""


def _taken_up(results: Results) -> str:
    total, opening = (_number(middle(results["steps resume"], key), "ms") for key in ("cpu_ms", "opening_cpu_ms"))
    return f"{total} of CPU, of which {opening} are the proof and the opening."


_STEP_NAMES = {
    "steps ours": "Setpoint",
    "steps langgraph": "LangGraph, a loop over one node",
    "steps langgraph chain": "LangGraph, 1,000 nodes in a row",
    "steps dbos": "DBOS",
    "steps restate": "Restate, server and Python service",
    "calls ours": "Setpoint, effects under a key",
}
_RUN_NAMES = {
    "runs ours": "Setpoint, coroutines",
    "runs dbos threads": "DBOS, threads",
    "runs dbos coroutines": "DBOS, coroutines",
    "runs restate": "Restate, 100 requests at a time",
}


def _unmeasured(results: Results, job: str) -> str:
    """Why a peer could not be measured; empty when it was."""
    return next((str(found["unavailable"]) for found in results[job] if "unavailable" in found), "")


def _step_versions(results: Results) -> str:
    if why := _unmeasured(results, "steps restate"):
        return f"Restate was not measured: {why}."
    return f"Restate: {results['steps restate'][0]['version']}."


def _step_table(results: Results) -> str:
    ours = results["steps ours"]
    rows: list[Row] = []
    for job, name in _STEP_NAMES.items():
        if _unmeasured(results, job):
            rows.append((name, "not measured", "", "", "", "", ""))
            continue
        found, syncs = results[job], step_syncs(results, job)
        rows.append(
            (
                name,
                f"{least(found, 'cpu_ms'):.2f} ms",
                f"{middle(found, 'cpu_ms'):.2f} ms",
                f"{least(found, 'cpu_ms') / least(ours, 'cpu_ms'):.2f}",
                f"{rate(ours) / rate(found):.2f}",
                "" if syncs is None else f"{syncs:.2f}",
                f"{middle(found, 'bytes'):,.0f}" if "bytes" in found[0] else "",
            )
        )
    return _markdown(_STEP_HEAD, rows)


_STEP_HEAD = (
    "engine",
    "CPU a step, best",
    "median",
    "CPU, best / ours",
    "steps a second, ours / this",
    "syncs a step",
    "bytes a step",
)


def _step_growth_table(results: Results) -> str:
    rows: list[Row] = []
    for step in (str(EARLY), str(LATE)):
        values = sorted(value for found in results["step windows"] for value in found["cpu_ms"][step])
        size = max(float(found["bytes"][step]) for found in results["step windows"])
        rows.append((f"{int(step):,}", f"{values[0]:.2f} ms", f"{values[len(values) // 2]:.2f} ms", f"{size:,.0f}"))
    return _markdown(("at step", "CPU a step, best", "median", "bytes a step"), rows)


def _runs_table(results: Results) -> str:
    ours = results["runs ours"]
    rows: list[Row] = []
    for job, name in _RUN_NAMES.items():
        if _unmeasured(results, job):
            rows.append((name, "not measured", "", ""))
            continue
        found = results[job]
        syncs = f"{middle(found, 'syncs'):.3f}" if "syncs" in found[0] else ""
        rows.append((name, f"{least(found, 'cpu_ms'):.2f} ms", f"{rate(ours) / rate(found):.2f}", syncs))
    return _markdown(("1,000 at once", "CPU a step, best", "steps a second, ours / this", "syncs a step"), rows)
