"""People say yes to one exact action, or it does not happen.

A ticket is made from the call as it would be sent: capability, complete arguments, the state it rests on and the rules
that ask. Its decisions are verified when they come and again before the call, and the action is compared again too: a
yes to something else, or from someone who may no longer give it, is void and is asked anew (R126, D3). Silence is a no.
"""

from __future__ import annotations

from typing import Any

import msgspec

from setpoint.engine.runs.hand import Fails, Hand, Parked, run_code
from setpoint.engine.runs.program import ApprovalCode, CallCode, Guard, Values
from setpoint.kernel.errors import Fault
from setpoint.kernel.flow import Approval, ApprovalTerms, Call, Contract, exact, walk
from setpoint.kernel.keys import digest
from setpoint.kernel.quorum import Denied, Entitled, Expired, Granted, Waiting, rule_on
from setpoint.kernel.run_events import ApprovalRequested, ApprovalResolved, ApprovalSigned, LateResult
from setpoint.kernel.run_record import Ticketed
from setpoint.kernel.ticket import (
    Ticket,
    action_digest,
    read_signed,
    read_ticket,
    signed_bytes,
    ticket_bytes,
)
from setpoint.ports.approver import Rejected


async def require_approval(hand: Hand, contract: Contract, path: str, static: str, arguments: Values) -> None:
    """Return when the call may be sent. Parked while people decide; Fails when they said no, or nothing in time."""
    guard = hand.program.guards.get(static)
    if guard is None or not _is_needed(hand, guard, path):
        return None
    action = _Action(
        contract.name, contract.effect, exact(arguments), _base(hand, path, guard.into), _policy(hand, static, guard)
    )
    ticketed = _ticket_for(hand, path)
    if ticketed is None or ticketed.used or ticketed.outcome == "void":
        return await _ask(hand, path, action, guard.terms, _preview(hand, guard, path, action))
    if ticketed.action_digest != action.digest:
        return await _void(hand, ticketed, path, action, guard)
    await _rule(hand, ticketed)
    ticketed = _ticket_for(hand, path)
    assert ticketed is not None
    if ticketed.outcome == "granted":
        return await _check_again(hand, ticketed)
    return _refuse(path, ticketed)


async def approve(hand: Hand, node: Approval, path: str, static: str) -> Values:
    """Do an approval node. The values are its answer, where the workflow wants to see it."""
    code = hand.program.code[static]
    assert isinstance(code, ApprovalCode)
    if code.needed is not None and not run_code(
        hand, path, "the condition", code.needed, hand.state_at(path), hand.input
    ):
        return {}
    ticketed = hand.record.tickets.get(path)
    if ticketed is None:
        covers = covered(node.of, path) if node.of else ""
        return await _ask(hand, path, *_what_for(hand, node, path, static, code), covers=covers)
    await _rule(hand, ticketed)
    ticketed = hand.record.tickets[path]
    if ticketed.outcome == "granted" or node.into:
        answer = {"outcome": ticketed.outcome, "by": list(ticketed.by), "reason": ticketed.reason}
        return run_code(hand, path, "the answer", code.absorb, hand.state_at(path), answer)
    return _refuse(path, ticketed)


class _Action(msgspec.Struct, frozen=True):
    capability: str
    effect: Any
    arguments: Any
    base: str
    policy: str

    @property
    def digest(self) -> str:
        return action_digest(self.capability, self.arguments, self.base, self.policy)


