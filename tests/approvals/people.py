"""A ticket, the people who may decide it, and their keys."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from setpoint.adapters.approvers.roster import Approver
from setpoint.adapters.approvers.signatures import plain_key
from setpoint.kernel.quorum import Entitled
from setpoint.kernel.ticket import Ticket, Verdict, decide
from setpoint.testing.conformance.approvers import ASKED_MS, EXPIRES_MS, NOW_MS, sha, ticket

__all__ = ["ASKED_MS", "EXPIRES_MS", "NOW_MS", "approver", "entitled", "private", "public", "sha", "ticket"]


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
