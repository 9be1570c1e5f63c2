"""Take back what a run did, last first, without any model.

What is still under way is settled first: an effect in doubt is looked for, and one that happened joins the stack. Each
compensation is an effect of its own: intent, claim and key, durable before it is sent, and sent again with the same key
when nobody knows whether it arrived, for its author promises that it may be told twice. One that cannot be made leaves
the rest of the stack as it is and asks a person.
"""

from __future__ import annotations

from setpoint.engine.runs.calls import Calling, bound_ms, settlement, within
from setpoint.engine.runs.claims import undo_key
from setpoint.engine.runs.hand import Hand, Parked, Pauses, unready
from setpoint.engine.runs.program import CallCode
from setpoint.kernel.effects import (
    Declined,
    Done,
    EffectOutcome,
    EffectUnready,
    NotSent,
    ProbeLater,
    Reconstructed,
    Resend,
    Unknown,
    outcome_of,
    said,
)
from setpoint.kernel.errors import UnknownTrajectory
from setpoint.kernel.flow import Call, is_below, walk
from setpoint.kernel.run_events import (
    ChildEnded,
    Compensated,
    EffectDelivered,
    EffectQueued,
    EffectSettled,
    EffectUnknown,
    Made,
    NodeFailed,
    TimerSet,
)
from setpoint.kernel.run_record import Done as Standing
from setpoint.kernel.run_record import Effect, RunRecord, undo_node
from setpoint.ports.effector import Context, Services


async def unwind(hand: Hand) -> None:
    """Return when everything is taken back that can be. Parked, or Pauses when a person must look."""
    _end_children(hand)
    for effect in tuple(hand.record.effects.values()):
        if not effect.compensates:
            await _close(hand, effect)
    while hand.record.undo and not hand.record.pivot:  # behind a pivot nothing is taken back
        standing = hand.record.undo[-1]
        await _take_back(hand, standing)


def _end_children(hand: Hand) -> None:
    """Children end first, and what they made and left standing joins the stack. Parked while any goes on."""
    is_open = False
    for node, child in tuple(hand.record.children.items()):
        ended = hand.child_outcome(child)
        if ended is not None:
            hand.journal.add(child_ended(node, ended[0]))
        elif is_started(hand, child):
            hand.ask_child(child, "cancel")
            is_open = True
    if is_open:
        raise Parked


def child_ended(node: str, child: RunRecord) -> ChildEnded:
    """What the parent records of a child that has ended, however it ended."""
    made = [
        Made(f"{node}>{d.node}", d.capability, d.effect, d.key, d.claim, d.arguments, d.arguments_digest, d.result)
        for d in child.undo
    ]
    pivot = f"{node}>{child.pivot}" if child.pivot else ""
    return ChildEnded(node=node, run_id=child.run_id, made=made, pivot=pivot)


def is_started(hand: Hand, child: str) -> bool:
    """Whether there is a run to ask: the one that was to start it may have died before."""
    try:
        return hand.journal.log.head(child).seq > 0
    except UnknownTrajectory:
        return False


async def _close(hand: Hand, effect: Effect) -> None:
    """Bring an effect under way to an end without making it: gone, or on the stack."""
    match effect.status:
        case "happened" | "declined":
            return
        case "not_sent" if not effect.doubt_at_ms:
            await _give_up(hand, effect, "the run is being taken back; it was never made")
        case "unknown":
            raise Parked
        case _:
            await _settle(hand, effect)


async def _give_up(hand: Hand, effect: Effect, why: str) -> None:
    await hand.journal.write(
        EffectDelivered(node=effect.node, key=effect.key, status="declined", message=why), releases=(effect.claim,)
    )


async def _settle(hand: Hand, effect: Effect) -> None:
    wait = hand.record.waits.get(effect.node)
    if wait is not None and hand.clock.now_ms() < wait.at_ms:
        raise Parked
    calling = _calling(hand, effect)
    ruled, was_in_flight = await settlement(calling, effect, hand.journal.load(effect.arguments))
    match ruled:
        case Reconstructed(result):
            found = None if result is None else hand.journal.store(result)
            await hand.journal.write(
                EffectSettled(node=effect.node, key=effect.key, verdict="happened"),
                EffectDelivered(node=effect.node, key=effect.key, status="done", how="reconstructed", result=found),
            )
        case Resend() if calling.contract.has_probe and not was_in_flight:
            hand.journal.add(EffectSettled(node=effect.node, key=effect.key, verdict="not_happened"))
            await _give_up(hand, effect, "it was looked for and did not happen")
        case Resend() | ProbeLater() if calling.contract.has_probe:  # it may still arrive, and nobody sends it again
            at = effect.sent_at_ms + bound_ms(calling.contract)
            await hand.journal.write(TimerSet(node=effect.node, at_ms=at, why="probe"))
            raise Parked
        case Unknown(reason):
            await hand.journal.write(EffectUnknown(node=effect.node, key=effect.key, reason=reason))
            raise Parked
        case _:  # the other side remembers keys but cannot be asked, so nobody knows what there is to take back
            reason = "it may have been made, there is no probe, and sending it again would make it"
            await hand.journal.write(EffectUnknown(node=effect.node, key=effect.key, reason=reason))
            raise Parked


