"""People say yes to one exact action, or it does not happen.

A ticket is made from the call as it would be sent: capability, complete arguments, the state it rests on and the rules
that ask. Its decisions are verified when they come and again before the call, and the action is compared again too: a
yes to something else, or from someone who may no longer give it, is void and is asked anew (R126, D3). Silence is a no.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import msgspec

from setpoint.engine.runs.claims import conflict, held
from setpoint.engine.runs.hand import Fails, Hand, Parked, run_code
from setpoint.engine.runs.program import ApprovalCode, CallCode, Guard, Reading, Values
from setpoint.kernel.effects import EffectClass
from setpoint.kernel.errors import Fault
from setpoint.kernel.flow import Approval, ApprovalTerms, Call, Contract, exact, in_same_rounds, walk
from setpoint.kernel.keys import digest
from setpoint.kernel.limits import APPROVAL_TICKET_BYTES_MAX
from setpoint.kernel.quorum import Denied, Entitled, Expired, Granted, Waiting, rule_on
from setpoint.kernel.run_events import ApprovalRequested, ApprovalResolved, ApprovalSigned, LateResult
from setpoint.kernel.run_record import RunRecord, Ticketed
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
    ticketed = ticket_for(hand, path)
    if ticketed is not None and ticketed.outcome in ("denied", "expired"):
        return _refuse(path, ticketed)  # a no stands, whatever has changed since
    asked = _of_call(hand, contract, path, static, guard, arguments)
    if ticketed is None or ticketed.used or ticketed.outcome == "void":
        return await _ask(hand, path, asked)
    if ticketed.action_digest != asked.digest:
        return await _void(hand, ticketed, path, asked, _CHANGED)
    await _rule(hand, ticketed)
    ticketed = ticket_for(hand, path)
    assert ticketed is not None
    if ticketed.outcome == "granted":
        return await _check_again(hand, ticketed, path, asked)
    return _refuse(path, ticketed)


def would_ask(hand: Hand, path: str, static: str) -> bool:
    """Whether people are yet to be asked for the call: it needs them, and what they said before does not count."""
    guard = hand.program.guards.get(static)
    if guard is None or not _is_needed(hand, guard, path):
        return False
    ticketed = ticket_for(hand, path)
    return ticketed is None or ticketed.used or ticketed.outcome == "void"


async def approve(hand: Hand, node: Approval, path: str, static: str) -> Values:
    """Do an approval node. The values are its answer, where the workflow wants to see it."""
    code = hand.program.code[static]
    assert isinstance(code, ApprovalCode)
    if code.needed is not None and not run_code(
        hand, path, "the condition", code.needed, hand.state_at(path), hand.input
    ):
        return {}
    ticketed = hand.record.tickets.get(path)
    covers = in_same_rounds(node.of, path) if node.of else ""
    assert covers is not None, f"{path} stands for a call in other rounds; the definition was checked for that"
    if ticketed is None or not ticketed.outcome or ticketed.outcome == "void":
        asked = _what_for(hand, node, path, code)
        if ticketed is None or ticketed.outcome == "void":
            if node.of and not node.into and _is_made(hand, node.of, path):
                return {}
            return await _ask(hand, path, asked, covers)
        if ticketed.action_digest != asked.digest:
            return await _void(hand, ticketed, path, asked, _CHANGED, covers)
        await _rule(hand, ticketed)
        ticketed = hand.record.tickets[path]
    if ticketed.outcome == "granted" or node.into:
        answer = {"outcome": ticketed.outcome, "by": list(ticketed.by), "reason": ticketed.reason}
        return run_code(hand, path, "the answer", code.absorb, hand.state_at(path), answer)
    return _refuse(path, ticketed)


_CHANGED = "what would be done now is not what was asked: arguments, state or rules have changed since"
_WITHDRAWN = "a key that gave the approval is no longer trusted"


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What people are asked: the exact action, who may answer, and what they are told of it."""

    capability: str
    effect: EffectClass
    arguments: Any
    base: str
    policy: str
    terms: ApprovalTerms
    target: str
    preview: str
    preconditions: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return action_digest(self.capability, self.arguments, self.base, self.policy)


