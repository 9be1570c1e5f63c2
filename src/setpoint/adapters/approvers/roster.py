"""The people an installation trusts to approve, each with roles and a key: ``ports.approver`` over a list.

A person may have several keys (one entry each, same name); a key has one name. An approver's name is the principal
under which they would make requests themselves, since that is how the requester of a ticket is kept from approving it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from setpoint.adapters.approvers.signatures import PublicKey, fault_of, parse_key
from setpoint.kernel.quorum import Entitled, untimely
from setpoint.kernel.ticket import SignedDecision, Ticket, format_time, ticket_digest
from setpoint.ports.approver import Rejected
from setpoint.ports.clock import Clock

_ASK_AGAIN: Final = "look at the ticket again and decide anew"


@dataclass(frozen=True, slots=True)
class Approver:
    """One key of one person. Times are milliseconds since 1970: from ``valid_after_ms`` on, before ``valid_before_ms``.

    Raises ValueError for an empty name, no or repeated roles, a key that cannot approve, and an empty validity.
    """

    name: str
    roles: tuple[str, ...]
    key: str  # a line of a .pub file: "ssh-ed25519 AAAA... comment"
    valid_after_ms: int | None = None
    valid_before_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("an approver needs a name")
        if not self.roles or not all(self.roles) or len(set(self.roles)) != len(self.roles):
            raise ValueError(f"{self.name} needs at least one role, each once")
        parse_key(self.key)
        after, before = self.valid_after_ms, self.valid_before_ms
        if after is not None and before is not None and after >= before:
            raise ValueError(f"the key of {self.name} would never be valid: {format_time(after)} is the end or later")

    def is_valid(self, at_ms: int) -> bool:
        return (self.valid_after_ms is None or at_ms >= self.valid_after_ms) and (
            self.valid_before_ms is None or at_ms < self.valid_before_ms
        )


def refuse_shared(approvers: Iterable[Approver]) -> None:
    """ValueError when a key stands twice: as two people's it would be a quorum of its own."""
    owners: dict[str, str] = {}
    for approver in approvers:
        key = parse_key(approver.key).text
        if key in owners:
            raise ValueError(f"{approver.name} has the key of {owners[key]}; every entry needs a key of its own")
        owners[key] = approver.name


class Roster:
    """Keeps the promises of ``ports.approver``. Raises ValueError when a key stands twice."""

    def __init__(self, approvers: Iterable[Approver], clock: Clock) -> None:
        self.approvers = tuple(approvers)
        refuse_shared(self.approvers)
        self._by_key: dict[str, tuple[Approver, PublicKey]] = {}
        for approver in self.approvers:
            key = parse_key(approver.key)
            self._by_key[key.text] = approver, key
        self._clock = clock

    def verify(self, signed: SignedDecision, ticket: Ticket) -> Entitled | Rejected:
        decision = signed.decision
        if decision.ticket_id != ticket.ticket_id:
            return Rejected("OTHER_TICKET", f"the decision is about {decision.ticket_id}, not {ticket.ticket_id}")
        if decision.ticket_digest != ticket_digest(ticket):
            return Rejected("ALTERED", f"the decision is about another form of {ticket.ticket_id}; {_ASK_AGAIN}")
        found = self._by_key.get(signed.key)
        if found is None:
            return Rejected("UNKNOWN_KEY", f"no approver has the key {signed.key[:60]!r}; add it to the roster first")
        approver, key = found
        fault = fault_of(signed, key)
        if fault is not None:
            return Rejected("BAD_SIGNATURE", f"{fault}; nothing was decided")
        return self._rejected(signed, ticket, approver) or Entitled(decision, frozenset(approver.roles), key.text)

    def _rejected(self, signed: SignedDecision, ticket: Ticket, approver: Approver) -> Rejected | None:
        """What is wrong with a decision that ``approver`` did sign."""
        decision, now_ms = signed.decision, self._clock.now_ms()
        if decision.by != approver.name:
            return Rejected("WRONG_NAME", f"the key is that of {approver.name}, the decision says {decision.by}")
        if decision.by == ticket.requester:
            return Rejected("REQUESTER", f"{decision.by} asked for this; somebody else has to decide")
        if not approver.is_valid(decision.at_ms) or not approver.is_valid(now_ms):
            return Rejected("KEY_NOT_VALID", f"the key of {approver.name} is outside its validity in the roster")
        if set(approver.roles).isdisjoint(ticket.by):
            return Rejected("WRONG_ROLE", f"{approver.name} is not one of {', '.join(ticket.by)}")
        if now_ms >= ticket.expires_at_ms:
            return Rejected("EXPIRED", f"the ticket expired at {format_time(ticket.expires_at_ms)}, which is a no")
        late = untimely(ticket, decision, now_ms)
        return Rejected("UNTIMELY", f"the decision does not count: {late}; {_ASK_AGAIN}") if late else None
