"""Approvals that are asked for, found in the log: tickets, what was said about them, and what that amounts to.

No application is needed: a ticket holds everything that a person decides on, and the log holds the ticket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from setpoint.adapters.approvers.roster import Approver, Roster
from setpoint.app.runtime import Runtime
from setpoint.cli.run_account import open_runs
from setpoint.engine.control import read_request
from setpoint.engine.reading import read_record
from setpoint.kernel.errors import Fault, LogCorrupt, UnknownTrajectory, UsageFault
from setpoint.kernel.events import decode as decode_trajectory
from setpoint.kernel.quorum import Denied, Entitled, Expired, Granted, Waiting, rule_on
from setpoint.kernel.record import Record
from setpoint.kernel.run_events import ApprovalRequested, ApprovalResolved
from setpoint.kernel.run_events import decode as decode_run
from setpoint.kernel.run_record import Ticketed
from setpoint.kernel.ticket import SignedDecision, Ticket, format_time, read_signed, read_ticket

Ruling = Waiting | Granted | Denied | Expired
_LIST: Final = "`setpoint approvals` lists those that wait."


class TicketClosed(Fault):
    """Nothing can be decided about this ticket any more, or not by this person. Nothing was delivered."""

    exit_code = 12


@dataclass(frozen=True, slots=True)
class Asked:
    """A ticket that waits for people, with what was said so far: recorded, and in the inbox."""

    stream: str
    ticketed: Ticketed
    ticket: Ticket
    decisions: tuple[SignedDecision, ...]
    is_run: bool = True  # else a trajectory

    def ruling(self, roster: Roster, now_ms: int, *more: SignedDecision) -> Ruling:
        """What all of it amounts to, by this roster."""
        answers = [roster.verify(signed, self.ticket) for signed in (*self.decisions, *more)]
        return rule_on(self.ticket, [one for one in answers if isinstance(one, Entitled)], now_ms)


def open_tickets(runtime: Runtime, faults: list[LogCorrupt] | None = None) -> Iterator[Asked]:
    """Every ticket of the store that can still be decided, those that expire first first."""
    now = runtime.clock.now_ms()
    found = [
        _asked(runtime, stream, position, ticketed, is_run)
        for stream, position, ticketed, is_run in _waiting(runtime, faults)
        if not ticketed.outcome and ticketed.expires_at_ms > now
    ]
    return iter(sorted(found, key=lambda one: one.ticket.expires_at_ms))


def _waiting(runtime: Runtime, faults: list[LogCorrupt] | None) -> Iterator[tuple[str, int, Ticketed, bool]]:
    """Tickets with their stream, how far its inbox is read, and whether it is a run's."""
    for run in open_runs(runtime, faults):
        if run.state in ("RUNNING", "PAUSED"):  # what is taken back asks nobody any more
            yield from ((run.run_id, run.inbox_position, ticketed, True) for ticketed in run.open_tickets)
    for info in runtime.trajectories():
        record = _record(runtime, info.stream, faults)
        if record is not None and not record.is_terminal and record.ticket is not None:
            yield info.stream, record.inbox_position, record.ticket, False


def _record(runtime: Runtime, trajectory_id: str, faults: list[LogCorrupt] | None) -> Record | None:
    try:
        return read_record(runtime.log, trajectory_id, verify_all=False)[0]
    except LogCorrupt as fault:
        if faults is None:
            raise
        faults.append(fault)
        return None


def _asked(runtime: Runtime, stream: str, position: int, ticketed: Ticketed, is_run: bool) -> Asked:
    ticket = read_ticket(runtime.log.payload(ticketed.ticket.ref))
    said = [read_signed(runtime.log.payload(ref.ref)) for ref in ticketed.decisions]
    return Asked(stream, ticketed, ticket, (*said, *_unread(runtime, stream, position, ticket.ticket_id)), is_run)


def _unread(runtime: Runtime, stream: str, position: int, ticket_id: str) -> Iterator[SignedDecision]:
    """Decisions that were delivered and that nobody who works on the stream has read yet."""
    for _, _, data in runtime.log.inbox(stream, position):
        request = read_request(data)
        if request.action != "decide":
            continue
        try:
            signed = read_signed(request.argument.encode())
        except UsageFault:  # recorded as no decision when it is read
            continue
        if signed.decision.ticket_id == ticket_id:
            yield signed


