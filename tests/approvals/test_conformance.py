"""Every sentence of ``ports.approver``, for each way to sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.approvals.openssh import armour, blob, key_text
from tests.approvals.people import ASKED_MS, EXPIRES_MS, NOW_MS, approver, private, public, ticket
from tests.approvals.test_ticket import OTHER

from setpoint.adapters.approvers.roster import Roster
from setpoint.adapters.approvers.signing import sign_with
from setpoint.kernel.limits import APPROVAL_SKEW_MS
from setpoint.kernel.quorum import Entitled, Granted, Waiting, rule_on
from setpoint.kernel.ticket import Decision, SignedDecision, Ticket, Verdict, decide, decision_bytes
from setpoint.ports.approver import Approvers, Rejected
from setpoint.testing.clock import FakeClock

Sign = Callable[[str, Decision], SignedDecision]
"""The decision signed with the key of that name."""


def plain(key: str, decision: Decision) -> SignedDecision:
    return sign_with(private(key), decision)


def ssh(key: str, decision: Decision) -> SignedDecision:
    armoured = armour(blob(private(key), decision_bytes(decision)))
    return SignedDecision(decision=decision, scheme="sshsig", key=key_text(private(key)), signature=armoured)


@pytest.fixture(params=[plain, ssh])
def sign(request: pytest.FixtureRequest) -> Sign:
    return request.param


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_MS)


@pytest.fixture
def approvers(clock: FakeClock) -> Approvers:
    return Roster(
        [
            approver("anna", "ops", "legal"),
            approver("anna", "ops", key=public("anna's second")),
            approver("ben", "finance"),
            approver("dora", "legal"),
            approver("old", "ops", valid_before_ms=NOW_MS),
            approver("new", "ops", valid_after_ms=NOW_MS),
            approver("customer:17", "ops"),
        ],
        clock,
    )


def yes(sign: Sign, by: str, asked: Ticket | None = None, *, key: str = "", **changes: Any) -> SignedDecision:
    verdict: Verdict = changes.get("verdict", "approve")
    return sign(key or by, decide(asked or ticket(), verdict, by, changes.get("at_ms", NOW_MS), "because"))


def reason(found: Entitled | Rejected) -> str:
    assert isinstance(found, Rejected), found
    assert found.message
    return found.reason


@pytest.mark.parametrize("verdict", ["approve", "deny"])
def test_a_decision_signed_by_a_trusted_key_is_entitled(sign: Sign, approvers: Approvers, verdict: str) -> None:
    """R123, R124"""
    signed = yes(sign, "anna", verdict=verdict)
    assert approvers.verify(signed, ticket()) == Entitled(signed.decision, frozenset({"ops", "legal"}), public("anna"))


def test_a_key_that_is_not_in_the_roster_is_rejected(sign: Sign, approvers: Approvers) -> None:
    """R124: wrong key"""
    assert reason(approvers.verify(yes(sign, "anna", key="mallory"), ticket())) == "UNKNOWN_KEY"


def test_a_stranger_who_names_a_trusted_key_is_rejected(sign: Sign, approvers: Approvers) -> None:
    """R124: wrong key"""
    forged = yes(sign, "anna", key="mallory")
    posing = SignedDecision(
        decision=forged.decision, scheme=forged.scheme, key=public("anna"), signature=forged.signature
    )
    assert reason(approvers.verify(posing, ticket())) == "BAD_SIGNATURE"


def test_an_altered_decision_is_rejected(sign: Sign, approvers: Approvers) -> None:
    """R124"""
    no = yes(sign, "anna", verdict="deny")
    turned = decide(ticket(), "approve", "anna", NOW_MS, "because")
    forged = SignedDecision(decision=turned, scheme=no.scheme, key=no.key, signature=no.signature)
    assert reason(approvers.verify(forged, ticket())) == "BAD_SIGNATURE"


def test_a_signature_replayed_on_another_ticket_is_rejected(sign: Sign, approvers: Approvers) -> None:
    """R124: replayed signature, as it was or with the names changed"""
    signed, other = yes(sign, "anna"), ticket(ticket_id="ticket-0000000000000002", nonce="another nonce 16")
    assert reason(approvers.verify(signed, other)) == "OTHER_TICKET"
    moved = decide(other, "approve", "anna", NOW_MS, "because")
    forged = SignedDecision(decision=moved, scheme=signed.scheme, key=signed.key, signature=signed.signature)
    assert reason(approvers.verify(forged, other)) == "BAD_SIGNATURE"


@pytest.mark.parametrize("field", OTHER)
def test_a_ticket_changed_in_any_field_voids_the_decision(sign: Sign, approvers: Approvers, field: str) -> None:
    """R124, D3: altered digest; changed amount after approval"""
    changed = ticket(**{field: OTHER[field]})
    assert isinstance(approvers.verify(yes(sign, "anna"), ticket()), Entitled)
    expected = "OTHER_TICKET" if field == "ticket_id" else "ALTERED"
    assert reason(approvers.verify(yes(sign, "anna"), changed)) == expected


def test_a_name_that_is_not_the_keys_is_rejected(sign: Sign, approvers: Approvers) -> None:
    """R129: nobody signs for somebody else"""
    assert reason(approvers.verify(yes(sign, "ben", key="anna"), ticket())) == "WRONG_NAME"


def test_the_requester_is_rejected_whatever_their_roles(sign: Sign, approvers: Approvers) -> None:
    """R129"""
    assert reason(approvers.verify(yes(sign, "customer:17"), ticket())) == "REQUESTER"
    asked = ticket(requester="anna")
    assert reason(approvers.verify(yes(sign, "anna", asked, key="anna's second"), asked)) == "REQUESTER"
    assert isinstance(approvers.verify(yes(sign, "customer:17", asked), asked), Entitled)


def test_a_signer_without_a_role_of_the_ticket_is_rejected(sign: Sign, approvers: Approvers) -> None:
    """R123"""
    assert reason(approvers.verify(yes(sign, "dora"), ticket())) == "WRONG_ROLE"


def test_a_key_outside_its_validity_is_rejected_then_and_now(
    sign: Sign, approvers: Approvers, clock: FakeClock
) -> None:
    """R124: a decision dated back to when the key was still valid does not help."""
    assert reason(approvers.verify(yes(sign, "old", at_ms=NOW_MS - 1), ticket())) == "KEY_NOT_VALID"
    assert reason(approvers.verify(yes(sign, "new", at_ms=NOW_MS - 1), ticket())) == "KEY_NOT_VALID"
    assert isinstance(approvers.verify(yes(sign, "new"), ticket()), Entitled)
    clock.advance(-1)
    assert isinstance(approvers.verify(yes(sign, "old", at_ms=NOW_MS - 1), ticket()), Entitled)
    assert reason(approvers.verify(yes(sign, "new"), ticket())) == "KEY_NOT_VALID"


@pytest.mark.parametrize("at_ms", [ASKED_MS - APPROVAL_SKEW_MS - 1, NOW_MS + APPROVAL_SKEW_MS + 1, EXPIRES_MS])
def test_a_decision_made_when_the_ticket_was_not_open_is_rejected(sign: Sign, approvers: Approvers, at_ms: int) -> None:
    """R127"""
    assert reason(approvers.verify(yes(sign, "anna", at_ms=at_ms), ticket())) == "UNTIMELY"


def test_after_expiry_every_decision_is_rejected_as_expired(sign: Sign, approvers: Approvers, clock: FakeClock) -> None:
    """R127, D4"""
    signed = yes(sign, "anna", at_ms=EXPIRES_MS - 1)
    clock.advance(EXPIRES_MS - 1 - NOW_MS)
    assert isinstance(approvers.verify(signed, ticket()), Entitled)
    clock.advance(1)
    assert reason(approvers.verify(signed, ticket())) == "EXPIRED"


def test_verifying_changes_nothing_and_answers_whatever_was_sent(sign: Sign, approvers: Approvers) -> None:
    """R124"""
    good = yes(sign, "anna")
    for key in ("", "ssh-ed25519", "\ud800", good.key + " ", good.key):
        for signature in ("", "\ud800", "AAAA", good.signature[:-5], good.signature * 2):
            bad = SignedDecision(decision=good.decision, scheme=good.scheme, key=key, signature=signature)
            assert reason(approvers.verify(bad, ticket())) in ("UNKNOWN_KEY", "BAD_SIGNATURE")
    assert approvers.verify(good, ticket()) == approvers.verify(good, ticket())


def test_two_keys_of_one_person_are_no_quorum_and_two_people_are(sign: Sign, approvers: Approvers) -> None:
    """R129"""
    asked = ticket(quorum=2)

    def ruling(*signed: SignedDecision) -> object:
        verified = [approvers.verify(one, asked) for one in signed]
        return rule_on(asked, [one for one in verified if isinstance(one, Entitled)], NOW_MS)

    twice = yes(sign, "anna", asked), yes(sign, "anna", asked, key="anna's second")
    assert ruling(*twice) == Waiting((("ops", "finance"),), ("anna",))
    assert ruling(*twice, yes(sign, "ben", asked)) == Granted(("anna", "ben"))
