"""The desk of a pursuit: where tickets are made out, and where decisions are verified and counted.

What a ticket takes from the world (an id, a nonce, the time, a look at the workspace) and what people said come through
here, so that a replay can answer from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from setpoint.kernel.quorum import Denied, Entitled, Expired, Granted, Waiting, rule_on
from setpoint.kernel.ticket import SignedDecision, Ticket
from setpoint.ports.approver import Approvers, Rejected
from setpoint.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class Stamp:
    """What of a ticket comes from the world: chance and clock."""

    ticket_id: str
    nonce: str
    at_ms: int


class Desk(Protocol):
    """Where tickets are made out and decisions come in; replay has one that answers from the log."""

    def stamp(self) -> Stamp: ...

    def preview(self, draw: Callable[[], str]) -> str: ...

    def verify(self, signed: SignedDecision, ticket: Ticket) -> Entitled | Rejected: ...

    def rule(self, ticket: Ticket, decisions: Sequence[SignedDecision]) -> Waiting | Granted | Denied | Expired: ...


@dataclass(frozen=True, slots=True)
class LiveDesk:
    """The desk of an owner: its clock, and the approvers its installation trusts now."""

    approvers: Approvers
    clock: Clock

    def stamp(self) -> Stamp:
        return Stamp(self.clock.new_id("ap"), self.clock.new_id("nonce"), self.clock.now_ms())

    def preview(self, draw: Callable[[], str]) -> str:
        return draw()

    def verify(self, signed: SignedDecision, ticket: Ticket) -> Entitled | Rejected:
        return self.approvers.verify(signed, ticket)

    def rule(self, ticket: Ticket, decisions: Sequence[SignedDecision]) -> Waiting | Granted | Denied | Expired:
        verified = [self.approvers.verify(signed, ticket) for signed in decisions]
        return rule_on(ticket, [one for one in verified if isinstance(one, Entitled)], self.clock.now_ms())
