"""What everything that brings a message to its end holds: the journal, the agent, the models, the runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from setpoint.engine.sessions.journal import SessionJournal
from setpoint.engine.slots import ModelSlots
from setpoint.kernel.actions import Action, AgentTerms, RunView
from setpoint.kernel.session_record import Message, SessionRecord
from setpoint.ports.clock import Clock
from setpoint.ports.proposer import Proposer


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over."""

    run_id: str
    workflow: str
    state: str
    reason: str
    message: str
    code: int
    output: Any
    input_tokens: int = 0
    output_tokens: int = 0
    usd_micros: int = 0


class SessionRuns(Protocol):
    """The runs of the application, as far as a session reaches."""

    def look(self, run_id: str) -> RunView | Ended: ...

    async def start(self, run_id: str, definition: str, arguments: dict[str, Any], record: SessionRecord) -> None:
        """Record the run; the same id again is the same run."""
        ...

    async def pursue(self, run_id: str) -> None:
        """Work on it until it ends or waits; returns at once when another worker does."""
        ...

    def tell(self, run_id: str, action: str, argument: Any, *, by: str, key: str) -> str:
        """Leave a message, once for a key. Why it does not apply any more, or ""."""
        ...


class AgentCode(Protocol):
    """The agent's pure functions of the session, over plain JSON."""

    recall: int

    def terms(self, record: SessionRecord) -> AgentTerms: ...

    def projection(self, record: SessionRecord) -> dict[str, Any]: ...

    def complete(self, action: Action, arguments: dict[str, Any], record: SessionRecord) -> dict[str, Any]:
        """The whole input of a workflow: what the model said and what the session says."""
        ...

    def refusal(self, action: Action, arguments: dict[str, Any], record: SessionRecord) -> str:
        """Why the workflow would not begin with it; "" when it would."""
        ...


@dataclass(slots=True)
class SessionHand:
    """One session in the hands of its owner."""

    journal: SessionJournal
    clock: Clock
    agent: AgentCode
    runs: SessionRuns
    proposers: Sequence[Proposer]
    hydrate: Callable[[SessionJournal], Awaitable[None]]
    """Load what is missing or stale, and record it."""
    slots: ModelSlots
    """Shared by the process: calls for people who wait come before others."""

    @property
    def record(self) -> SessionRecord:
        return self.journal.record

    @property
    def message(self) -> Message:
        message = self.journal.record.current
        assert message is not None, "a turn is worked on before its message was received"
        return message