def _what_for(
    hand: Hand, node: Approval, path: str, static: str, code: ApprovalCode
) -> tuple[_Action, ApprovalTerms, str]:
    """What an approval node asks people for: the call it stands for as it would be now, or going on from here."""
    state = hand.state_at(path)
    if not node.of:
        shown = exact(run_code(hand, path, "the subject", code.show, state, hand.input))
        action = _Action(node.name, "pure", shown, digest(exact(state)), digest(msgspec.to_builtins(node.terms)))
        text = "" if code.preview is None else str(run_code(hand, path, "the preview", code.preview, state, hand.input))
        return action, node.terms, text or _words(action)
    guard = hand.program.guards[node.of]
    called = hand.program.code[node.of]
    assert isinstance(called, CallCode)
    arguments = run_code(hand, path, "the arguments", called.arguments, state, hand.input)
    capability = _contract_at(hand, node.of)
    action = _Action(
        capability.name,
        capability.effect,
        exact(arguments),
        _base(hand, path, node.into),
        _policy(hand, node.of, guard),
    )
    return action, node.terms, _preview(hand, guard, path, action)


def _contract_at(hand: Hand, static: str) -> Contract:
    for at, node in walk(hand.program.definition.body, hand.record.workflow):
        if at == static and isinstance(node, Call):
            return node.capability
    raise AssertionError(f"{static} is no call; the definition was checked for that")


def _is_needed(hand: Hand, guard: Guard, path: str) -> bool:
    if guard.needed is None:
        return True
    return bool(run_code(hand, path, "the condition", guard.needed, hand.state_at(path), hand.input))


def _base(hand: Hand, path: str, into: str) -> str:
    """The state an approval rests on: all of it, but for the field that receives the answer."""
    state = hand.state_at(path)
    state.pop(into, None)
    return digest(exact(state))


def _policy(hand: Hand, static: str, guard: Guard) -> str:
    """The rules that ask. Not the definition as a whole: a deploy that changes none of them voids nothing."""
    return digest([static, msgspec.to_builtins(guard.terms)])


def _preview(hand: Hand, guard: Guard, path: str, action: _Action) -> str:
    if guard.preview is None:
        return _words(action)
    return str(run_code(hand, path, "the preview", guard.preview, hand.state_at(path), hand.input))


def _words(action: _Action) -> str:
    shown = ", ".join(f"{name}={value!r}" for name, value in action.arguments.items()) if action.arguments else ""
    return f"{action.capability}({shown})"


def _ticket_for(hand: Hand, path: str) -> Ticketed | None:
    """The ticket of a call: asked for at the call itself, or ahead of it by the approval node that names it."""
    own = hand.record.tickets.get(path)
    return own if own is not None else hand.record.answered.get(path)


def covered(of: str, path: str) -> str:
    """The path of the call that an approval node at ``path`` stands for: in the same rounds."""
    here = path.split("/")
    return "/".join(here[at] if name == "*" else name for at, name in enumerate(of.split("/")))


async def _ask(hand: Hand, path: str, action: _Action, terms: ApprovalTerms, preview: str, covers: str = "") -> Any:
    now = hand.clock.now_ms()
    record = hand.record
    ticket = Ticket(
        ticket_id=hand.clock.new_id("ap"),
        stream=record.run_id,
        name=record.workflow,
        node=path,
        capability=action.capability,
        effect=action.effect,
        target=preview,
        authority=", ".join(record.scopes_held) or (record.principal or record.workflow),
        arguments=action.arguments,
        preview=preview,
        preconditions=(),
        base_digest=action.base,
        definition_digest=record.definition_digest,
        policy_digest=action.policy,
        requester=record.principal or f"workflow:{record.workflow}",
        by=terms.by,
        quorum=terms.quorum,
        each_role=terms.each_role,
        requested_at_ms=now,
        expires_at_ms=now + terms.expires_ms,
        budget=f"{record.effects_made} effects made so far",
        nonce=hand.clock.new_id("nonce"),
    )
    await hand.journal.write(
        ApprovalRequested(
            node=path,
            ticket_id=ticket.ticket_id,
            ticket=hand.journal.store_bytes(ticket_bytes(ticket)),
            action_digest=action.digest,
            expires_at_ms=ticket.expires_at_ms,
            covers=covers,
        )
    )
    raise Parked


