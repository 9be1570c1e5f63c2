"""What is bound, how it is written down, and what a person is shown."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.approvals.people import ASKED_MS, NOW_MS, sha, ticket

from setpoint.kernel.errors import UsageFault
from setpoint.kernel.keys import canonical
from setpoint.kernel.ticket import (
    Decision,
    SignedDecision,
    Ticket,
    action_digest,
    changed_since,
    decide,
    decision_bytes,
    describe,
    needs,
    read_signed,
    read_ticket,
    signed_bytes,
    ticket_bytes,
    ticket_digest,
)
from setpoint.testing.conformance.approvers import OTHER

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner)
    ),
    max_leaves=8,
)


def test_the_walk_below_changes_every_field() -> None:
    """R124: a field added to the ticket must be added to the walk."""
    assert set(OTHER) == set(Ticket.__struct_fields__) - {"v"}


@pytest.mark.parametrize("field", OTHER)
def test_a_change_of_any_one_field_gives_another_digest(field: str) -> None:
    """R124, D3"""
    assert ticket_digest(ticket(**{field: OTHER[field]})) != ticket_digest(ticket())


@given(plain, plain)
def test_two_arguments_have_one_digest_only_when_they_are_the_same(one: Any, two: Any) -> None:
    """R124, D3: 1 and true differ, and so do a text and what it spells."""
    same = canonical(one) == canonical(two)
    assert (ticket_digest(ticket(arguments={"a": one})) == ticket_digest(ticket(arguments={"a": two}))) == same
    assert (action_digest("c", one, "b", "p") == action_digest("c", two, "b", "p")) == same


def test_the_action_digest_moves_with_each_of_its_parts_and_with_nothing_else() -> None:
    """D3: sha256(action, args, base, policy)"""
    parts: list[Any] = ["issue_refund", {"cents": 1}, sha("b"), sha("p")]
    digests = {action_digest(*parts)}
    for index, other in enumerate(["issue_refund2", {"cents": 2}, sha("b2"), sha("p2")]):
        digests.add(action_digest(*parts[:index], other, *parts[index + 1 :]))
    assert len(digests) == 5


def test_what_changed_since_the_approval_is_named() -> None:
    """R126"""
    asked = ticket()
    now: list[Any] = [asked.capability, dict(asked.arguments), asked.base_digest, asked.policy_digest]
    assert changed_since(asked, *now) == ()
    assert changed_since(asked, "issue_refund2", *now[1:]) == ("capability",)
    assert changed_since(asked, now[0], {**asked.arguments, "notify": 1}, *now[2:]) == ("arguments",)
    assert changed_since(asked, now[0], now[1], sha("x"), sha("y")) == ("base", "policy")


@given(plain, st.text(st.characters(codec="utf-8"), max_size=30))
def test_a_ticket_survives_the_wire(value: Any, text: str) -> None:
    asked = ticket(arguments={"deep": [value]}, preview=text)
    again = read_ticket(ticket_bytes(asked))
    assert again == asked and ticket_digest(again) == ticket_digest(asked)


def test_the_digest_is_that_of_the_file() -> None:
    """R124: anybody can recheck it with sha256sum."""
    assert ticket_digest(ticket()) == "sha256:" + hashlib.sha256(ticket_bytes(ticket())).hexdigest()


def test_the_bytes_of_a_ticket_stay_what_they_are() -> None:
    """R124: approvals given before an upgrade stay good after it."""
    assert ticket_digest(ticket()) == "sha256:aa8768ca37488480cbc5145c98d58c642940ceae03d253d7e1e9416eba7de09e"
    assert (
        hashlib.sha256(decision_bytes(decide(ticket(), "approve", "anna", NOW_MS))).hexdigest()
        == "1c01372b2cdb4cc83c5ecf0ad78c6e9682208848cd9eee8dfb7c264ccb902e7d"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arguments", {"cents": 1.5}),
        ("arguments", {"cents": float("nan")}),
        ("arguments", {"at": b"bytes"}),
        ("arguments", {1: "a"}),
        ("arguments", {"a": {"b": "\ud800"}}),
        ("arguments", {"\udfff": 1}),
        ("arguments", {"n": 2**64}),
        ("arguments", ["a"]),
        ("quorum", 0),
        ("quorum", True),
        ("quorum", 101),
        ("by", ()),
        ("by", ("ops", "ops")),
        ("by", ("",)),
        ("by", ["ops"]),
        ("by", "ops"),
        ("each_role", 1),
        ("effect", "harmless"),
        ("base_digest", ""),
        ("policy_digest", "sha256:" + "A" * 64),
        ("definition_digest", sha("x") + "\n"),
        ("requester", ""),
        ("preview", None),
        ("nonce", "short"),
        ("expires_at_ms", ASKED_MS),
        ("expires_at_ms", 1 << 60),
        ("requested_at_ms", float(ASKED_MS)),
        ("v", 2),
    ],
)
def test_a_ticket_that_cannot_be_written_down_exactly_is_none(field: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        ticket(**{field: value})


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "maybe"},
        {"ticket_digest": "abc"},
        {"by": ""},
        {"by": 7},
        {"ticket_id": ""},
        {"at_ms": -1},
        {"at_ms": True},
        {"reason": "x" * 1001},
        {"reason": "\ud800"},
    ],
)
def test_a_decision_that_makes_no_sense_is_none(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"ticket_id": "t", "ticket_digest": sha("t"), "verdict": "deny", "by": "anna", "at_ms": 1}
    Decision(**fields)
    with pytest.raises((ValueError, TypeError)):
        Decision(**{**fields, **change})


def signed() -> SignedDecision:
    decision = decide(ticket(), "approve", "anna", NOW_MS, "Grüße")
    return SignedDecision(decision=decision, scheme="ed25519", key="ssh-ed25519 AAAA", signature="AAAA")


def test_a_signed_decision_survives_the_wire_and_a_line_break_after_it() -> None:
    assert read_signed(signed_bytes(signed())) == signed() == read_signed(signed_bytes(signed()) + b"\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"", b"\xff"),
        (b"", b" "),
        (b"{", b"{ "),
        (b'"v":1', b'"v":2'),
        (b'"v":1', b'"v":1.0'),
        (b'"v":1', b'"v":1,"w":1'),
        (b'"by":"anna"', b'"by":"anna","by":"anna"'),
        (b'"by":"anna"', b'"by":null'),
        (b'"by":"anna"', b'"by":"\\u0061nna"'),
        (b'"verdict":"approve"', b'"verdict":"APPROVE"'),
        (b'"scheme":"ed25519"', b'"scheme":"none"'),
        (b'"type":"setpoint-approval"', b'"type":"other"'),
        (b'"type":"setpoint-approval",', b""),
        (b'"key":', b'"Key":'),
        (b'"AAAA"', b"[" * 5_000),
        (b'"AAAA"', b'"' + b"A" * 20_000 + b'"'),
    ],
)
def test_nonsense_on_the_wire_is_refused_and_decides_nothing(old: bytes, new: bytes) -> None:
    """R124"""
    good = signed_bytes(signed())
    assert old in good
    with pytest.raises(UsageFault, match="nothing was decided"):
        read_signed(good.replace(old, new, 1))


@given(st.binary(max_size=60))
def test_no_bytes_make_the_readers_fail_otherwise(data: bytes) -> None:
    for read in (read_signed, read_ticket):
        with pytest.raises(UsageFault):
            read(data)


def test_a_decision_is_no_ticket_and_a_ticket_no_decision() -> None:
    with pytest.raises(UsageFault):
        read_ticket(decision_bytes(signed().decision))
    with pytest.raises(UsageFault):
        read_signed(ticket_bytes(ticket()))


def test_a_person_is_shown_everything_they_sign() -> None:
    """R125: canonical call, target, authority, preview, preconditions, digest, expiry, requester, budget"""
    assert describe(ticket()) == [
        ("Action", "issue_refund (compensable)"),
        ("Arguments", '{\n  "cents": 12000,\n  "notify": true,\n  "order_id": "A-1001"\n}'),
        ("Target", "bank account of order A-1001"),
        ("Authority", "scope refunds:write of the support credential"),
        ("Preview", "120.00 EUR go back to the card of order A-1001"),
        ("Preconditions", "order A-1001 is paid\norder A-1001 has no refund"),
        ("Requested by", "customer:17"),
        ("For", "refund, node refund/decision/APPROVED/issue, in run-0000000000000007"),
        ("Budget", "0.40 of 2.00 USD spent, 1.60 left"),
        ("Needs", "1 of ops or finance"),
        ("Requested at", "2026-01-01T00:00:00Z"),
        ("Expires", "2026-01-01T01:00:00Z; without an answer until then it is a no"),
        ("Decided on", f"state {sha('state')}"),
        ("Rules", f"policy {sha('policy')}, definition {sha('definition')}"),
        ("Ticket", "ticket-0000000000000001, nonce b0c6e1b2a7f04f1f"),
        ("Digest", ticket_digest(ticket())),
    ]


@pytest.mark.parametrize("field", OTHER)
def test_no_field_changes_without_the_person_seeing_it(field: str) -> None:
    """R125: what you see is what you sign, even without the digest."""
    assert describe(ticket(**{field: OTHER[field]}))[:-1] != describe(ticket())[:-1]


def test_what_hides_or_turns_text_around_is_spelled_out() -> None:
    """R125"""
    shown = dict(describe(ticket(preview="a\u202eb\x1b[2Jc\rd\u200be\nf", preconditions=(), target="")))
    assert shown["Preview"] == "a\\u202eb\\u001b[2Jc\\u000dd\\u200be\nf"
    assert shown["Preconditions"] == shown["Target"] == "(none)"


@pytest.mark.parametrize(
    ("by", "quorum", "each_role", "words"),
    [
        (("ops",), 1, False, "1 of ops"),
        (("ops", "finance"), 2, False, "2 of ops or finance"),
        (("ops", "finance"), 1, True, "1 of ops; 1 of finance"),
        (("ops", "finance"), 3, True, "1 of ops; 1 of finance; 1 of ops or finance"),
    ],
)
def test_who_is_needed_is_said_in_words(by: tuple[str, ...], quorum: int, each_role: bool, words: str) -> None:
    """R129"""
    assert needs(ticket(by=by, quorum=quorum, each_role=each_role)) == words


def test_a_struct_read_by_msgspec_is_checked_like_one_made_here() -> None:
    """The log's codec reads tickets too."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(ticket_bytes(ticket()).replace(b'"quorum":1', b'"quorum":0'), type=Ticket)
