"""Run every measurement, hold the results against the gates, write ``docs/benchmarks.md``. Exit 1 when a gate fails.

Every measurement is a process of its own that prints one JSON line. Jobs that are compared take turns, round after
round, on one directory of one disk. Where it is permitted all of them run at real-time priority, ours and the peers'
alike: on a machine with other work a sync else ends with a wait for the scheduler, which says nothing of either side.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gates import EARLY, LATE, Gate, gates
from report import page, table

from setpoint.adapters.stores.file_system import VOLATILE, file_system_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CHILD_S_MAX = 1_800

TURN = {
    "ours": ["durable_turn.py", "--turns", "1000"],
    "langgraph": ["peer_langgraph.py", "--turns", "1000"],
    "dbos": ["peer_dbos.py", "--turns", "1000"],
    "langgraph one node": ["peer_langgraph.py", "--turns", "1000", "--nodes", "1"],
    "dbos one step": ["peer_dbos.py", "--turns", "1000", "--steps", "1"],
    "langgraph newest only": ["peer_langgraph.py", "--turns", "1000", "--state", "last"],
}
HUNDRED = {
    "ours 100": ["durable_turn.py", "--turns", "50", "--concurrent", "100"],
    "langgraph 100 threads": ["peer_langgraph.py", "--turns", "20", "--concurrent", "100"],
    "langgraph 100 coroutines": ["peer_langgraph.py", "--turns", "20", "--concurrent", "100", "--aio"],
    "langgraph 100 one node": ["peer_langgraph.py", "--turns", "20", "--concurrent", "100", "--nodes", "1"],
}
STEPS = {
    "steps ours": ["workflow_steps.py", "--steps", "1000"],
    "steps langgraph": ["peer_langgraph.py", "--turns", "1000", "--nodes", "1", "--state", "count"],
    "steps langgraph chain": ["peer_langgraph.py", "--turns", "1000", "--nodes", "1", "--state", "count", "--chain"],
    "steps dbos": ["peer_dbos.py", "--turns", "1000", "--steps", "0"],
    "steps restate": ["peer_restate.py", "--steps", "1000"],
    "calls ours": ["workflow_steps.py", "--steps", "1000", "--calls"],
}
THOUSAND = {
    "runs ours": ["workflow_steps.py", "--steps", "10", "--concurrent", "1000"],
    "runs dbos threads": ["peer_dbos.py", "--turns", "10", "--steps", "0", "--concurrent", "1000"],
    "runs dbos coroutines": ["peer_dbos.py", "--turns", "10", "--steps", "0", "--concurrent", "1000", "--aio"],
    "runs restate": ["peer_restate.py", "--steps", "10", "--concurrent", "1000"],
}
SYNC_TURNS = (100, 400)  # the difference of the two leaves out what opening and closing cost


Measured = dict[str, list[dict[str, Any]]]
"""What the processes of each job printed, one mapping a round."""


class Failed(Exception):
    """A measurement could not be made."""


def child(argv: list[str], before: tuple[str, ...] = ()) -> dict[str, Any]:
    """What one measuring process printed."""
    command = [*before, sys.executable, str(HERE / argv[0]), *argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S_MAX)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise Failed(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(lines[-1])


def interleaved(jobs: dict[str, list[str]], rounds: int, directory: str) -> Measured:
    found: Measured = {name: [] for name in jobs}
    for number in range(rounds):
        for name, argv in jobs.items():
            said(f"round {number + 1} of {rounds}: {name}")
            found[name].append(child([*argv, "--dir", directory]))
    return found


def counted_syncs(jobs: dict[str, list[str]], directory: str) -> list[dict[str, Any]]:
    """Syncs a turn, or a step, as the kernel saw them; empty where system calls may not be traced.

    The third word of a job is how many of them it makes: it is run with two other numbers.
    """
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-o", os.devnull, "true"], capture_output=True).returncode:
        return []
    found: list[dict[str, Any]] = []
    for job, argv in jobs.items():
        said(f"counting syncs: {job}")
        seen: list[int] = []
        for turns in SYNC_TURNS:
            trace = os.path.join(directory, "trace")
            counted = [*argv[:2], str(turns), *argv[3:], "--dir", directory]
            printed = child(counted, (strace, "-f", "-e", "trace=fsync,fdatasync", "-o", trace))
            if "unavailable" not in printed:
                seen.append(sum("sync(" in line for line in Path(trace).read_text().splitlines()))
            os.unlink(trace)
        if seen:
            found.append({"job": job, "syncs": (seen[1] - seen[0]) / (SYNC_TURNS[1] - SYNC_TURNS[0])})
    return found


def resumed(what: str, make: list[str], take_up: list[str], rounds: int, directory: str) -> list[dict[str, Any]]:
    """The same store of a killed worker, taken up from a fresh copy each time. ``{}`` is the directory of the store."""
    made, copy = Path(directory) / "killed", Path(directory) / "copy"
    made.mkdir()
    said(f"resume: writing 1,000 {what}, then SIGKILL")
    argv = [sys.executable, str(HERE / make[0]), *(word.format(made) for word in make[1:])]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=CHILD_S_MAX)
    if ended.returncode != -9:
        raise Failed(f"the worker that was to be killed ended with {ended.returncode}:\n{ended.stderr[-4000:]}")
    found: list[dict[str, Any]] = []
    for number in range(rounds):
        said(f"resume of {what}: round {number + 1} of {rounds}")
        shutil.copytree(made, copy)
        found.append(child([word.format(copy) for word in take_up]))
        shutil.rmtree(copy)
    shutil.rmtree(made)
    return found


RESUME_TURNS = ["resume.py", "--store", "{}/log.db", "--make", "1000"], ["resume.py", "--store", "{}/log.db"]
RESUME_STEPS = ["workflow_resume.py", "--store", "{}", "--make"], ["workflow_resume.py", "--store", "{}"]


@contextlib.contextmanager
def ahead_of_others(wanted: bool) -> Iterator[bool]:
    """Real-time priority for the children started inside; yields whether it was permitted."""
    usual = os.sched_getscheduler(0), os.sched_getparam(0)
    permitted = False
    if wanted:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            permitted = True
    try:
        yield permitted
    finally:
        if permitted:
            os.sched_setscheduler(0, *usual)


def measure(rounds: int, directory: str, realtime: bool) -> Measured:
    fewer = max(2, rounds // 2)
    said("looking for the server of Restate")
    child(["peer_restate.py", "--install"])  # before anything is measured; why it cannot be had is in its own rows
    with ahead_of_others(realtime) as permitted:
        found = interleaved(TURN, rounds, directory)
        found |= interleaved(HUNDRED, rounds, directory)
        found |= interleaved(STEPS, rounds, directory)
        found |= interleaved(THOUSAND, fewer, directory)
        windows = {
            "windows": ["durable_turn.py", "--windows", str(EARLY), str(LATE)],
            "step windows": ["workflow_steps.py", "--windows", str(EARLY), str(LATE)],
        }
        found |= interleaved(windows, fewer, directory)
        found["resume"] = resumed("turns", *RESUME_TURNS, rounds, directory)
        found["steps resume"] = resumed("steps", *RESUME_STEPS, rounds, directory)
    found["syncs"] = counted_syncs(
        {job: argv for job, argv in TURN.items() if job != "langgraph newest only"}, directory
    )
    found["step syncs"] = counted_syncs(STEPS, directory)
    for name, argv in WAITING.items():
        said(name)
        found[name] = [child([*argv, "--dir", directory])]
    said("transaction: two repositories, of 100 and of 100,000 files")
    found["transaction"] = [child(["sandbox_transaction.py", "--dir", directory])]
    found["machine"] = [{"cores": os.cpu_count(), "realtime": permitted, "rounds": rounds}]
    return found


WAITING = {
    "parked": ["parked.py"],
    "parked traced": ["parked.py", "--trace"],
    "waiting": ["workflow_waiting.py"],
    "waiting traced": ["workflow_waiting.py", "--trace"],
}


def said(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=str(ROOT / "build"), help="on the disk to measure on; never a tmpfs")
    parser.add_argument("--out", default=str(ROOT / "docs" / "benchmarks.md"))
    parser.add_argument("--raw", help="also write what every process printed, as JSON")
    parser.add_argument("--from-raw", help="make table and page from such a file instead of measuring")
    parser.add_argument("--usual-priority", action="store_true", help="do not ask for real-time priority")
    options = parser.parse_args()
    if options.from_raw:
        found = json.loads(Path(options.from_raw).read_text())
    else:
        os.makedirs(options.dir, exist_ok=True)
        if (kind := file_system_of(options.dir)) in VOLATILE:
            print(f"{options.dir} lies on {kind}, where a sync costs nothing; name a disk with --dir", file=sys.stderr)
            return 2
        try:
            with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-") as directory:
                found = measure(options.rounds, directory, not options.usual_priority)
        except Failed as fault:
            print(f"bench: {fault}", file=sys.stderr)
            return 2
    if options.raw:
        Path(options.raw).write_text(json.dumps(found, indent=1))
    judged = gates(found)
    Path(options.out).write_text(page(found, judged))
    print(table(judged, marks=_marks()))
    failed = [gate for gate in judged if not gate.holds]
    print(f"{len(judged) - len(failed)} of {len(judged)} gates hold; the page is {options.out}")
    return 1 if failed else 0


def _marks() -> Callable[[Gate], str]:
    return lambda gate: "holds" if gate.holds else "FAILS"


if __name__ == "__main__":
    sys.exit(main())
