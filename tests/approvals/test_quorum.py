"""What decisions amount to: a table of every small case, and the laws."""

from __future__ import annotations

from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.approvals.people import ASKED_MS, EXPIRES_MS, NOW_MS, entitled, ticket

from setpoint.kernel.limits import APPROVAL_SKEW_MS
from setpoint.kernel.quorum import Denied, Entitled, Expired, Granted, Waiting, rule_on
from setpoint.kernel.ticket import Ticket, decide, seats

ROLES = ("ops", "finance")
PEOPLE = {  # name: roles, key
    "anna": (("ops",), "k1"),
    "ben": (("finance",), "k2"),
    "aaron": (("ops", "finance"), "k3"),  # takes the first seat he comes upon, and has to move for anna
    "dora": (("legal",), "k4"),  # entitled to nothing here
    "customer:17": (("ops", "finance"), "k5"),  # who asked
}


def said(asked: Ticket, who: str, verdict: str) -> Entitled:
    roles, key = PEOPLE[who]
    return entitled(asked, who, *roles, verdict=verdict, key=key)  # type: ignore[arg-type]


def expected(asked: Ticket, sayings: dict[str, str], expired: bool) -> str:
    """The rule again, in other words: try every way to put people on seats."""
    counting = {who: what for who, what in sayings.items() if who in ("anna", "ben", "aaron")}
    if "deny" in counting.values():
        return "Denied"
    if expired:
        return "Expired"
    wanted = seats(asked)
    yes = [who for who, what in counting.items() if what == "approve"]
    fits = any(
        all(set(PEOPLE[who][0]) & set(roles) for who, roles in zip(order, wanted, strict=True))
        for order in permutations(yes, len(wanted))
    )
    return "Granted" if fits else "Waiting"


@pytest.mark.parametrize("each_role", [False, True])
@pytest.mark.parametrize("quorum", [1, 2, 3, 4])
@pytest.mark.parametrize("by", [("ops",), ("finance",), ("ops", "finance"), ("finance", "ops")])
def test_every_small_case_ends_as_the_table_says(by: tuple[str, ...], quorum: int, each_role: bool) -> None:
    """R123, R127, R129: five people who approve, deny or are silent, before and after expiry: 486 cases each."""
    asked = ticket(by=by, quorum=quorum, each_role=each_role)
    entitled_here = {who for who, (roles, _) in PEOPLE.items() if set(roles) & set(by)}
    for sayings in product((None, "approve", "deny"), repeat=len(PEOPLE)):
        spoken = {who: what for who, what in zip(PEOPLE, sayings, strict=True) if what is not None}
        decisions = [said(asked, who, what) for who, what in spoken.items()]
        counted = {who: what for who, what in spoken.items() if who in entitled_here}
        for now_ms in (NOW_MS, EXPIRES_MS):
            ruling = rule_on(asked, decisions, now_ms)
            assert type(ruling).__name__ == expected(asked, counted, now_ms == EXPIRES_MS), (spoken, now_ms, ruling)


def test_one_of_two_is_not_enough_and_says_who_is_missing() -> None:
    """R129"""
    asked = ticket(quorum=2)
    one, two = entitled(asked, "anna", "ops"), entitled(asked, "ben", "ops")
    assert rule_on(asked, [one], NOW_MS) == Waiting((ROLES,), ("anna",))
    assert rule_on(asked, [one, two], NOW_MS) == Granted(("anna", "ben"))


def test_two_of_one_role_do_not_stand_for_two_roles() -> None:
    """R129"""
    asked = ticket(each_role=True)
    ops = [entitled(asked, "anna", "ops"), entitled(asked, "ben", "ops")]
    assert rule_on(asked, ops, NOW_MS) == Waiting((("finance",),), ("anna", "ben"))
    assert rule_on(asked, [*ops, entitled(asked, "cleo", "finance")], NOW_MS) == Granted(("anna", "cleo"))


