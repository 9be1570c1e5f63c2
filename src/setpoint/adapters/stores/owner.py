"""Who holds a lease, and whether that process is provably dead.

An owner is ``host/boot/pid/start``: start is the process's start time, so a recycled pid is another owner, and boot
names the boot and the pid namespace, so containers that share a kernel never take each other's pids for their own.
A process is provably dead only when it belonged to this very place and its pid is gone, is a zombie, or belongs to a
process started at another time. Anything else may be alive, and its lease has to expire.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_owner() -> str:
    """The owner string of the calling process."""
    pid = os.getpid()
    return f"{_place()}/{pid}/{_start_time(pid) or 0}"


def is_provably_dead(owner: str) -> bool:
    """True only when no process of that owner can be running. An owner of another shape is never provably dead."""
    place, _, process = owner.rpartition("/")
    place, _, pid_text = place.rpartition("/")
    if place != _place() or not pid_text.isdecimal() or not process.isdecimal() or int(pid_text) < 1:
        return False
    pid, start = int(pid_text), int(process)
    try:
        os.kill(pid, 0)  # works also where /proc hides the processes of others
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    found = _start_time(pid)
    return found is not None and start != 0 and found != start


def _place() -> str:
    """``host/boot``; the boot id is "unknown" where the system tells none, and then only a missing pid proves death."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return f"{_host()}/unknown"
    return f"{_host()}/{boot}:{namespace}"


def _host() -> str:
    return socket.gethostname().replace("/", "-")


def _start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process started, -1 for a zombie, None when it cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the command name may hold blanks and parentheses
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
