"""Move a run as far as it comes: the state of the record says what is to be done, and every exit is ``_finish``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from setpoint.engine.runs.hand import Asked, Fails, Hand, Parked, Pauses, run_code
from setpoint.engine.runs.messages import take_messages
from setpoint.engine.runs.standing import what_became
from setpoint.engine.runs.unwind import is_started, unwind
from setpoint.engine.runs.walk import walk
from setpoint.kernel.events import ControlApplied, Event, Finished
from setpoint.kernel.record import Control
from setpoint.kernel.run_events import EffectSettled, RunPaused, RunResumed, UnwindStarted
from setpoint.kernel.run_record import RunRecord
from setpoint.kernel.spelling import encodable
from setpoint.ports.log import NO_WAKE, WAKE_BY_MESSAGE


async def pursue(hand: Hand) -> RunRecord:
    """Work on the run until it ends or waits; the record then says which, and the log when it wants attention."""
    hand.input = hand.journal.load(hand.record.input) if hand.record.input is not None else {}
    while not hand.record.is_terminal:
        take_messages(hand)
        await _apply_controls(hand)
        before = _progress(hand)
        match hand.record.state:
            case "RUNNING":
                rests = await _rests(hand, _go_on)
            case "UNWINDING":
                rests = await _rests(hand, _go_back)
            case "PAUSED":
                rests = not await _is_free_again(hand)
            case _:
                break
        if rests and _progress(hand) == before and await _park(hand):
            break
    return hand.record


def _progress(hand: Hand) -> tuple[int, int]:
    """What one block got done, or heard, may be what another waits for: then the run is walked once more."""
    return hand.record.step, hand.record.inbox_position


async def _is_free_again(hand: Hand) -> bool:
    """Whether a run may go on that paused because an effect could not be taken back: a person has settled it."""
    if hand.record.reason != "CompensationFailed" or hand.record.unknown:
        return False
    await hand.journal.write(RunResumed(by="settlement"))
    return True


async def _rests(hand: Hand, move: Callable[[Hand], Any]) -> bool:
    """Whether nothing more can be done now."""
    try:
        await move(hand)
    except Parked:
        return True
    except Asked:
        return False
    except Pauses as stop:
        message = encodable(stop.message[:4000])
        await hand.journal.write(RunPaused(reason=stop.reason, message=message, node=stop.node))
    except Fails as stop:
        await _fail(hand, stop)
    return False


async def _go_on(hand: Hand) -> None:
    definition = hand.program.definition
    await walk(hand, definition.body, definition.name, definition.name)
    output_of(hand)  # a run whose output cannot be told is not done
    await _finish(hand, "COMPLETED", "Completed", "", 0)


async def _go_back(hand: Hand) -> None:
    await unwind(hand)
    record = hand.record
    message = record.end_message + await what_became(hand, is_unwound=True)
    await _finish(hand, record.end, record.end_reason, message, record.finished_code)


async def _fail(hand: Hand, stop: Fails) -> None:
    """The run will not reach its end. After a pivot nothing is taken back: only forward, or a person."""
    reason, message = encodable(stop.reason[:100]), encodable(stop.message[:4000])
    if hand.record.pivot and hand.record.state == "RUNNING":
        message += f"; {hand.record.pivot} cannot be taken back, so the run goes on from here or not at all"
        await hand.journal.write(RunPaused(reason="AfterPivot", message=message))
        return
    declined = [effect.claim for effect in hand.record.effects.values() if effect.status == "declined"]
    await hand.journal.write(
        UnwindStarted(reason=reason, message=message, end="FAILED", code=stop.code),
        releases=declined,
    )


async def _finish(hand: Hand, state: str, reason: str, message: str, code: int, *after: Event) -> None:
    """The only exit. A run that another waits for is looked at once more, to tell it (``Runs.tell_parent``)."""
    wake = 0 if hand.record.parent_node else NO_WAKE
    finished = Finished(state=state, reason=reason, message=message, code=code)
    await hand.journal.write(finished, *after, wake_ms=wake)


async def _park(hand: Hand) -> bool:
    """Leave word when the run wants attention. False when something came in meanwhile."""
    waits = hand.record.waits.values()
    wake = WAKE_BY_MESSAGE
    if hand.record.state != "PAUSED":
        wake = min((WAKE_BY_MESSAGE, *(wait.at_ms for wait in waits)))
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
    """Do what was asked. That it was is recorded behind what it did, in one append: it is never lost in between."""
    state = hand.record.state
    applied = ControlApplied(request_id=control.request_id, action=control.action)
    does: list[Event] = []
    match control.action:
        case "pause" if state == "RUNNING":
            does = [RunPaused(reason="Pause", message=f"paused by {control.by}")]
        case "resume" if state == "PAUSED":
            does = [RunResumed(by=control.by), *_told_again(hand, control.by)]
        case "cancel" if state in ("RUNNING", "PAUSED") and not hand.record.end:
            words = f"cancelled by {control.by}" + (f": {control.argument}" if control.argument else "")
            if hand.record.pivot:  # what is under way is settled all the same, and children are ended
                words += f"; {hand.record.pivot} stands, and nothing is taken back"
            does = [UnwindStarted(reason="Cancelled", message=words[:4000], end="CANCELLED", code=11)]
        case "kill":
            for child in hand.record.children.values():
                if hand.child_outcome(child) is None and is_started(hand, child):
                    hand.ask_child(child, "kill")
            more = "more is" if state == "UNWINDING" else "was"
            words = f"killed by {control.by}; nothing {more} taken back" + await what_became(hand, is_unwound=False)
            return await _finish(hand, "CANCELLED", "Killed", words, 11, applied)
        case "child" | "result" | "settle":
            pass  # it was heard; the walk looks at what it is about
        case _:
            applied = ControlApplied(request_id=control.request_id, action="none")
    await hand.journal.write(*does, applied)
    return None


def _told_again(hand: Hand, by: str) -> list[Event]:
    """Compensations that failed for good and are tried once more, since a person said so: each may be told twice."""
    return [
        EffectSettled(node=effect.node, key=effect.key, verdict="resend", by=by)
        for effect in hand.record.unknown
        if effect.compensates
    ]


def output_of(hand: Hand) -> Any:
    """What a completed run is for: the workflow's output over its last state."""
    return run_code(hand, hand.record.workflow, "the output", hand.program.output, hand.state_at(""), hand.input)