async def _void(hand: Hand, ticketed: Ticketed, path: str, action: _Action, guard: Guard) -> None:
    """What was asked is not what would be done now: nothing anybody said about it counts, and it is asked anew."""
    reason = "what would be done now is not what was asked: arguments, state or rules have changed since"
    hand.journal.add(ApprovalResolved(node=ticketed.node, ticket_id=ticketed.ticket_id, outcome="void", reason=reason))
    await _ask(hand, path, action, guard.terms, _preview(hand, guard, path, action))


async def _rule(hand: Hand, ticketed: Ticketed) -> None:
    """Record what the decisions amount to now. Parked while that is nothing yet."""
    if ticketed.outcome:
        return
    ticket = read_ticket(hand.journal.load_bytes(ticketed.ticket))
    outcome, by, reason = "", [], ""
    match rule_on(ticket, _entitled(hand, ticketed, ticket), hand.clock.now_ms()):
        case Waiting():
            raise Parked
        case Granted(by=people):
            outcome, by = "granted", list(people)
        case Denied(by=person, reason=why):
            outcome, by, reason = "denied", [person], why
        case Expired():
            outcome, reason = "expired", "APPROVAL_EXPIRED: nobody said enough in time, and silence is a no"
    await hand.journal.write(
        ApprovalResolved(node=ticketed.node, ticket_id=ticketed.ticket_id, outcome=outcome, by=by, reason=reason)
    )


def _entitled(hand: Hand, ticketed: Ticketed, ticket: Ticket) -> list[Entitled]:
    found: list[Entitled] = []
    for ref in ticketed.decisions:
        answer = hand.approvers.verify(read_signed(hand.journal.load_bytes(ref)), ticket)
        if isinstance(answer, Entitled):
            found.append(answer)
    return found


async def _check_again(hand: Hand, ticketed: Ticketed) -> None:
    """Just before the call: the yes must still hold. A key that was withdrawn, or a time that is up, is a no."""
    ticket = read_ticket(hand.journal.load_bytes(ticketed.ticket))
    if not isinstance(rule_on(ticket, _entitled(hand, ticketed, ticket), hand.clock.now_ms()), Granted):
        reason = "the approval no longer holds: it has expired, or a key that gave it is no longer trusted"
        await hand.journal.write(
            ApprovalResolved(node=ticketed.node, ticket_id=ticketed.ticket_id, outcome="expired", reason=reason)
        )
        raise Fails("ApprovalExpired", f"{ticketed.node}: {reason}", 12)


def _refuse(path: str, ticketed: Ticketed) -> Any:
    if ticketed.outcome == "denied":
        who = ", ".join(ticketed.by)
        why = f": {ticketed.reason}" if ticketed.reason else ""
        raise Fails("ApprovalDenied", f"{path} was denied by {who}{why}", 12)
    raise Fails("ApprovalExpired", f"{path}: {ticketed.reason}", 12)


def read_decision(hand: Hand, wire: str, position: int) -> None:
    """Record a signed decision that came by the inbox, and whether it counts."""
    try:
        signed = read_signed(wire.encode())
    except Fault as fault:
        hand.journal.add(LateResult(key="", position=position, reason=f"not a decision: {fault.message}"))
        return
    decision = signed.decision
    ticketed = next((t for t in hand.record.open_tickets if t.ticket_id == decision.ticket_id), None)
    if ticketed is None:
        reason = f"no approval {decision.ticket_id} is open in this run"
        hand.journal.add(LateResult(key=decision.ticket_id, position=position, reason=reason))
        return
    ticket = read_ticket(hand.journal.load_bytes(ticketed.ticket))
    answer = hand.approvers.verify(signed, ticket)
    hand.journal.add(
        ApprovalSigned(
            ticket_id=decision.ticket_id,
            by=decision.by,
            verdict=decision.verdict,
            decision=hand.journal.store_bytes(signed_bytes(signed)),
            position=position,
            counts=isinstance(answer, Entitled),
            why=answer.message if isinstance(answer, Rejected) else "",
        )
    )
