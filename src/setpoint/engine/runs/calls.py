"""Call a capability so that its effect happens once, or nobody has to guess.

    gate -> intent and claim, durable -> send -> result and the node's completion, durable

An intent without a result is in doubt. It is settled before anything else is done at that node: by the probe, by the
other side's memory of the key, or by a person (law L6). The intent, the claim on the key and the state are one
transaction, and sending comes after it, so a crash before it sends nothing and a crash after it is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from setpoint.engine.runs.approving import require_approval, ticket_for, would_ask
from setpoint.engine.runs.claims import conflict, held
from setpoint.engine.runs.hand import Fails, Hand, Parked, Pauses, bug, run_code, unready
from setpoint.engine.runs.program import CallCode, Values
from setpoint.kernel import limits
from setpoint.kernel.effects import (
    Declined,
    Done,
    EffectOutcome,
    EffectUnready,
    Happened,
    InDoubt,
    NotSent,
    ProbeAnswer,
    ProbeLater,
    Reconstructed,
    Resend,
    ResultUnfit,
    Settlement,
    Unknown,
    lease_bound_ms,
    of_the_effect,
    outcome_of,
    said,
    settle,
)
from setpoint.kernel.errors import DuplicateEffect, StatementRefused
from setpoint.kernel.events import Event, Ref
from setpoint.kernel.flow import Call, Contract, exact
from setpoint.kernel.keys import call_key
from setpoint.kernel.retry import Breaker, CircuitOpen
from setpoint.kernel.run_events import (
    EffectDelivered,
    EffectPending,
    EffectQueued,
    EffectReused,
    EffectSettled,
    EffectUnknown,
    NodeCompleted,
    NodeFailed,
    TimerSet,
)
from setpoint.kernel.run_record import Effect
from setpoint.ports.effector import Context, Effector, Later, ServiceMissing, Services

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unready:
    """The capability could not begin. ``is_certain``: surely nothing was sent."""

    reason: str
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Unfit:
    """It was done, and its result is of no use; ``kept`` is what there is of it."""

    reason: str
    kept: Any


Outcome = EffectOutcome | Later | Unready | Unfit
"""What one dispatch came to."""


@dataclass(slots=True)
class Calling:
    """One call under way."""

    hand: Hand
    node: Call
    path: str
    static: str
    block: str
    code: CallCode
    effector: Effector

    @property
    def contract(self) -> Contract:
        return self.node.capability

    @property
    def effect(self) -> Effect | None:
        return self.hand.record.effects.get(self.path)

    @property
    def failures(self) -> int:
        """Attempts that came to nothing. A crash is not one of them."""
        return self.hand.record.attempts.get(self.path, 0)

    def context(self, key: str, attempt: int) -> Context:
        record = self.hand.record
        return Context(
            record.run_id,
            self.path,
            key,
            attempt,
            self.contract.timeout_ms,
            record.principal,
            record.tenant,
            Services(self.hand.shared.services),
        )


async def call(hand: Hand, node: Call, path: str, static: str, block: str) -> None:
    """Do the node, from wherever its effect stands. Parked when it waits for a time, a report or a person."""
    code = hand.program.code[static]
    assert isinstance(code, CallCode)
    effector = hand.program.effectors[node.capability.name]
    calling = Calling(hand, node, path, static, block, code, effector)
    effect = calling.effect
    if effect is None:
        return await _first(calling)
    match effect.status:
        case "happened":
            return await _stands(calling, effect)
        case "declined":  # whoever recorded it died before the run was taken back
            raise Fails("Declined", f"{path}: {effect.message}")
        case "unknown":
            raise Parked
        case _:
            pass
    wait = hand.record.waits.get(path)
    if wait is not None and hand.clock.now_ms() < wait.at_ms:
        raise Parked
    if is_in_doubt(effect):
        await _settle(calling, effect)
        effect = calling.effect
        if effect is None:  # it happened, and the node is done
            return None
    if not await _may_send(calling, effect):
        return None
    arguments = hand.journal.load(effect.arguments)
    return await _send(calling, arguments, effect.key, effect.claim, again=effect)


def is_in_doubt(effect: Effect) -> bool:
    """Sent, or about to be, and nothing known of it."""
    return effect.status in ("queued", "pending")


async def _first(calling: Calling) -> None:
    hand, contract = calling.hand, calling.contract
    wait = hand.record.waits.get(calling.path)
    if wait is not None and wait.kind == "retry" and hand.clock.now_ms() < wait.at_ms:
        raise Parked
    arguments = _arguments(calling)
    _require_scopes(calling)
    _require_precondition(calling)
    if not contract.is_effect:
        await require_approval(hand, contract, calling.path, calling.static, arguments)
        return await _look(calling, arguments)
    own = run_code(hand, calling.path, "the key", calling.effector.key, arguments)
    key = own or call_key(hand.run_id, 0, 0, calling.path, exact(arguments))
    claim = f"{contract.name}:{key}"
    if own and would_ask(hand, calling.path, calling.static):  # nobody is asked for what will not be done
        holder = hand.journal.log.claimant(claim)
        if holder is not None and holder != hand.run_id:
            return await _reuse(calling, hand.journal.store(arguments), key, claim, holder)
    await require_approval(hand, contract, calling.path, calling.static, arguments)
    return await _send(calling, arguments, key, claim)


def _arguments(calling: Calling) -> Values:
    """From the state. What does not fit the capability is a bug of the definition, and nothing is sent."""
    state = calling.hand.state_at(calling.path)
    return run_code(calling.hand, calling.path, "the arguments", calling.code.arguments, state, calling.hand.input)


def _require_scopes(calling: Calling) -> None:
    held = calling.hand.record.scopes_held
    missing = [scope for scope in calling.contract.scopes if scope not in held]
    if missing:
        message = (
            f"{calling.contract.name} needs {', '.join(missing)}, which {calling.hand.record.principal or 'this run'} "
            "does not hold; nothing was sent"
        )
        _refuse(calling, "Forbidden", message)


def _require_precondition(calling: Calling) -> None:
    if calling.code.precondition is None:
        return
    state = calling.hand.state_at(calling.path)
    holds = run_code(
        calling.hand, calling.path, "the precondition", calling.code.precondition, state, calling.hand.input
    )
    if holds is not True and holds is not None:
        why = f": {holds}" if isinstance(holds, str) else ""
        _refuse(
            calling, "PreconditionUnmet", f"the precondition of {calling.path} does not hold{why}; nothing was sent"
        )


def _refuse(calling: Calling, reason: str, message: str) -> None:
    calling.hand.journal.add(NodeFailed(node=calling.path, kind="refused", message=message))
    raise Fails(reason, message, 12)


# Looking


async def _look(calling: Calling, arguments: Values) -> None:
    """A read is recorded after it happened: it has no intent, no claim, and may simply be done again."""
    attempt = calling.failures + 1
    if attempt > calling.contract.retry.attempts:  # whoever recorded the last one died before the run was taken back
        raise Fails("AttemptsExhausted", f"{calling.path} failed {attempt - 1} times")
    _admit(calling)
    outcome, _ = await _perform(calling, arguments, "", attempt)
    match outcome:
        case Done(result):
            await _complete(calling, result)
        case Declined(reason):
            calling.hand.journal.add(NodeFailed(node=calling.path, kind="declined", message=reason, attempt=attempt))
            raise Fails("Declined", f"{calling.path}: {reason}")
        case NotSent() | InDoubt():
            await _again(calling, NotSent(outcome.reason, getattr(outcome, "retry_after_ms", None)), attempt)
        case Unready(reason):
            raise unready(calling.hand, calling.path, f"{calling.path}: {reason}")
        case Unfit(reason):
            raise bug(calling.hand, calling.path, f"{calling.path}: {reason}")
        case Later():
            raise Pauses("NodeFailed", f"{calling.contract.name} is a read and cannot report later", calling.path)


# Sending


async def _send(calling: Calling, arguments: Values, key: str, claim: str, *, again: Effect | None = None) -> None:
    """Intent, then the other side, then what came of it. ``again``: the effect of an earlier attempt, which has the
    claim already."""
    hand, contract = calling.hand, calling.contract
    attempt = 1 if again is None else again.attempt + 1
    _admit(calling)
    encoded = hand.journal.store(arguments)
    ticket = ticket_for(hand, calling.path)
    intent = EffectQueued(
        node=calling.path,
        capability=contract.name,
        effect=contract.effect,
        key=key,
        claim=claim,
        arguments=encoded,
        arguments_digest=encoded.ref,
        sent_at_ms=hand.clock.now_ms(),
        attempt=attempt,
        doubt_at_ms=0 if again is None else again.doubt_at_ms,
        compensator=contract.name if contract.has_compensator else "",
        ticket_id=ticket.ticket_id if ticket is not None and ticket.outcome == "granted" else "",
    )
    began_ms = hand.clock.monotonic_ms()
    context = calling.context(key, attempt)
    statements = run_code(hand, calling.path, "the statements", calling.effector.statements, context, arguments)
    try:
        if statements is not None:
            return await _with_the_log(calling, intent, statements, is_first=again is None)
        await hand.journal.write(intent, claims=(claim,), is_first=again is None)
    except DuplicateEffect as fault:
        return await _reuse(calling, encoded, key, claim, fault.holder)
    # How long it may still arrive is counted from the intent: what the store takes of that time, the call has less.
    held_up_ms = hand.clock.monotonic_ms() - began_ms
    outcome, took_ms = await _perform(calling, arguments, key, attempt, held_up_ms)
    return await _record(calling, outcome, intent, took_ms)


async def _with_the_log(calling: Calling, intent: EffectQueued, statements: Any, *, is_first: bool) -> None:
    """Rows of the same database: intent, effect and result are one transaction, and there is no doubt to settle."""
    kept, refs = calling.hand.journal.spill(_absorbed(calling, None))
    try:
        await calling.hand.journal.write(
            intent,
            EffectDelivered(node=calling.path, key=intent.key, status="done"),
            NodeCompleted(node=calling.path, block=calling.block, values=kept, refs=refs),
            claims=(intent.claim,),
            statements=statements,
            is_first=is_first,
        )
    except StatementRefused as fault:
        calling.hand.journal.add(NodeFailed(node=calling.path, kind="declined", message=fault.message))
        raise Fails("Declined", f"{calling.path}: {fault.message}") from fault


async def _perform(
    calling: Calling, arguments: Values, key: str, attempt: int, held_up_ms: int = 0
) -> tuple[Outcome, int]:
    """One dispatch, under what is left of its timeout. Whatever comes of it is an outcome; only cancellation passes
    through."""
    hand, contract = calling.hand, calling.contract
    left_ms = contract.timeout_ms - held_up_ms
    if left_ms <= 0:
        return NotSent(f"{contract.name} was held up for {held_up_ms} ms before it could be sent", is_up=True), 0
    began = hand.clock.monotonic_ms()
    outcome: Outcome
    services = Services(hand.shared.services)
    try:
        context = replace(calling.context(key, attempt), timeout_ms=left_ms, services=services)
        result = await within(left_ms, calling.effector.perform(context, arguments))
        outcome = result if isinstance(result, Later) else Done(result)
    except TimeoutError:
        reason = f"{contract.name} gave no answer within {left_ms} ms"
        outcome = InDoubt(reason) if contract.is_effect else NotSent(reason)
    except EffectUnready as fault:
        has_begun = isinstance(fault, ServiceMissing) and services.are_used
        return Unready(said(fault.message), is_certain=not has_begun), hand.clock.monotonic_ms() - began
    except ResultUnfit as fault:
        outcome = Unfit(said(fault.message), fault.kept)
    except Exception as error:  # noqa: BLE001  # a capability may raise anything, and none of it may end the worker
        outcome = outcome_of(error, contract.effect)
    _heard(calling, Done(None) if isinstance(outcome, (Later, Unfit)) else outcome)
    return outcome, hand.clock.monotonic_ms() - began


async def within(ms: int, code: Awaitable[T]) -> T:
    """What an author's coroutine gives, TimeoutError when its time is up.

    A cancellation that nobody asked this task for (of something the coroutine waited for) is an error of the
    coroutine's. Passed on, it would end the work on the run as if its owner had died, again and again.
    """
    try:
        async with asyncio.timeout(ms / 1000):
            return await code
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("what it waited for was cancelled") from error


async def _record(calling: Calling, outcome: Outcome, intent: EffectQueued, took_ms: int) -> None:
    hand, path, attempt = calling.hand, calling.path, calling.failures + 1
    key, claim = intent.key, intent.claim
    asked_for = getattr(outcome, "retry_after_ms", None)
    effect = calling.effect
    assert effect is not None
    if effect.status == "happened":  # its report was quicker than its reply
        await _stands(calling, effect)
        return
    if not isinstance(outcome, (Later, Unready, Unfit)):
        outcome = of_the_effect(
            outcome,
            is_earlier_in_doubt=intent.doubt_at_ms > 0,
            was_in_flight=intent.sent_at_ms - intent.doubt_at_ms < bound_ms(calling.contract),
        )
    match outcome:
        case Done(result):
            await _delivered(calling, key, result, "reply", took_ms)
        case Declined(reason):
            await hand.journal.write(
                EffectDelivered(node=path, key=key, status="declined", message=reason, duration_ms=took_ms),
                NodeFailed(node=path, kind="declined", message=reason, attempt=attempt),
                releases=(claim,),
            )
            raise Fails("Declined", f"{path}: {reason}")
        case NotSent():
            hand.journal.add(EffectDelivered(node=path, key=key, status="not_sent", message=outcome.reason))
            await _again(calling, outcome, attempt)
        case InDoubt(reason):
            hand.journal.add(NodeFailed(node=path, kind="in_doubt", message=reason, attempt=attempt))
            await _settle(calling, effect)
            if calling.effect is not None:
                await _again(calling, NotSent(reason, asked_for), attempt)
        case Unready(reason, is_certain):
            if is_certain and not intent.doubt_at_ms:  # else whoever resumes the run settles it first
                hand.journal.add(EffectDelivered(node=path, key=key, status="not_sent", message=reason))
            raise unready(hand, path, f"{path}: {reason}")
        case Unfit(reason, kept):
            found = None if kept is None else hand.journal.store(kept)
            await hand.journal.write(
                EffectDelivered(node=path, key=key, status="done", result=found, duration_ms=took_ms)
            )
            raise bug(hand, path, f"{path}: {reason}; {_mended_by(hand, key)}")
        case Later(within_ms):
            await hand.journal.write(EffectPending(node=path, key=key, until_ms=hand.clock.now_ms() + within_ms))
            raise Parked


async def _again(calling: Calling, outcome: NotSent, attempt: int) -> None:
    """Another attempt after a pause, by a durable timer, or the end when there were enough."""
    hand, path = calling.hand, calling.path
    pause = calling.contract.retry.next_pause_ms(outcome, attempt, hand.shared.chance())
    kind = "rate_limited" if outcome.retry_after_ms is not None else "transient"
    at = 0 if pause is None else hand.clock.now_ms() + pause
    failed = NodeFailed(node=path, kind=kind, message=outcome.reason, attempt=attempt, retry_at_ms=at)
    if pause is not None:
        await hand.journal.write(failed)
        raise Parked
    hand.journal.add(failed)
    effect = calling.effect
    if effect is None:
        raise Fails("AttemptsExhausted", f"{path} failed {attempt} times, the last time: {outcome.reason}")
    await _may_send(calling, effect)


async def _may_send(calling: Calling, effect: Effect) -> bool:
    """Whether there are attempts left for an effect that may be sent again; False when it turns out that it happened.

    The end of one that surely was not made gives its key back and fails the run. One in doubt is looked for once more
    when nothing can arrive any more; without a probe it is for a person to settle.
    """
    hand, path, made = calling.hand, calling.path, calling.failures
    if made < calling.contract.retry.attempts:
        return True
    if effect.doubt_at_ms and calling.contract.has_probe:
        arrived_ms = effect.doubt_at_ms + bound_ms(calling.contract)
        if hand.clock.now_ms() < arrived_ms:
            await hand.journal.write(TimerSet(node=path, at_ms=arrived_ms, why="probe"))
            raise Parked
        await _settle(calling, effect)
        if calling.effect is None:
            return False
    elif effect.doubt_at_ms:
        reason = f"{made} attempts told nothing for certain"
        await hand.journal.write(EffectUnknown(node=path, key=effect.key, reason=reason))
        raise Parked
    await hand.journal.write(releases=(effect.claim,))
    last = f", the last time: {effect.message}" if effect.message else ""
    raise Fails("AttemptsExhausted", f"{path} failed {made} times{last}")


async def _delivered(calling: Calling, key: str, result: Any, how: str, took_ms: int = 0, *before: Event) -> None:
    """The effect stands. Its result and the node's completion go down together."""
    hand, path = calling.hand, calling.path
    encoded = None if result is None else hand.journal.store(result)
    delivered = EffectDelivered(node=path, key=key, status="done", how=how, result=encoded, duration_ms=took_ms)
    try:
        values = _absorbed(calling, result)
    except (Pauses, Fails):
        await hand.journal.write(*before, delivered)  # it happened, whatever the state makes of it
        raise
    kept, refs = hand.journal.spill(values)
    await hand.journal.write(*before, delivered, NodeCompleted(node=path, block=calling.block, values=kept, refs=refs))


