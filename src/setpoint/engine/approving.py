"""A call that people must say yes to: put on a ticket, parked, and dispatched as exactly that, once, or never.

Rules that keep it simple and sound:

- A held call comes first among the permitted calls of its proposal, so that it is decided on a kept savepoint and
  nothing has to be undone or repeated because people take their time. One that comes later is refused with that advice.
- While people decide nothing of the proposal is dispatched; after a no (denied, expired, void) nothing of it ever is.
- An approval is for one call ("turn.ordinal") of one trajectory. What it binds to is compared again just before the
  dispatch, and so are grant, budget and the approvers' keys (R126). Whatever is not as it was voids it (D3).
- Silence is a no (R127).
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from setpoint.engine.desk import Desk
from setpoint.engine.journal import Journal
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.reading import read_record
from setpoint.kernel import limits
from setpoint.kernel.contract import ApprovalRule
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.events import ApprovalRequested, ApprovalResolved, ApprovalSigned, CheckpointWritten
from setpoint.kernel.keys import digest
from setpoint.kernel.quorum import Denied, Entitled, Expired, Granted, Waiting
from setpoint.kernel.record import Control, Record, Ticketed
from setpoint.kernel.ruling import Hold, Permit, Refusal, RefusalReason
from setpoint.kernel.ticket import (
    SignedDecision,
    Ticket,
    action_digest,
    changed_since,
    read_signed,
    read_ticket,
    signed_bytes,
    ticket_bytes,
)
from setpoint.phases.p2_proposal.parse import exact
from setpoint.phases.p6_verdict.certificate import policy_digest
from setpoint.ports.approver import Rejected
from setpoint.ports.log import Log
from setpoint.ports.workspace import ResolvedPath

KIND: Final = "trajectory"
PREVIEW_CHARS_MAX: Final = 20_000
"""Some 400 lines: what a person reads before they decide. The complete arguments stand on the ticket beside it."""

BASE_CHANGED: Final = "the workspace is not what it was when this was asked"
NO_LONGER_HOLDS: Final = "the approval no longer holds: a key that gave it is not trusted any more"
_SILENCE: Final = "nobody said enough in time, and silence is a no"

_A_NO: Final[dict[str, RefusalReason]] = {
    "denied": "APPROVAL_DENIED",
    "expired": "APPROVAL_EXPIRED",
    "void": "APPROVAL_VOID",
}


# Asking


def node_of(p: Pursuit, ordinal: int) -> str:
    return f"{p.record.turn}.{ordinal}"


def first_open(p: Pursuit) -> int:
    """The ordinal from which a proposal's calls are ruled on: those before a held one were, before the wait."""
    record = p.record
    if record.state != "AWAITING_APPROVAL" or record.ticket is None:
        return 0
    return int(record.ticket.node.rpartition(".")[2])


async def answer(p: Pursuit, hold: Hold, *, is_first: bool) -> Permit | Refusal | None:
    """What a held call comes to now; None when people have been asked and the proposal waits for them."""
    ticketed = p.record.ticket
    if ticketed is not None and ticketed.node == node_of(p, hold.call.ordinal):
        return await _by_ticket(p, hold, ticketed)
    desk = p.desk
    if desk is None:
        return _no(
            hold, "APPROVAL_REQUIRED", f"{_must(hold)}; here nobody is asked: converge on the task to have it asked"
        )
    if not is_first:
        advice = "it can be asked only where it comes first in a proposal: propose it by itself"
        return _no(hold, "APPROVAL_REQUIRED", f"{_must(hold)}, and {advice}")
    try:
        ticket = _ticket(p, desk, hold)
    except (ValueError, TypeError) as fault:
        return _no(hold, "APPROVAL_REQUIRED", f"{_must(hold)}, and no ticket can hold it exactly: {fault}")
    await _request(p, ticket)
    return None


def _must(hold: Hold) -> str:
    return f"a person must approve this ({hold.rule.when})"


async def _request(p: Pursuit, ticket: Ticket) -> None:
    """The ticket, with a snapshot of the record that waits for it, all in one append."""
    live = p.journal if isinstance(p.journal, Journal) else None  # a replay takes the recorded one
    if live is not None:
        live.emit(CheckpointWritten(savepoint=p.record.savepoint))
    p.journal.emit(
        ApprovalRequested(
            node=ticket.node,
            ticket_id=ticket.ticket_id,
            ticket=p.journal.store(ticket_bytes(ticket)),
            action_digest=action_digest(ticket.capability, ticket.arguments, ticket.base_digest, ticket.policy_digest),
            expires_at_ms=ticket.expires_at_ms,
            elapsed_ms=p.elapsed_ms(),
        )
    )
    if live is not None:
        await live.checkpoint()


