"""Runs of workflows: started, worked on, waited for, taken up again, and told what people say.

One process works on any number of runs; each is a task only while something can be done for it. A run that waits is a
record with a wake-up time in the store. A lease with a fencing token makes sure that one run has one owner.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from setpoint.engine.control import Request, encode_request
from setpoint.engine.runs.hand import Hand, Shared
from setpoint.engine.runs.journal import Observer, RunJournal, read_run
from setpoint.engine.runs.judging import HOW_TO_GIVE_ONE
from setpoint.engine.runs.messages import IN_DOUBT, drop_late, is_kill, request_of, settle_ended
from setpoint.engine.runs.program import Program, Values
from setpoint.engine.runs.pursue import pursue
from setpoint.engine.slots import ModelSlots
from setpoint.kernel import limits
from setpoint.kernel.errors import Fault, IllegalTransition, LeaseLost, StoreFault, UsageFault
from setpoint.kernel.events import LeaseClaimed
from setpoint.kernel.run_events import RunStarted
from setpoint.kernel.run_record import RunRecord
from setpoint.ports.approver import Approvers
from setpoint.ports.clock import Clock
from setpoint.ports.log import NO_WAKE, Beside, Lease, Log
from setpoint.ports.proposer import Proposer
from setpoint.version import VERSION

if TYPE_CHECKING:
    from setpoint.app.workflow import Workflow

KIND = "run"
PATIENCE_MS = 60_000
"""How long ``Runs.wait`` waits for a timer before it says that the run waits."""
BEAT_S = 0.25
"""How long a kill may take to be seen, and how often a worker looks for runs that others left."""
AILING_MS_MAX = 60_000
"""The longest a run that ran into a fault is left alone."""
DUE_LOOKED_AT = 256
"""Runs looked at in one round: enough to find work beside those that other workers hold."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a run came to, or where it stands. ``output`` is None unless it completed."""

    run_id: str
    record: RunRecord
    output: Any = None

    @property
    def exit_code(self) -> int:
        """What the command line returns: docs/reference/exit-codes.md."""
        record = self.record
        if record.is_terminal:
            return record.finished_code
        if record.unknown:
            return 16
        return 11 if record.state == "PAUSED" and record.reason in ("NodeFailed", "CompensationFailed") else 13

    @property
    def is_waiting(self) -> bool:
        return not self.record.is_terminal


@dataclass(slots=True)
class _Active:
    """A run that this process works on now."""

    task: asyncio.Task[RunRecord]
    hand: Hand
    renewed_at_ms: int
    lost: LeaseLost | None = None
    killed: bool = False


