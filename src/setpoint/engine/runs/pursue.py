"""Move a run as far as it comes: the state of the record says what is to be done, and every exit is ``_finish``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from setpoint.engine.runs.hand import Asked, Fails, Hand, Parked, Pauses, run_code
from setpoint.engine.runs.messages import take_messages
from setpoint.engine.runs.unwind import unwind
from setpoint.engine.runs.walk import walk
from setpoint.kernel.events import ControlApplied, Event, Finished
from setpoint.kernel.record import Control
from setpoint.kernel.run_events import RunPaused, RunResumed, UnwindStarted
from setpoint.kernel.run_record import RunRecord
from setpoint.ports.log import NO_WAKE, WAKE_BY_MESSAGE


async def pursue(hand: Hand) -> RunRecord:
    """Work on the run until it ends or waits; the record then says which, and the log when it wants attention."""
    hand.input = hand.journal.load(hand.record.input) if hand.record.input is not None else {}
    while not hand.record.is_terminal:
        take_messages(hand)
        await _apply_controls(hand)
        match hand.record.state:
            case "RUNNING":
                rests = await _rests(hand, _go_on)
            case "UNWINDING":
                rests = await _rests(hand, _go_back)
            case "PAUSED":
                rests = True
            case _:
                break
        if rests and await _park(hand):
            break
    return hand.record


async def _rests(hand: Hand, move: Callable[[Hand], Any]) -> bool:
    """Whether nothing more can be done now."""
    try:
        await move(hand)
    except Parked:
        return True
    except Asked:
        return False
    except Pauses as stop:
        await hand.journal.write(RunPaused(reason=stop.reason, message=stop.message[:4000], node=stop.node))
    except Fails as stop:
        await _fail(hand, stop)
    return False


async def _go_on(hand: Hand) -> None:
    definition = hand.program.definition
    await walk(hand, definition.body, definition.name, definition.name)
    await _finish(hand, "COMPLETED", "Completed", "", 0)


async def _go_back(hand: Hand) -> None:
    await unwind(hand)
    record = hand.record
    await _finish(hand, record.end, record.reason, record.message, record.finished_code)


async def _fail(hand: Hand, stop: Fails) -> None:
    """The run will not reach its end. After a pivot nothing is taken back: only forward, or a person."""
    if hand.record.pivot and hand.record.state == "RUNNING":
        message = (
            f"{stop.message}; {hand.record.pivot} cannot be taken back, so the run goes on from here or not at all"
        )
        await hand.journal.write(RunPaused(reason="AfterPivot", message=message[:4000]))
        return
    await hand.journal.write(
        UnwindStarted(reason=stop.reason, message=stop.message[:4000], end="FAILED", code=stop.code)
    )


async def _finish(hand: Hand, state: str, reason: str, message: str, code: int) -> None:
    """The only exit. A run that another waits for is looked at once more, to tell it (``Runs.tell_parent``)."""
    wake = 0 if hand.record.parent_node else NO_WAKE
    finished = Finished(state=state, reason=reason, message=message, code=code)
    await hand.journal.write(finished, wake_ms=wake)


async def _park(hand: Hand) -> bool:
    """Leave word when the run wants attention. False when something came in meanwhile."""
    waits = hand.record.waits.values()
    wake = WAKE_BY_MESSAGE if hand.record.state == "PAUSED" else min((w.at_ms for w in waits), default=WAKE_BY_MESSAGE)
    if wake <= hand.clock.now_ms():
        return False
    await hand.journal.write(wake_ms=wake)
    return not hand.journal.log.inbox(hand.run_id, hand.record.inbox_position)


# People


async def _apply_controls(hand: Hand) -> None:
    for control in hand.record.controls:
        if hand.record.is_terminal:
            return
        await _apply(hand, control)


async def _apply(hand: Hand, control: Control) -> None:
    state = hand.record.state
    applied = ControlApplied(request_id=control.request_id, action=control.action)
    after: list[Event] = []
    match control.action:
        case "pause" if state == "RUNNING":
            after = [RunPaused(reason="Pause", message=f"paused by {control.by}")]
        case "resume" if state == "PAUSED":
            after = [RunResumed(by=control.by)]
        case "cancel" if state in ("RUNNING", "PAUSED"):
            words = f"cancelled by {control.by}" + (f": {control.argument}" if control.argument else "")
            if hand.record.pivot:
                await hand.journal.write(applied)
                return await _finish(hand, "CANCELLED", "Cancelled", f"{words}; {hand.record.pivot} stands", 11)
            after = [UnwindStarted(reason="Cancelled", message=words, end="CANCELLED", code=11)]
        case "kill":
            for child in hand.record.children.values():
                if hand.child_outcome(child) is None:
                    hand.ask_child(child, "kill")
            await hand.journal.write(applied)
            return await _finish(hand, "CANCELLED", "Killed", f"killed by {control.by}; nothing was taken back", 11)
        case "child":
            pass  # a child has ended: the walk looks at it
        case _:
            applied = ControlApplied(request_id=control.request_id, action="none")
    await hand.journal.write(applied, *after)
    return None


def output_of(hand: Hand) -> Any:
    """What a completed run is for: the workflow's output over its last state."""
    return run_code(hand, hand.record.workflow, "the output", hand.program.output, hand.state_at(""), hand.input)