async def _stands(calling: Calling, effect: Effect) -> None:
    """The effect is on record; what is left is the node's completion."""
    await _complete(calling, None if effect.result is None else calling.hand.journal.load(effect.result))


async def _complete(calling: Calling, result: Any) -> None:
    kept, refs = calling.hand.journal.spill(_absorbed(calling, result))
    await calling.hand.journal.write(NodeCompleted(node=calling.path, block=calling.block, values=kept, refs=refs))


def _absorbed(calling: Calling, result: Any) -> Values:
    """What the result changes. One of an effect that stands and does not fit the state is for a person to give."""
    state = calling.hand.state_at(calling.path)
    try:
        return run_code(calling.hand, calling.path, "the result", calling.code.absorb, state, result)
    except Pauses as stop:
        effect = calling.effect
        if effect is None:
            raise
        raise Pauses(stop.reason, f"{stop.message}; {_mended_by(calling.hand, effect.key)}", stop.node) from stop


def _mended_by(hand: Hand, key: str) -> str:
    return (
        "the effect was made and is not sent again; say what its result is with "
        f"`setpoint effects settle {key} --happened --result JSON --run {hand.run_id}`, and the run goes on"
    )


async def _reuse(calling: Calling, arguments: Ref, key: str, claim: str, holder: str) -> None:
    """Another run, or node of this one, holds the key: its stored result, when it did the same; a conflict when not, or
    not yet (R138). A node waits for one of its own run that is not done."""
    hand, path = calling.hand, calling.path
    others = [effect for node, effect in hand.record.effects.items() if node != path and effect.claim == claim]
    if holder == hand.run_id and any(effect.status not in ("happened", "declined") for effect in others):
        raise Parked
    found = held(hand, claim, key, holder)
    if not found.is_same(arguments):
        raise conflict(hand, path, found)
    result = None if found.result is None else hand.journal.load(found.result)
    kept, refs = hand.journal.spill(_absorbed(calling, result))
    await hand.journal.write(
        EffectReused(node=path, key=key, holder=holder),
        NodeCompleted(node=path, block=calling.block, values=kept, refs=refs),
    )


