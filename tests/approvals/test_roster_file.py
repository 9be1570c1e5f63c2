"""The roster's file: strict, with lines, and only from somebody who may decide who approves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.approvals.openssh import key_text
from tests.approvals.people import approver, private, public

from setpoint.adapters.approvers.roster import Approver, Roster
from setpoint.app.approvers import read_approvers
from setpoint.app.places import find_places
from setpoint.kernel.errors import UsageFault
from setpoint.testing.clock import FakeClock

GOOD = f"""\
# who may approve here
approvers:
  - name: anna
    roles: [ops, finance]
    key: {public("anna")} anna@laptop
  - name: anna
    roles: [ops]
    key: {key_text(private("anna's token"), "ssh:")}
    valid_after: 2026-01-01
    valid_before: "2026-02-01T09:30:00Z"
"""


@pytest.fixture
def roster(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    path = tmp_path / "approvers.yaml"
    path.write_text(GOOD)
    path.chmod(0o600)
    return path


def test_a_roster_says_who_with_which_key_in_which_roles_from_when_to_when(roster: Path) -> None:
    anna, token = read_approvers(roster)
    assert anna == Approver("anna", ("ops", "finance"), public("anna") + " anna@laptop")
    assert (token.valid_after_ms, token.valid_before_ms) == (1_767_225_600_000, 1_769_938_200_000)


def test_it_lies_in_the_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path))
    assert find_places().approvers == tmp_path / "approvers.yaml"


KEY = public("anna")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "no document"),
        ("approvers: []\n", 1, "at least one"),
        ("approver: []\n", 1, "at least one"),
        ("- a\n", 1, "at least one"),
        (GOOD + "more: 1\n", 11, "unknown key 'more'"),
        (GOOD + "---\napprovers: []\n", 12, "one document"),
        (GOOD.replace("    roles: [ops]", "    role: [ops]"), 7, "unknown key 'role'; valid: roles"),
        (GOOD.replace("    roles: [ops]\n", ""), 6, "roles is missing"),
        (GOOD.replace("[ops]", "ops"), 7, "roles is a list of texts"),
        (GOOD.replace("[ops]", "[1]"), 7, "roles is a list of texts"),
        (GOOD.replace("[ops]", "[]"), 6, "at least one role"),
        (GOOD.replace("[ops]", "[ops, ops]"), 6, "each once"),
        (GOOD.replace("name: anna\n    roles: [ops]", "name: yes\n    roles: [ops]"), 6, "must be a text"),
        (GOOD.replace("name: anna\n    roles: [ops]", "name: ''\n    roles: [ops]"), 6, "needs a name"),
        (GOOD.replace(KEY, "ssh-rsa AAAA"), 3, "keys of type ssh-rsa cannot approve"),
        (GOOD.replace(KEY, KEY[:-4]), 3, "ends too early"),
        (GOOD.replace("2026-01-01", "2026-13-01"), 9, "'2026-13-01' is not a time"),
        (GOOD.replace("2026-01-01", "1.1.2026"), 9, "'1.1.2026' is not a time"),
        (GOOD.replace("2026-01-01", "null"), 9, "None is not a time"),
        (GOOD.replace("2026-01-01", "2026-01-01T09:30:00+02:00"), 9, "is not a time"),
        (GOOD.replace("2026-01-01", "2026-03-01"), 6, "never be valid"),
        (GOOD + f"  - {{name: ben, roles: [ops], key: {KEY} other comment}}\n", 11, "ben has the key of anna"),
        (GOOD + "  - name: ben\n    name: cleo\n", 12, "stands here twice"),
        (GOOD + "  - anna\n", 11, "an approver is an object"),
        (GOOD + "  - [\n", 12, "not YAML"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line_and_then_nobody_approves(
    roster: Path, text: str, line: int, words: str
) -> None:
    roster.write_text(text)
    with pytest.raises(UsageFault, match="nobody can approve") as fault:
        read_approvers(roster)
    assert words in str(fault.value)
    assert f"{roster}:{line}:" in str(fault.value)


def test_all_problems_are_named_at_once(roster: Path) -> None:
    roster.write_text(GOOD.replace("[ops]", "ops").replace("2026-01-01", "soon").replace(KEY, "ssh-dss AAAA"))
    with pytest.raises(UsageFault) as fault:
        read_approvers(roster)
    assert str(fault.value).count(f"{roster}:") == 3


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o664])
def test_a_roster_that_others_could_write_is_refused(roster: Path, mode: int) -> None:
    """L9: who writes it approves"""
    roster.chmod(mode)
    with pytest.raises(UsageFault, match=f"mode {mode:04o}: other users can name themselves"):
        read_approvers(roster)
    roster.chmod(0o644)
    assert read_approvers(roster)


def test_a_roster_in_a_directory_that_others_could_write_is_refused_also_behind_a_link(roster: Path) -> None:
    """L9"""
    inner = roster.parent / "inner"
    inner.mkdir(0o700)
    roster.rename(inner / "real.yaml")
    roster.symlink_to(inner / "real.yaml")
    assert read_approvers(roster)
    inner.chmod(0o777)
    with pytest.raises(UsageFault, match="other users can replace the roster"):
        read_approvers(roster)
    inner.chmod(0o700)
    roster.parent.chmod(0o770)
    with pytest.raises(UsageFault, match="other users can replace the roster"):
        read_approvers(roster)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_roster_of_another_user_is_refused(roster: Path) -> None:
    """L9"""
    os.chown(roster, 65534, -1)
    with pytest.raises(UsageFault, match="belongs to user 65534"):
        read_approvers(roster)


def test_a_missing_roster_and_one_that_is_no_file_are_clear_faults(roster: Path) -> None:
    roster.unlink()
    with pytest.raises(UsageFault, match=r"nobody can approve without it.*\n.*approvers: "):
        read_approvers(roster)
    os.mkfifo(roster, 0o600)
    with pytest.raises(UsageFault, match="not a regular file"):
        read_approvers(roster)
    roster.unlink()
    roster.mkdir(0o700)
    with pytest.raises(UsageFault, match="cannot be read"):
        read_approvers(roster)


def test_a_roster_made_in_python_is_checked_like_a_file() -> None:
    """R129"""
    with pytest.raises(ValueError, match="ben has the key of anna"):
        Roster([approver("anna", "ops"), approver("ben", "ops", key=public("anna") + " comment")], FakeClock())
    for wrong in (("", "ops"), ("anna",), ("anna", "ops", "ops"), ("anna", "")):
        with pytest.raises(ValueError):
            approver(*wrong)
    with pytest.raises(ValueError):
        approver("anna", "ops", key="ssh-rsa AAAA")
    assert Roster([], FakeClock()).approvers == ()
