"""The promises of ``setpoint.ports.approver``: whose yes or no counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from setpoint.kernel.limits import APPROVAL_SKEW_MS
from setpoint.kernel.quorum import Entitled, Granted, Waiting, rule_on
from setpoint.kernel.ticket import Decision, SignedDecision, Ticket, Verdict, decide
from setpoint.ports.approver import Approvers, Rejected
from setpoint.ports.clock import Clock
from setpoint.testing.clock import EPOCH_MS, FakeClock

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


OTHER: dict[str, Any] = {
    "ticket_id": "ticket-0000000000000002",
    "stream": "run-0000000000000008",
    "name": "refund2",
    "node": "refund/decision/APPROVED/issue2",
    "capability": "issue_refund2",
    "effect": "irreversible",
    "target": "another account",
    "authority": "another scope",
    "arguments": {"order_id": "A-1001", "cents": 12_001, "notify": True},
    "preview": "120.01 EUR",
    "preconditions": ("order A-1001 is paid",),
    "base_digest": sha("state2"),
    "definition_digest": sha("definition2"),
    "policy_digest": sha("policy2"),
    "requester": "customer:18",
    "by": ("finance", "ops"),
    "quorum": 2,
    "each_role": True,
    "requested_at_ms": ASKED_MS + 1,
    "expires_at_ms": EXPIRES_MS + 1,
    "budget": "nothing left",
    "nonce": "b0c6e1b2a7f04f1e",
}
"""Another value for every field of that ticket."""


@dataclass(frozen=True)
class Person:
    """One key of one person whom the installation trusts. ``key`` is the name of the key for ``sign``."""

    name: str
    roles: tuple[str, ...]
    key: str
    valid_after_ms: int | None = None
    valid_before_ms: int | None = None


PEOPLE = (
    Person("anna", ("ops", "legal"), "anna"),
    Person("anna", ("ops",), "anna's second"),
    Person("ben", ("finance",), "ben"),
    Person("dora", ("legal",), "dora"),
    Person("old", ("ops",), "old", valid_before_ms=NOW_MS),
    Person("new", ("ops",), "new", valid_after_ms=NOW_MS),
    Person("customer:17", ("ops",), "customer:17"),
)

Sign = Callable[[str, Decision], SignedDecision]
Make = Callable[[Sequence[Person], Clock], Approvers]


def yes(sign: Sign, by: str, asked: Ticket | None = None, *, key: str = "", **changes: Any) -> SignedDecision:
    """That person's decision on the ticket, signed with their key or another."""
    verdict: Verdict = changes.get("verdict", "approve")
    return sign(key or by, decide(asked or ticket(), verdict, by, changes.get("at_ms", NOW_MS), "because"))


def reason(found: Entitled | Rejected) -> str:
    assert isinstance(found, Rejected), found
    assert found.message
    return found.reason


