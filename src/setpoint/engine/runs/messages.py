"""What people and the outside say to a run, by its inbox: recorded once each, in order, wherever its owner dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import msgspec

from setpoint.engine.control import Request, read_request
from setpoint.engine.runs.approving import read_decision
from setpoint.engine.runs.hand import Hand
from setpoint.engine.runs.journal import RunJournal
from setpoint.engine.runs.program import CallCode
from setpoint.kernel import limits
from setpoint.kernel.effects import said
from setpoint.kernel.events import ControlApplied, ControlRequested
from setpoint.kernel.flow import Call, is_below, walk
from setpoint.kernel.run_events import (
    EffectDelivered,
    EffectSettled,
    LateResult,
    RunResumed,
    SignalReceived,
)
from setpoint.kernel.run_record import Effect


def take_messages(hand: Hand) -> None:
    """Record every message that was not read yet. Signals, results and decisions take effect at once; control waits
    for whoever walks the run."""
    for position, key, data in hand.journal.log.inbox(hand.run_id, hand.record.inbox_position):
        request = request_of(data)
        if request is None:
            hand.journal.add(LateResult(key=key, position=position, reason="it is no message of this runtime"))
            continue
        match request.action:
            case "signal" | "result" | "settle" if _is_too_deep(request.argument):
                reason = f"it is nested deeper than {limits.ARGUMENT_DEPTH_MAX} levels"
                hand.journal.add(LateResult(key=key, position=position, reason=reason))
            case "signal":
                _signal(hand, request, key, position)
            case "result":
                _result(hand, request, key, position)
            case "settle":
                _settle(hand, request, key, position)
            case "decide":
                read_decision(hand, request.argument, position)
            case _:
                hand.journal.add(_requested(request, key, position))


def request_of(data: bytes) -> Request | None:
    """What a message asks for, None when it is no message of this runtime."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return read_request(data)
    return None


def is_kill(data: bytes) -> bool:
    """Whether a message asks for the run to be killed."""
    request = request_of(data)
    return request is not None and request.action == "kill"


def drop_late(hand: Hand) -> None:
    """Record the reports that came for a run that is over: nothing waits for them any more, and somebody may ask."""
    if not hand.record.is_terminal:
        return
    for position, _, data in hand.journal.log.inbox(hand.run_id, hand.record.inbox_position):
        request = request_of(data)
        if request is not None and request.action == "result":
            reported = str(_read(request.argument).get("key", ""))
            reason = f"the run was {hand.record.state} when it came"
            hand.journal.add(LateResult(key=reported, position=position, reason=reason))


IN_DOUBT = ("queued", "unknown", "pending")
"""What a run that was killed may leave behind of an effect. Its key stays claimed until somebody says what happened."""


async def settle_ended(
    journal: RunJournal,
    effect: Effect,
    verdict: Literal["happened", "not_happened"],
    result: Any,
    *,
    by: str,
    message: str,
) -> None:
    """A person says what became of an effect that a run which is over left in doubt. The run stays as it ended.

    What happened is the stored result of whoever asks for the same; what did not gives its key back.
    """
    settled = EffectSettled(node=effect.node, key=effect.key, verdict=verdict, by=by, message=message)
    if verdict == "happened":
        found = None if result is None else journal.store(result)
        delivered = EffectDelivered(node=effect.node, key=effect.key, status="done", how="person", result=found)
        await journal.write(settled, delivered)
        return
    given_up = EffectDelivered(node=effect.node, key=effect.key, status="declined", how="person", message=message)
    await journal.write(settled, given_up, releases=(effect.claim,))


def _requested(request: Request, key: str, position: int) -> ControlRequested:
    return ControlRequested(
        request_id=key, action=request.action, by=request.by, argument=request.argument, position=position
    )


def _signal(hand: Hand, request: Request, key: str, position: int) -> None:
    said = _read(request.argument)
    payload = said.get("payload")
    hand.journal.add(
        SignalReceived(
            signal=str(said.get("name", "")),
            key=key,
            position=position,
            payload=None if payload is None else hand.journal.store(payload),
            at_ms=request.at_ms,
        )
    )