def _of_call(hand: Hand, contract: Contract, path: str, static: str, guard: Guard, arguments: Values) -> _Asked:
    """The call of the node at ``static`` as it would be made from where ``path`` is."""
    code = hand.program.code[static]
    assert isinstance(code, CallCode)
    key = run_code(hand, path, "the key", hand.program.effectors[contract.name].key, arguments) or ""
    shown = exact(arguments)
    preview = _preview(hand, path, guard.preview, contract.name, shown)
    return _Asked(
        capability=contract.name,
        effect=contract.effect,
        arguments=shown,
        base=_base(hand, path, guard.into),
        policy=digest([static, msgspec.to_builtins(guard.terms)]),
        terms=guard.terms,
        target=": ".join(text for text in (contract.dependency or contract.name, key) if text),
        preview=preview,
        preconditions=tuple(_preconditions(contract, code, key)),
    )


def _preconditions(contract: Contract, code: CallCode, key: str) -> Iterator[str]:
    """What is looked at once more just before the call, in words."""
    if code.precondition_words:
        yield code.precondition_words
    if key and contract.is_effect:
        yield f"nothing was done before under the key {key}"
    for scope in contract.scopes:
        yield f"the requester holds {scope}"


def _what_for(hand: Hand, node: Approval, path: str, code: ApprovalCode) -> _Asked:
    """What an approval node asks people for: the call it stands for as it would be now, or going on from here."""
    state = hand.state_at(path)
    if node.of:
        called = hand.program.code[node.of]
        assert isinstance(called, CallCode)
        arguments = run_code(hand, path, "the arguments", called.arguments, state, hand.input)
        return _of_call(hand, _contract_at(hand, node.of), path, node.of, hand.program.guards[node.of], arguments)
    shown: Any = exact(run_code(hand, path, "the subject", code.show, state, hand.input))
    arguments = cast("Values", shown) if isinstance(shown, dict) else {"subject": shown}
    return _Asked(
        capability=node.name,
        effect="pure",
        arguments=arguments,
        base=_base(hand, path, ""),
        policy=digest([path, msgspec.to_builtins(node.terms)]),
        terms=node.terms,
        target=f"{hand.record.workflow}, going on behind {path}",
        preview=_preview(hand, path, code.preview, node.name, arguments),
    )


def _is_made(hand: Hand, static: str, path: str) -> bool:
    """Whether another run has made the very effect that people would be asked for, so that its result is used. Fails
    when another run has the key for something else."""
    contract = _contract_at(hand, static)
    called = hand.program.code[static]
    assert isinstance(called, CallCode)
    arguments = run_code(hand, path, "the arguments", called.arguments, hand.state_at(path), hand.input)
    key = run_code(hand, path, "the key", hand.program.effectors[contract.name].key, arguments)
    claim = f"{contract.name}:{key}"
    holder = hand.journal.log.claimant(claim) if key and contract.is_effect else None
    if holder is None or holder == hand.run_id:
        return False
    found = held(hand, claim, key, holder)
    if not found.is_same(hand.journal.store(arguments)):
        raise conflict(hand, path, found)
    return True


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


def _preview(hand: Hand, path: str, preview: Reading | None, name: str, arguments: Values) -> str:
    """What people are shown of the outcome. Characters that no UTF-8 can hold are replaced."""
    if preview is None:
        return f"{name}({', '.join(f'{field}={value!r}' for field, value in arguments.items())})"
    said = str(run_code(hand, path, "the preview", preview, hand.state_at(path), hand.input))
    return said.encode("utf-8", "replace").decode()


def ticket_for(hand: Hand, path: str) -> Ticketed | None:
    """The ticket of a call: asked for at the call itself, or ahead of it by the approval node that names it."""
    own = hand.record.tickets.get(path)
    return own if own is not None else hand.record.answered.get(path)


async def _ask(hand: Hand, path: str, asked: _Asked, covers: str = "") -> Any:
    ids = hand.clock.new_id("ap"), hand.clock.new_id("nonce")
    ticket = run_code(hand, path, "the ticket", partial(_ticket, hand.record, path, asked, hand.clock.now_ms(), ids))
    await hand.journal.write(
        ApprovalRequested(
            node=path,
            ticket_id=ticket.ticket_id,
            ticket=hand.journal.store_bytes(ticket_bytes(ticket)),
            action_digest=asked.digest,
            expires_at_ms=ticket.expires_at_ms,
            covers=covers,
        )
    )
    raise Parked


