"""One process's hold on trajectories: accept, claim, pursue, renew, let a kill through, release.

A trajectory has one owner at a time. Whatever ends the work (a result, a kill, a lost lease, a cancelled caller), its
ports are closed and its lease is released before the worker returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from setpoint.adapters.approvers.roster import Approver, Roster
from setpoint.adapters.stores import this_owner
from setpoint.app.asking import require_approvers, roster_of
from setpoint.app.base import require_base
from setpoint.app.certify import certify
from setpoint.app.manifest import ManifestFault, manifests_of
from setpoint.app.opening import Equipment
from setpoint.app.places import Places
from setpoint.app.planning import PlannedProposer, planned_reply
from setpoint.engine.control import Request, end_if_asked, read_request
from setpoint.engine.desk import LiveDesk
from setpoint.engine.journal import Journal
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.reading import read_record
from setpoint.engine.reconcile import converge
from setpoint.engine.recovery import settle
from setpoint.kernel import limits
from setpoint.kernel.contract import Task
from setpoint.kernel.errors import LeaseLost
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
    decode,
)
from setpoint.kernel.exposure import require_closure, required_level
from setpoint.kernel.keys import canonical
from setpoint.kernel.record import Record
from setpoint.kernel.spelling import encodable
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.ports.clock import Clock
from setpoint.ports.log import Lease, Log
from setpoint.ports.proposer import Proposer
from setpoint.ports.workspace import Workspace
from setpoint.version import VERSION

KIND = "trajectory"
Body = Callable[[Pursuit], Coroutine[Any, Any, Record]]
"""What is done with a pursuit while it is owned."""
Observer = Callable[[int, Event, Record], None]
"""Called for every event as it is emitted: its turn, the event, the record after it."""

WATCH_INTERVAL_S = 0.25
"""How long a kill may take to be seen; polling the inbox costs one indexed read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pursuit came to. ``exit_code`` is what the command line returns: docs/reference/exit-codes.md."""

    trajectory_id: str
    record: Record

    @property
    def exit_code(self) -> int:
        record = self.record
        if record.is_terminal:
            return record.finished_code
        return 14 if record.state == "PAUSED" and record.question is None and record.pause_reason else 13


class Worker:
    """Owns trajectories on behalf of one process, one at a time each, any number of them."""

    def __init__(self, places: Places, log: Log, clock: Clock, approvers: Sequence[Approver] = ()) -> None:
        self._places = places
        self._approvers = approvers
        self._log = log
        self._clock = clock
        self.equipment = Equipment(places)
        self.owner = this_owner()

    async def start(
        self,
        task: Task,
        body: Body = converge,
        *,
        models: Sequence[str] | None = None,
        models_directory: str | None = None,
        parent: str = "",
        any_base: bool = False,
        observer: Observer | None = None,
    ) -> Outcome:
        """Accept ``task`` as a new trajectory and pursue it by ``body``.

        ``any_base``: also from another base than the required one, but without a model, so no work starts from it.

        ClosureMissing (also where nobody could approve what the task holds) and IsolationUnavailable (exit 12), and the
        ConflictFault (exit 15) of a base that is not the
        one the task requires, come before anything is written.
        """
        self._places.refuse_inside(task.environment.workspace)
        sandbox = self.equipment.sandbox(task.environment.tier)
        exposure = require_closure(task, sandbox.report.tier)
        require_approvers(task, self._roster(task), self._places, self._clock.now_ms())
        directory = os.path.dirname(task.source) if task.source else os.getcwd()
        routes = [] if any_base else list(models or task.models)
        self._open_routes(routes, models_directory or directory)  # one that cannot be opened is told before anything
        trajectory_id = self._clock.new_id("tr")
        self._log.create(trajectory_id, KIND)
        with self._leased(trajectory_id) as lease:
            workspace = await asyncio.to_thread(self.equipment.workspace, task, trajectory_id)
            try:
                if not any_base:
                    await require_base(task, workspace, sandbox)
                journal = Journal(
                    self._log,
                    self._clock,
                    lease,
                    self._log.head(trajectory_id),
                    Record(trajectory_id=trajectory_id),
                    observer,
                )
                journal.emit(
                    TaskAccepted(
                        name=task.name,
                        task=journal.store(canonical(task.document)),
                        task_digest=task.digest,
                        workspace=task.environment.workspace,
                        base_digest=workspace.base_digest,
                        exposure=str(exposure),
                        required_level=required_level(exposure).label,
                        models=routes,
                        tier=sandbox.report.tier,
                        rung=sandbox.report.rung,
                        runtime=VERSION,
                        directory=directory,
                        source=task.source or "",
                        models_directory=models_directory or directory,
                        parent=parent,
                    )
                )
                journal.emit(LeaseClaimed(owner=self.owner, fence=lease.fence))
                await journal.barrier()
            except BaseException:
                await asyncio.to_thread(workspace.close, keep_staged=False)
                raise
            return Outcome(trajectory_id, await self._pursue(task, journal, workspace, body))

    async def take_up(self, trajectory_id: str, body: Body = converge, *, observer: Observer | None = None) -> Outcome:
        """Go on with a trajectory where its log ends. One that is terminal is returned as it is."""
        with self._leased(trajectory_id) as lease:
            record, head = read_record(self._log, trajectory_id)
            if record.is_terminal:
                return Outcome(trajectory_id, record)
            journal = Journal(self._log, self._clock, lease, head, record, observer)
            journal.emit(LeaseClaimed(owner=self.owner, fence=lease.fence))
            if end_if_asked(journal, self._log.inbox(trajectory_id, record.inbox_position)):
                await journal.barrier()  # nothing has to be opened for that
                return Outcome(trajectory_id, journal.record)
            try:
                task = self.task_of(record, to_go_on=True)
            except ManifestFault as fault:  # a pinned file or folder is not what it was, or gone
                await _refuse_drifted(journal, fault.problems[0].message)
                return Outcome(trajectory_id, journal.record)
            workspace = await asyncio.to_thread(self.equipment.workspace, task, trajectory_id)
            return Outcome(trajectory_id, await self._pursue(task, journal, workspace, body))

    @contextlib.contextmanager
    def _leased(self, trajectory_id: str) -> Iterator[Lease]:
        """Hold the lease; LeaseLost when another worker has it."""
        lease = self._log.claim(trajectory_id, self.owner, limits.LEASE_TTL_MS)
        try:
            yield lease
        finally:
            with contextlib.suppress(LeaseLost):
                self._log.release(lease)

    def task_of(self, record: Record, *, to_go_on: bool = False) -> Task:
        """The contract a trajectory was accepted with, read back from its log.

        ``to_go_on``: everything it names on this host must still be there and as it was, else ManifestFault.
        """
        assert record.task is not None
        document = msgspec.json.decode(self._log.payload(record.task.ref))
        data = msgspec.json.encode(document)
        manifests = manifests_of(
            data,
            file=record.source or record.name,
            directory=record.directory,
            source=record.source or None,
            recorded=not to_go_on,
        )
        return manifests[0].task

    def _roster(self, task: Task) -> Roster:
        """Who is trusted to approve now; read anew by every owner, so that a key withdrawn meanwhile does not count."""
        return roster_of(task, self._places, self._approvers, self._clock)

    async def _pursue(self, task: Task, journal: Journal, workspace: Workspace, body: Body) -> Record:
        record = journal.record
        proposers = self._open_routes(record.models, record.models_directory)
        verifier = self.equipment.verifier(task)
        pursuit = Pursuit(
            task,
            journal,
            workspace,
            self.equipment.sandbox(task.environment.tier),
            verifier,
            proposers,
            self._clock,
            BUILTIN,
            lambda p: certify(p, self._log, self._places.keys),
            kept_savepoint=lambda savepoint: self._kept_savepoint(record.trajectory_id, savepoint),
            inbox=lambda after: self._log.inbox(record.trajectory_id, after),
            desk=LiveDesk(self._roster(task), self._clock),
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

    def _open_routes(self, routes: Sequence[str], directory: str) -> list[Proposer]:
        """The proposers of ``routes``; ``plan:ID`` is the recorded reply of the plan with that id."""
        found: list[Proposer] = []
        for route in routes:
            if route.startswith("plan:"):
                found.append(PlannedProposer(route, planned_reply(self._log, route.removeprefix("plan:"))))
            else:
                found += self.equipment.proposers([route], directory)
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
        renewed = self._clock.monotonic_ms()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if self._clock.monotonic_ms() - renewed >= limits.LEASE_RENEW_MS:
                journal.lease = await asyncio.to_thread(self._log.renew, journal.lease, limits.LEASE_TTL_MS)
                renewed = self._clock.monotonic_ms()
            for position, key, data in self._log.inbox(stream, journal.record.inbox_position):
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

    def _kept_savepoint(self, trajectory_id: str, savepoint: int) -> SavepointKept | None:
        """The recorded savepoint of that number; the base for 0."""
        for stored in self._log.read(trajectory_id):
            event = decode(stored.type, stored.data)
            if isinstance(event, SavepointKept) and event.savepoint == savepoint:
                return event
            if isinstance(event, DeltaMeasured) and savepoint == 0:
                return SavepointKept(savepoint=0, fingerprint=event.fingerprint, changed=0)
        return None


async def _refuse_drifted(journal: Journal, problem: str) -> None:
    """The contract cannot be read as it was accepted: sealed files changed, or a folder is gone (law L10)."""
    expected = journal.record.task_digest
    journal.emit(DriftFound(what="task", expected=expected, found=encodable(problem), decision="refuse"))
    message = f"what the task was accepted with has changed since: {problem}"
    journal.emit(Finished(state="FAILED", reason="Drifted", message=encodable(message), code=17))
    await journal.barrier()