def _calling(hand: Hand, effect: Effect) -> Calling:
    for static, node in walk(hand.program.definition.body, hand.record.workflow):
        if isinstance(node, Call) and is_below(static, effect.node):
            code = hand.program.code[static]
            assert isinstance(code, CallCode)
            effector = hand.program.effectors[effect.capability]
            return Calling(hand, node, effect.node, static, effect.node.rpartition("/")[0], code, effector)
    raise AssertionError(f"no node of {hand.record.workflow} stands for the effect of {effect.node}")


async def _take_back(hand: Hand, standing: Standing) -> None:
    path = undo_node(standing.node)
    wait = hand.record.waits.get(path)
    if wait is not None and hand.clock.now_ms() < wait.at_ms:
        raise Parked
    before = hand.record.effects.get(path)
    if before is not None and before.status == "unknown":
        raise Pauses("CompensationFailed", f"nobody knows whether the effect of {standing.node} is taken back")
    if before is None or before.status != "happened":
        await _send(hand, standing, path, 1 if before is None else before.attempt + 1)
    await hand.journal.write(
        Compensated(node=standing.node, capability=standing.capability, key=undo_key(standing.key))
    )


async def _send(hand: Hand, standing: Standing, path: str, attempt: int) -> None:
    key = undo_key(standing.key)
    claim = f"{standing.capability}:{key}"
    await hand.journal.write(
        EffectQueued(
            node=path,
            capability=standing.capability,
            effect="keyed",
            key=key,
            claim=claim,
            arguments=standing.arguments,
            arguments_digest=standing.arguments_digest,
            sent_at_ms=hand.clock.now_ms(),
            attempt=attempt,
            compensates=standing.node,
        ),
        claims=(claim,),
    )
    outcome = await _perform(hand, standing, path, key, attempt)
    if isinstance(outcome, Done):
        result = None if outcome.result is None else hand.journal.store(outcome.result)
        hand.journal.add(EffectDelivered(node=path, key=key, status="done", result=result))
        return
    await _failed(hand, standing, path, key, outcome)


async def _perform(hand: Hand, standing: Standing, path: str, key: str, attempt: int) -> EffectOutcome:
    effector = hand.program.effector(standing.capability)
    record = hand.record
    timeout_ms = effector.contract.timeout_ms
    context = Context(
        record.run_id, path, key, attempt, timeout_ms, record.principal, record.tenant, Services(hand.shared.services)
    )
    arguments = hand.journal.load(standing.arguments)
    result = None if standing.result is None else hand.journal.load(standing.result)
    try:
        return Done(await within(timeout_ms, effector.compensate(context, arguments, result)))
    except EffectUnready as fault:
        why = said(f"the effect of {standing.node} is not taken back yet: {fault.message}")
        raise unready(hand, path, why) from fault
    except TimeoutError:
        return NotSent(f"the compensator of {standing.capability} gave no answer within {timeout_ms} ms")
    except Exception as error:  # noqa: BLE001  # a compensator may raise anything; the unwinding goes on or asks a person
        return outcome_of(error, "read")  # told twice is as good as once: whatever is not a no is tried again


async def _failed(hand: Hand, standing: Standing, path: str, key: str, outcome: EffectOutcome) -> None:
    attempt = hand.record.attempts.get(path, 0) + 1
    reason = getattr(outcome, "reason", "")
    pause = None
    if not isinstance(outcome, Declined):
        retry = hand.program.effector(standing.capability).contract.retry
        pause = retry.next_pause_ms(
            outcome if isinstance(outcome, NotSent) else NotSent(reason), attempt, hand.shared.chance()
        )
    if pause is not None:
        at = hand.clock.now_ms() + pause
        await hand.journal.write(
            NodeFailed(node=path, kind="transient", message=reason, attempt=attempt, retry_at_ms=at)
        )
        raise Parked
    kind = "declined" if isinstance(outcome, Declined) else "transient"
    await hand.journal.write(
        NodeFailed(node=path, kind=kind, message=reason, attempt=attempt),
        EffectUnknown(node=path, key=key, reason=f"it could not be taken back: {reason}"),
    )
    raise Pauses(
        "CompensationFailed", f"the effect of {standing.node} could not be taken back: {reason}", standing.node
    )