def _ticket(record: RunRecord, path: str, asked: _Asked, now: int, ids: tuple[str, str]) -> Ticket:
    """ValueError for what no ticket can hold: the author's functions gave it."""
    requester = record.principal or f"workflow:{record.workflow}"
    scopes = f", who holds {', '.join(record.scopes_held)}" if record.scopes_held else ""
    ticket_id, nonce = ids
    ticket = Ticket(
        ticket_id=ticket_id,
        stream=record.run_id,
        name=record.workflow,
        node=path,
        capability=asked.capability,
        effect=asked.effect,
        target=asked.target,
        authority=f"{requester}{scopes}",
        arguments=asked.arguments,
        preview=asked.preview,
        preconditions=asked.preconditions,
        base_digest=asked.base,
        definition_digest=record.definition_digest,
        policy_digest=asked.policy,
        requester=requester,
        by=asked.terms.by,
        quorum=asked.terms.quorum,
        each_role=asked.terms.each_role,
        requested_at_ms=now,
        expires_at_ms=now + asked.terms.expires_ms,
        budget=_budget(record),
        nonce=nonce,
    )
    size = len(ticket_bytes(ticket))
    if size > APPROVAL_TICKET_BYTES_MAX:
        raise ValueError(f"it has {size} bytes, above {APPROVAL_TICKET_BYTES_MAX}; nobody could read it")
    return ticket


def _budget(record: RunRecord) -> str:
    """What the run has spent so far."""
    spent = record.spent
    money = f", {spent.usd_micros / 1e6:.6f} USD on {spent.model_calls} model calls" if spent.model_calls else ""
    done, made = ("" if number == 1 else "s" for number in (record.step, record.effects_made))
    return f"{record.step} node{done} done, {record.effects_made} effect{made} made{money}"


async def _void(hand: Hand, ticketed: Ticketed, path: str, asked: _Asked, reason: str, covers: str = "") -> Any:
    """Nothing anybody said about the ticket counts any more, and what would be done now is asked anew."""
    hand.journal.add(ApprovalResolved(node=ticketed.node, ticket_id=ticketed.ticket_id, outcome="void", reason=reason))
    await _ask(hand, path, asked, covers)


async def _rule(hand: Hand, ticketed: Ticketed) -> None:
    """Record what the decisions amount to now. Parked while that is nothing yet."""
    if ticketed.outcome:
        return
    resolved = _resolved(hand, ticketed)
    if resolved is None:
        raise Parked
    await hand.journal.write(resolved)


def _resolved(hand: Hand, ticketed: Ticketed) -> ApprovalResolved | None:
    """What the decisions on a ticket amount to now, None while that is nothing."""
    ticket = read_ticket(hand.journal.load_bytes(ticketed.ticket))
    outcome, by, reason = "", [], ""
    match rule_on(ticket, _entitled(hand, ticketed, ticket), hand.clock.now_ms()):
        case Waiting():
            return None
        case Granted(by=people):
            outcome, by = "granted", list(people)
        case Denied(by=person, reason=why):
            outcome, by, reason = "denied", [person], why
        case Expired():
            outcome, reason = "expired", "APPROVAL_EXPIRED: nobody said enough in time, and silence is a no"
    return ApprovalResolved(node=ticketed.node, ticket_id=ticketed.ticket_id, outcome=outcome, by=by, reason=reason)


def _entitled(hand: Hand, ticketed: Ticketed, ticket: Ticket) -> list[Entitled]:
    found: list[Entitled] = []
    for ref in ticketed.decisions:
        answer = hand.approvers.verify(read_signed(hand.journal.load_bytes(ref)), ticket)
        if isinstance(answer, Entitled):
            found.append(answer)
    return found


async def _check_again(hand: Hand, ticketed: Ticketed, path: str, asked: _Asked) -> None:
    """Just before the call: the yes must still hold. When its time is up it is a no; without a key that gave it, it is
    asked anew."""
    ticket = read_ticket(hand.journal.load_bytes(ticketed.ticket))
    now = hand.clock.now_ms()
    if isinstance(rule_on(ticket, _entitled(hand, ticketed, ticket), now), Granted):
        return
    if now < ticket.expires_at_ms:
        await _void(hand, ticketed, path, asked, _WITHDRAWN)
    reason = "APPROVAL_EXPIRED: it was given in time, and its time was up before the call was made"
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
    # A no is final at once: whoever gave it may not be entitled any more when the run is walked again.
    now = next((t for t in hand.record.open_tickets if t.ticket_id == decision.ticket_id), ticketed)
    resolved = _resolved(hand, now)
    if resolved is not None and resolved.outcome == "denied":
        hand.journal.add(resolved)