def _ticket(p: Pursuit, desk: Desk, hold: Hold) -> Ticket:
    """The whole ticket of a held call. ValueError or TypeError when its arguments have no one exact form."""
    permit, call, rule, record = hold.permit, hold.call, hold.rule, p.record
    form: Any = exact(call.arguments)
    if not isinstance(form, dict):
        raise ValueError("its arguments hold fractions")
    stamp = desk.stamp()
    return Ticket(
        ticket_id=stamp.ticket_id,
        stream=record.trajectory_id,
        name=p.task.name,
        node=node_of(p, call.ordinal),
        capability=call.name,
        effect=permit.effect,
        target=target_of(p, permit),
        authority=authority_of(p, permit),
        arguments=cast("dict[str, Any]", form),
        preview=desk.preview(lambda: draw(p, permit)),
        preconditions=permit.grant.require,
        base_digest=base_of(record),
        definition_digest=p.task.digest,
        policy_digest=policy_digest(p.task),
        requester=f"task:{p.task.name}",
        by=rule.by,
        quorum=rule.quorum,
        each_role=rule.each_role,
        requested_at_ms=stamp.at_ms,
        expires_at_ms=stamp.at_ms + rule.expires_ms,
        budget=_budget_in_words(p),
        nonce=stamp.nonce,
    )


def base_of(record: Record) -> str:
    """The state a call rests on: the user's tree as last found, and the savepoint over it."""
    return digest([record.base_now or record.base_digest, record.fingerprint])


def target_of(p: Pursuit, permit: Permit) -> str:
    """What is acted upon: the path as it leads, or the workspace and the hosts a command may reach."""
    if permit.path is not None:
        return permit.path
    environment = p.task.environment
    if permit.call.name != "shell_exec":
        return f"the workspace {environment.workspace}"
    reach = ", ".join(environment.network) or "none"
    return f"the workspace {environment.workspace}, staged; network: {reach}"


def authority_of(p: Pursuit, permit: Permit) -> str:
    """With whose rights: the task's grant of the tool."""
    grant = permit.grant
    where = "" if grant.paths is None else f" on {', '.join(grant.paths)}"
    calls = "" if grant.max_calls is None else f", at most {grant.max_calls} calls"
    return f"grant {grant.tool}{where}{calls} of task {p.task.name}, in a {p.task.environment.tier} sandbox"


def _budget_in_words(p: Pursuit) -> str:
    spent, budget = p.record.spent, p.budget
    return (
        f"spent {p.record.turn} of {budget.turns} turns, {spent.tokens} of {budget.tokens} tokens, "
        f"${spent.usd_micros / 1e6:.4f} of ${budget.usd_micros / 1e6:.4f}, "
        f"{spent.elapsed_ms // 1000} of {budget.wall_ms // 1000} s"
    )


def draw(p: Pursuit, permit: Permit) -> str:
    """What the call would do, drawn by the runtime from call and workspace; no word of the model's (R128)."""
    arguments = permit.call.arguments
    match permit.call.name:
        case "shell_exec":
            argv = arguments.get("argv") or ["/bin/sh", "-c", arguments["command"]]
            text = f"runs {argv!r}\nstaged: the files it changes reach the user's tree only with the commit"
        case "file_edit" | "file_write" if permit.path is not None:
            text = _diff_of(p, permit.path, arguments)
        case name:
            text = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    if len(text) <= PREVIEW_CHARS_MAX:
        return text
    return f"{text[:PREVIEW_CHARS_MAX]}\n[{len(text) - PREVIEW_CHARS_MAX} more characters; the arguments are complete]"


def _diff_of(p: Pursuit, path: str, arguments: dict[str, Any]) -> str:
    found = p.workspace.read(ResolvedPath(path), limits.FILE_READ_BYTES_MAX)
    before = "" if found is None else found.decode("utf-8", "replace")
    if "content" in arguments:
        after = arguments["content"]
    elif before.count(arguments["old_str"]) != 1:
        return f"would fail: {path} holds old_str {before.count(arguments['old_str'])} times instead of once"
    else:
        after = before.replace(arguments["old_str"], arguments["new_str"])
    names = ("/dev/null" if found is None else f"a/{path}", f"b/{path}")
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")
    return "\n".join(lines) or f"leaves {path} as it is"


# Deciding


async def is_decided(p: Pursuit) -> bool:
    """Whether the call that waits has its yes or no. Records it when it has just become one."""
    ticketed, desk = p.record.ticket, p.desk
    assert ticketed is not None
    if ticketed.outcome:
        return True
    if desk is None:
        return False
    match desk.rule(ticket_of(p, ticketed), _decisions(p, ticketed)):
        case Waiting():
            return False
        case Granted(by=people):
            _resolve(p, ticketed, "granted", people, "")
        case Denied(by=person, reason=why):
            _resolve(p, ticketed, "denied", (person,), why)
        case Expired():
            _resolve(p, ticketed, "expired", (), _SILENCE)
    return True


def record_decision(p: Pursuit, control: Control) -> bool:
    """Record a signed decision that came by the inbox, and whether it counts. False: it is about nothing open."""
    ticketed, desk = p.record.ticket, p.desk
    try:
        signed = read_signed(control.argument.encode("utf-8", "replace"))
    except UsageFault:
        return False
    decision = signed.decision
    if ticketed is None or desk is None or ticketed.ticket_id != decision.ticket_id:
        return False
    if ticketed.used or ticketed.outcome not in ("", "granted"):  # a no after the yes still counts, before the dispatch
        return False
    found = desk.verify(signed, ticket_of(p, ticketed))
    p.journal.emit(
        ApprovalSigned(
            ticket_id=decision.ticket_id,
            by=decision.by,
            verdict=decision.verdict,
            decision=p.journal.store(signed_bytes(signed)),
            position=control.position,
            counts=isinstance(found, Entitled),
            why=found.message if isinstance(found, Rejected) else "",
        )
    )
    return True


