"""The runtime: accept a task, pursue it, take it up again, look at it, take it back.

Async first; ``runtime.sync`` has the same verbs for code without a loop. One runtime is one process's view of one
store; any number of processes may share the store, and a lease with a fencing token makes sure that one trajectory has
one owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from setpoint.adapters.clock import SystemClock
from setpoint.adapters.stores import open_log, this_owner
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.base import require_base
from setpoint.app.certify import certify
from setpoint.app.manifest import manifests_of
from setpoint.app.opening import Equipment
from setpoint.app.places import Places, find_places
from setpoint.app.planning import Plan, PlannedProposer, plan_of, planned_reply
from setpoint.engine.control import Request, encode_request, read_request
from setpoint.engine.fork import copied_past, rebuild
from setpoint.engine.journal import Journal
from setpoint.engine.plan import apply_plan, make_plan
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.reading import read_record
from setpoint.engine.reconcile import baseline
from setpoint.engine.reconcile import converge as to_the_end
from setpoint.engine.recovery import roll_back_to, settle
from setpoint.engine.replay import Replayed, replay
from setpoint.kernel import limits
from setpoint.kernel.contract import Task
from setpoint.kernel.errors import ConflictFault, Fault, IllegalTransition, LeaseLost, UnknownTrajectory
from setpoint.kernel.events import (
    ControlApplied,
    ControlRequested,
    DeltaMeasured,
    DriftFound,
    Event,
    Finished,
    LeaseClaimed,
    SavepointKept,
    TaskAccepted,
    Undone,
    decode,
)
from setpoint.kernel.exposure import expose, require_closure, required_level
from setpoint.kernel.keys import canonical
from setpoint.kernel.trajectory import Record
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.phases.p4_dispatch.run import Bench
from setpoint.ports.clock import Clock
from setpoint.ports.log import Head, Lease, Log, StreamInfo
from setpoint.ports.proposer import Proposer
from setpoint.ports.workspace import CommitReceipt, Workspace
from setpoint.version import VERSION

KIND = "trajectory"
Body = Callable[[Pursuit], Coroutine[Any, Any, Record]]
"""What is done with a pursuit while it is owned."""
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
        body: Body = to_the_end,
    ) -> Record:
        report = self.equipment.sandbox(task.environment.tier).report
        exposure = expose(task)
        directory = os.path.dirname(task.source) if task.source else os.getcwd()
        workspace = await asyncio.to_thread(self.equipment.workspace, task, trajectory_id)
        try:
            await require_base(task, workspace, self.equipment.sandbox(task.environment.tier))
        except BaseException:
            await asyncio.to_thread(workspace.close, keep_staged=False)
            raise
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
        return await self._pursue(task, journal, workspace, body)

    async def _resumed(
        self, trajectory_id: str, lease: Lease, observer: Observer | None, body: Body = to_the_end
    ) -> Record:
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
        return await self._pursue(task, journal, workspace, body)

    async def _pursue(self, task: Task, journal: Journal, workspace: Workspace, body: Body = to_the_end) -> Record:
        record = journal.record
        proposers = self._proposers(record)
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
            savepoint_fingerprint=lambda savepoint: self._fingerprint_of(record.trajectory_id, savepoint),
            inbox=lambda after: self.log.inbox(record.trajectory_id, after),
        )
        try:
            await settle(pursuit)
            return await self._until_killed(body(pursuit), journal)
        finally:
            for proposer in proposers:
                await proposer.close()
            await verifier.close()
            keep = not journal.record.is_terminal or journal.record.finished_reason == "Conflict"
            await asyncio.to_thread(workspace.close, keep_staged=keep)

    def _proposers(self, record: Record) -> list[Proposer]:
        """The routes of a trajectory; ``plan:ID`` is the recorded reply of the plan with that id."""
        found: list[Proposer] = []
        for route in record.models:
            if route.startswith("plan:"):
                found.append(PlannedProposer(route, planned_reply(self.log, route.removeprefix("plan:"))))
            else:
                found += self.equipment.proposers([route], record.models_directory)
        return found

    async def _until_killed(self, body: Coroutine[Any, Any, Record], journal: Journal) -> Record:
        """The loop, beside a watch that renews the lease and looks for a kill.

        Whatever ends the wait (a result, a kill, a lost lease, a cancelled caller), both tasks are over when this
        returns, so that nothing works on ports that are being closed.
        """
        loop = asyncio.create_task(body)
        watch = asyncio.create_task(self._watch(journal))
        try:
            await asyncio.wait({loop, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop_ended = loop.done()
            for task in (loop, watch):
                task.cancel()
            await asyncio.gather(loop, watch, return_exceptions=True)
        if loop_ended:
            return loop.result()
        return await self._killed(journal, watch.result())  # raises when the lease was lost

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

    def _fingerprint_of(self, trajectory_id: str, savepoint: int) -> str | None:
        """The recorded fingerprint of a kept savepoint; of the base for 0."""
        for stored in self.log.read(trajectory_id):
            event = decode(stored.type, stored.data)
            if isinstance(event, SavepointKept) and event.savepoint == savepoint:
                return event.fingerprint
            if isinstance(event, DeltaMeasured) and savepoint == 0:
                return event.fingerprint
        return None

    # Planning

    async def measure(self, task: Task, *, observer: Observer | None = None) -> Record:
        """The delta of the workspace as it is: checks run, no model is asked, nothing is recorded in the store."""
        sandbox = self.equipment.sandbox(task.environment.tier)
        require_closure(task, sandbox.report.tier)
        trajectory_id = self.clock.new_id("measure")
        log = MemoryLog(self.clock.now_ms)
        log.create(trajectory_id, KIND)
        lease = log.claim(trajectory_id, self._owner, MEASURE_TTL_MS)
        workspace = await asyncio.to_thread(self.equipment.workspace, task, trajectory_id)
        journal = Journal(
            log, self.clock, lease, log.head(trajectory_id), Record(trajectory_id=trajectory_id), observer
        )
        verifier = self.equipment.verifier(task)
        pursuit = Pursuit(task, journal, workspace, sandbox, verifier, (), self.clock, BUILTIN, _no_certificate)
        try:
            await baseline(pursuit)
            return journal.record
        finally:
            await verifier.close()
            await asyncio.to_thread(workspace.close, keep_staged=False)
            await log.close()

    async def plan(
        self,
        task: Task,
        *,
        models: Sequence[str] | None = None,
        models_directory: str | None = None,
        observer: Observer | None = None,
    ) -> Plan:
        """One proposal, ruled on, run and judged in a transaction that is thrown away."""
        planned: list[tuple[Record, str]] = []

        async def body(p: Pursuit) -> Record:
            planned.append(await make_plan(p))
            return p.record

        trajectory_id = self.accept(task)
        routes = models or task.models
        outcome = await self._own(
            trajectory_id,
            lambda lease, head: self._accepted(
                task, trajectory_id, lease, head, routes, models_directory, "", observer, body
            ),
        )
        record, diff = planned[0] if planned else (outcome.record, "")
        return plan_of(record, diff)

    async def apply(self, plan: Plan, *, observer: Observer | None = None) -> Outcome:
        """Exactly that plan: the same reply on the same base to the same state, then commit. Exit 15 when stale."""
        planned, _ = self.record(plan.trajectory_id)
        task = self.task_of(planned)
        trajectory_id = self.accept(task)
        routes = [f"plan:{plan.trajectory_id}"]

        async def body(p: Pursuit) -> Record:
            return await apply_plan(p, plan.base_digest, plan.fingerprint)

        return await self._own(
            trajectory_id,
            lambda lease, head: self._accepted(
                task, trajectory_id, lease, head, routes, None, plan.trajectory_id, observer, body
            ),
        )

    # The past

    async def undo(self, trajectory_id: str, *, by: str) -> CommitReceipt:
        """Restore the exact pre-image of what the trajectory committed. ConflictFault when a touched path changed."""
        record, head = self.record(trajectory_id)
        if not record.committed:
            raise IllegalTransition(f"trajectory {trajectory_id} has committed nothing; there is nothing to undo")
        if record.undone:
            raise IllegalTransition(f"trajectory {trajectory_id} was undone already")
        lease = self.log.claim(trajectory_id, self._owner, limits.LEASE_TTL_MS)
        try:
            task = self.task_of(record)
            provider = self.equipment.workspaces(task.environment.tier)
            receipt = await asyncio.to_thread(provider.undo, record.workspace, record.committed)
            journal = Journal(self.log, self.clock, lease, head, record)
            journal.emit(Undone(commit_id=record.committed, by=by, changed=len(receipt.paths)))
            await journal.barrier()
            return receipt
        finally:
            self.log.release(lease)

    async def rollback(self, trajectory_id: str, savepoint: int, *, by: str) -> Outcome:
        """Take a trajectory that is not finished back to a kept savepoint; ``resume`` goes on from there."""
        record, _ = self.record(trajectory_id)
        if record.is_terminal:
            raise IllegalTransition(
                f"trajectory {trajectory_id} is {record.state}; a finished one can be undone or forked",
                hint="`setpoint undo` takes back its commit, `setpoint fork --turn K` starts from an earlier turn.",
            )

        async def body(p: Pursuit) -> Record:
            return await roll_back_to(p, savepoint, by)

        return await self._own(trajectory_id, lambda lease, head: self._resumed(trajectory_id, lease, None, body))

    async def fork(
        self, trajectory_id: str, turn: int, *, models: Sequence[str] = (), models_directory: str = ""
    ) -> str:
        """A new trajectory that lives again from the end of ``turn``; ``resume`` it to go on. Returns its id.

        ConflictFault when the workspace is no longer the base of the old one.
        """
        record, _ = self.record(trajectory_id)
        task = self.task_of(record)
        past = copied_past(list(self.log.read(trajectory_id)), turn, models, models_directory)
        sandbox = self.equipment.sandbox(task.environment.tier)
        forked = self.clock.new_id("tr")
        workspace = await asyncio.to_thread(self.equipment.workspace, task, forked)
        keep = False
        try:
            if workspace.base_digest != record.base_digest:
                raise ConflictFault(
                    f"the workspace {record.workspace} is not what {trajectory_id} started from",
                    hint="Undo its commit first (`setpoint undo`), or restore the base.",
                )
            bench = Bench(workspace, sandbox, task.environment, {})
            await rebuild(task, past, self.log, bench, workspace)
            self.log.create(forked, KIND)
            lease = self.log.claim(forked, self._owner, limits.LEASE_TTL_MS)
            await self.log.append(lease, self.log.head(forked), past)
            self.log.release(lease)
            keep = True
            return forked
        finally:
            await asyncio.to_thread(workspace.close, keep_staged=keep)

    async def replay(self, trajectory_id: str) -> Replayed:
        """Every decision again, without models and tools. ReplayDiverged at the first differing event."""
        record, _ = self.record(trajectory_id)
        return await replay(self.task_of(record), self.log, trajectory_id, BUILTIN)

    @property
    def sync(self) -> SyncRuntime:
        return SyncRuntime(self)


MEASURE_TTL_MS = 86_400_000
"""A measurement has a log of its own in memory, which nobody else can claim."""

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


def _no_certificate(p: Pursuit) -> tuple[bytes, str, str]:
    raise AssertionError("a measurement certifies nothing")


def open_runtime(store: str | None = None, *, clock: Clock | None = None) -> Runtime:
    """A runtime to be closed by the caller. StoreFault, UsageFault when the store or the state cannot be used."""
    places = find_places(store)
    places.make()
    used = clock or SystemClock()
    return Runtime(places, open_log(places.store_url, used.now_ms), used)


__all__ = ["Fault", "Outcome", "Runtime", "SyncRuntime", "open_runtime"]