@dataclass(slots=True)
class Runs:
    """The runs of one application over one store. ``Runtime.start`` makes one, ``Runtime.run`` sees it through."""

    log: Log
    clock: Clock
    owner: str
    programs: Mapping[str, Program]
    approvers: Approvers
    services: Mapping[str, Any] = field(default_factory=dict[str, Any])
    judges: Callable[[], Proposer | None] = lambda: None
    around_step: Callable[[Callable[[], Any]], Any] = lambda call: call()
    chance: Callable[[], float] = lambda: 0.5
    shared: Shared = field(init=False)
    _active: dict[str, _Active] = field(default_factory=dict[str, _Active], init=False)
    _ailing: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]], init=False)
    _forgot_at_ms: int = field(default=0, init=False)
    _beat: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.shared = Shared(ModelSlots(self.clock), self.services, chance=self.chance)

    def serve(self, services: Mapping[str, Any]) -> None:
        """What capabilities and hydrators find in their context from now on."""
        self.services = self.shared.services = services

    # Starting

    def new_id(self) -> str:
        return self.clock.new_id("rn")

    async def start(
        self,
        program: Program,
        input: Values,
        state: Values,
        *,
        run_id: str = "",
        principal: str = "",
        tenant: str = "",
        scopes: tuple[str, ...] = (),
        session: str = "",
        parent: str = "",
        parent_node: str = "",
    ) -> str:
        """Record a new run; nothing of it is done yet. One of that id that was started before is left as it is."""
        run_id = run_id or self.new_id()
        with contextlib.suppress(StoreFault):  # it exists: a start that crashed, or one that is repeated
            self.log.create(run_id, KIND)
        if self.log.head(run_id).seq:
            return run_id
        with self._leased(run_id) as lease:
            head = self.log.head(run_id)
            if head.seq:
                return run_id
            journal = RunJournal(self.log, self.clock, lease, head, RunRecord(run_id=run_id))
            kept, refs = journal.spill(state)
            await journal.write(
                RunStarted(
                    workflow=program.definition.name,
                    version=program.definition.version,
                    definition=journal.store(program.definition.document),
                    definition_digest=program.definition.digest,
                    input=journal.store(input),
                    values=kept,
                    refs=refs,
                    principal=principal,
                    tenant=tenant,
                    scopes=list(scopes),
                    session=session,
                    parent=parent,
                    parent_node=parent_node,
                    runtime=VERSION,
                ),
                wake_ms=self.clock.now_ms(),  # behind those that are due already
            )
        return run_id

    def program_for(self, workflow: Workflow[Any, Any]) -> Program:
        """What a new run of the workflow is to execute: the program it was proved as, when it is one of these.

        UsageFault when it asks a model somewhere and none is given: what it does before that would have been for
        nothing.
        """
        proved = (program for program in self.programs.values() if program.begin == workflow.begin)
        program = next(proved, None) or workflow.program
        asks = next(program.judges(), "")
        if asks and self.judges() is None:
            raise UsageFault(f"{asks} needs a model, and none is given; nothing was started", hint=HOW_TO_GIVE_ONE)
        return program

    # Working

    async def go_on(self, run_id: str, *, observer: Observer | None = None) -> RunOutcome:
        """Work on a run until it ends or waits. LeaseLost when another worker does."""
        active = self._active.get(run_id)
        if active is None:
            active = self._begin(run_id, observer)
        record = await _result(active)
        return self._outcome(record)

    async def wait(
        self, run_id: str, *, patience_ms: int = PATIENCE_MS, observer: Observer | None = None
    ) -> RunOutcome:
        """Work on a run, and on those it waits for, until it ends or waits for longer than ``patience_ms``, or for
        something that no timer brings: a person, a signal, a report."""
        while True:
            outcome = await self.go_on(run_id, observer=observer)
            record = outcome.record
            if record.is_terminal:
                return outcome
            if open_children := [child for child in record.children.values() if self._is_open(child)]:
                waited = [await self.wait(child, patience_ms=patience_ms, observer=observer) for child in open_children]
                if any(child.record.is_terminal for child in waited):
                    continue
                return outcome
            timers = [wait.at_ms for wait in record.waits.values() if wait.kind in ("timer", "retry")]
            now = self.clock.now_ms()  # looked at once: between two looks it moves on
            if record.state == "PAUSED" or not timers or min(timers) - now > patience_ms:
                return outcome
            await self.clock.sleep_ms(max(0, min(timers) - now))

    async def work(
        self,
        *,
        at_once: int = 64,
        until_idle: bool = False,
        on_fault: Callable[[str, Exception], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Work on every run that is due, at most ``at_once`` at a time, for ever or until none is due.

        Runs of definitions that this process does not know are left to one that does. One that ran into a fault of the
        store, or a bug, does not keep the others waiting: ``on_fault`` is told, and it is left alone for a while.
        """
        while True:
            self._take_due(at_once, on_fault, observer)
            tasks = {active.task: run_id for run_id, active in self._active.items()}
            if until_idle and not tasks:
                return
            if tasks:
                done, _ = await asyncio.wait(tasks, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._look_at(tasks[task], task, on_fault)
            else:
                await asyncio.sleep(self._pause_s())

    def _look_at(
        self, run_id: str, task: asyncio.Task[RunRecord], on_fault: Callable[[str, Exception], None] | None
    ) -> None:
        """What a run's work ended with. What is no Exception is not for this loop to keep."""
        fault = None if task.cancelled() else task.exception()
        if fault is None or isinstance(fault, LeaseLost):
            self._ailing.pop(run_id, None)
        elif isinstance(fault, Exception):
            self._leave_alone(run_id)
            if on_fault is not None:
                on_fault(run_id, fault)
        else:
            raise fault

    def _leave_alone(self, run_id: str) -> None:
        """For a second at first, then twice as long each time, up to a minute."""
        times, _ = self._ailing.get(run_id, (0, 0))
        pause_ms = min(AILING_MS_MAX, 1_000 << min(times, 6))
        self._ailing[run_id] = (times + 1, self.clock.monotonic_ms() + pause_ms)

    def _forget_recovered(self) -> None:
        """Once a minute: a run that was not looked at again though it could be is not due any more, or another
        worker's."""
        now = self.clock.monotonic_ms()
        if now - self._forgot_at_ms >= AILING_MS_MAX:
            self._forgot_at_ms = now
            self._ailing = {run_id: (n, at) for run_id, (n, at) in self._ailing.items() if now - at < AILING_MS_MAX}

    def _pause_s(self) -> float:
        wake = self.log.next_wake(KIND)
        left = BEAT_S if wake is None else (wake - self.clock.now_ms()) / 1000
        return min(BEAT_S, max(0.0, left))

    def _take_due(
        self, at_once: int, on_fault: Callable[[str, Exception], None] | None, observer: Observer | None
    ) -> None:
        """Begin what is due, as far as there is room; behind those that are left alone there may be others."""
        self._forget_recovered()
        ailing = -1
        while ailing < len(self._ailing):
            ailing = len(self._ailing)
            self._look_for_due(at_once - len(self._active), on_fault, observer)

    def _look_for_due(
        self, room: int, on_fault: Callable[[str, Exception], None] | None, observer: Observer | None
    ) -> None:
        if room <= 0:
            return
        count = DUE_LOOKED_AT + len(self._active) + len(self._ailing)
        for run_id, _ in self.log.due(KIND, self.clock.now_ms(), count):
            if room <= 0:
                return
            if run_id in self._active or not self._is_ours(run_id):
                continue
            try:
                self._begin(run_id, observer)
            except LeaseLost:  # another worker was faster
                continue
            except Exception as fault:  # noqa: BLE001  # its log cannot be read, or its definition is not known here
                self._leave_alone(run_id)
                if on_fault is not None and not isinstance(fault, UsageFault):
                    on_fault(run_id, fault)
                continue
            room -= 1

    def _is_ours(self, run_id: str) -> bool:
        """Whether nobody else works on it, and it is not one that is left alone for now."""
        _, until_ms = self._ailing.get(run_id, (0, 0))
        return until_ms <= self.clock.monotonic_ms() and self.log.holder(run_id) is None

    def _begin(self, run_id: str, observer: Observer | None) -> _Active:
        self.program_of(read_run(self.log, run_id)[0])  # one that is not known here is not claimed either
        lease = self.log.claim(run_id, self.owner, limits.LEASE_TTL_MS)
        try:
            hand = self._hand(run_id, lease, observer)
        except BaseException:
            self._release(lease)
            raise
        task = asyncio.create_task(self._pursue(hand))
        active = _Active(task, hand, self.clock.monotonic_ms())
        self._active[run_id] = active
        if self._beat is None or self._beat.done():
            self._beat = asyncio.create_task(self._keep_beating())
        return active

    def _hand(self, run_id: str, lease: Lease, observer: Observer | None) -> Hand:
        record, head = read_run(self.log, run_id)
        program = self.program_of(record)
        journal = RunJournal(self.log, self.clock, lease, head, record, observer)
        return Hand(
            program,
            journal,
            self.clock,
            self.shared,
            self.approvers,
            self.judges,
            self._start_child,
            self._child_outcome,
            self._ask_child,
            self.around_step,
        )

    def program_of(self, record: RunRecord) -> Program:
        """The code of the definition a run is pinned to. UsageFault when this process does not have it."""
        program = self.programs.get(record.definition_digest)
        if program is None:
            raise UsageFault(
                f"run {record.run_id} is pinned to version {record.version} of {record.workflow} "
                f"({record.definition_digest[:19]}), which this application does not declare",
                hint="Keep the old version declared beside the new one, or see `setpoint migrate --dry-run`.",
            )
        return program

    async def _pursue(self, hand: Hand) -> RunRecord:
        run_id, journal = hand.run_id, hand.journal
        try:
            if not hand.record.is_terminal:
                journal.add(LeaseClaimed(owner=self.owner, fence=journal.lease.fence))
                while True:
                    try:
                        await pursue(hand)
                        break
                    except asyncio.CancelledError:
                        active = self._active.get(run_id)
                        if active is None or not active.killed:
                            raise
                        hand.journal = journal = await self._reopened(hand)
                        asyncio.current_task().uncancel()  # type: ignore[union-attr]
            drop_late(hand)
            await journal.flush()
            await self._tell_parent(journal)
            return hand.record
        finally:
            self._active.pop(run_id, None)
            self._release(journal.lease)

    async def _reopened(self, hand: Hand) -> RunJournal:
        """After a kill cut a run off anywhere: what the log has of it, and nothing else."""
        await self.log.flush(hand.run_id)  # an append that was cut off may still be on its way
        record, head = read_run(self.log, hand.run_id)
        return RunJournal(self.log, self.clock, hand.journal.lease, head, record)

    async def _tell_parent(self, journal: RunJournal) -> None:
        """A run that another waits for tells it, and only then is of no more interest itself."""
        record = journal.record
        if not record.is_terminal or not record.parent_node:
            return
        request = Request("child", record.run_id, record.run_id)
        self.log.deliver(record.parent, f"child:{record.run_id}", encode_request(request))
        await self.log.append(journal.lease, journal.head, [], beside=Beside(wake_ms=NO_WAKE))

    async def _keep_beating(self) -> None:
        """Renew the leases of what is worked on, and let a kill through at once."""
        while self._active:
            await asyncio.sleep(BEAT_S)
            for run_id, active in tuple(self._active.items()):
                self._look_after(run_id, active)

    def _look_after(self, run_id: str, active: _Active) -> None:
        journal = active.hand.journal
        now = self.clock.monotonic_ms()
        try:
            if now - active.renewed_at_ms >= limits.LEASE_RENEW_MS:
                journal.lease = self.log.renew(journal.lease, limits.LEASE_TTL_MS)
                active.renewed_at_ms = now
            unread = self.log.inbox(run_id, journal.record.inbox_position)
        except LeaseLost as lost:
            active.lost = lost
            active.task.cancel()
            return
        except Fault:
            return  # the next beat tries again; what is appended meanwhile is fenced all the same
        if not active.killed and any(is_kill(data) for _, _, data in unread):
            active.killed = True
            active.task.cancel()

    # Children

    async def _start_child(
        self, hand: Hand, child_id: str, program: Program, begun: tuple[Values, Values], node: str
    ) -> None:
        record = hand.record
        await self.start(
            program,
            begun[0],
            begun[1],
            run_id=child_id,
            principal=record.principal,
            tenant=record.tenant,
            scopes=record.scopes_held,
            session=record.session,
            parent=record.run_id,
            parent_node=node,
        )

    def _child_outcome(self, child_id: str) -> tuple[RunRecord, Any] | None:
        with contextlib.suppress(UsageFault):
            record, _ = read_run(self.log, child_id)
            if record.is_terminal:
                return record, self._outcome(record).output
        return None

    def _is_open(self, child_id: str) -> bool:
        """Whether a child is there and not over; one that its parent could not start is not there."""
        with contextlib.suppress(UsageFault):
            return not read_run(self.log, child_id)[0].is_terminal
        return False

    def _ask_child(self, child_id: str, action: str) -> None:
        request = Request(action, "parent")
        self.log.deliver(child_id, f"{action}:by-parent", encode_request(request))

    async def retry(self, run_id: str) -> str:
        """A new run with the input of one that is over, as that was begun, and naming it as its parent (R225).

        IllegalTransition while it is not over; UsageFault when its definition is not known here.
        """
        old, _ = read_run(self.log, run_id)
        if not old.is_terminal:
            raise IllegalTransition(
                f"run {run_id} is {old.state}; a retry is of a run that is over",
                hint="`setpoint resume` goes on with one that is paused, from the node where it stopped.",
            )
        assert old.input is not None
        program = self.program_of(old)
        given, state = program.begin(msgspec.json.decode(self.log.payload(old.input.ref)))
        return await self.start(
            program,
            given,
            state,
            principal=old.principal,
            tenant=old.tenant,
            scopes=old.scopes_held,
            session=old.session,
            parent=run_id,
        )

    # Telling

    def tell(self, run_id: str, action: str, argument: Any = "", *, by: str, key: str = "") -> bool:
        """Leave a message for a run; False when one of that key was left before, also when the run is over since.
        IllegalTransition when it is over; a report that comes then is recorded and dropped when the run is looked at
        next. A signal ends a wait whose time was not up when it was left, whenever a worker looks.

        ``action``, and its argument: ``pause``, ``resume``, ``cancel``, ``kill``: a reason. ``signal``:
        ``{"name": ..., "payload": ...}``. ``result``, of an effect that was accepted (``Later``): ``{"key": ...,
        "result": ...}``. ``settle``: ``{"key": ..., "verdict": "happened" | "not_happened", "result": ...}``.
        ``decide``: a signed decision as text.
        """
        record, _ = read_run(self.log, run_id)
        if record.is_terminal and action != "result":
            if key and any(known == key for _, known, _ in self.log.inbox(run_id)):
                return False
            raise IllegalTransition(f"run {run_id} is {record.state} already; {action} does not apply")
        text = argument if isinstance(argument, str) else msgspec.json.encode(argument).decode()
        if len(text) > limits.MESSAGE_BYTES_MAX:
            raise UsageFault(
                f"a message of {len(text)} characters is above {limits.MESSAGE_BYTES_MAX}; nothing was sent",
                hint="Keep the content elsewhere and send its name.",
            )
        request = Request(action, by, text, self.clock.now_ms())
        return self.log.deliver(run_id, key or self.clock.new_id("rq"), encode_request(request))

    async def settle_ended(
        self,
        run_id: str,
        key: str,
        verdict: Literal["happened", "not_happened"],
        *,
        by: str,
        result: Any = None,
        message: str = "",
    ) -> None:
        """Say what became of an effect that a run which is over (killed) left in doubt: its key is free again, or
        stands for what was made. IllegalTransition when the run goes on (``tell`` it) or left no such effect.
        """
        with self._leased(run_id) as lease:
            record, head = read_run(self.log, run_id)
            left = next((one for one in record.effects.values() if one.key == key and one.status in IN_DOUBT), None)
            if not record.is_terminal or left is None:
                what = "goes on" if not record.is_terminal else f"left no effect {key!r} in doubt"
                raise IllegalTransition(f"run {run_id} {what}; nothing was settled")
            journal = RunJournal(self.log, self.clock, lease, head, record)
            await settle_ended(journal, left, verdict, result, by=by, message=message)

    def resume(self, run_id: str, *, by: str) -> bool:
        """Leave word that a run goes on which is paused, or was asked to pause and has not done so yet. False when
        there is nothing to resume."""
        record, _ = read_run(self.log, run_id)
        unread = (request_of(data) for _, _, data in self.log.inbox(run_id, record.inbox_position))
        asked = [one.action for one in (*record.controls, *filter(None, unread)) if one.action in ("pause", "resume")]
        will_pause = asked[-1] == "pause" if asked else record.state == "PAUSED"
        return will_pause and not record.is_terminal and self.tell(run_id, "resume", by=by)

    # Looking

    def is_at_work(self, run_id: str) -> bool:
        """Whether this process works on it now. Its lease would not tell: it is the process's own."""
        return run_id in self._active

    def record(self, run_id: str) -> RunRecord:
        """Where a run stands: state, values, waits, effects, tickets. UnknownTrajectory when there is none."""
        return read_run(self.log, run_id)[0]

    def outcome(self, run_id: str) -> RunOutcome:
        """What a run came to, or where it stands. Nothing is done for it."""
        return self._outcome(self.record(run_id))

    def _outcome(self, record: RunRecord) -> RunOutcome:
        if record.state != "COMPLETED":
            return RunOutcome(record.run_id, record)
        program = self.programs.get(record.definition_digest)
        if program is None:
            return RunOutcome(record.run_id, record)
        values = dict(record.scopes[""].values)
        for name, ref in record.scopes[""].refs.items():
            values[name] = msgspec.json.decode(self.log.payload(ref.ref))
        given = msgspec.json.decode(self.log.payload(record.input.ref)) if record.input is not None else {}
        return RunOutcome(record.run_id, record, program.output(values, given))

    async def rest(self, within_ms: int) -> bool:
        """Give what is under way that long to end or to wait; whether it did. ``work`` was cancelled before."""
        tasks = [active.task for active in self._active.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=within_ms / 1000)
        return not self._active

    async def close(self) -> None:
        """Stop working. Runs that are under way are taken up again by whoever comes next."""
        tasks = [active.task for active in self._active.values()]
        if self._beat is not None:
            tasks.append(self._beat)  # type: ignore[arg-type]
        tasks = [task for task in tasks if not task.done()]  # those of another loop are, and it is closed
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextlib.contextmanager
    def _leased(self, run_id: str) -> Any:
        lease = self.log.claim(run_id, self.owner, limits.LEASE_TTL_MS)
        try:
            yield lease
        finally:
            self._release(lease)

    def _release(self, lease: Lease) -> None:
        with contextlib.suppress(LeaseLost, StoreFault):
            self.log.release(lease)


async def _result(active: _Active) -> RunRecord:
    try:
        return await asyncio.shield(active.task)
    except asyncio.CancelledError:
        if active.lost is not None:
            raise active.lost from None
        raise


__all__ = ["KIND", "RunOutcome", "Runs"]
