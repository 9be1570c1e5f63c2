"""What of an open check may reach a prompt, in the state, in a note and as data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from setpoint.kernel.contract import (
    Budget,
    Criterion,
    Environment,
    Goal,
    Level,
    Observe,
    Policy,
    RunCheck,
    Task,
)
from setpoint.kernel.disclosure import disclosed_data, disclosed_line, disclosed_word
from setpoint.kernel.events import Item
from setpoint.kernel.record import EvidenceLine

SECRET = "assert parse('-1.0') == 5.0"
LINE = EvidenceLine(
    "done/golden", "sealed", "fail", "f", 3, "2 of 42 failed", 42,
    (("golden::test_neg", SECRET), ("golden::test_b", "")),
    "d", 1,
)  # fmt: skip
ITEM = Item("done/golden", 3, "fail", False, "2 of 42 failed")


def task(disclose) -> Task:
    criterion = Criterion("golden", RunCheck("pytest"), Level.SEALED, "/sealed", "x", disclose)
    return Task(
        "t", Goal("g"), Environment("/w"), (), Observe(), (criterion,), (), Budget(), Policy(), (), {}, "sha256:0"
    )


@pytest.mark.parametrize(
    ("policy", "line", "word"),
    [
        ("none", None, None),
        ("verdict", "done/golden: not met", "done/golden"),
        (
            "names",
            "done/golden: fail, distance 3; failing: golden::test_neg, golden::test_b and 1 more",
            "done/golden (golden::test_neg, golden::test_b)",
        ),
    ],
)
def test_a_check_says_no_more_than_its_policy(policy, line, word):
    """R016, CASES G3: a held-out check is disclosed as a verdict, or not at all."""
    contract = task(policy)
    assert disclosed_line(contract, ITEM, LINE) == line
    assert disclosed_word(contract, ITEM, LINE) == word
    data = disclosed_data(contract, ITEM)
    assert data is None if policy == "none" else data == {"address": "done/golden", "hard": False}


def test_full_disclosure_shows_messages_in_the_state_but_never_in_a_note():
    """L5: what a check printed may quote the failed text; a note outlives the roll-back."""
    contract = task("full")
    assert SECRET in (disclosed_line(contract, ITEM, LINE) or "")
    word = disclosed_word(contract, ITEM, LINE)
    assert word == "done/golden (golden::test_neg, golden::test_b)"
    unnamed = replace_failures(LINE)
    assert disclosed_word(contract, ITEM, unnamed) == "done/golden"  # a command's own words stay out as well


def test_an_invariant_every_task_has_is_told_in_full():
    item = Item("invariants/@forbid", 1, "fail", True, "the task forbids: .git/config")
    assert disclosed_word(task("none"), item, None) == "invariants/@forbid (the task forbids: .git/config)"


def replace_failures(line: EvidenceLine) -> EvidenceLine:
    import msgspec

    return msgspec.structs.replace(line, failures=())


def test_the_policy_belongs_to_the_check_and_not_to_the_item():
    contract = replace(task("none"), done=())
    assert disclosed_word(contract, ITEM, LINE) == "done/golden (golden::test_neg, golden::test_b)"
