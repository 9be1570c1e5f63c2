"""Every sentence of ``ports.approver``, for each way to sign."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.approvals.openssh import armour, blob, key_text
from tests.approvals.people import approver, private, public, ticket

from setpoint.adapters.approvers.roster import Roster
from setpoint.adapters.approvers.signing import sign_with
from setpoint.kernel.quorum import Entitled
from setpoint.kernel.ticket import Decision, SignedDecision, decision_bytes
from setpoint.ports.approver import Approvers, Rejected
from setpoint.ports.clock import Clock
from setpoint.testing.conformance import ApproversSuite
from setpoint.testing.conformance.approvers import Person, Sign, yes


class OfARoster(ApproversSuite):
    @pytest.fixture
    def make(self) -> Callable[[Sequence[Person], Clock], Approvers]:
        def roster(people: Sequence[Person], clock: Clock) -> Roster:
            return Roster([entry(person) for person in people], clock)

        def entry(person: Person):
            times = {"valid_after_ms": person.valid_after_ms, "valid_before_ms": person.valid_before_ms}
            return approver(person.name, *person.roles, key=public(person.key), **times)

        return roster

    def test_the_key_is_said_in_its_one_spelling(self, sign: Sign, approvers: Approvers) -> None:
        found = approvers.verify(yes(sign, "anna"), ticket())
        assert isinstance(found, Entitled) and found.key == public("anna")

    def test_a_stranger_who_names_a_trusted_key_in_its_one_spelling_is_rejected(
        self, sign: Sign, approvers: Approvers
    ) -> None:
        """R124: wrong key"""
        forged = yes(sign, "anna", key="mallory")
        posing = SignedDecision(
            decision=forged.decision, scheme=forged.scheme, key=public("anna"), signature=forged.signature
        )
        found = approvers.verify(posing, ticket())
        assert isinstance(found, Rejected) and found.reason == "BAD_SIGNATURE"


class TestPlain(OfARoster):
    @pytest.fixture
    def sign(self) -> Sign:
        return lambda key, decision: sign_with(private(key), decision)


class TestSsh(OfARoster):
    @pytest.fixture
    def sign(self) -> Sign:
        def ssh(key: str, decision: Decision) -> SignedDecision:
            armoured = armour(blob(private(key), decision_bytes(decision)))
            return SignedDecision(decision=decision, scheme="sshsig", key=key_text(private(key)), signature=armoured)

        return ssh
