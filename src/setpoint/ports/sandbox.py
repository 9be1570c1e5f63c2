"""Run one action where it can only touch what it was given.

Promises every adapter keeps (each sentence has a conformance test):

- A path in ``hidden`` that exists in the view is there as an empty directory or an unreadable file, read-only.
- The action sees the view at ``/workspace``, the mounts, ``/usr`` and the system's libraries, a private
  ``/tmp`` and nothing else of the host; the environment is exactly the fixed minimum plus ``env``.
- ``run`` returns only after every process the action started is dead, also those that daemonised.
- A limit that is hit ends the action and is named in ``Finished.reason``; output beyond the limit is counted,
  hashed and clamped to head and tail, never kept whole in memory.
- ``run`` never raises for what the action did. ``SandboxFault`` means the sandbox itself could not be made.
- ``cancel`` of the awaiting task kills the action's whole process tree before the cancellation completes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from setpoint.kernel.contract import TIERS, Limits, Mount, Tier

__all__ = [
    "SEALED_AT",
    "TIERS",
    "WORKSPACE_AT",
    "Action",
    "BindView",
    "Captured",
    "Finished",
    "Limits",
    "Mount",
    "OverlayView",
    "Sandbox",
    "SandboxReport",
    "Scratch",
    "Tier",
    "View",
]

WORKSPACE_AT = "/workspace"
SEALED_AT = "/sealed"


class Scratch(Protocol):
    """A quota-bound place for upper directories, private to one transaction; gone when its holder dies."""

    outside: str  # path by which the supervisor reaches it
    inside: str  # the same place as seen after ``enter``
    enter: tuple[str, ...]  # argv prefix that enters its namespaces; empty when none are needed

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OverlayView:
    """Layers bottom first; ``upper`` None means: writes go to a throw-away layer.

    ``upper`` and ``work`` are paths relative to ``scratch.inside``.
    """

    lowers: tuple[str, ...]
    upper: str | None = None
    work: str | None = None
    scratch: Scratch | None = None


@dataclass(frozen=True, slots=True)
class BindView:
    """A real directory, for machines without overlays; ``readonly`` for checks."""

    root: str
    readonly: bool = False


View = OverlayView | BindView


@dataclass(frozen=True, slots=True)
class Action:
    argv: tuple[str, ...]
    view: View | None  # None: no workspace at all (a judge)
    limits: Limits
    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    toolchain: tuple[str, ...] = ()  # e.g. ("python",)
    network: tuple[str, ...] = ()  # host:port allow-list; empty means none at all
    stdin: bytes | None = None
    cwd: str = WORKSPACE_AT
    hidden: tuple[str, ...] = ()  # workspace-relative paths shown empty and unwritable, where they exist
    out_at: str | None = None  # a writable directory whose small files come back in ``Finished.files``


@dataclass(frozen=True, slots=True)
class Captured:
    """One stream: what was kept, how much there was, and the digest of all of it."""

    kept: bytes
    total_bytes: int
    sha256: str  # hex, over every byte that arrived
    truncated: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """How an action ended. ``reason`` is empty when it ended by itself.

    reasons: wall | cpu | memory | output | cancelled | killed | start (argv[0] could not be executed)
    """

    exit_code: int | None  # None when it was ended by us or by a signal
    signal: int | None
    reason: str
    stdout: Captured
    stderr: Captured
    duration_ms: int
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """What this machine's sandbox really gives, found by executing a probe."""

    tier: Tier
    rung: str  # overlay | copy | landlock | none
    detail: str
    unenforced: tuple[str, ...] = ()  # limits this rung cannot hold here
    hints: tuple[str, ...] = ()  # how to get a better rung, e.g. the sysctl to set


class Sandbox(Protocol):
    report: SandboxReport

    def open_scratch(self, disk_bytes: int) -> Scratch:
        """A fresh quota-bound scratch; SandboxFault when it cannot be made."""
        ...

    async def run(self, action: Action) -> Finished: ...

    async def close(self) -> None: ...