# Settling


async def _settle(calling: Calling, effect: Effect) -> None:
    """Settle an effect in doubt. Afterwards it happened (and the node is done), or it is free to be sent again, with
    what doubt is left (``doubt_at_ms``). Parked when it is too early to tell, when the probe could not look, or when
    only a person can say.
    """
    hand, path = calling.hand, calling.path
    arguments = hand.journal.load(effect.arguments)
    ruled, was_in_flight = await settlement(calling, effect, arguments)
    now = calling.effect
    if now is not None and now.status == "happened":  # a report came while the probe looked
        await _stands(calling, now)
        return
    match ruled:
        case Reconstructed(result):
            settled = EffectSettled(node=path, key=effect.key, verdict="happened")
            await _delivered(calling, effect.key, result, "reconstructed", 0, settled)
        case Resend():
            is_certain = calling.contract.has_probe and not was_in_flight
            verdict = "not_happened" if is_certain else "resend"
            hand.journal.add(EffectSettled(node=path, key=effect.key, verdict=verdict))
        case ProbeLater():
            at = effect.sent_at_ms + bound_ms(calling.contract)
            await hand.journal.write(TimerSet(node=path, at_ms=at, why="probe"))
            raise Parked
        case Unknown(reason):
            await hand.journal.write(EffectUnknown(node=path, key=effect.key, reason=reason))
            raise Parked
        case _ as stands:
            raise AssertionError(f"{stands} cannot be the answer to a doubt")


