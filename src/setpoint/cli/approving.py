"""People decide: ``approvals``, ``approve``, ``deny``.

A decision is signed here, with the person's own key, and checked against the roster before it is delivered, so that a
person hears at once when it would not count. Whoever works on the run checks it again, and once more before the call.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from setpoint.adapters.approvers.roster import Approver, Roster
from setpoint.adapters.approvers.signatures import Malformed, parse_key
from setpoint.adapters.approvers.signing import own_key, own_public_line, sign_decision
from setpoint.app.app_loading import app_name, load_app
from setpoint.app.approvers import read_approvers
from setpoint.app.runtime import Runtime
from setpoint.cli import finding
from setpoint.cli.run_account import quoted
from setpoint.cli.terminal import one_line, printable, say, say_json, styled, table, talk
from setpoint.cli.tickets import (
    Asked,
    TicketClosed,
    closed_ticket,
    find_ticket,
    key_owner,
    open_tickets,
    ruling_document,
    ruling_said,
)
from setpoint.cli.wording import span
from setpoint.engine.control import Request, encode_request
from setpoint.engine.journal import timestamp
from setpoint.kernel.errors import Fault, LogCorrupt
from setpoint.kernel.limits import MESSAGE_BYTES_MAX
from setpoint.kernel.quorum import Entitled, Waiting
from setpoint.kernel.ticket import SignedDecision, Ticket, describe, needs, signed_bytes, ticket_digest
from setpoint.ports.approver import Rejected

Verdict = Literal["approve", "deny"]
EXIT_CORRUPT: Final = 19
WHAT_CHARS_MAX: Final = 60
"""Of a preview in the list; one ticket is shown whole."""


# Looking


def approvals(arguments: Namespace) -> int:
    """Every open ticket, or with an id everything a person must see of one."""
    if arguments.id is not None:
        return _show(arguments)
    faults: list[LogCorrupt] = []
    with finding.opened(arguments) as runtime:
        roster = _roster(runtime, arguments)
        now = runtime.clock.now_ms()
        listed = [_entry(asked, roster, now) for asked in open_tickets(runtime, faults)]
    if arguments.json:
        say_json({"approvals": listed})
    elif listed:
        rows = [
            (
                one["ticket_id"],
                one_line(one["preview"], WHAT_CHARS_MAX),
                one["name"],
                one["requester"],
                one["standing"],
                span(one["left_ms"]),
            )
            for one in listed
        ]
        for line in table(("TICKET", "WHAT", "FOR", "ASKED BY", "STANDING", "EXPIRES IN"), rows):
            say(line)
        talk("setpoint approvals TICKET  shows all of one; setpoint approve TICKET, setpoint deny TICKET", "dim")
    else:
        talk("no approval is asked for", "dim")
    for fault in faults:
        talk(printable(f"left out: {fault.message}"), "red")
    return EXIT_CORRUPT if faults else 0


def _entry(asked: Asked, roster: Roster, now_ms: int) -> dict[str, Any]:
    ticket = asked.ticket
    ruling = asked.ruling(roster, now_ms)
    return {
        "ticket_id": ticket.ticket_id,
        "stream": asked.stream,
        "name": ticket.name,
        "node": ticket.node,
        "capability": ticket.capability,
        "effect": ticket.effect,
        "preview": ticket.preview,
        "requester": ticket.requester,
        "needs": needs(ticket),
        "roles": list(ticket.by),
        "quorum": ticket.quorum,
        "standing": ruling_said(ruling),
        "ruling": ruling_document(ruling),
        "requested_at": timestamp(ticket.requested_at_ms),
        "expires_at": timestamp(ticket.expires_at_ms),
        "left_ms": ticket.expires_at_ms - now_ms,
        "digest": ticket_digest(ticket),
    }


def _show(arguments: Namespace) -> int:
    """One ticket, whatever became of it."""
    with finding.opened(arguments) as runtime:
        roster = _roster(runtime, arguments)
        now = runtime.clock.now_ms()
        try:
            asked = find_ticket(runtime, arguments.id)
        except TicketClosed:
            closed = closed_ticket(runtime, arguments.id)
            assert closed is not None
            ticket, outcome, standing = closed.ticket, closed.outcome, closed.said
        else:
            ticket = asked.ticket
            ruling = asked.ruling(roster, now)
            outcome, standing = ruling_document(ruling)["outcome"], ruling_said(ruling)
    if arguments.json:
        document = msgspec.to_builtins(ticket) | {"digest": ticket_digest(ticket)}
        say_json({"outcome": outcome, "standing": standing, "ticket": document})
        return 0
    for line in ticket_lines(ticket):
        say(line)
    say(printable(f"Standing       {standing}"))
    return 0


def ticket_lines(ticket: Ticket) -> list[str]:
    """Everything of ``kernel.ticket.describe``, aligned. A text of several lines stays under its label."""
    lines: list[str] = []
    for label, text in describe(ticket):
        first, *rest = printable(text).split("\n")
        lines.append(f"{label.ljust(14)} {first}")
        lines += [f"{' ' * 14} {line}" for line in rest]
    return lines


# Deciding


def approve(arguments: Namespace) -> int:
    return _decide(arguments, "approve")


def deny(arguments: Namespace) -> int:
    return _decide(arguments, "deny")


def _decide(arguments: Namespace, verdict: Verdict) -> int:
    with finding.opened(arguments) as runtime:
        asked = find_ticket(runtime, arguments.ticket)
        roster = _roster(runtime, arguments)
        key = own_key(runtime.places.keys) if arguments.key is None else Path(arguments.key).expanduser()
        line = public_line(key)
        if not arguments.json and not _has_said(asked, verdict, line):  # who has said so has seen it
            for shown in ticket_lines(asked.ticket):
                talk(shown)
        name = _name(arguments, roster, runtime, line, asked)
        signed = sign_decision(asked.ticket, verdict, name, runtime.clock.now_ms(), arguments.reason, key)
        _refuse_what_does_not_count(runtime, arguments, roster, asked, signed)
        is_new = not _said_before(asked, signed)
        if is_new:
            _deliver(runtime, asked.stream, name, signed)
        ruling = asked.ruling(roster, runtime.clock.now_ms(), signed)
        is_owned = runtime.is_owned(asked.stream)
    told = {
        "ticket_id": asked.ticket.ticket_id,
        "stream": asked.stream,
        "by": name,
        "verdict": verdict,
        "delivered": is_new,
        "ruling": ruling_document(ruling),
        "next": None if isinstance(ruling, Waiting) or is_owned else f"setpoint resume {asked.stream}",
        "taken_up_by_worker": asked.is_run,
    }
    if arguments.json:
        say_json(told)
        return 0
    style = {"granted": "green", "denied": "red"}.get(told["ruling"]["outcome"], "yellow")
    word = {"approve": "approved", "deny": "denied"}[verdict]
    said = f"{word} by {name}" if is_new else f"was {word} by {name} before, and nothing was added"
    say(printable(f"{asked.ticket.ticket_id} {said}: ") + styled(printable(ruling_said(ruling)), style))
    if told["next"]:
        who = "a worker goes on with it, or" if asked.is_run else "no worker takes up a trajectory; go on with"
        talk(f"  {who}: {told['next']}{_where(arguments)}", "dim")
    return 0


def _where(arguments: Namespace) -> str:
    return f" --store {quoted(arguments.store)}" if arguments.store else ""


def _deliver(runtime: Runtime, stream: str, name: str, signed: SignedDecision) -> None:
    """Into the inbox of what waits: it is recorded there by whoever works on it."""
    wire = signed_bytes(signed)
    assert len(wire) <= MESSAGE_BYTES_MAX  # a reason is short, and keys and signatures are
    request = Request("decide", name, wire.decode())
    runtime.log.deliver(stream, runtime.clock.new_id("rq"), encode_request(request))


def _has_said(asked: Asked, verdict: Verdict, key: str | None) -> bool:
    """Whether this key has said the same of this ticket."""
    return key is not None and any((one.decision.verdict, one.key) == (verdict, key) for one in asked.decisions)


def _said_before(asked: Asked, signed: SignedDecision) -> bool:
    mine = (signed.decision.by, signed.decision.verdict, signed.key)
    return any((one.decision.by, one.decision.verdict, one.key) == mine for one in asked.decisions)


def _refuse_what_does_not_count(
    runtime: Runtime, arguments: Namespace, roster: Roster, asked: Asked, signed: SignedDecision
) -> None:
    """TicketClosed when the decision would count for nothing. Nothing was delivered then."""
    answer = roster.verify(signed, asked.ticket)
    if isinstance(answer, Entitled):
        return
    assert isinstance(answer, Rejected)
    if answer.reason == "UNKNOWN_KEY":
        raise _unknown_key(runtime, arguments, roster, signed.key, asked)
    hints = {
        "REQUESTER": "Who asks does not decide. Another approver signs with their own key.",
        "WRONG_ROLE": f"The roles are in {runtime.places.approvers}.",
        "WRONG_NAME": "Leave --as out, or name the one the key belongs to.",
    }
    raise TicketClosed(f"this decision would not count: {answer.message}", hint=hints.get(answer.reason))


def _unknown_key(runtime: Runtime, arguments: Namespace, roster: Roster, key: str, asked: Asked) -> TicketClosed:
    """With what would make it count: another key of somebody who is in the roster, or an entry for the role that is
    still missing."""
    place = runtime.places.approvers
    missing = "" if place.exists() else " (there is no such file yet)"
    name = arguments.principal or finding.me()
    roles = _roles_missing(runtime, roster, asked)
    known = [one for one in roster.approvers if one.name == name]
    if known:
        hint = (
            f"{name} stands there with another key ({', '.join(one.key for one in known)}): sign with that one, by "
            f"--key FILE. For this one whoever keeps the roster adds a second entry: setpoint approvers add "
            f"{quoted(name)} {_role_words(known[0].roles)} --key {quoted(key)}"
        )
        if not any(set(one.roles) & set(roles) for one in known):
            hint += f"\n  Still missing is a yes of {' or '.join(roles)}, which {name} is not."
    else:
        line = f"- {{name: {name}, roles: [{roles[0]}], key: {key}}}"
        hint = (
            f"Whoever keeps the roster adds the line:\n    {line}\n  or types: setpoint approvers add {quoted(name)} "
            f"--role {quoted(roles[0])} --key {quoted(key)}"
        )
    return TicketClosed(f"the key is nobody's in the roster {place}{missing}; nothing was delivered", hint=hint)


def _role_words(roles: Sequence[str]) -> str:
    return " ".join(f"--role {quoted(role)}" for role in roles)


def _roles_missing(runtime: Runtime, roster: Roster, asked: Asked) -> tuple[str, ...]:
    """The roles one of which has to say yes next."""
    ruling = asked.ruling(roster, runtime.clock.now_ms())
    return tuple(ruling.missing[0]) if isinstance(ruling, Waiting) and ruling.missing else tuple(asked.ticket.by)


def _name(arguments: Namespace, roster: Roster, runtime: Runtime, line: str | None, asked: Asked) -> str:
    """``--as``, else whose key it is by the roster, else the user. An unknown key is told before it signs."""
    if line is None:
        return arguments.principal or finding.me()
    owner = key_owner(roster.approvers, line)
    if owner is None:
        raise _unknown_key(runtime, arguments, roster, line, asked)
    return arguments.principal or owner.name


def public_line(path: Path) -> str | None:
    """The public half of a key file as the roster writes it; None where only signing will tell."""
    for candidate in (path, path.with_name(path.name + ".pub")):
        try:
            text = candidate.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if text.startswith(("ssh-", "sk-ssh-")):
            try:
                return parse_key(text.splitlines()[0]).text
            except Malformed:
                return None
        if text.startswith("-----BEGIN PRIVATE KEY-----"):
            return own_public_line(path)
    return None


def _roster(runtime: Runtime, arguments: Namespace) -> Roster:
    """Everybody in approvers.yaml, and those the application itself declares, where one is named and can be loaded."""
    place = runtime.places.approvers
    approvers: list[Approver] = list(read_approvers(place)) if place.exists() else []
    if app_name(arguments.app) is not None:
        try:
            approvers += load_app(arguments.app).approvers
        except Fault as fault:
            talk(one_line(f"approvers of the application are left out: {fault.message}", 500), "yellow")
    return Roster(approvers, runtime.clock)