class ApproversSuite:
    """Everybody who says whose decisions count keeps these. Override ``make`` and ``sign``.

    class TestMyDirectory(ApproversSuite):
        @pytest.fixture
        def make(self):
            return lambda people, clock: MyDirectory(people, clock)

        @pytest.fixture
        def sign(self):
            return lambda key, decision: my_signature(private_key_named(key), decision)
    """

    @pytest.fixture
    def make(self) -> Make:
        """``make(people, clock)``: trusts exactly these keys; ``clock`` says what time it is."""
        raise NotImplementedError("Override the fixture make: it returns a function that makes your Approvers.")

    @pytest.fixture
    def sign(self) -> Sign:
        """``sign(key, decision)``: signed with the key of that name, which may be nobody's: "mallory"."""
        raise NotImplementedError("Override the fixture sign: it returns a function that signs a decision.")

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock(NOW_MS)

    @pytest.fixture
    def approvers(self, make: Make, clock: FakeClock) -> Approvers:
        return make(PEOPLE, clock)

    @pytest.mark.parametrize("verdict", ["approve", "deny"])
    def test_a_decision_signed_by_a_trusted_key_is_entitled(
        self, sign: Sign, approvers: Approvers, verdict: str
    ) -> None:
        """R123, R124"""
        signed = yes(sign, "anna", verdict=verdict)
        found = approvers.verify(signed, ticket())
        assert isinstance(found, Entitled) and found.key
        assert (found.decision, found.roles) == (signed.decision, frozenset({"ops", "legal"}))

    def test_a_key_that_is_not_trusted_is_rejected(self, sign: Sign, approvers: Approvers) -> None:
        """Only a signature by a key the installation trusts is ``Entitled``. R124: wrong key"""
        assert reason(approvers.verify(yes(sign, "anna", key="mallory"), ticket())) == "UNKNOWN_KEY"

    def test_a_stranger_who_names_a_trusted_key_is_rejected(self, sign: Sign, approvers: Approvers) -> None:
        """R124: wrong key"""
        forged, annas = yes(sign, "anna", key="mallory"), yes(sign, "anna")
        posing = SignedDecision(
            decision=forged.decision, scheme=forged.scheme, key=annas.key, signature=forged.signature
        )
        assert reason(approvers.verify(posing, ticket())) == "BAD_SIGNATURE"

    def test_an_altered_decision_is_rejected(self, sign: Sign, approvers: Approvers) -> None:
        """Only a signature over exactly this decision is ``Entitled``. R124"""
        no = yes(sign, "anna", verdict="deny")
        turned = decide(ticket(), "approve", "anna", NOW_MS, "because")
        forged = SignedDecision(decision=turned, scheme=no.scheme, key=no.key, signature=no.signature)
        assert reason(approvers.verify(forged, ticket())) == "BAD_SIGNATURE"

    def test_a_signature_replayed_on_another_ticket_is_rejected(self, sign: Sign, approvers: Approvers) -> None:
        """A decision about another ticket is rejected, as it was or with the names changed. R124: replayed signature"""
        signed, other = yes(sign, "anna"), ticket(ticket_id="ticket-0000000000000002", nonce="another nonce 16")
        assert reason(approvers.verify(signed, other)) == "OTHER_TICKET"
        moved = decide(other, "approve", "anna", NOW_MS, "because")
        forged = SignedDecision(decision=moved, scheme=signed.scheme, key=signed.key, signature=signed.signature)
        assert reason(approvers.verify(forged, other)) == "BAD_SIGNATURE"

    @pytest.mark.parametrize("field", OTHER)
    def test_a_ticket_changed_in_any_field_voids_the_decision(
        self, sign: Sign, approvers: Approvers, field: str
    ) -> None:
        """A decision about this ticket in another form is rejected. R124, D3: changed amount after approval"""
        changed = ticket(**{field: OTHER[field]})
        assert isinstance(approvers.verify(yes(sign, "anna"), ticket()), Entitled)
        expected = "OTHER_TICKET" if field == "ticket_id" else "ALTERED"
        assert reason(approvers.verify(yes(sign, "anna"), changed)) == expected

    def test_a_name_that_is_not_the_keys_is_rejected(self, sign: Sign, approvers: Approvers) -> None:
        """The name in the decision is the name the key belongs to: nobody signs for somebody else. R129"""
        assert reason(approvers.verify(yes(sign, "ben", key="anna"), ticket())) == "WRONG_NAME"

    def test_the_requester_is_rejected_whatever_their_roles(self, sign: Sign, approvers: Approvers) -> None:
        """The requester is rejected, whatever roles they have. R129"""
        assert reason(approvers.verify(yes(sign, "customer:17"), ticket())) == "REQUESTER"
        asked = ticket(requester="anna")
        assert reason(approvers.verify(yes(sign, "anna", asked, key="anna's second"), asked)) == "REQUESTER"
        assert isinstance(approvers.verify(yes(sign, "customer:17", asked), asked), Entitled)

    def test_a_signer_without_a_role_of_the_ticket_is_rejected(self, sign: Sign, approvers: Approvers) -> None:
        """A signer without any of the ticket's roles is rejected. R123"""
        assert reason(approvers.verify(yes(sign, "dora"), ticket())) == "WRONG_ROLE"

    def test_a_key_outside_its_validity_is_rejected_then_and_now(
        self, sign: Sign, approvers: Approvers, clock: FakeClock
    ) -> None:
        """At the time of the decision or now: dating back to when the key was valid does not help. R124"""
        assert reason(approvers.verify(yes(sign, "old", at_ms=NOW_MS - 1), ticket())) == "KEY_NOT_VALID"
        assert reason(approvers.verify(yes(sign, "new", at_ms=NOW_MS - 1), ticket())) == "KEY_NOT_VALID"
        assert isinstance(approvers.verify(yes(sign, "new"), ticket()), Entitled)
        clock.advance(-1)
        assert isinstance(approvers.verify(yes(sign, "old", at_ms=NOW_MS - 1), ticket()), Entitled)
        assert reason(approvers.verify(yes(sign, "new"), ticket())) == "KEY_NOT_VALID"

    @pytest.mark.parametrize("at_ms", [ASKED_MS - APPROVAL_SKEW_MS - 1, NOW_MS + APPROVAL_SKEW_MS + 1, EXPIRES_MS])
    def test_a_decision_made_when_the_ticket_was_not_open_is_rejected(
        self, sign: Sign, approvers: Approvers, at_ms: int
    ) -> None:
        """A decision made before the request, after the expiry or in the future is rejected. R127"""
        assert reason(approvers.verify(yes(sign, "anna", at_ms=at_ms), ticket())) == "UNTIMELY"

    def test_after_expiry_every_decision_is_rejected_as_expired(
        self, sign: Sign, approvers: Approvers, clock: FakeClock
    ) -> None:
        """Every decision is rejected once the ticket has expired. R127, D4"""
        signed = yes(sign, "anna", at_ms=EXPIRES_MS - 1)
        clock.advance(EXPIRES_MS - 1 - NOW_MS)
        assert isinstance(approvers.verify(signed, ticket()), Entitled)
        clock.advance(1)
        assert reason(approvers.verify(signed, ticket())) == "EXPIRED"

    def test_verifying_changes_nothing_and_answers_whatever_was_sent(self, sign: Sign, approvers: Approvers) -> None:
        """``verify`` changes nothing and never raises for what a signer sent. R124"""
        good = yes(sign, "anna")
        for key in ("", "ssh-ed25519", "\ud800", good.key + " ", good.key):
            for signature in ("", "\ud800", "AAAA", good.signature[:-5], good.signature * 2):
                bad = SignedDecision(decision=good.decision, scheme=good.scheme, key=key, signature=signature)
                assert reason(approvers.verify(bad, ticket())) in ("UNKNOWN_KEY", "BAD_SIGNATURE")
        assert approvers.verify(good, ticket()) == approvers.verify(good, ticket())

    def test_two_keys_of_one_person_are_no_quorum_and_two_people_are(self, sign: Sign, approvers: Approvers) -> None:
        """R129"""
        asked = ticket(quorum=2)

        def ruling(*signed: SignedDecision) -> object:
            verified = [approvers.verify(one, asked) for one in signed]
            return rule_on(asked, [one for one in verified if isinstance(one, Entitled)], NOW_MS)

        twice = yes(sign, "anna", asked), yes(sign, "anna", asked, key="anna's second")
        assert ruling(*twice) == Waiting((("ops", "finance"),), ("anna",))
        assert ruling(*twice, yes(sign, "ben", asked)) == Granted(("anna", "ben"))