# Finding one


def find_ticket(runtime: Runtime, typed: str) -> Asked:
    """The open ticket that ``typed`` is or uniquely begins. TicketClosed says what became of one that is not open."""
    tickets = list(open_tickets(runtime, []))
    found = [one for one in tickets if one.ticket.ticket_id == typed] or [
        one for one in tickets if typed and one.ticket.ticket_id.startswith((typed, f"ap-{typed}"))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageFault(
            f"{typed!r} is the start of {len(found)} tickets: {', '.join(one.ticket.ticket_id for one in found)}",
            hint="Type one character more.",
        )
    closed = closed_ticket(runtime, typed)
    if closed is None:
        raise UnknownTrajectory(f"there is no ticket {typed!r} in this store", hint=_LIST)
    raise TicketClosed(closed.said, hint=_LIST)


@dataclass(frozen=True, slots=True)
class Closed:
    """A ticket that nobody can decide any more. ``said`` tells why, in words."""

    stream: str
    ticket: Ticket
    outcome: str
    said: str


def closed_ticket(runtime: Runtime, typed: str) -> Closed | None:
    """The ticket of that id (or start of one) anywhere in the store. Reads every log: only for one that is not open."""
    for info in runtime.log.streams():
        if info.kind not in ("run", "trajectory"):
            continue
        read = decode_run if info.kind == "run" else decode_trajectory
        asked: ApprovalRequested | None = None
        resolved: ApprovalResolved | None = None
        for stored in runtime.log.read(info.stream):
            if stored.type not in ("ApprovalRequested", "ApprovalResolved"):
                continue
            event = read(stored.type, stored.data)
            if isinstance(event, ApprovalRequested) and event.ticket_id.startswith((typed, f"ap-{typed}")):
                asked = event
            elif isinstance(event, ApprovalResolved) and asked and event.ticket_id == asked.ticket_id:
                resolved = event
        if asked is not None:
            ticket = read_ticket(runtime.log.payload(asked.ticket.ref))
            outcome, said = _became(ticket, resolved, runtime.clock.now_ms())
            return Closed(info.stream, ticket, outcome, said)
    return None


def _became(ticket: Ticket, resolved: ApprovalResolved | None, now_ms: int) -> tuple[str, str]:
    name = f"{ticket.ticket_id} (node {ticket.node} of {ticket.stream})"
    if resolved is not None:
        by = f" by {', '.join(resolved.by)}" if resolved.by else ""
        why = f": {resolved.reason}" if resolved.reason else ""
        return resolved.outcome, f"{name} is decided already: {resolved.outcome}{by}{why}"
    if now_ms >= ticket.expires_at_ms:
        said = f"{name} expired at {format_time(ticket.expires_at_ms)}; nobody said enough until then, which is a no"
        return "expired", said
    return "over", f"{name} waits for nobody any more: what asked for it is over, or is being taken back"


# Words


def ruling_said(ruling: Ruling) -> str:
    """``granted by anna``, ``still needs 1 of ops``."""
    match ruling:
        case Granted(by=people):
            return f"granted by {', '.join(people)}"
        case Denied(by=person, reason=why):
            return f"denied by {person}" + (f": {why}" if why else "")
        case Expired(at_ms=at):
            return f"expired at {format_time(at)}, which is a no"
        case Waiting(missing=missing, by=people):
            wanted = "; ".join(f"{missing.count(roles)} of {' or '.join(roles)}" for roles in dict.fromkeys(missing))
            return f"still needs {wanted}" + (f" (said yes: {', '.join(people)})" if people else "")


def ruling_document(ruling: Ruling) -> dict[str, Any]:
    match ruling:
        case Granted(by=people):
            return {"outcome": "granted", "by": list(people), "missing": []}
        case Denied(by=person, reason=why):
            return {"outcome": "denied", "by": [person], "missing": [], "reason": why}
        case Expired():
            return {"outcome": "expired", "by": [], "missing": []}
        case Waiting(missing=missing, by=people):
            return {"outcome": "waiting", "by": list(people), "missing": [list(roles) for roles in missing]}


def key_owner(approvers: Iterable[Approver], key: str) -> Approver | None:
    """Whose key this is."""
    from setpoint.adapters.approvers.signatures import parse_key

    return next((one for one in approvers if parse_key(one.key).text == key), None)