def ticket_of(p: Pursuit, ticketed: Ticketed) -> Ticket:
    return read_ticket(p.journal.load(ticketed.ticket))


def _decisions(p: Pursuit, ticketed: Ticketed) -> list[SignedDecision]:
    return [read_signed(p.journal.load(ref)) for ref in ticketed.decisions]


def _resolve(p: Pursuit, ticketed: Ticketed, outcome: str, by: Sequence[str], reason: str) -> None:
    p.journal.emit(
        ApprovalResolved(node=ticketed.node, ticket_id=ticketed.ticket_id, outcome=outcome, by=list(by), reason=reason)
    )


# Using


async def _by_ticket(p: Pursuit, hold: Hold, ticketed: Ticketed) -> Permit | Refusal:
    """The permit of a granted call that is still what was granted; a typed no for every other."""
    if ticketed.outcome == "granted" and (lost := await _lost(p, hold, ticketed)) is not None:
        _resolve(p, ticketed, *lost)
    ticketed = p.record.ticket or ticketed
    if ticketed.outcome == "granted":
        return hold.permit
    return _no(hold, _A_NO[ticketed.outcome], _in_words(ticketed))


def _in_words(ticketed: Ticketed) -> str:
    why = f": {ticketed.reason}" if ticketed.reason else ""
    said = f"denied by {', '.join(ticketed.by)}{why}" if ticketed.outcome == "denied" else ticketed.reason
    return f"the approval this call needs was not given ({said}); no call of this proposal was dispatched"


async def _lost(p: Pursuit, hold: Hold, ticketed: Ticketed) -> tuple[str, tuple[str, ...], str] | None:
    """Why the yes does not hold for what would be done now: outcome, by whom, reason. None when it does (R126)."""
    ticket, permit, desk = ticket_of(p, ticketed), hold.permit, p.desk
    policy = policy_digest(p.task)
    changed = list(changed_since(ticket, hold.call.name, exact(hold.call.arguments), base_of(p.record), policy))
    changed += [
        what
        for what, was, now in (
            ("task", ticket.definition_digest, p.task.digest),
            ("target", ticket.target, target_of(p, permit)),
            ("grant", ticket.authority, authority_of(p, permit)),
            ("effect class", ticket.effect, permit.effect),
        )
        if was != now
    ]
    if changed or ticket.stream != p.record.trajectory_id or not _asks_as_much(ticket, hold.rule):
        return (
            "void",
            (),
            f"what would be done now is not what was asked: {', '.join(changed) or 'the rule'} changed since",
        )
    survey = await asyncio.to_thread(p.workspace.survey)
    if survey.base != (p.record.base_now or p.record.base_digest):
        return "void", (), BASE_CHANGED
    spent, budget = p.record.spent, p.budget
    if spent.tokens > budget.tokens or spent.usd_micros > budget.usd_micros or spent.elapsed_ms >= budget.wall_ms:
        return "void", (), "the budget is used up"
    match desk.rule(ticket, _decisions(p, ticketed)) if desk is not None else Waiting(()):
        case Granted():
            return None
        case Expired():
            return "expired", (), "it was given, and has expired before it was used"
        case Denied(by=person, reason=why):
            return "denied", (person,), why
        case _:
            return "void", (), NO_LONGER_HOLDS


def _asks_as_much(ticket: Ticket, rule: ApprovalRule) -> bool:
    return (ticket.by, ticket.quorum, ticket.each_role) == (rule.by, rule.quorum, rule.each_role)


def _no(hold: Hold, reason: RefusalReason, message: str) -> Refusal:
    call = hold.call
    return Refusal(call.ordinal, call.name, "isolation", reason, "", message, call.digest)


# Looking


@dataclass(frozen=True, slots=True)
class OpenTicket:
    """A call of a trajectory that people can decide on now."""

    record: Record
    ticket: Ticket


def open_tickets(log: Log, now_ms: int) -> Iterator[OpenTicket]:
    """Every ticket of a trajectory in this store that is open; an expired one is a no, and not among them (D4)."""
    for info in log.streams(KIND):
        if info.seq == 0:
            continue
        record, _ = read_record(log, info.stream, verify_all=False)
        found = open_ticket(log, record, now_ms)
        if found is not None:
            yield OpenTicket(record, found)


def open_ticket(log: Log, record: Record, now_ms: int) -> Ticket | None:
    """The ticket people can decide on now; None when nothing waits for them, or it is too late."""
    ticketed = record.ticket
    if record.state != "AWAITING_APPROVAL" or ticketed is None or ticketed.outcome or now_ms >= ticketed.expires_at_ms:
        return None
    return read_ticket(log.payload(ticketed.ticket.ref))