def test_who_has_both_roles_fills_one_and_leaves_the_other_to_somebody_else() -> None:
    """R129"""
    asked = ticket(each_role=True)
    both = entitled(asked, "ben", "ops", "finance")
    assert isinstance(rule_on(asked, [both], NOW_MS), Waiting)
    # Whoever else comes, before or after in any order, the two sit.
    for other in ("anna", "cleo"):
        for role in ("ops", "finance"):
            assert rule_on(asked, [both, entitled(asked, other, role)], NOW_MS) == Granted(
                tuple(sorted(("ben", other)))
            )


def test_a_person_has_the_roles_of_all_keys_they_signed_with() -> None:
    """R129"""
    asked = ticket(each_role=True)
    anna = [entitled(asked, "anna", role, key=f"key for {role}") for role in ("ops", "finance")]
    for decisions in (anna, anna[::-1]):
        assert rule_on(asked, [*decisions, entitled(asked, "ben", "ops")], NOW_MS) == Granted(("anna", "ben"))
        assert rule_on(asked, [*decisions, entitled(asked, "ben", "finance")], NOW_MS) == Granted(("anna", "ben"))


def test_the_same_person_twice_is_one_person_with_one_key_or_with_two() -> None:
    """R129"""
    asked = ticket(quorum=2)
    twice = [entitled(asked, "anna", "ops", key=key) for key in ("k1", "k1", "k2")]
    assert rule_on(asked, twice, NOW_MS) == Waiting((ROLES,), ("anna",))


def test_one_key_under_two_names_is_nobody() -> None:
    """R129"""
    asked = ticket()
    shared = [entitled(asked, name, "ops", key="k1") for name in ("anna", "ben")]
    assert rule_on(asked, shared, NOW_MS) == Waiting((ROLES,))


def test_the_requester_counts_neither_way() -> None:
    """R129"""
    asked = ticket(requester="anna")
    for verdict in ("approve", "deny"):
        assert isinstance(rule_on(asked, [entitled(asked, "anna", "ops", verdict=verdict)], NOW_MS), Waiting)


def test_one_no_outweighs_every_yes_even_a_later_one() -> None:
    """R123"""
    asked = ticket()
    decisions = [
        entitled(asked, "anna", "ops", at_ms=NOW_MS - 2),
        entitled(asked, "ben", "ops", verdict="deny", at_ms=NOW_MS - 1),
        entitled(asked, "cleo", "ops", at_ms=NOW_MS),
    ]
    for order in permutations(decisions):
        assert rule_on(asked, order, NOW_MS) == Denied("ben", "because")


def test_silence_is_a_no_from_the_very_millisecond() -> None:
    """R127, D4"""
    asked = ticket()
    assert isinstance(rule_on(asked, [], EXPIRES_MS - 1), Waiting)
    assert rule_on(asked, [], EXPIRES_MS) == Expired(EXPIRES_MS)


def test_a_yes_given_in_time_is_not_kept_beyond_the_expiry() -> None:
    """D4: a stale approval is not used days later"""
    asked = ticket()
    yes = [entitled(asked, "anna", "ops")]
    assert isinstance(rule_on(asked, yes, EXPIRES_MS - 1), Granted)
    assert isinstance(rule_on(asked, yes, EXPIRES_MS), Expired)


@pytest.mark.parametrize(
    ("at_ms", "now_ms", "counts"),
    [
        (ASKED_MS, NOW_MS, True),
        (ASKED_MS - APPROVAL_SKEW_MS, NOW_MS, True),
        (ASKED_MS - APPROVAL_SKEW_MS - 1, NOW_MS, False),
        (NOW_MS + APPROVAL_SKEW_MS, NOW_MS, True),
        (NOW_MS + APPROVAL_SKEW_MS + 1, NOW_MS, False),
        (EXPIRES_MS - 1, EXPIRES_MS - 1, True),
        (EXPIRES_MS, EXPIRES_MS - 1, False),
    ],
)
def test_a_decision_counts_only_for_the_time_the_ticket_is_open(at_ms: int, now_ms: int, counts: bool) -> None:
    """R127"""
    asked = ticket()
    for verdict, outcome in (("approve", Granted), ("deny", Denied)):
        one = entitled(asked, "anna", "ops", verdict=verdict, at_ms=at_ms)
        assert isinstance(rule_on(asked, [one], now_ms), outcome) == counts


