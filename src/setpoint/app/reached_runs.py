"""The runs of an application, as far as a session reaches: ``engine.sessions.hand.SessionRuns`` over ``Runs``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from setpoint.app.runs import Runs
from setpoint.engine.sessions.hand import Ended
from setpoint.kernel.actions import RunView
from setpoint.kernel.errors import LeaseLost, UsageFault
from setpoint.kernel.run_record import RunRecord
from setpoint.kernel.session_record import SessionRecord

TURN_PATIENCE_MS = 10_000
"""How long a turn waits for timers of the runs it works on; somebody is looking at a screen meanwhile."""
LOOK_MS = 50
"""How often a run that another worker has is looked at: a pause nobody notices in an answer."""


@dataclass(frozen=True, slots=True)
class ReachedRuns:
    """Started for the session's principal, told what it may tell, and looked at."""

    runs: Runs
    patience_ms: int = TURN_PATIENCE_MS

    def look(self, run_id: str) -> RunView | Ended:
        outcome = self.runs.outcome(run_id)
        record = outcome.record
        if not record.is_terminal:
            return _view_of(record)
        return Ended(
            run_id,
            record.workflow,
            record.state,
            record.reason,
            record.message,
            record.finished_code,
            outcome.output,
            record.spent.input_tokens,
            record.spent.output_tokens,
            record.spent.usd_micros,
        )

    async def start(self, run_id: str, definition: str, arguments: dict[str, Any], record: SessionRecord) -> None:
        program = self.runs.programs.get(definition)
        if program is None:
            raise UsageFault(
                f"run {run_id} was to start the definition {definition[:19]}, which this application does not declare",
                hint="Keep the old version of the workflow declared until its sessions have gone on.",
            )
        given, state = program.begin(arguments)
        await self.runs.start(
            program,
            given,
            state,
            run_id=run_id,
            principal=record.principal,
            tenant=record.tenant,
            scopes=record.scopes,
            session=record.session_id,
        )

    async def pursue(self, run_id: str) -> None:
        left = self.patience_ms
        while True:
            try:
                await self.runs.wait(run_id, patience_ms=left)
                return
            except LeaseLost:  # another worker has it: see what that one comes to
                if left <= 0:
                    return
                await self.runs.clock.sleep_ms(LOOK_MS)
                left -= LOOK_MS

    def tell(self, run_id: str, action: str, argument: Any, *, by: str, key: str) -> str:
        try:
            self.runs.tell(run_id, action, argument, by=by, key=key)
        except UsageFault as fault:  # it has ended, or the payload is too large
            return fault.message
        return ""


def _view_of(record: RunRecord) -> RunView:
    waits = sorted({wait.kind for wait in record.waits.values() if wait.kind != "signal"})
    signals = sorted({wait.name for wait in record.waits.values() if wait.kind == "signal"})
    return RunView(
        run_id=record.run_id,
        workflow=record.workflow,
        state=record.state,
        signals=tuple(signals) if record.state == "RUNNING" else (),
        waits=tuple(waits) if record.state == "RUNNING" else (record.reason,) if record.reason else (),
        is_cancelling=record.state == "UNWINDING",
    )