def _result(hand: Hand, request: Request, key: str, position: int) -> None:
    """A report on an effect that the other side had accepted. One that nothing waits for is dropped, on record."""
    said = _read(request.argument)
    effect = _effect_of(hand, str(said.get("key", "")), *_REPORTED_ON)
    if effect is None:
        reason = "no effect under that key waits for a report"
        hand.journal.add(LateResult(key=str(said.get("key", "")), position=position, reason=reason))
        return
    if misfit := _misfit(hand, effect, said.get("result")):
        hand.journal.add(LateResult(key=effect.key, position=position, reason=misfit))
        return
    result = hand.journal.store(said.get("result"))
    hand.journal.add(EffectDelivered(node=effect.node, key=effect.key, status="done", how="inbox", result=result))
    hand.journal.add(_requested(request, key, position))  # behind what it says: the message is taken by its position
    hand.journal.add(ControlApplied(request_id=key, action="result"))


def _settle(hand: Hand, request: Request, key: str, position: int) -> None:
    """A person says what became of an effect that nobody could tell, or what the result is of one that was made."""
    said = _read(request.argument)
    verdict = said.get("verdict")
    effect = _effect_of(hand, str(said.get("key", "")), "unknown")
    is_made = effect is None and verdict == "happened" and not hand.record.end
    if is_made:
        effect = _effect_of(hand, str(said.get("key", "")), "happened")
    if effect is not None and verdict == "happened" and (misfit := _misfit(hand, effect, said.get("result"))):
        hand.journal.add(LateResult(key=effect.key, position=position, reason=misfit))
        return
    if effect is None or verdict not in ("happened", "not_happened"):
        hand.journal.add(_requested(request, key, position))
        hand.journal.add(ControlApplied(request_id=key, action="none"))
        return
    message = str(said.get("message", ""))
    settled = EffectSettled(node=effect.node, key=effect.key, verdict=verdict, by=request.by, message=message)
    hand.journal.add(settled)
    if verdict == "happened":
        found = said.get("result")
        result = None if found is None else hand.journal.store(found)
        hand.journal.add(EffectDelivered(node=effect.node, key=effect.key, status="done", how="person", result=result))
    hand.journal.add(_requested(request, key, position))
    hand.journal.add(ControlApplied(request_id=key, action="settle"))
    if is_made and hand.record.state == "PAUSED" and hand.record.reason == "NodeFailed":
        hand.journal.add(RunResumed(by=request.by))  # what it was paused for is there now


_REPORTED_ON = ("pending", "queued", "unknown")
"""A report may overtake the reply that promised it, and may come when nobody counted on it any more."""


def _misfit(hand: Hand, effect: Effect, result: Any) -> str:
    """Why a result from outside cannot be the effect's, "" when it can: once it is recorded nobody can mend it."""
    if effect.compensates or hand.record.end:
        return ""
    for static, node in walk(hand.program.definition.body, hand.record.workflow):
        code = hand.program.code.get(static)
        if isinstance(node, Call) and isinstance(code, CallCode) and is_below(static, effect.node):
            try:
                hand.around_step(partial(code.absorb, hand.state_at(effect.node), result))
            except Exception as error:  # noqa: BLE001  # whatever the state's type says against it
                return said(f"the result does not fit {effect.node}, which still waits for one: {error}")
    return ""


def _effect_of(hand: Hand, key: str, *statuses: str) -> Effect | None:
    for effect in hand.record.effects.values():
        if effect.key == key and effect.status in statuses:
            return effect
    return None


def _is_too_deep(argument: str) -> bool:
    """Whether walking what it says could end in Python's limit of recursion, and the run with it, again and again."""
    try:
        level: list[Any] = [msgspec.json.decode(argument)]
    except msgspec.DecodeError:
        return False
    except RecursionError:
        return True
    for _ in range(limits.ARGUMENT_DEPTH_MAX):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()  # type: ignore[reportUnknownVariableType]
    return value if isinstance(value, list) else ()  # type: ignore[reportUnknownVariableType]


def _read(argument: str) -> dict[str, Any]:
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        found = msgspec.json.decode(argument)
        if isinstance(found, dict):
            return found  # type: ignore[reportUnknownVariableType]
    return {}
