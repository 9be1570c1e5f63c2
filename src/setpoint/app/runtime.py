"""The runtime: accept a task, pursue it, take it up again, look at it, take it back.

Async first; ``runtime.sync`` has the same verbs for code without a loop. One runtime is one process's view of one
store; any number of processes may share the store, and a lease with a fencing token makes sure that one trajectory has
one owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from setpoint.adapters.clock import SystemClock
from setpoint.adapters.stores import open_log
from setpoint.adapters.stores.owner import this_owner
from setpoint.app.certify import certify
from setpoint.app.manifest import manifests_of
from setpoint.app.opening import Equipment
from setpoint.app.places import Places, find_places
from setpoint.engine.control import Request, encode_request, read_request
from setpoint.engine.journal import Journal
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.reading import read_record
from setpoint.engine.reconcile import converge
from setpoint.engine.recovery import settle
from setpoint.kernel import limits
from setpoint.kernel.contract import Task
from setpoint.kernel.errors import Fault, IllegalTransition, LeaseLost, UnknownTrajectory
from setpoint.kernel.events import (
    ControlApplied,
    ControlRequested,
    DriftFound,
    Event,
    Finished,
    LeaseClaimed,
    TaskAccepted,
)
from setpoint.kernel.exposure import expose, require_closure, required_level
from setpoint.kernel.keys import canonical
from setpoint.kernel.trajectory import Record
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.ports.clock import Clock
from setpoint.ports.log import Head, Lease, Log, StreamInfo
from setpoint.ports.workspace import CommitReceipt
from setpoint.version import VERSION

KIND = "trajectory"
Observer = Callable[[int, Event, Record], None]
"""Called for every event as it is emitted: its turn, the event, the record after it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pursuit came to. ``exit_code`` is that of INTERFACE section 4."""

    trajectory_id: str
    record: Record

    @property
    def exit_code(self) -> int:
        record = self.record
        if record.is_terminal:
            return record.finished_code
        return 14 if record.state == "PAUSED" and record.question is None and record.pause_reason else 13


class Runtime:
    """Use as ``async with Runtime.open(...) as runtime``."""

    def __init__(self, places: Places, log: Log, clock: Clock) -> None:
        self.places = places
        self.log = log
        self.clock = clock
        self.equipment = Equipment(places)
        self._owner = this_owner()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, store: str | None = None, *, clock: Clock | None = None) -> AsyncIterator[Runtime]:
        """A runtime over ``store`` (a URL), by default the user's own. Closed on leaving the block."""
        runtime = open_runtime(store, clock=clock)
        try:
            yield runtime
        finally:
            await runtime.close()

    async def close(self) -> None:
        await self.equipment.close()
        await self.log.close()

    async def __aenter__(self) -> Runtime:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Pursuing

    async def converge(
        self,
        task: Task,
        *,
        models: Sequence[str] | None = None,
        models_directory: str | None = None,
        parent: str = "",
        observer: Observer | None = None,
    ) -> Outcome:
        """Accept ``task`` and pursue it to its end or to a pause.

        Raises ClosureMissing or IsolationUnavailable (exit 12) before anything is written, ConflictFault never: a
        conflict is an outcome (exit 15).
        """
        trajectory_id = self.accept(task)
        return await self._own(
            trajectory_id,
            lambda lease, head: self._accepted(
                task, trajectory_id, lease, head, models or task.models, models_directory, parent, observer
            ),
        )

    def accept(self, task: Task) -> str:
        """Refuse what cannot be pursued, then create the trajectory's stream. Nothing is run yet."""
        sandbox = self.equipment.sandbox(task.environment.tier)
        require_closure(task, sandbox.report.tier)
        trajectory_id = self.clock.new_id("tr")
        self.log.create(trajectory_id, KIND)
        return trajectory_id

    async def resume(self, trajectory_id: str, *, observer: Observer | None = None) -> Outcome:
        """Take a trajectory up where its log ends; a paused one is resumed.

        One that is terminal, or waits for an answer that was not given, is returned as it is.
        """
        record, _ = self.record(trajectory_id)
        answered = any(read_request(data).action in ("answer", "cancel", "kill") for _, _, data in self._unread(record))
        if record.is_terminal or (record.question is not None and not answered):
            return Outcome(trajectory_id, record)
        if record.state == "PAUSED" and record.question is None:
            self.request(trajectory_id, "resume", by="operator")
        return await self._own(trajectory_id, lambda lease, head: self._resumed(trajectory_id, lease, observer))

    async def recover(self, *, observer: Observer | None = None) -> list[Outcome]:
        """Resume every trajectory that is neither terminal nor waiting nor owned by a live worker."""
        outcomes: list[Outcome] = []
        for info in self.log.streams(KIND):
            if info.seq == 0 or self.log.holder(info.stream) is not None:
                continue
            record, _ = self.record(info.stream)
            if record.is_terminal or record.state == "PAUSED":
                continue
            with contextlib.suppress(LeaseLost):  # another worker was faster
                outcomes.append(await self.resume(info.stream, observer=observer))
        return outcomes

    async def _own(self, trajectory_id: str, body: Callable[[Lease, Head], Any]) -> Outcome:
        """Run ``body`` under the lease, renewing it, and let a kill reach it at once."""
        lease = self.log.claim(trajectory_id, self._owner, limits.LEASE_TTL_MS)
        try:
            return Outcome(trajectory_id, await body(lease, self.log.head(trajectory_id)))
        finally:
            with contextlib.suppress(LeaseLost):
                self.log.release(lease)

    async def _accepted(
        self,
        task: Task,
        trajectory_id: str,
        lease: Lease,
        head: Head,
        models: Sequence[str],
        models_directory: str | None,
        parent: str,
        observer: Observer | None,
    ) -> Record:
        report = self.equipment.sandbox(task.environment.tier).report
        exposure = expose(task)
        directory = os.path.dirname(task.source) if task.source else os.getcwd()
        workspace = await asyncio.to_thread(self.equipment.workspace, task, trajectory_id)
        journal = Journal(self.log, self.clock, lease, head, Record(trajectory_id=trajectory_id), observer)
        document = journal.store(canonical(task.document))
        journal.emit(
            TaskAccepted(
                name=task.name,
                task=document,
                task_digest=task.digest,
                workspace=task.environment.workspace,
                base_digest=workspace.base_digest,
                exposure=str(exposure),
                required_level=required_level(exposure).label,
                models=list(models),
                tier=report.tier,
                rung=report.rung,
                runtime=VERSION,
                directory=directory,
                source=task.source or "",
                models_directory=models_directory or directory,
                parent=parent,
            )
        )
        journal.emit(LeaseClaimed(owner=self._owner, fence=lease.fence))
        await journal.barrier()
        return await self._pursue(task, journal, workspace)

    async def _resumed(self, trajectory_id: str, lease: Lease, observer: Observer | None) -> Record:
        record, head = read_record(self.log, trajectory_id)
        if record.is_terminal:
            return record
        journal = Journal(self.log, self.clock, lease, head, record, observer)
        journal.emit(LeaseClaimed(owner=self._owner, fence=lease.fence))
        task = self.task_of(record)
        if task.digest != record.task_digest:
            journal.emit(DriftFound(what="task", expected=record.task_digest, found=task.digest, decision="refuse"))
            message = "the sealed files or the contract changed since the task was accepted"
            journal.emit(Finished(state="FAILED", reason="Drifted", message=message, code=17))
            await journal.barrier()
            return journal.record
        workspace = await asyncio.to_thread(self.equipment.workspace, task, trajectory_id)
        return await self._pursue(task, journal, workspace)

    async def _pursue(self, task: Task, journal: Journal, workspace: Any) -> Record:
        record = journal.record
        proposers = self.equipment.proposers(record.models, record.models_directory)
        verifier = self.equipment.verifier(task)
        pursuit = Pursuit(
            task,
            journal,
            workspace,
            self.equipment.sandbox(task.environment.tier),
            verifier,
            proposers,
            self.clock,
            BUILTIN,
            lambda p: certify(p, self.log, self.places.keys),
            inbox=lambda after: self.log.inbox(record.trajectory_id, after),
        )
        try:
            await settle(pursuit)
            return await self._until_killed(pursuit, journal)
        finally:
            for proposer in proposers:
                await proposer.close()
            await verifier.close()
            keep = not journal.record.is_terminal or journal.record.finished_reason == "Conflict"
            await asyncio.to_thread(workspace.close, keep_staged=keep)

    async def _until_killed(self, pursuit: Pursuit, journal: Journal) -> Record:
        """The loop, beside a watch that renews the lease and looks for a kill."""
        loop = asyncio.create_task(converge(pursuit))
        watch = asyncio.create_task(self._watch(journal))
        done, _ = await asyncio.wait({loop, watch}, return_when=asyncio.FIRST_COMPLETED)
        if loop in done:
            watch.cancel()
            await asyncio.wait({watch})
            return loop.result()
        loop.cancel()
        await asyncio.wait({loop})
        fault = watch.exception()
        if fault is not None:
            raise fault
        return await self._killed(journal, watch.result())

    async def _watch(self, journal: Journal) -> tuple[str, Request, int]:
        """Returns the kill request. Raises LeaseLost when another worker took over."""
        stream = journal.lease.stream
        renewed = self.clock.monotonic_ms()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if self.clock.monotonic_ms() - renewed >= limits.LEASE_RENEW_MS:
                journal.lease = await asyncio.to_thread(self.log.renew, journal.lease, limits.LEASE_TTL_MS)
                renewed = self.clock.monotonic_ms()
            for position, key, data in self.log.inbox(stream, journal.record.inbox_position):
                request = read_request(data)
                if request.action == "kill":
                    return key, request, position

    async def _killed(self, journal: Journal, found: tuple[str, Request, int]) -> Record:
        key, request, position = found
        await journal.resynchronise()
        journal.emit(
            ControlRequested(request_id=key, action="kill", by=request.by, argument=request.argument, position=position)
        )
        journal.emit(ControlApplied(request_id=key, action="kill"))
        journal.emit(Finished(state="CANCELLED", reason="Killed", message="kill by a person", code=11))
        await journal.barrier()
        return journal.record

    # Asking

    def request(self, trajectory_id: str, action: str, *, by: str, argument: str = "") -> None:
        """Leave a request for the owner of a trajectory. It is applied at its next turn boundary (kill: at once)."""
        record, _ = self.record(trajectory_id)
        if record.is_terminal:
            raise IllegalTransition(f"trajectory {trajectory_id} is {record.state} already; {action} does not apply")
        if action == "answer" and record.question is None:
            raise IllegalTransition(f"trajectory {trajectory_id} has asked nothing")
        key = self.clock.new_id("rq")
        self.log.deliver(trajectory_id, key, encode_request(Request(action, by, argument)))

    def _unread(self, record: Record) -> list[tuple[int, str, bytes]]:
        return self.log.inbox(record.trajectory_id, record.inbox_position)

    def is_owned(self, trajectory_id: str) -> bool:
        """Whether a live worker holds it."""
        return self.log.holder(trajectory_id) is not None

    # Looking

    def record(self, trajectory_id: str) -> tuple[Record, Head]:
        """Fold the whole trajectory. UnknownTrajectory, LogCorrupt."""
        return read_record(self.log, trajectory_id)

    def newest(self) -> str:
        """The id of the newest trajectory. UnknownTrajectory when there is none."""
        for info in self.trajectories():
            return info.stream
        raise UnknownTrajectory(
            "this store holds no trajectory yet", hint="`setpoint converge -f task.yaml` starts one."
        )

    def trajectories(self) -> list[StreamInfo]:
        return [info for info in self.log.streams(KIND) if info.seq > 0]

    def task_of(self, record: Record) -> Task:
        """The contract a trajectory was accepted with, read back from its log."""
        assert record.task is not None
        document = msgspec.json.decode(self.log.payload(record.task.ref))
        data = msgspec.json.encode(document)
        manifests = manifests_of(
            data, file=record.source or record.name, directory=record.directory, source=record.source or None
        )
        return manifests[0].task

    # Taking back

    def undo(self, trajectory_id: str, *, by: str) -> CommitReceipt:
        """Restore the exact pre-image of what the trajectory committed. ConflictFault when a touched path changed."""
        record, _ = self.record(trajectory_id)
        if not record.committed:
            raise IllegalTransition(f"trajectory {trajectory_id} has committed nothing; there is nothing to undo")
        task = self.task_of(record)
        provider = self.equipment.workspaces(task.environment.tier)
        return provider.undo(record.workspace, record.committed)

    @property
    def sync(self) -> SyncRuntime:
        return SyncRuntime(self)


WATCH_INTERVAL_S = 0.25
"""How long a kill may take to be seen; polling the inbox costs one indexed read."""


class SyncRuntime:
    """The verbs of ``Runtime`` for code without a running event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def converge(self, task: Task, **options: Any) -> Outcome:
        return asyncio.run(self._runtime.converge(task, **options))

    def resume(self, trajectory_id: str, **options: Any) -> Outcome:
        return asyncio.run(self._runtime.resume(trajectory_id, **options))


def open_runtime(store: str | None = None, *, clock: Clock | None = None) -> Runtime:
    """A runtime to be closed by the caller. StoreFault, UsageFault when the store or the state cannot be used."""
    places = find_places(store)
    places.make()
    used = clock or SystemClock()
    return Runtime(places, open_log(places.store_url, used.now_ms), used)


__all__ = ["Fault", "Outcome", "Runtime", "SyncRuntime", "open_runtime"]