async def settlement(calling: Calling, effect: Effect, arguments: Values) -> tuple[Settlement, bool]:
    """Look, and rule; also whether the attempt could still arrive. Parked when the probe could not look: it is asked
    again after a pause."""
    contract = calling.contract
    elapsed = calling.hand.clock.now_ms() - effect.sent_at_ms
    was_in_flight = elapsed < bound_ms(contract)
    answer: ProbeAnswer | None = None
    if contract.has_probe:
        answer = await _probed(calling, effect, arguments)
    ruled = settle("in_doubt", answer, contract.effect, dedups=contract.dedups, is_in_flight=was_in_flight)
    return ruled, was_in_flight


def bound_ms(contract: Contract) -> int:
    return lease_bound_ms(contract.timeout_ms, limits.EFFECT_SKEW_MS, contract.worst_ms)


async def _probed(calling: Calling, effect: Effect, arguments: Values) -> ProbeAnswer:
    hand, path, contract = calling.hand, calling.path, calling.contract
    try:
        context = calling.context(effect.key, effect.attempt)
        return await within(contract.timeout_ms, calling.effector.probe(context, arguments))
    except EffectUnready as fault:
        raise unready(hand, path, said(f"the probe of {path} could not look: {fault.message}")) from fault
    except ResultUnfit as fault:  # it found something: the effect happened
        return Happened(fault.kept)
    except Exception as error:  # a probe that cannot look says nothing about the effect
        attempt = calling.failures + 1
        reason = said(f"the probe of {path} could not look: {type(error).__name__}: {error}")
        pause = contract.retry.next_pause_ms(NotSent(reason), attempt, hand.shared.chance())
        if pause is None:
            await hand.journal.write(
                NodeFailed(node=path, kind="transient", message=reason, attempt=attempt),
                EffectUnknown(node=path, key=effect.key, reason=reason),
            )
            raise Parked from error
        at = hand.clock.now_ms() + pause
        await hand.journal.write(
            NodeFailed(node=path, kind="transient", message=reason, attempt=attempt, retry_at_ms=at)
        )
        raise Parked from error