def test_a_decision_about_another_ticket_or_an_altered_one_is_passed_over() -> None:
    """D3, R124"""
    asked = ticket()
    for other in (
        ticket(ticket_id="ticket-0000000000000002"),
        ticket(arguments={"cents": 99_999}),
        ticket(nonce="f" * 16),
    ):
        assert isinstance(rule_on(asked, [entitled(other, "anna", "ops")], NOW_MS), Waiting)
        assert isinstance(rule_on(asked, [entitled(other, "anna", "ops", verdict="deny")], NOW_MS), Waiting)


names = st.sampled_from(["anna", "ben", "cleo", "dora", "emil", "customer:17"])
sayings = st.lists(
    st.tuples(
        names,
        st.sets(st.sampled_from(["ops", "finance", "legal"])),
        st.sampled_from(["approve", "approve", "approve", "deny"]),
        st.integers(0, 1),
        st.sampled_from([ASKED_MS - APPROVAL_SKEW_MS - 1, ASKED_MS, NOW_MS, EXPIRES_MS]),
    ),
    max_size=7,
)
tickets = st.builds(
    lambda by, quorum, each: ticket(by=by, quorum=quorum, each_role=each),
    st.sampled_from([("ops",), ROLES, ("legal", "ops", "finance")]),
    st.integers(1, 4),
    st.booleans(),
)


def made(asked: Ticket, raw: list[tuple[str, set[str], str, int, int]]) -> list[Entitled]:
    """Every person has two keys of their own."""
    return [
        Entitled(decide(asked, verdict, name, at_ms), frozenset(roles), f"{name}{number}")  # type: ignore[arg-type]
        for name, roles, verdict, number, at_ms in raw
    ]


@given(tickets, sayings, st.randoms())
def test_order_and_repetition_do_not_matter(asked: Ticket, raw: list, random: object) -> None:
    decisions = made(asked, raw)
    ruling = rule_on(asked, decisions, NOW_MS)
    shuffled = decisions * 2
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rule_on(asked, shuffled, NOW_MS) == ruling


@given(tickets, sayings, sayings)
def test_one_more_yes_never_takes_a_grant_away(asked: Ticket, raw: list, more: list) -> None:
    if isinstance(rule_on(asked, made(asked, raw), NOW_MS), Granted):
        yes = [(name, roles, "approve", number, at_ms) for name, roles, _, number, at_ms in more]
        assert isinstance(rule_on(asked, made(asked, raw + yes), NOW_MS), Granted)


@given(tickets, sayings)
def test_every_grant_has_enough_different_people_in_the_right_roles(asked: Ticket, raw: list) -> None:
    """R129"""
    ruling = rule_on(asked, made(asked, raw), NOW_MS)
    if isinstance(ruling, Granted):
        assert len(set(ruling.by)) == len(ruling.by) == len(seats(asked)) >= asked.quorum
        assert asked.requester not in ruling.by
        held = {n: set().union(*(r for m, r, v, _, _ in raw if m == n and v == "approve")) for n in ruling.by}
        assert all(roles & set(asked.by) for roles in held.values())
        if asked.each_role:
            for role in asked.by:
                assert any(role in roles for roles in held.values())


@given(tickets, sayings)
def test_who_waits_lacks_exactly_as_many_as_it_says(asked: Ticket, raw: list) -> None:
    ruling = rule_on(asked, made(asked, raw), NOW_MS)
    if isinstance(ruling, Waiting):
        assert 0 < len(ruling.missing) <= len(seats(asked))
        new = [(f"new{i}", {roles[0]}, "approve", 0, NOW_MS) for i, roles in enumerate(ruling.missing)]
        assert isinstance(rule_on(asked, made(asked, raw + new), NOW_MS), Granted)
        for fewer in combinations(new, len(new) - 1):
            assert isinstance(rule_on(asked, made(asked, raw + list(fewer)), NOW_MS), Waiting)
