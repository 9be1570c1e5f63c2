"""What a verification found: every check by name, in order, each passed, failed or not made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

CHECKS: Final[dict[str, str]] = {
    "structure": "the file is one canonical document, and no field is unknown or missing",
    "signature": "a trusted key signed exactly these bytes",
    "log": "events chain without a gap up to the commit; Merkle root and size are those signed",
    "task": "the signed task digest is that of the contract",
    "coverage": "each criterion and invariant has passing evidence at its level, about the committed state",
    "replay": "every permit, savepoint, delta, rejected claim and commit follows from the events before it",
    "statement": "every other signed fact is the one the events give",
    "approvers": "every approval was signed by people you trust, with the roles it asks for",
    "workspace": "the directory is in the certified state now",
}
"""Names and meanings, in the order they run. ``approvers`` runs only when approvers were given, ``workspace`` only when
a directory was."""

OPTIONAL: Final = ("approvers",)
"""May be not made: without approvers from outside, only the signatures themselves are known to hold (``replay``)."""

Outcome = Literal["passed", "failed", "not made"]


class Invalid(Exception):
    """A certificate does not hold: which check found it, and what it found."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check
        self.message = message


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``findings`` is empty when it passed; otherwise what failed, or why it was not made."""

    name: str
    outcome: Outcome
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The result of ``verify``. ``predicate`` is what was signed, {} when the file could not be read.

    ``drift`` is kept apart: a directory that changed after certification does not make the certificate false.
    """

    checks: tuple[Check, ...]
    predicate: dict[str, Any]
    drift: str | None = None

    @property
    def valid(self) -> bool:
        """Whether the certificate holds. A check that was not made is not a pass, except the optional ones."""
        return bool(self.checks) and all(
            check.outcome == "passed" or (check.name in OPTIONAL and check.outcome == "not made")
            for check in self.checks
            if check.name != "workspace"
        )

    def failures(self) -> Iterator[Invalid]:
        """Everything that makes the certificate not hold; drift of a directory is not among it."""
        for check in self.checks:
            if check.outcome == "failed" and check.name != "workspace":
                yield from (Invalid(check.name, finding) for finding in check.findings)

    def require_valid(self) -> Report:
        """This report, or Invalid with the first thing that failed."""
        for failure in self.failures():
            raise failure
        if not self.valid:
            raise Invalid(self.checks[0].name if self.checks else "structure", "nothing was checked")
        return self
