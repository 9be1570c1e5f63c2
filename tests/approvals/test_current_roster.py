"""The promises of ``ports.approver`` over a file that changes under whoever verifies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.approvals.people import approver, private, public, ticket

from setpoint.adapters.approvers.signing import sign_with
from setpoint.app.current_roster import CurrentRoster
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.quorum import Entitled
from setpoint.ports.approver import Approvers
from setpoint.ports.clock import Clock
from setpoint.testing import FakeClock
from setpoint.testing.conformance import ApproversSuite
from setpoint.testing.conformance.approvers import NOW_MS, Person, Sign, yes


def written(path: Path, *names: str) -> None:
    entries = "".join(f"- {{name: {name}, roles: [ops], key: {public(name)}}}\n" for name in names)
    path.write_text(f"approvers:\n{entries}")
    path.chmod(0o600)


def sign(key: str, decision: object) -> object:
    return sign_with(private(key), decision)  # type: ignore[arg-type]


def answer(roster: CurrentRoster, name: str) -> str:
    found = roster.verify(yes(sign, name), ticket())  # type: ignore[arg-type]
    return "entitled" if isinstance(found, Entitled) else found.reason


class TestDeclaredByAnApplication(ApproversSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[Sequence[Person], Clock], Approvers]:
        def roster(people: Sequence[Person], clock: Clock) -> Approvers:
            return CurrentRoster(tmp_path / "none.yaml", [entry(person) for person in people], clock)

        def entry(person: Person):
            times = {"valid_after_ms": person.valid_after_ms, "valid_before_ms": person.valid_before_ms}
            return approver(person.name, *person.roles, key=public(person.key), **times)

        return roster

    @pytest.fixture
    def sign(self) -> Sign:
        return lambda key, decision: sign_with(private(key), decision)


def test_who_is_named_later_counts_and_who_is_removed_does_not(tmp_path: Path) -> None:
    """R126: a key that is withdrawn no longer counts."""
    path = tmp_path / "approvers.yaml"
    roster = CurrentRoster(path, [approver("olga", "ops")], FakeClock(NOW_MS))
    assert (answer(roster, "anna"), answer(roster, "olga")) == ("UNKNOWN_KEY", "entitled")
    written(path, "anna")
    assert answer(roster, "anna") == "entitled"
    written(path, "berta")
    assert (answer(roster, "anna"), answer(roster, "berta")) == ("UNKNOWN_KEY", "entitled")
    path.unlink()
    assert answer(roster, "berta") == "UNKNOWN_KEY"


@pytest.mark.parametrize("damage", ["text", "mode", "twice"])
def test_a_file_that_cannot_be_trusted_any_more_trusts_nobody_of_it(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "approvers.yaml"
    written(path, "anna")
    roster = CurrentRoster(path, [approver("olga", "ops")], FakeClock(NOW_MS))
    assert answer(roster, "anna") == "entitled"
    match damage:
        case "text":
            path.write_text("approvers: [")
        case "mode":
            path.chmod(0o666)
        case _:
            written(path, "anna", "olga")  # a key that the application has declared for the same person
    assert (answer(roster, "anna"), answer(roster, "olga")) == ("UNKNOWN_KEY", "entitled")
    path.unlink()
    written(path, "anna")
    assert answer(roster, "anna") == "entitled", "mended"


def test_a_file_that_is_wrong_at_the_start_is_told(tmp_path: Path) -> None:
    path = tmp_path / "approvers.yaml"
    path.write_text("approvers: []\n")
    with pytest.raises(UsageFault):
        CurrentRoster(path, [], FakeClock(NOW_MS))
