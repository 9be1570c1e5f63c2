"""Whose yes or no counts.

Promises every adapter keeps (each sentence has a conformance test):

- Only a signature over exactly this decision, by a key the installation trusts, is ``Entitled``.
- A decision about another ticket, or about this ticket in another form, is rejected.
- The name in the decision is the name the key belongs to; the requester is rejected, whatever roles they have.
- A signer without any of the ticket's roles is rejected, and so is a key outside its own validity, at the time of the
  decision or now.
- A decision made before the request, after the expiry or in the future is rejected; so is every decision once the
  ticket has expired.
- ``verify`` changes nothing and never raises for what a signer sent.

Verify at arrival, to answer the person, and again before dispatch: a key withdrawn in between no longer counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from setpoint.kernel.quorum import Entitled
from setpoint.kernel.ticket import SignedDecision, Ticket

RejectedReason = Literal[
    "OTHER_TICKET",
    "ALTERED",
    "UNKNOWN_KEY",
    "BAD_SIGNATURE",
    "WRONG_NAME",
    "KEY_NOT_VALID",
    "REQUESTER",
    "WRONG_ROLE",
    "UNTIMELY",
    "EXPIRED",
]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A decision that does not count. ``message`` says what happened and what the person can do."""

    reason: RejectedReason
    message: str


class Approvers(Protocol):
    def verify(self, signed: SignedDecision, ticket: Ticket) -> Entitled | Rejected: ...
