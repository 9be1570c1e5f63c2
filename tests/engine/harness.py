"""A trajectory over ports in memory, the way the runtime puts one together, and a second process that takes it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from setpoint.adapters.stores.memory import MemoryLog
from setpoint.engine.control import Request, encode_request
from setpoint.engine.journal import Journal
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.reading import read_record
from setpoint.engine.reconcile import converge
from setpoint.engine.recovery import settle
from setpoint.kernel.contract import Task
from setpoint.kernel.events import Event, LeaseClaimed, TaskAccepted, decode
from setpoint.kernel.record import Record
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.phases.p4_dispatch.run import dispatch
from setpoint.ports.log import Lease, Log
from setpoint.testing.clock import FakeClock
from setpoint.testing.memory_workspace import MemoryWorkspace, Tree
from setpoint.testing.tasks import TOOLS, criterion, invariant, make_task
from setpoint.testing.trees import Judgement, TreeSandbox, TreeVerifier

__all__ = ["STREAM", "TOOLS", "Rig", "criterion", "holds", "invariant", "make_task"]

STREAM = "tr-1"


def holds(path: str, text: str) -> Callable[[Tree], Judgement]:
    return lambda tree: 0 if tree.get(path) == text.encode() else 1


@dataclass
class Rig:
    """One trajectory with its outside. ``start`` pursues it, ``resume`` is another process over the same log."""

    proposers: Sequence[Any]
    checks: Mapping[str, Callable[[Tree], Judgement]] = field(
        default_factory=lambda: {"done/unit": holds("src/a", "1")}
    )
    task: Task = field(default_factory=make_task)
    files: Mapping[str, str] = field(default_factory=lambda: {"src/a": "0", "tests/t": "assert a == 1"})
    commands: Mapping[str, Callable[[], tuple[int, str]]] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    wrap: Callable[[MemoryLog], Log] = lambda log: log
    dispatch: Any = dispatch
    desk: Any = None  # None: nobody is asked

    def __post_init__(self) -> None:
        self.workspace = MemoryWorkspace(self.files)
        self.verifier = TreeVerifier(self.workspace, self.checks)
        self.sandbox = TreeSandbox(self.commands)
        self.store = MemoryLog(self.clock.now_ms)
        self.log: Any = self.wrap(self.store)
        self.certified = 0
        self.owners = 0

    # Driving

    def start(self) -> Record:
        return asyncio.run(self._start())

    def resume(self) -> Record:
        return asyncio.run(self._resume())

    def ask(self, action: str, argument: str = "", key: str | None = None) -> None:
        self.store.deliver(STREAM, key or self.clock.new_id("rq"), encode_request(Request(action, "ops", argument)))

    async def _start(self) -> Record:
        self.store.create(STREAM, "trajectory")
        lease = self._claim()
        journal = Journal(self.log, self.clock, lease, self.store.head(STREAM), Record(trajectory_id=STREAM))
        journal.emit(
            TaskAccepted(
                name=self.task.name,
                task=journal.store(b"{}"),
                task_digest=self.task.digest,
                workspace=self.task.environment.workspace,
                base_digest=self.workspace.base_digest,
                exposure="H20 S2 A1",
                required_level="visible",
                models=[proposer.route for proposer in self.proposers],
                tier="namespaces",
                rung="overlay",
                runtime="0",
                directory="/",
            )
        )
        journal.emit(LeaseClaimed(owner="one", fence=lease.fence))
        await journal.barrier()
        return await self.pursue(journal)

    async def _resume(self) -> Record:
        self.workspace.reopened()
        record, head = read_record(self.store, STREAM)
        if record.is_terminal:
            return record
        lease = self._claim()
        journal = Journal(self.log, self.clock, lease, head, record)
        journal.emit(LeaseClaimed(owner="two", fence=lease.fence))
        return await self.pursue(journal)

    def _claim(self) -> Lease:
        self.owners += 1
        return self.store.claim(STREAM, "one", 15_000)  # the same host's dead owner is taken over at once

    async def pursue(self, journal: Journal) -> Record:
        pursuit = Pursuit(
            self.task,
            journal,
            self.workspace,
            self.sandbox,
            self.verifier,
            self.proposers,
            self.clock,
            BUILTIN,
            self._certify,
            dispatch=self.dispatch,
            inbox=lambda after: self.store.inbox(STREAM, after),
            desk=self.desk,
        )
        await settle(pursuit)
        return await converge(pursuit)

    def _certify(self, p: Pursuit) -> tuple[bytes, str, str]:
        self.certified += 1
        return b"certificate", "key", "visible"

    # Looking

    @property
    def record(self) -> Record:
        return read_record(self.store, STREAM)[0]

    def events(self, *kinds: type[Event]) -> list[Any]:
        found = [decode(stored.type, stored.data) for stored in self.store.read(STREAM)]
        return [event for event in found if not kinds or isinstance(event, kinds)]

    def types(self, turn: int | None = None) -> list[str]:
        return [stored.type for stored in self.store.read(STREAM) if turn is None or stored.turn == turn]

    def prompt(self, number: int, route: int = 0) -> str:
        """The text of the prompt of call ``number`` (from 0) to a route."""
        return self.proposers[route].contexts[number].text
