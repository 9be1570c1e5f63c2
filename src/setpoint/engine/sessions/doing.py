"""Carry out one permitted action: its intent is durable first, and doing it twice comes to the same (L2, L6).

A run is started under an id fixed by session, turn and place in the reply; a message to a run carries a key of the same
kind. So a crash between intent and outcome costs nothing but doing it again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from setpoint.engine.sessions.hand import Ended, SessionHand
from setpoint.engine.sessions.journal import stream_of
from setpoint.engine.sessions.projection import describe
from setpoint.kernel.actions import ENDING, Action, RunView
from setpoint.kernel.events import QuestionAsked
from setpoint.kernel.keys import digest
from setpoint.kernel.proposal import Call
from setpoint.kernel.session_events import ActionDone, ActionIntended, MessageAnswered
from setpoint.kernel.session_record import Acted
from setpoint.kernel.spelling import encodable

RESULT_CHARS_MAX = 2_000
"""Of a run's output in an observation; the record of the run has all of it."""


async def act(hand: SessionHand, call: Call, action: Action) -> None:
    """Record the intent of a permitted action, then do it."""
    arguments, run_id = call.arguments, ""
    if action.kind == "start_workflow":
        arguments = hand.agent.complete(action, arguments, hand.record)
        run_id = f"rn-{_key(hand, call.ordinal)}"
    elif "run" in arguments:
        run_id = arguments["run"]
    inline, ref = hand.journal.spill(arguments)
    intent = ActionIntended(
        ordinal=call.ordinal,
        action=action.name,
        kind=action.kind,
        call_digest=call.digest,
        run_id=run_id,
        workflow=action.target if action.kind == "start_workflow" else "",
        signal=action.target if action.kind in ("provide_input", "choose") else "",
        definition=action.definition,
        arguments=inline,
        arguments_ref=ref,
    )
    if action.kind in ENDING:
        hand.journal.add(intent)  # nothing outside happens: it goes down with what it comes to
    else:
        await hand.journal.write(intent)
    await carry_out(hand, hand.message.acted[-1])


async def carry_out(hand: SessionHand, intended: Acted) -> None:
    """Do what was intended; also after a crash, when it may have been done already."""
    arguments: dict[str, Any] = hand.journal.value(intended.arguments, intended.arguments_ref)
    match intended.kind:
        case "answer_user" | "complete":
            status = "answered" if intended.kind == "answer_user" else "completed"
            text = hand.journal.spill_text(arguments["text"])
            await hand.journal.write(MessageAnswered(status=status, text=text))
        case "ask_operator":
            await _ask_operator(hand, intended, arguments["question"])
        case "start_workflow":
            await hand.runs.start(intended.run_id, intended.definition, arguments, hand.record)
            await _pursue(hand, intended)
        case "provide_input" | "choose":
            payload = arguments["payload"] if intended.kind == "provide_input" else arguments["choice"]
            await _tell(hand, intended, "signal", {"name": intended.signal, "payload": payload})
        case "cancel":
            await _tell(hand, intended, "cancel", arguments.get("reason", ""))
        case _:
            raise AssertionError(f"{intended.kind} is no kind of action")


async def _ask_operator(hand: SessionHand, intended: Acted, question: str) -> None:
    question_id = f"q-{_key(hand, intended.ordinal)}"
    if hand.record.question is None:
        hand.journal.add(QuestionAsked(question_id=question_id, question=encodable(question)))
    await hand.journal.write(MessageAnswered(status="waiting", reason="operator"))


async def _tell(hand: SessionHand, intended: Acted, action: str, argument: Any) -> None:
    key = f"{action}:{_key(hand, intended.ordinal)}"
    by = hand.record.principal or hand.record.session_id
    why_not = hand.runs.tell(intended.run_id, action, argument, by=by, key=key)
    if why_not:
        hand.journal.add(ActionDone(ordinal=intended.ordinal, status="failed", text=encodable(why_not)[:600]))
        return
    await _pursue(hand, intended)


async def _pursue(hand: SessionHand, intended: Acted) -> None:
    """Work on the run as far as it comes, and record what there is to see."""
    await hand.runs.pursue(intended.run_id)
    text = hand.journal.spill_text(_seen(hand.runs.look(intended.run_id)))
    hand.journal.add(ActionDone(ordinal=intended.ordinal, status="done", text=text))


def _seen(run: RunView | Ended) -> str:
    if isinstance(run, RunView):
        return describe(run)
    words = f"{run.run_id} of {run.workflow} is {run.state}"
    if run.state != "COMPLETED":
        return f"{words} ({run.reason}): {run.message}"[:RESULT_CHARS_MAX]
    return f"{words}: {msgspec.json.encode(run.output, order='sorted').decode()}"[:RESULT_CHARS_MAX]


def _key(hand: SessionHand, ordinal: int) -> str:
    """Fixed by the place in the session, not by anything a model says: 64 bits, as of a child run."""
    message = hand.message
    return digest([stream_of(hand.record.session_id), message.turn, message.step, ordinal])[7:23]
