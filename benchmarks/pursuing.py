"""A pursuit that is nothing but the loop and its log: what several measurements share.

The real engine, the real SQLite store, the real gate with its JSON schema; a proposer that answers at once, one tool
with an outside effect that does nothing, a workspace in which nothing changes. So what is measured is the runtime's own
cost of a turn: projection, reply recorded, ruling, intent durable before the effect, result recorded.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from setpoint.adapters.clock import SystemClock
from setpoint.adapters.stores import this_owner
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.engine.journal import Journal
from setpoint.engine.pursuit import Pursuit
from setpoint.kernel.contract import (
    Budget,
    Criterion,
    Environment,
    ExprCheck,
    Goal,
    Level,
    Observe,
    Policy,
    Task,
    ToolGrant,
)
from setpoint.kernel.errors import ProposerFault
from setpoint.kernel.events import LeaseClaimed, TaskAccepted
from setpoint.kernel.proposal import Reply
from setpoint.kernel.record import Record
from setpoint.kernel.ruling import Permit
from setpoint.phases.p3_gate.tools import Tool
from setpoint.phases.p4_dispatch.outcome import Outcome, completed
from setpoint.ports.log import Head, Lease
from setpoint.ports.proposer import Context, Part, Proposer, ToolSpec
from setpoint.testing.stubs import EndlessProposer, FixedVerifier, StillWorkspace

MESSAGE = "x" * 200
ROUTE = "endless:noop"
LEASE_MS = 3_600_000
NOOP = Tool(
    ToolSpec(
        "noop",
        "Do nothing, durably.",
        {
            "type": "object",
            "properties": {"message": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["message", "n"],
            "additionalProperties": False,
        },
    ),
    "keyed",
)


async def noop(permit: Permit) -> Outcome:
    return completed("done")


async def nothing_around(p: Pursuit) -> list[Part]:
    return []


def endless_task() -> Task:
    """A contract that is never met, with a budget so large that no stage of it changes what a turn does."""
    return Task(
        name="bench",
        goal=Goal("never reached"),
        environment=Environment("/nonexistent"),
        actions=(ToolGrant("noop"),),
        observe=Observe(),
        done=(Criterion("never", ExprCheck("false"), Level.STATIC),),
        invariants=(),
        budget=Budget(turns=1 << 40, tokens=1 << 40, usd_micros=1 << 40, wall_ms=1 << 40),
        policy=Policy(stall_after=1 << 40),
        models=(ROUTE,),
        document={},
        digest="sha256:" + "1" * 64,
    )


class CountingJournal(Journal):
    """Counts the times a turn waits for the disk. The snapshot of the record between turns waits besides."""

    waits = 0

    async def barrier(self) -> None:
        self.waits += 1
        await super().barrier()


@dataclass(frozen=True, slots=True)
class Mark:
    """What the process had used at the start of a turn."""

    turn: int
    cpu_s: float
    wall_s: float


@dataclass(slots=True)
class MarkingProposer(EndlessProposer):
    """Answers at once for ``turns`` turns, then has nothing more to say. ``at`` names turns to look at the clock in."""

    turns: int
    at: frozenset[int]
    on_mark: Callable[[int], None] = lambda turn: None
    marks: list[Mark] = field(default_factory=list[Mark])

    def __post_init__(self) -> None:
        super(MarkingProposer, self).__init__("noop", MESSAGE)

    async def propose(self, context: Context, deadline_ms: int) -> Reply:
        turn = self.calls + 1
        if turn in self.at:
            self.marks.append(Mark(turn, cpu_s(), time.perf_counter()))
            self.on_mark(turn)
        if turn > self.turns:
            raise ProposerFault("exhausted", "the measurement is over")
        return await super(MarkingProposer, self).propose(context, deadline_ms)


def open_pursuit(log: SqliteLog, clock: SystemClock, proposer: Proposer) -> Pursuit:
    """A new trajectory, accepted and leased."""
    trajectory_id = clock.new_id("tr")
    log.create(trajectory_id, "trajectory")
    lease = log.claim(trajectory_id, this_owner(), LEASE_MS)
    pursuit = take_up(log, clock, proposer, lease, log.head(trajectory_id), Record(trajectory_id=trajectory_id))
    contract = pursuit.task
    pursuit.journal.emit(
        TaskAccepted(
            name="bench",
            task=pursuit.journal.store(b"{}"),
            task_digest=contract.digest,
            workspace="/",
            base_digest="",
            exposure="",
            required_level="static",
            models=[ROUTE],
            tier="none",
            rung="none",
            runtime="0",
            directory="/",
        )
    )
    pursuit.journal.emit(LeaseClaimed(owner=lease.owner, fence=lease.fence))
    return pursuit


def take_up(
    log: SqliteLog, clock: SystemClock, proposer: Proposer, lease: Lease, head: Head, record: Record
) -> Pursuit:
    """The pursuit of a trajectory that stands at ``record``."""
    trajectory_id = lease.stream
    return Pursuit(
        endless_task(),
        CountingJournal(log, clock, lease, head, record),
        StillWorkspace(),
        None,  # type: ignore[arg-type]  # no tool of this task runs in a sandbox
        FixedVerifier(),
        [proposer],
        clock,
        {"noop": NOOP},
        lambda p: (b"", "", ""),
        {"noop": noop},
        surroundings=nothing_around,
        inbox=lambda after: log.inbox(trajectory_id, after),  # as the runtime does: a look at the mailbox every turn
    )


def cpu_s() -> float:
    """CPU of this process and of the children it has waited for."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def stored_bytes(path: str) -> int:
    """What a store takes on disk, the write-ahead log included."""
    return sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end))


def between(marks: Iterable[Mark], first: int, last: int) -> tuple[float, float]:
    """CPU and wall seconds a turn, from the start of turn ``first`` to the start of turn ``last``."""
    at = {mark.turn: mark for mark in marks}
    turns = last - first
    return (at[last].cpu_s - at[first].cpu_s) / turns, (at[last].wall_s - at[first].wall_s) / turns
