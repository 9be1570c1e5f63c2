"""After a crash: bring the workspace to what the log says, then go on. No model and no tool is asked (R175).

The log is the truth. The workspace may be ahead of it by one savepoint (kept, event not recorded) or may still stand
where a recorded roll-back left it: both are mended by restoring the recorded savepoint. A turn in flight whose reply
is recorded is dispatched again from there; its earlier dispatches only ever touched the attempt, which is gone.
"""

from __future__ import annotations

import asyncio

from setpoint.engine.judge import judge_state, record_changes
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.turn import measure_again
from setpoint.kernel.errors import IllegalTransition
from setpoint.kernel.events import RolledBack, TurnEnded
from setpoint.kernel.trajectory import Record


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
    if p.record.measured != record.fingerprint:
        measure_again(p)  # the newest delta is of an attempt that is gone
    await p.journal.hand_over()


async def roll_back_to(p: Pursuit, savepoint: int, by: str) -> Record:
    """A person takes the trajectory back to a kept savepoint; its state is judged again. UsageFault for others."""
    record = p.record
    fingerprint = p.savepoint_fingerprint(savepoint)
    if fingerprint is None or savepoint > record.savepoint:
        raise IllegalTransition(
            f"there is no savepoint {savepoint} to go back to; the trajectory stands at {record.savepoint}",
            hint="`setpoint describe` lists the savepoints.",
        )
    note = f"{by} took the work back to savepoint {savepoint}"
    p.journal.emit(RolledBack(savepoint=savepoint, fingerprint=fingerprint, reason="operator", note=note))
    if record.state not in ("READY", "PAUSED"):
        p.journal.emit(TurnEnded(outcome="rolled_back"))
    await p.journal.barrier()
    await asyncio.to_thread(p.workspace.restore, savepoint)
    await asyncio.to_thread(p.workspace.begin)
    changes = await asyncio.to_thread(p.workspace.changes)
    record_changes(p, changes)
    await judge_state(p, changes, thorough=True, phase="operator")
    await asyncio.to_thread(p.workspace.discard)
    await p.journal.barrier()
    return p.record
