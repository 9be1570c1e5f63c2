"""One pursuit of a task: the contract, the journal and the ports, held together for the time a worker owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from setpoint.engine.desk import Desk
from setpoint.engine.journal import Scribe
from setpoint.kernel import limits
from setpoint.kernel.budget import raised_budget
from setpoint.kernel.contract import Budget, Environment, Task
from setpoint.kernel.events import SavepointKept
from setpoint.kernel.record import Record
from setpoint.kernel.ruling import Permit
from setpoint.phases.p1_context.projection import FileCopy, surroundings
from setpoint.phases.p3_gate.tools import Tool
from setpoint.phases.p4_dispatch.outcome import Outcome
from setpoint.phases.p4_dispatch.run import Bench, ToolBody, dispatch
from setpoint.ports.clock import Clock
from setpoint.ports.proposer import Part, Proposer
from setpoint.ports.sandbox import Sandbox
from setpoint.ports.verifier import Verifier
from setpoint.ports.workspace import ResolvedPath, Workspace


async def read_surroundings(p: Pursuit) -> list[Part]:
    """The workspace's map and the working files, as they are now."""
    return await asyncio.to_thread(_read_surroundings, p)


def is_hidden(environment: Environment, path: str) -> bool:
    """Whether a resolved path is, or lies below, one that no action may see."""
    return any(path == hidden or path.startswith(hidden + "/") for hidden in environment.hidden)


def _read_surroundings(p: Pursuit) -> list[Part]:
    entries, cut = p.workspace.listing(limits.MAP_ENTRIES_MAX)
    entries = [entry for entry in entries if not is_hidden(p.task.environment, entry.path)]
    files = [
        FileCopy(path, p.workspace.read(ResolvedPath(path), limits.FILE_READ_BYTES_MAX))
        for path in reversed(p.record.working)
    ]
    return surroundings(entries, cut, files, p.task.observe.redact)


Certifier = Callable[["Pursuit"], "tuple[bytes, str, str]"]
"""Builds and signs the certificate of a converged pursuit: (bundle bytes, key id, evidence level)."""


@dataclass(slots=True)
class Pursuit:
    """What the engine's functions pass along. Only ``journal`` changes state; the rest are the parts of the system
    tuple (policy, harness, environment, memory, verifier), each replaceable by a stub (R083)."""

    task: Task
    journal: Scribe
    workspace: Workspace
    sandbox: Sandbox
    verifier: Verifier
    proposers: Sequence[Proposer]
    clock: Clock
    tools: Mapping[str, Tool]
    certify: Certifier
    bodies: Mapping[str, ToolBody] = field(default_factory=dict[str, ToolBody])
    dispatch: Callable[[Permit, Bench, int], Awaitable[Outcome]] = dispatch
    surroundings: Callable[[Pursuit], Awaitable[list[Part]]] = read_surroundings
    kept_savepoint: Callable[[int], SavepointKept | None] = lambda savepoint: None
    inbox: Callable[[int], list[tuple[int, str, bytes]]] = lambda after: []
    desk: Desk | None = None  # None: nobody is asked, so what needs a person is refused (a plan)
    _elapsed_before: int = 0
    _started: int = 0
    _waited: int = 0

    def __post_init__(self) -> None:
        self._elapsed_before = self.record.spent.elapsed_ms
        self._started = self.clock.monotonic_ms()

    @property
    def record(self) -> Record:
        return self.journal.record

    @property
    def budget(self) -> Budget:
        """The ceilings that hold now: the contract's, and what a person added."""
        return raised_budget(self.task.budget, self.record.raised)

    def elapsed_ms(self) -> int:
        """Active wall time of the whole trajectory; neither PAUSED nor ``wait`` is counted."""
        return self._elapsed_before + self.clock.monotonic_ms() - self._started - self._waited

    async def wait(self, ms: int) -> None:
        """Wait for a server that asked for it, off the clock of the wall budget."""
        start = self.clock.monotonic_ms()
        try:
            await self.clock.sleep_ms(ms)
        finally:
            self._waited += self.clock.monotonic_ms() - start

    def wall_ms_left(self) -> int:
        return max(0, self.budget.wall_ms - self.elapsed_ms())
