"""After a crash: bring the workspace to what the log says, then go on. No model and no tool is asked (R175).

The log is the truth. The workspace may be ahead of it by one savepoint (kept, event not recorded) or may still stand
where a recorded roll-back left it: both are mended by restoring the recorded savepoint. A turn in flight whose reply
is recorded is dispatched again from there; its earlier dispatches only ever touched the attempt, which is gone.
"""

from __future__ import annotations

import asyncio

from setpoint.engine.pursuit import Pursuit
from setpoint.kernel.events import RolledBack


async def settle(p: Pursuit) -> None:
    """Make the workspace what the record says, and note that the turn in flight begins again."""
    record = p.record
    if record.best is None or record.is_terminal:
        return
    if not record.commit_planned and p.workspace.savepoint() != record.savepoint:
        await asyncio.to_thread(p.workspace.restore, record.savepoint)
    if record.state in ("CALLING_MODEL", "WAITING_TOOL") and record.reply is not None:
        p.journal.emit(
            RolledBack(
                savepoint=record.savepoint,
                fingerprint=record.fingerprint,
                reason="interrupted",
                note="",
            )
        )
        await p.journal.barrier()
