"""What a running action has used so far, sampled from outside it.

Resource limits of the kernel bind one process each; an action is a tree. The supervisor therefore samples the tree
every ``TICK_S`` and ends it when the sum is over. Sampling overshoots by what can be used within one tick, which is
why a memory cgroup or RLIMIT_DATA stands behind it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from setpoint.ports.sandbox import Limits

TICK_S = 0.05
"""A tree can touch some 100 MiB in this time; reading a small tree costs about 0.1 ms."""

_CLOCK_HZ = os.sysconf("SC_CLK_TCK")
_TREE_MAX = 4096  # processes looked at in one sample; a tree beyond this is over any pids limit anyway


class Meter(Protocol):
    def over(self, limits: Limits) -> str:
        """The reason of ``Finished`` when a limit is exceeded now, else the empty string."""
        ...

    def afterwards(self) -> str:
        """The reason that only shows once everything is dead, else the empty string."""
        ...


@dataclass(frozen=True, slots=True)
class TreeMeter:
    """Sums CPU, anonymous memory and processes over the descendants of ``init`` (inclusive), read from /proc.

    CPU time of reaped children is included through their parents. A process that ignores SIGCHLD hides the time of
    its dead children from everybody; RLIMIT_CPU and the wall clock remain.
    """

    init: int

    def over(self, limits: Limits) -> str:
        pids = _descendants(self.init)
        if len(pids) - 1 > limits.pids:
            return "killed"
        cpu_ms = resident = 0
        for pid in pids:
            cpu_ms += _cpu_ms(pid)
            resident += _anonymous_bytes(pid)
        if cpu_ms > limits.cpu_ms:
            return "cpu"
        # Forked workers share pages, so the sum of resident sizes overstates; the exact share costs more to read.
        if resident > limits.memory_bytes and sum(map(_proportional_bytes, pids)) > limits.memory_bytes:
            return "memory"
        return ""

    def afterwards(self) -> str:
        return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # the process ended between two reads
        return ""


def _descendants(root: int) -> list[int]:
    found, pending = [root], [root]
    while pending and len(found) < _TREE_MAX:
        parent = pending.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for thread in threads:
            children = [int(pid) for pid in _read(f"/proc/{parent}/task/{thread}/children").split()]
            found += children
            pending += children
    return found


def _cpu_ms(pid: int) -> int:
    # utime, stime, cutime, cstime are fields 14-17; the command (field 2) may hold spaces and parentheses
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) * 1000 // _CLOCK_HZ if len(fields) > 15 else 0


def _anonymous_bytes(pid: int) -> int:
    return _kib_of(f"/proc/{pid}/status", ("RssAnon:", "RssShmem:"))


def _proportional_bytes(pid: int) -> int:
    exact = _kib_of(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))
    return exact or _anonymous_bytes(pid)


def _kib_of(path: str, names: tuple[str, ...]) -> int:
    rows = (line.split() for line in _read(path).splitlines())
    return sum(int(row[1]) << 10 for row in rows if len(row) > 1 and row[0] in names)
