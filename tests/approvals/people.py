"""A ticket, the people who may decide it, and their keys."""

from __future__ import annotations

import hashlib
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from setpoint.adapters.approvers.roster import Approver
from setpoint.adapters.approvers.signatures import plain_key
from setpoint.kernel.quorum import Entitled
from setpoint.kernel.ticket import Ticket, Verdict, decide
from setpoint.testing.clock import EPOCH_MS

ASKED_MS = EPOCH_MS
EXPIRES_MS = EPOCH_MS + 3_600_000
NOW_MS = EPOCH_MS + 60_000


def sha(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def ticket(**changes: Any) -> Ticket:
    """A refund above the limit, asked for by customer 17, to be approved by ops or finance."""
    fields: dict[str, Any] = {
        "ticket_id": "ticket-0000000000000001",
        "stream": "run-0000000000000007",
        "name": "refund",
        "node": "refund/decision/APPROVED/issue",
        "capability": "issue_refund",
        "effect": "compensable",
        "target": "bank account of order A-1001",
        "authority": "scope refunds:write of the support credential",
        "arguments": {"order_id": "A-1001", "cents": 12_000, "notify": True},
        "preview": "120.00 EUR go back to the card of order A-1001",
        "preconditions": ("order A-1001 is paid", "order A-1001 has no refund"),
        "base_digest": sha("state"),
        "definition_digest": sha("definition"),
        "policy_digest": sha("policy"),
        "requester": "customer:17",
        "by": ("ops", "finance"),
        "quorum": 1,
        "each_role": False,
        "requested_at_ms": ASKED_MS,
        "expires_at_ms": EXPIRES_MS,
        "budget": "0.40 of 2.00 USD spent, 1.60 left",
        "nonce": "b0c6e1b2a7f04f1f",
    }
    return Ticket(**{**fields, **changes})


def private(name: str) -> Ed25519PrivateKey:
    """The same key for the same name, in every run."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def public(name: str) -> str:
    return plain_key(private(name).public_key().public_bytes_raw()).text


def approver(name: str, *roles: str, key: str = "", **validity: int) -> Approver:
    return Approver(name, roles, key or public(name), **validity)


def entitled(
    asked: Ticket, by: str, *roles: str, verdict: Verdict = "approve", key: str = "", at_ms: int = NOW_MS
) -> Entitled:
    """A decision whose signature somebody has verified."""
    return Entitled(decide(asked, verdict, by, at_ms, "because"), frozenset(roles), key or f"key of {by}")
