"""Control groups where this process may make them: the only hard bound of memory and processes for root.

RLIMIT_NPROC does not bind the kernel's uid 0 and RLIMIT_DATA binds one process, not a tree. A group per action binds
both, counts CPU exactly (also of processes nobody waits for) and knows whether the kernel killed for memory.
Version 1 and 2 are supported; version 2 only where the controllers are already delegated to our own group, because
enabling them there could mean moving processes that are not ours.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from setpoint.ports.sandbox import Limits

_PREFIX = "setpoint-"
_REMOVE_TRIES = 50  # a group stays busy for some milliseconds after its last process died
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class CgroupHome:
    """Where groups can be made: one directory per controller (v1), or the same one for all (v2)."""

    version: int
    pids: Path
    memory: Path
    cpu: Path | None

    def admit(self, init: int, limits: Limits, backed_by_memory: int) -> ActionCgroup:
        """A new group that holds ``init`` and everything it will start.

        ``backed_by_memory``: bytes of tmpfs the action may fill besides. Such pages are charged to the group too, so
        the hard limit leaves room for them and the sampled ``over`` bounds anonymous memory alone.
        """
        name = f"{_PREFIX}{os.getpid()}-{next(_serial)}"
        group = ActionCgroup(self, name)
        try:
            for directory in self.directories():
                (directory / name).mkdir()
            maximum = str(limits.memory_bytes + backed_by_memory)
            if self.version == 1:
                (self.memory / name / "memory.limit_in_bytes").write_text(maximum)
            else:
                (self.memory / name / "memory.max").write_text(maximum)
                (self.memory / name / "memory.oom.group").write_text("1")
            (self.pids / name / "pids.max").write_text(str(limits.pids + 1))  # the sandbox init is not the action's
            for directory in self.directories():
                (directory / name / "cgroup.procs").write_text(str(init))
        except OSError:
            group.close()
            raise
        return group

    def directories(self) -> tuple[Path, ...]:
        every = (self.pids, self.memory, *((self.cpu,) if self.cpu else ()))
        return tuple(dict.fromkeys(every))

    def sweep(self) -> None:
        """Remove empty groups of supervisors that were killed before they could."""
        for directory in self.directories():
            for group in directory.glob(f"{_PREFIX}*-*"):
                pid = group.name.removeprefix(_PREFIX).partition("-")[0]
                if not os.path.exists(f"/proc/{pid}"):
                    with contextlib.suppress(OSError):
                        group.rmdir()


@dataclass(frozen=True, slots=True)
class ActionCgroup:
    """The group of one action; also its meter."""

    home: CgroupHome
    name: str

    def over(self, limits: Limits) -> str:
        if self._cpu_ms() > limits.cpu_ms:
            return "cpu"
        if self._anonymous_bytes() > limits.memory_bytes:
            return "memory"
        return self.afterwards()

    def afterwards(self) -> str:
        file = "memory.oom_control" if self.home.version == 1 else "memory.events"
        return "memory" if _value(self.home.memory / self.name / file, "oom_kill") else ""

    def _anonymous_bytes(self) -> int:
        return _value(self.home.memory / self.name / "memory.stat", "rss" if self.home.version == 1 else "anon")

    def _cpu_ms(self) -> int:
        if self.home.cpu is None:
            return 0
        if self.home.version == 1:
            return int(_read(self.home.cpu / self.name / "cpuacct.usage") or 0) // 1_000_000
        return _value(self.home.cpu / self.name / "cpu.stat", "usage_usec") // 1000

    def close(self) -> None:
        for directory in self.home.directories():
            for _ in range(_REMOVE_TRIES):
                try:
                    (directory / self.name).rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # EBUSY: the last members are dead but not yet gone from the group
                    time.sleep(0.002)
                else:
                    break


def find_home() -> CgroupHome | None:
    """The place to make groups in, proven by making one; None where that is not allowed."""
    candidates = (_version_1(), _version_2())
    for home in candidates:
        if home is not None and all(_is_writable(directory) for directory in home.directories()):
            home.sweep()
            return home
    return None


def _version_1() -> CgroupHome | None:
    own = {name: path for names, path in _memberships() for name in names.split(",")}
    mounts = _mounts("cgroup")
    found = {
        name: _below(mounts[name], own[name])
        for name in ("pids", "memory", "cpuacct")
        if name in own and name in mounts
    }
    if "pids" not in found or "memory" not in found:
        return None
    return CgroupHome(1, found["pids"], found["memory"], found.get("cpuacct"))


def _version_2() -> CgroupHome | None:
    own = dict(_memberships())
    mount = _mounts("cgroup2").get("")
    if mount is None or "" not in own:
        return None
    group = _below(mount, own[""])
    delegated = _read(group / "cgroup.subtree_control").split()
    return CgroupHome(2, group, group, group) if {"memory", "pids"} <= set(delegated) else None


def _memberships() -> list[tuple[str, str]]:
    rows = (line.split(":", 2) for line in _read(Path("/proc/self/cgroup")).splitlines())
    return [(row[1], row[2]) for row in rows if len(row) == 3]


def _mounts(kind: str) -> dict[str, tuple[str, str]]:
    """Controller name ("" for v2) to (root inside the hierarchy, mount point)."""
    found: dict[str, tuple[str, str]] = {}
    for line in _read(Path("/proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        filesystem, _, options = after.split(" ", 2)
        if filesystem == kind:
            root, point = before.split()[3:5]
            for name in options.split(",") if kind == "cgroup" else [""]:
                found.setdefault(name, (root, point))
    return found


def _below(mount: tuple[str, str], own: str) -> Path:
    root, point = mount
    return Path(point) / own.removeprefix(root).lstrip("/")


def _is_writable(directory: Path) -> bool:
    trial = directory / f"{_PREFIX}{os.getpid()}-probe"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _value(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
