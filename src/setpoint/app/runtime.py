"""The runtime: accept a task, pursue it, take it up again, look at it, take it back.

Async first; ``with open_runtime() as runtime`` has the same verbs for code without a loop. One runtime is one
process's view of one store; any number of processes may share the store, and a lease with a fencing token makes sure
that one trajectory has one owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from setpoint.adapters.clock import SystemClock
from setpoint.adapters.stores import open_log
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.asking import roster_of
from setpoint.app.base import BaseUnmet
from setpoint.app.opening import Equipment
from setpoint.app.places import Places, find_places
from setpoint.app.planning import Plan, plan_of
from setpoint.app.worker import KIND, Observer, Outcome, Worker
from setpoint.engine.approving import OpenTicket, open_ticket, open_tickets
from setpoint.engine.control import Request, encode_request, read_request
from setpoint.engine.fork import copied_past, rebuild
from setpoint.engine.journal import Journal
from setpoint.engine.plan import apply_plan, make_plan
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.reading import read_record
from setpoint.engine.reconcile import baseline
from setpoint.engine.recovery import roll_back_to
from setpoint.engine.replay import Replayed, replay
from setpoint.kernel import limits
from setpoint.kernel.budget import Raised
from setpoint.kernel.contract import Task
from setpoint.kernel.errors import (
    ConflictFault,
    Fault,
    IllegalTransition,
    LeaseLost,
    UnknownTrajectory,
    UsageFault,
    WorkspaceFault,
)
from setpoint.kernel.events import Undone
from setpoint.kernel.exposure import require_closure
from setpoint.kernel.record import Record
from setpoint.kernel.ticket import SignedDecision, format_time, read_signed, read_ticket, signed_bytes
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.phases.p4_dispatch.run import Bench
from setpoint.ports.approver import Rejected
from setpoint.ports.clock import Clock
from setpoint.ports.log import Head, Log, StreamInfo
from setpoint.ports.proposer import Proposer
from setpoint.ports.workspace import CommitReceipt

if TYPE_CHECKING:
    from setpoint.app.agent import Agent, Models
    from setpoint.app.application import App
    from setpoint.app.runs import RunOutcome, Runs
    from setpoint.app.session import Session
    from setpoint.app.sessions import Sessions, TurnReply
    from setpoint.app.workflow import Workflow


class Runtime:
    """Use as ``async with Runtime.open(...) as runtime``."""

    def __init__(
        self,
        places: Places,
        log: Log,
        clock: Clock,
        app: App | None = None,
        services: Mapping[str, Any] | None = None,
        models: Models | None = None,
        judges: Models | None = None,
    ) -> None:
        self.places = places
        self.log = log
        self.clock = clock
        self.app = app
        self._services = None if services is None else dict(services)
        self._serving = contextlib.AsyncExitStack()
        self._worker = Worker(places, log, clock, () if app is None else app.approvers)
        self._runs: Runs | None = None
        self._sessions: Sessions | None = None
        if app is not None:
            given = models if judges is None else judges
            self._open_app(app, models, app.judges if given is None else given)

    def _open_app(self, app: App, models: Models | None, judges: Models | None) -> None:
        from setpoint.app.opening import open_runs
        from setpoint.app.sessions import Sessions

        found = {} if self._services is None else self._services
        self._runs = open_runs(app, self.log, self.clock, self._worker.owner, self.places, found)
        self._sessions = Sessions(app, self._runs, self._open_route, models)
        self._runs.judges = self._sessions.first_of(judges)

    def _open_route(self, route: str) -> Proposer:
        return self.equipment.proposers([route], os.getcwd())[0]

    @property
    def runs(self) -> Runs:
        """The workflow runs of this runtime. UsageFault when it was opened without an application."""
        if self._runs is None:
            raise UsageFault(
                "this runtime was opened without an application, so it knows no workflows",
                hint="Runtime.open(store, app)",
            )
        return self._runs

    @property
    def sessions(self) -> Sessions:
        """The sessions of this runtime and their agents. UsageFault when it was opened without an application."""
        if self._sessions is None:
            raise UsageFault(
                "this runtime was opened without an application, so it knows no agents",
                hint="Runtime.open(store, app)",
            )
        return self._sessions

    @property
    def equipment(self) -> Equipment:
        """The adapters of this process."""
        return self._worker.equipment

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        store: str | None = None,
        app: App | None = None,
        *,
        services: Mapping[str, Any] | None = None,
        models: Models | None = None,
        judges: Models | None = None,
        clock: Clock | None = None,
    ) -> AsyncIterator[Runtime]:
        """A runtime over ``store`` (a URL), by default the user's own. Closed on leaving the block.

        ``app`` is proved first: DefinitionFault for a workflow that breaks an obligation. ``services`` is what its
        capabilities find in their context: clients, connections, settings (default: what ``app.services()`` opens, for
        as long as the block lasts). ``models`` (routes, or proposers of one's own) replace those that the app's agents
        declare; ``judges`` answer its judge nodes (default: ``models``, else those the app declares).
        """
        async with open_runtime(store, app, services=services, models=models, judges=judges, clock=clock) as runtime:
            yield runtime

    async def close(self) -> None:
        if self._runs is not None:
            await self._runs.close()
        if self._sessions is not None:
            await self._sessions.close()
        await self._serving.aclose()
        await self.equipment.close()
        await self.log.close()

    def __enter__(self) -> SyncRuntime:
        return self.sync

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sync.close()

    async def __aenter__(self) -> Runtime:
        try:
            await self._serve()
        except BaseException:
            await self.close()
            raise
        return self

    async def _serve(self) -> None:
        """Open what the application declares as its services, unless others were given."""
        if self._runs is not None and self.app is not None and self.app.services is not None and self._services is None:
            self._runs.serve(await self._serving.enter_async_context(self.app.services()))

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Workflows

    async def run(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any,
        *,
        run_id: str = "",
        principal: str = "",
        tenant: str = "",
        scopes: Sequence[str] = (),
    ) -> RunOutcome:
        """Start a run and work on it until it ends or waits for more than a short timer (``runs.wait``).

        ``input`` is the workflow's input type, or a mapping that fits it (InputFault). A ``run_id`` of one's own makes
        the start idempotent: the same id again is the same run.
        """
        started = await self.start(workflow, input, run_id=run_id, principal=principal, tenant=tenant, scopes=scopes)
        return await self.runs.wait(started)

    async def start(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any,
        *,
        run_id: str = "",
        principal: str = "",
        tenant: str = "",
        scopes: Sequence[str] = (),
    ) -> str:
        """Record a new run and return its id; ``runs.wait`` or any worker on this store works on it.

        UsageFault, and nothing is started, when it has a judge node and this runtime no model for it.
        """
        runs = self.runs
        assert self.app is not None
        program = runs.program_for(self.app.newest(workflow) if isinstance(workflow, str) else workflow)
        given, state = program.begin(input)
        return await runs.start(
            program, given, state, run_id=run_id, principal=principal, tenant=tenant, scopes=tuple(scopes)
        )

    # Agents

    async def session(
        self,
        session_id: str,
        *,
        principal: str,
        tenant: str = "",
        scopes: Sequence[str] | None = None,
        expires: str | None = None,
    ) -> Session:
        """The session of that id, opened when it is new, its context hydrated (``Sessions.open``)."""
        return await self.sessions.open(session_id, principal=principal, tenant=tenant, scopes=scopes, expires=expires)

    async def turn(self, agent: Agent, session: Session, text: str, *, key: str = "") -> TurnReply:
        """Give the agent a message of the session's principal and see it through (``Sessions.turn``)."""
        return await self.sessions.turn(agent, session, text, key=key)

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

        Raises, before anything is written, ClosureMissing or IsolationUnavailable (exit 12), and ConflictFault (exit
        15) when the required base is not checked out; any later conflict is an outcome. A workspace that is as
        desired needs no base: nothing starts from it.
        """

        async def start(*, any_base: bool) -> Outcome:
            return await self._worker.start(
                task,
                models=models,
                models_directory=models_directory,
                parent=parent,
                any_base=any_base,
                observer=observer,
            )

        try:
            return await start(any_base=False)
        except BaseUnmet:
            if not (await self.measure(task)).is_met:
                raise
        return await start(any_base=True)

    async def resume(
        self, trajectory_id: str, *, observer: Observer | None = None, more: Raised | None = None, by: str = "operator"
    ) -> Outcome:
        """Take a trajectory up where its log ends; a paused one is resumed. ``more`` is added to its budget first.

        One that is terminal, or waits for an answer or a decision that was not given, is returned as it is: a wait for
        approval is taken up when somebody has decided, or when its time is over. IllegalTransition when
        ``more`` is given for a terminal one: its budget decided already.
        """
        record, _ = self.record(trajectory_id)
        if more is not None:  # also for one that waits: it counts from its next turn on
            self._raise_budget(record, more, by)
        answered = any(read_request(data).action in ("answer", "cancel", "kill") for _, _, data in self._unread(record))
        if record.question is not None and not answered:
            return Outcome(trajectory_id, record)
        if self._waits_for_approval(record):
            return Outcome(trajectory_id, record)
        if record.is_terminal:  # its owner may have died between the last event and putting things away
            await self._put_away({record.workspace})
            return Outcome(trajectory_id, record)
        if record.state == "PAUSED" and record.question is None:
            self.request(trajectory_id, "resume", by=by)
        outcome = await self._worker.take_up(trajectory_id, observer=observer)
        await self._put_away({record.workspace})
        return outcome

    def _waits_for_approval(self, record: Record) -> bool:
        """Whether a call still waits for people, and nothing has come that could change that."""
        if open_ticket(self.log, record, self.clock.now_ms()) is None:
            return False
        asked = [*record.controls, *(read_request(data) for _, _, data in self._unread(record))]
        return not any(request.action in ("decide", "cancel", "kill") for request in asked)

    def _raise_budget(self, record: Record, more: Raised, by: str) -> None:
        if record.is_terminal:
            raise IllegalTransition(
                f"trajectory {record.trajectory_id} is {record.state}; its budget cannot be raised any more",
                hint="Raise spec.budget in the file and converge again, or write `on_exceed: pause` to be asked.",
            )
        self.request(record.trajectory_id, "raise", by=by, argument=msgspec.json.encode(more).decode())

    async def recover(
        self, *, observer: Observer | None = None, on_fault: Callable[[str, Fault], None] | None = None
    ) -> list[Outcome]:
        """Resume every trajectory that is neither terminal nor waiting nor owned by a live worker, and clear away what
        owners that died left behind.

        One that cannot be taken up does not keep the others waiting: ``on_fault`` is told, or without it the first
        fault is raised when all others are done.
        """
        outcomes: list[Outcome] = []
        faults: list[Fault] = []
        roots: set[str] = set()
        for info in self.log.streams(KIND):
            if info.seq == 0 or self.log.holder(info.stream) is not None:
                continue
            try:
                record, _ = self.record(info.stream)
                roots.add(record.workspace)
                if not record.is_terminal and record.state != "PAUSED" and not self._waits_for_approval(record):
                    outcomes.append(await self.resume(info.stream, observer=observer))
            except LeaseLost:  # another worker was faster
                continue
            except Fault as fault:
                faults.append(fault)
                if on_fault is not None:
                    on_fault(info.stream, fault)
        await self._put_away(roots)
        if faults and on_fault is None:
            raise faults[0]
        return outcomes

    async def _put_away(self, roots: set[str]) -> None:
        """Remove what dead owners left on disk over these workspaces; what is gone or locked is left alone."""
        for root in roots:
            with contextlib.suppress(WorkspaceFault):
                await asyncio.to_thread(self.equipment.sweep, root, self._is_over)

    def _is_over(self, transaction_id: str) -> bool:
        """Whether nobody will take up this transaction again. What another store may know of is never over."""
        if transaction_id.startswith(f"{MEASURING}-"):
            return True
        try:
            if self.log.head(transaction_id).seq == 0:
                return self.log.holder(transaction_id) is None
            record, _ = self.record(transaction_id)
        except UnknownTrajectory:
            return False
        return record.is_terminal and record.finished_reason != "Conflict"

    # Asking

    def request(self, trajectory_id: str, action: str, *, by: str, argument: str = "") -> None:
        """Leave a request for the owner of a trajectory. It is applied at its next turn boundary (kill: at once)."""
        record, _ = self.record(trajectory_id)
        if record.is_terminal:
            raise IllegalTransition(f"trajectory {trajectory_id} is {record.state} already; {action} does not apply")
        if action == "answer":
            self._refuse_second_answer(record)
        if action == "decide":
            self._refuse_pointless_decision(record, argument)
        key = self.clock.new_id("rq")
        self.log.deliver(trajectory_id, key, encode_request(Request(action, by, argument)))

    def _refuse_second_answer(self, record: Record) -> None:
        if record.question is None:
            raise IllegalTransition(f"trajectory {record.trajectory_id} has asked nothing")
        if any(read_request(data).action == "answer" for _, _, data in self._unread(record)):
            raise IllegalTransition(
                f"{record.question.question_id} of {record.trajectory_id} is answered already",
                hint=f"`setpoint resume {record.trajectory_id}` goes on with that answer.",
            )

    def _refuse_pointless_decision(self, record: Record, wire: str) -> None:
        """Only a well-formed decision on the ticket that is open now is delivered (D4). Who signed it is seen later."""
        decision, ticketed = read_signed(wire.encode()).decision, record.ticket
        late = ("granted",) if decision.verdict == "deny" else ()  # a no counts until the call is made
        if ticketed is None or ticketed.ticket_id != decision.ticket_id or ticketed.outcome not in ("", *late):
            raise IllegalTransition(f"no approval {decision.ticket_id} is open in {record.trajectory_id}")
        if self.clock.now_ms() >= ticketed.expires_at_ms:
            raise IllegalTransition(
                f"approval {decision.ticket_id} expired at {format_time(ticketed.expires_at_ms)}, which is a no",
                hint=f"`setpoint resume {record.trajectory_id}` lets the model go on without it.",
            )

    def decide(self, trajectory_id: str, signed: SignedDecision) -> None:
        """Deliver a signed decision on the call that waits; ``resume`` goes on from it.

        UsageFault when it would not count (a key that is not trusted, the wrong role), IllegalTransition when it is
        about nothing that is open, or its ticket has expired. It is verified again just before it is used.
        """
        record, _ = self.record(trajectory_id)
        self._refuse_pointless_decision(record, signed_bytes(signed).decode())
        assert record.ticket is not None
        ticket = read_ticket(self.log.payload(record.ticket.ticket.ref))
        declared = () if self.app is None else self.app.approvers
        answer = roster_of(self.task_of(record), self.places, declared, self.clock).verify(signed, ticket)
        if isinstance(answer, Rejected):
            raise UsageFault(
                f"{answer.message} ({answer.reason})", hint=f"Approvers are named in {self.places.approvers}."
            )
        self.request(trajectory_id, "decide", by=signed.decision.by, argument=signed_bytes(signed).decode())

    def open_tickets(self) -> list[OpenTicket]:
        """Every call of a trajectory that people can decide on now, newest trajectory first."""
        return list(open_tickets(self.log, self.clock.now_ms()))

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
        return self._worker.task_of(record)

    # Planning

    async def measure(self, task: Task, *, observer: Observer | None = None) -> Record:
        """The delta of the workspace as it is: checks run, no model is asked, nothing is recorded in the store."""
        sandbox = self.equipment.sandbox(task.environment.tier)
        require_closure(task, sandbox.report.tier)
        trajectory_id = self.clock.new_id(MEASURING)
        log = MemoryLog(self.clock.now_ms)
        log.create(trajectory_id, KIND)
        lease = log.claim(trajectory_id, self._worker.owner, MEASURE_TTL_MS)
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

        outcome = await self._worker.start(
            task, body, models=models, models_directory=models_directory, observer=observer
        )
        record, diff = planned[0] if planned else (outcome.record, "")
        return plan_of(record, diff)

    async def apply(self, plan: Plan, *, observer: Observer | None = None) -> Outcome:
        """Exactly that plan: the same reply on the same base to the same state, then commit. Exit 15 when stale."""
        planned, _ = self.record(plan.trajectory_id)
        route = f"plan:{plan.trajectory_id}"

        async def body(p: Pursuit) -> Record:
            return await apply_plan(p, plan.base_digest, plan.fingerprint)

        return await self._worker.start(
            self.task_of(planned), body, models=[route], parent=plan.trajectory_id, observer=observer
        )

    # The past

    async def undo(self, trajectory_id: str, *, by: str) -> CommitReceipt:
        """Restore the exact pre-image of what the trajectory committed. ConflictFault when a touched path changed."""
        record, head = self.record(trajectory_id)
        if not record.committed:
            raise IllegalTransition(f"trajectory {trajectory_id} has committed nothing; there is nothing to undo")
        if record.undone:
            raise IllegalTransition(f"trajectory {trajectory_id} was undone already")
        lease = self.log.claim(trajectory_id, self._worker.owner, limits.LEASE_TTL_MS)
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

        return await self._worker.take_up(trajectory_id, body)

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
            lease = self.log.claim(forked, self._worker.owner, limits.LEASE_TTL_MS)
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


MEASURING = "measure"
"""Prefix of a measurement's transaction, which belongs to no trajectory."""

MEASURE_TTL_MS = 86_400_000
"""A measurement has a log of its own in memory, which nobody else can claim."""


class SyncRuntime:
    """The verbs of ``Runtime`` for code without a running event loop: ``with open_runtime() as runtime``.

    Each call runs to its end and returns what the verb of that name returns; leaving the block closes the runtime.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __enter__(self) -> SyncRuntime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        asyncio.run(self._runtime.close())

    def run(self, workflow: Workflow[Any, Any] | str, input: Any, **options: Any) -> RunOutcome:
        return asyncio.run(self._runtime.run(workflow, input, **options))

    def start(self, workflow: Workflow[Any, Any] | str, input: Any, **options: Any) -> str:
        return asyncio.run(self._runtime.start(workflow, input, **options))

    def session(self, session_id: str, **options: Any) -> Session:
        return asyncio.run(self._runtime.session(session_id, **options))

    def turn(self, agent: Agent, session: Session, text: str, **options: Any) -> TurnReply:
        return asyncio.run(self._runtime.turn(agent, session, text, **options))

    def converge(self, task: Task, **options: Any) -> Outcome:
        return asyncio.run(self._runtime.converge(task, **options))

    def resume(self, trajectory_id: str, **options: Any) -> Outcome:
        return asyncio.run(self._runtime.resume(trajectory_id, **options))

    def recover(self, **options: Any) -> list[Outcome]:
        return asyncio.run(self._runtime.recover(**options))

    def measure(self, task: Task, **options: Any) -> Record:
        return asyncio.run(self._runtime.measure(task, **options))

    def plan(self, task: Task, **options: Any) -> Plan:
        return asyncio.run(self._runtime.plan(task, **options))

    def apply(self, plan: Plan, **options: Any) -> Outcome:
        return asyncio.run(self._runtime.apply(plan, **options))

    def undo(self, trajectory_id: str, *, by: str) -> CommitReceipt:
        return asyncio.run(self._runtime.undo(trajectory_id, by=by))

    def rollback(self, trajectory_id: str, savepoint: int, *, by: str) -> Outcome:
        return asyncio.run(self._runtime.rollback(trajectory_id, savepoint, by=by))

    def fork(self, trajectory_id: str, turn: int, **options: Any) -> str:
        return asyncio.run(self._runtime.fork(trajectory_id, turn, **options))

    def replay(self, trajectory_id: str) -> Replayed:
        return asyncio.run(self._runtime.replay(trajectory_id))

    def request(self, trajectory_id: str, action: str, *, by: str, argument: str = "") -> None:
        self._runtime.request(trajectory_id, action, by=by, argument=argument)

    def decide(self, trajectory_id: str, signed: SignedDecision) -> None:
        self._runtime.decide(trajectory_id, signed)

    def open_tickets(self) -> list[OpenTicket]:
        return self._runtime.open_tickets()

    def record(self, trajectory_id: str) -> tuple[Record, Head]:
        return self._runtime.record(trajectory_id)

    def trajectories(self) -> list[StreamInfo]:
        return self._runtime.trajectories()


def _no_certificate(p: Pursuit) -> tuple[bytes, str, str]:
    raise AssertionError("a measurement certifies nothing")


def open_runtime(
    store: str | None = None,
    app: App | None = None,
    *,
    services: Mapping[str, Any] | None = None,
    models: Models | None = None,
    judges: Models | None = None,
    clock: Clock | None = None,
) -> Runtime:
    """A runtime for a ``with`` or ``async with`` block, which closes it. StoreFault, UsageFault when the store or the
    state cannot be used."""
    places = find_places(store)
    places.make()
    used = clock or SystemClock()
    return Runtime(places, open_log(places.store_url, used.now_ms), used, app, services, models, judges)


__all__ = ["Observer", "Outcome", "Runtime", "SyncRuntime", "open_runtime"]
