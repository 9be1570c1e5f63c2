"""Verdicts of checks the runtime ran itself, bound to the state they judged (law L4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from setpoint.kernel.contract import Level

Verdict = Literal["pass", "fail", "missing"]
"""``missing``: the check crashed, timed out, could not start or lost tests. Missing is never a pass."""


SEAL_BROKEN: Final = "the seal is broken: "
"""Reason prefix of evidence that is missing because sealed files are not what was accepted: the pursuit ends there."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a parser counted. ``collected`` may not fall below the baseline's."""

    collected: int
    passed: int
    failed: int
    errors: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Failure:
    """One failing item: its name, and a short message that reaches a prompt only under ``disclose: full``."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One verdict.

    ``fingerprint`` is that of the state judged; for another state this evidence is stale. ``distance`` is the number
    of failing items (at least 1 when not passed), unweighted. ``check_digest`` covers command, parser and the pinned
    digest of sealed files. ``output_sha256`` is over the raw output of the check.
    """

    address: str
    level: Level
    verdict: Verdict
    fingerprint: str
    distance: int
    check_digest: str
    reason: str = ""
    counts: Counts | None = None
    failures: tuple[Failure, ...] = ()
    output_sha256: str = ""
    duration_ms: int = 0

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"