# Health and rate


def _admit(calling: Calling) -> None:
    """Rate and breaker. A call that may not go now waits by a durable timer; nothing was sent."""
    hand, contract = calling.hand, calling.contract
    now = hand.clock.now_ms()
    shared = hand.shared
    if contract.rate is not None:
        wait = contract.rate.wait_ms(shared.sent_at.get(contract.name, ()), now)
        if wait:
            _later(
                calling, now + wait, "rate_limited", f"{contract.name} is at its rate of {contract.rate.calls} calls"
            )
    dependency = contract.dependency
    if dependency:
        match shared.breakers.get(dependency, Breaker(dependency)).admit(now):
            case CircuitOpen() as refusal:
                _later(calling, now + refusal.left_ms, "circuit_open", refusal.message)
            case Breaker() as breaker:
                shared.breakers[dependency] = breaker
    if contract.rate is not None:
        shared.sent_at[contract.name] = contract.rate.kept(shared.sent_at.get(contract.name, ()), now)


def _later(calling: Calling, at_ms: int, kind: str, message: str) -> None:
    attempt = calling.failures
    calling.hand.journal.add(
        NodeFailed(node=calling.path, kind=kind, message=message, attempt=attempt, retry_at_ms=at_ms)
    )
    raise Parked


def _heard(calling: Calling, outcome: EffectOutcome) -> None:
    dependency = calling.contract.dependency
    if dependency:
        breakers = calling.hand.shared.breakers
        breaker = breakers.get(dependency, Breaker(dependency))
        breakers[dependency] = breaker.after(outcome, calling.hand.clock.now_ms())
