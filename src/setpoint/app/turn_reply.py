"""What a message came to, for whoever gave it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from setpoint.app.reached_runs import ReachedRuns
from setpoint.app.runs import RunOutcome
from setpoint.engine.sessions.journal import SessionJournal
from setpoint.kernel.actions import RunView
from setpoint.kernel.session_record import SessionRecord

_CODES = {"answered": 0, "completed": 0, "waiting": 13, "refused": 12, "budget_exhausted": 14, "failed": 11}


@dataclass(frozen=True, slots=True)
class ActionTaken:
    """One action the agent asked for and what became of it. ``status``: done | failed | refused."""

    action: str
    status: str
    reason: str = ""
    message: str = ""
    run_id: str = ""
    arguments: Any = None


@dataclass(frozen=True, slots=True)
class TurnReply:
    """What a message came to. ``status``: answered | completed | waiting | refused | budget_exhausted | failed.

    ``text`` is what the agent says to the user, and no statement of the runtime's: that is ``runs``.
    """

    text: str
    status: str
    reason: str = ""
    actions: tuple[ActionTaken, ...] = ()
    runs: tuple[RunOutcome, ...] = field(default=(), repr=False)
    waiting_for: tuple[str, ...] = ()
    turn: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd_micros: int = 0

    @property
    def exit_code(self) -> int:
        """As of a command: 0 answered, 11 no model answered, 12 refused, 13 something is waited for, 14 budget."""
        return 13 if self.waiting_for and self.status in ("answered", "completed") else _CODES[self.status]


def read_reply(journal: SessionJournal, reached: ReachedRuns) -> TurnReply:
    """The reply to the newest message, from the record alone: after a restart it reads the same."""
    record = journal.record
    message = record.current
    assert message is not None
    taken = tuple(
        ActionTaken(
            one.action,
            one.status,
            one.reason,
            journal.text(one.text),
            one.run_id,
            journal.value(one.arguments, one.arguments_ref),
        )
        for one in message.acted
    )
    run_ids = dict.fromkeys(one.run_id for one in taken if one.run_id)
    return TurnReply(
        journal.text(message.text),
        message.status,
        message.reason,
        taken,
        tuple(reached.runs.outcome(run_id) for run_id in run_ids),
        _waiting_for(record, reached),
        message.turn,
        message.input_tokens,
        message.output_tokens,
        message.usd_micros,
    )


def _waiting_for(record: SessionRecord, reached: ReachedRuns) -> tuple[str, ...]:
    found = [] if record.question is None else ["operator"]
    for run_id in record.runs:
        if isinstance(run := reached.look(run_id), RunView):
            waits = [*(f"signal {name}" for name in run.signals), *run.waits] or [run.state]
            found.append(f"{run.run_id} of {run.workflow}: {', '.join(waits)}")
    return tuple(found)
