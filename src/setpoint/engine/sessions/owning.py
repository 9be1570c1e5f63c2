"""One owner at a time, in any process: a lease while a session is worked on, renewed while a model thinks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from setpoint.engine.sessions.journal import Observer, SessionJournal, read_session, stream_of
from setpoint.kernel import limits
from setpoint.kernel.errors import ConflictFault, HeadMoved, LeaseLost, StoreFault, UnknownTrajectory
from setpoint.kernel.session_record import SessionRecord
from setpoint.ports.clock import Clock
from setpoint.ports.log import Log


@dataclass(slots=True)
class Owning:
    """What this process works on. The lease of a store is the process's, so it keeps its own turns apart itself."""

    log: Log
    clock: Clock
    owner: str
    observer: Observer | None = None
    _busy: set[str] = field(default_factory=set[str], init=False)

    @contextlib.asynccontextmanager
    async def hold(self, session_id: str) -> AsyncGenerator[SessionJournal]:
        """The session under a lease. ConflictFault when somebody else has it, or takes it: nothing more is written."""
        if session_id in self._busy:
            raise conflict(session_id, "this process is working on another message of it")
        self._busy.add(session_id)
        try:
            async with self._leased(session_id) as journal:
                yield journal
        finally:
            self._busy.discard(session_id)

    @contextlib.asynccontextmanager
    async def _leased(self, session_id: str) -> AsyncGenerator[SessionJournal]:
        stream = stream_of(session_id)
        try:
            lease = self.log.claim(stream, self.owner, limits.LEASE_TTL_MS)
        except UnknownTrajectory:
            raise UnknownTrajectory(f"there is no session {session_id} in this store") from None
        except LeaseLost as fault:
            raise conflict(session_id, fault.message) from fault
        record, head = SessionRecord(session_id=session_id), self.log.head(stream)
        if head.seq:
            record, head = read_session(self.log, session_id)
        journal = SessionJournal(self.log, self.clock, lease, head, record, self.observer)
        beat = asyncio.create_task(_keep(journal))
        try:
            yield journal
        except (LeaseLost, HeadMoved) as fault:
            raise conflict(session_id, fault.message) from fault
        finally:
            beat.cancel()
            with contextlib.suppress(LeaseLost, StoreFault):
                self.log.release(journal.lease)


def conflict(session_id: str, why: str) -> ConflictFault:
    """The words for a writer who came second."""
    return ConflictFault(f"STALE_ACTION: session {session_id} is worked on elsewhere: {why}")


async def _keep(journal: SessionJournal) -> None:
    """Renew the lease while a model thinks. One that is lost is found at the next append, which the fence refuses."""
    while True:
        await asyncio.sleep(limits.LEASE_RENEW_MS / 1000)
        with contextlib.suppress(LeaseLost, StoreFault):
            journal.lease = journal.log.renew(journal.lease, limits.LEASE_TTL_MS)
