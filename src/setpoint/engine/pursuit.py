"""One pursuit of a task: the contract, the journal and the ports, held together for the time a worker owns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from setpoint.engine.journal import Scribe
from setpoint.kernel.contract import Task
from setpoint.kernel.trajectory import Record
from setpoint.phases.p3_gate.tools import Tool
from setpoint.phases.p4_dispatch.run import ToolBody
from setpoint.ports.clock import Clock
from setpoint.ports.proposer import Proposer
from setpoint.ports.sandbox import Sandbox
from setpoint.ports.verifier import Verifier
from setpoint.ports.workspace import Workspace

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
    inbox: Callable[[int], list[tuple[int, str, bytes]]] = lambda after: []
    _elapsed_before: int = 0
    _started: int = 0

    def __post_init__(self) -> None:
        self._elapsed_before = self.record.spent.elapsed_ms
        self._started = self.clock.monotonic_ms()

    @property
    def record(self) -> Record:
        return self.journal.record

    def elapsed_ms(self) -> int:
        """Active wall time of the whole trajectory; waiting in PAUSED is not counted."""
        return self._elapsed_before + self.clock.monotonic_ms() - self._started

    def wall_ms_left(self) -> int:
        return max(0, self.task.budget.wall_ms - self.elapsed_ms())
