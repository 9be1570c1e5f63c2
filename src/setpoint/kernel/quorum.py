"""What the decisions on a ticket amount to.

Laws, each with a test:

- Silence is a no: from ``expires_at_ms`` on, nothing grants (R127).
- One entitled no denies, whatever else was said.
- Only different people count, with different keys; the requester counts neither way (four eyes, R129).
- A decision counts for the very ticket it names by digest, when it was made while the ticket was open.
- One more yes never takes a grant away, and the order of decisions does not matter.

Rule again just before dispatch, with the time of then: an approval is not kept for later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from setpoint.kernel.limits import APPROVAL_SKEW_MS
from setpoint.kernel.ticket import Decision, Ticket, format_time, seats, ticket_digest


@dataclass(frozen=True, slots=True)
class Entitled:
    """A decision whose signature holds. Only an adapter of ``ports.approver`` makes one."""

    decision: Decision
    roles: frozenset[str]  # those the signer has
    key: str  # the public key that signed, in its one spelling


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not decided. ``missing`` has one entry for each yes still needed: the roles that may give it."""

    missing: tuple[tuple[str, ...], ...]
    by: tuple[str, ...] = ()  # who has said yes so far


@dataclass(frozen=True, slots=True)
class Granted:
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Denied:
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Expired:
    """Nobody said enough in time: a no (R127)."""

    at_ms: int


def rule_on(ticket: Ticket, decisions: Iterable[Entitled], now_ms: int) -> Waiting | Granted | Denied | Expired:
    """What holds for ``ticket`` at ``now_ms``. Decisions that do not count are passed over; see the laws above."""
    said = sorted(_counting(ticket, decisions, now_ms), key=lambda one: (one.decision.at_ms, one.decision.by, one.key))
    for one in said:
        if one.decision.verdict == "deny":
            return Denied(one.decision.by, one.decision.reason)
    if now_ms >= ticket.expires_at_ms:
        return Expired(ticket.expires_at_ms)
    people = _people(said)
    wanted = seats(ticket)
    taken = _seated(wanted, people)
    if len(taken) == len(wanted):
        return Granted(tuple(sorted(taken.values())))
    missing = tuple(roles for number, roles in enumerate(wanted) if number not in taken)
    return Waiting(missing, tuple(sorted(people)))


def untimely(ticket: Ticket, decision: Decision, now_ms: int) -> str | None:
    """Why a decision made at that time does not count, or None. The time is the signer's own word, hence both ends."""
    at = decision.at_ms
    if at < ticket.requested_at_ms - APPROVAL_SKEW_MS:
        return f"it was made at {format_time(at)}, before the request of {format_time(ticket.requested_at_ms)}"
    if at >= ticket.expires_at_ms:
        return f"it was made at {format_time(at)}; the ticket expired at {format_time(ticket.expires_at_ms)}"
    if at > now_ms + APPROVAL_SKEW_MS:
        return f"it was made at {format_time(at)}, and now is only {format_time(now_ms)}"
    return None


def _counting(ticket: Ticket, decisions: Iterable[Entitled], now_ms: int) -> list[Entitled]:
    wanted = ticket_digest(ticket)
    return [
        one
        for one in decisions
        if one.decision.ticket_id == ticket.ticket_id
        and one.decision.ticket_digest == wanted
        and one.decision.by != ticket.requester
        and not one.roles.isdisjoint(ticket.by)
        and untimely(ticket, one.decision, now_ms) is None
    ]


def _people(said: list[Entitled]) -> dict[str, frozenset[str]]:
    """Everybody who said yes, with all roles they said it in. A key that two names use is nobody's."""
    owners: dict[str, set[str]] = {}
    for one in said:
        owners.setdefault(one.key, set()).add(one.decision.by)
    people: dict[str, frozenset[str]] = {}
    for one in said:
        if len(owners[one.key]) == 1:
            people[one.decision.by] = people.get(one.decision.by, frozenset()) | one.roles
    return people


def _seated(wanted: list[tuple[str, ...]], people: dict[str, frozenset[str]]) -> dict[int, str]:
    """Who takes which seat, so that as many as possible are taken: one person a seat, one seat a person."""
    taken: dict[int, str] = {}

    def seat(person: str, tried: set[int]) -> bool:
        for number, roles in enumerate(wanted):
            if number in tried or people[person].isdisjoint(roles):
                continue
            tried.add(number)
            # Free, or whoever sits there can move on.
            if number not in taken or seat(taken[number], tried):
                taken[number] = person
                return True
        return False

    for person in sorted(people):
        seat(person, set())
    return taken
