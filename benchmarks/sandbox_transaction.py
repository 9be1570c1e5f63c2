"""b) A whole sandboxed transaction against a plain ``subprocess``: begin, run ``true``, diff, keep.

Prints one JSON line. The real workspace on overlays and the real sandbox, on two repositories that differ only in their
number of files; plain runs, small and large take turns, so that a noisy machine is noisy for all three.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pursuing import cpu_s

from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.adapters.workspaces.opening import open_workspaces
from setpoint.kernel.contract import Limits
from setpoint.kernel.errors import IsolationUnavailable
from setpoint.ports.sandbox import Action, Sandbox
from setpoint.ports.workspace import Workspace

FILES_A_FOLDER = 250
BATCH = 5  # transactions a sample: the CPU of helpers that still run is known in clock ticks of 10 ms only
WARM_UP = 5
DISK_BYTES = 256 << 20


def make_repository(root: Path, files: int) -> None:
    for number in range(files):
        folder = root / f"package{number // FILES_A_FOLDER:04d}"
        if number % FILES_A_FOLDER == 0:
            folder.mkdir(parents=True)
        (folder / f"module{number % FILES_A_FOLDER:03d}.py").write_text(f"value = {number}\n")


def transaction(workspace: Workspace, sandbox: Sandbox, loop: asyncio.Runner, savepoint: int) -> None:
    workspace.begin()
    action = Action(("/bin/true",), workspace.action_view(), Limits())
    done = loop.run(sandbox.run(action))
    assert done.exit_code == 0, done
    workspace.changes()
    workspace.keep(savepoint)


def tree_cpu_s() -> float:
    """CPU of this process, of every child that has ended, and of every descendant that still runs."""
    tick = os.sysconf("SC_CLK_TCK")
    return cpu_s() + sum(sum(map(int, fields[11:15])) for fields in _descendants(os.getpid())) / tick


def _descendants(pid: int) -> Iterable[list[str]]:
    """The stat fields, from the third on, of all living descendants."""
    stats: dict[int, list[str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:  # it ended meanwhile
                continue
            stats[int(entry)] = text[text.rindex(")") + 2 :].split()
    wanted = {pid}
    found = True
    while found:
        found = {p for p, fields in stats.items() if int(fields[1]) in wanted} - wanted
        wanted |= found
    return [fields for p, fields in stats.items() if p in wanted and p != pid]


def sampled(work: Callable[[], None]) -> tuple[float, float]:
    """CPU and wall milliseconds of one piece of work, averaged over a batch."""
    used, began = tree_cpu_s(), time.perf_counter()
    for _ in range(BATCH):
        work()
    wall = time.perf_counter() - began
    return (tree_cpu_s() - used) * 1000 / BATCH, wall * 1000 / BATCH


def measure(base: Path, sizes: dict[str, int], rounds: int) -> dict[str, object]:
    sandbox = open_sandbox("namespaces", cache_dir=base / "cache")
    provider = open_workspaces(base / "state", sandbox)
    found: dict[str, object] = {"rung": sandbox.report.rung}
    numbers = {name: iter(range(1, 1 << 30)) for name in sizes}
    works: dict[str, Callable[[], None]] = {
        "plain": lambda: subprocess.run(["/bin/true"], check=True) and None,
    }
    with asyncio.Runner() as loop:
        opened: dict[str, Workspace] = {}
        try:
            for name, files in sizes.items():
                make_repository(base / name, files)
                began, used = time.perf_counter(), cpu_s()
                opened[name] = provider.open(str(base / name), f"bench-{name}", DISK_BYTES)
                found[f"open_cpu_ms_{name}"] = (cpu_s() - used) * 1000
                found[f"open_ms_{name}"] = (time.perf_counter() - began) * 1000
                works[name] = lambda n=name: transaction(opened[n], sandbox, loop, next(numbers[n]))
            samples: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
            for work in works.values():
                for _ in range(WARM_UP):
                    work()
            for _ in range(rounds):
                for name, work in works.items():
                    samples[name].append(sampled(work))
        finally:
            for workspace in opened.values():
                workspace.close(keep_staged=False)
            loop.run(sandbox.close())
    for name, values in samples.items():
        found[f"cpu_ms_{name}"] = statistics.median(cpu for cpu, _ in values)
        found[f"wall_ms_{name}"] = statistics.median(wall for _, wall in values)
        found[f"least_cpu_ms_{name}"] = min(cpu for cpu, _ in values)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--small", type=int, default=100)
    parser.add_argument("--large", type=int, default=100_000)
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(dir=options.dir)).resolve()
    try:
        print(json.dumps(measure(base, {"small": options.small, "large": options.large}, options.rounds)))
    except IsolationUnavailable as fault:
        print(json.dumps({"unavailable": str(fault)}))
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
