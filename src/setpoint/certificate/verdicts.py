"""What the evidence of a log says of its states: the delta, recomputed.

Evidence goes back with the workspace. After a roll-back the evidence at hand is that of the savepoint that stands, or
of the best one, or none; a verdict about another state is stale, and stale is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .canonical import digest
from .contract import IMPLICIT, Check, Contract
from .statement import LEVELS

VERDICTS: Final = ("pass", "fail", "missing")
UNKNOWN_PROGRESS: Final = (1 << 30, 1 << 30, 1 << 30)

Items = dict[str, tuple[int, str, bool]]
"""A delta: address -> (weighted distance, verdict, whether it is a hard invariant)."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One piece of evidence, and where it lies in the log."""

    seq: int
    fingerprint: str
    level: int
    verdict: str
    distance: int
    check_digest: str
    digest: str  # of the event's data


Evidence = dict[str, Judged]
"""The newest evidence of each check, by address, of whatever state it is."""


class Verdicts:
    """The evidence at hand while a log is replayed."""

    def __init__(self, contract: Contract) -> None:
        self.evidence: Evidence = {}
        self.open: Items = {}  # the delta measured last
        self._checks = {check.address: check for check in contract.checks()}
        self._kept: Evidence = {}
        self._best: tuple[int, tuple[int, ...], Evidence] | None = None  # savepoint, progress, evidence
        self._progress: tuple[int, ...] = UNKNOWN_PROGRESS
        self._baseline: dict[str, int] = {}
        self._check_digests: dict[str, str] = {}

    def judged(self, check: Check, fingerprint: str) -> Judged | None:
        """The evidence of a check about this state, None when there is none or it is of another state."""
        found = self.evidence.get(check.address)
        return found if found is not None and found.fingerprint == fingerprint else None

    def record(self, seq: int, data: dict[str, Any], raw: dict[str, Any]) -> str | None:
        """Take in one EvidenceRecorded; what is wrong with it by itself, None when nothing is."""
        address, verdict = data["check"], data["verdict"]
        check = self._checks.get(address)
        if check is None:
            return f"evidence of {address!r}, which is no check of this task"
        if data["level"] not in LEVELS or verdict not in VERDICTS:
            return f"evidence with level {data['level']!r} and verdict {verdict!r}"
        self.evidence[address] = Judged(
            seq,
            data["fingerprint"],
            LEVELS.index(data["level"]),
            verdict,
            data["distance"],
            data["check_digest"],
            digest(raw),
        )
        collected = data["collected"]
        if data["phase"] == "baseline" and collected is not None:
            self._baseline[address] = collected
        lost = (collected or 0) < self._baseline.get(address, 0)
        if verdict == "pass" and (data["failed"] or data["errors"] or lost):
            return f"{address} is said to pass with failures, errors or fewer tests than at the base"
        if verdict == "missing":  # it may not even have been started
            return None
        known = self._check_digests.setdefault(address, data["check_digest"])
        if known != data["check_digest"] and check.id not in IMPLICIT:  # those follow the tools used so far
            return f"{address} was judged by another check than before: its digest changed"
        return None

    def forget(self) -> None:
        """No evidence at hand is about what is there now."""
        self.evidence = {}

    def allow_new_checks(self) -> None:
        """A person accepted another runtime, whose checks may have other digests."""
        self._check_digests.clear()

    def items(self, fingerprint: str, *, include_unjudged: bool = False) -> Items:
        """The delta of a state from the evidence at hand. Stale counts as missing, at the distance last known.

        Implicit invariants are measured once they have been judged; ``include_unjudged`` counts them as missing.
        """
        items: Items = {}
        for check in self._checks.values():
            found = self.evidence.get(check.address)
            if found is None:
                if check.id not in IMPLICIT or include_unjudged:
                    items[check.address] = (check.weight, "missing", check.is_hard)
                continue
            is_fresh = found.fingerprint == fingerprint
            passed = is_fresh and found.verdict == "pass"
            if passed and (check.severity or found.level >= check.level):
                continue
            verdict = "fail" if passed else found.verdict if is_fresh else "missing"
            items[check.address] = (check.weight * max(1, found.distance), verdict, check.is_hard)
        return items

    def broken(self, fingerprint: str) -> list[str]:
        """The hard invariants that do not hold in a state."""
        return [
            address for address, (_, _, is_hard) in self.items(fingerprint, include_unjudged=True).items() if is_hard
        ]

    def measure(self, data: dict[str, Any]) -> str | None:
        """Take in one DeltaMeasured; how it differs from the delta of the evidence, None when it does not."""
        self.open = items = self.items(data["fingerprint"])
        hard = sum(item[2] for item in items.values())
        unmet = sum(address.startswith("done/") for address in items)
        self._progress = (hard, unmet, sum(item[0] for item in items.values()))
        if self._best is None:  # the base: savepoint 0
            self._best = (0, self._progress, dict(self.evidence))
            self._kept = dict(self.evidence)
        recorded = _recorded(data["items"])
        if recorded is None:
            return "the delta is not a list of items, each address once"
        where = sorted(address for address in items | recorded if recorded.get(address) != items.get(address))
        if where or data["progress"] != list(self._progress):
            return f"the delta does not follow from the evidence (at {', '.join(where) or 'its progress'})"
        return None

    def keep(self, savepoint: int) -> None:
        self._kept = dict(self.evidence)
        if self._best is None or self._progress < self._best[1]:
            self._best = (savepoint, self._progress, self._kept)

    def restore(self, savepoint: int, standing: int) -> None:
        """Go back from the ``standing`` savepoint to ``savepoint``, or to the start of an attempt upon it."""
        if savepoint != standing:
            self._kept = self._best[2] if self._best is not None and savepoint == self._best[0] else {}
        self.evidence = dict(self._kept)


def _recorded(items: list[Any]) -> Items | None:
    """The items of a DeltaMeasured, None when they are not items or an address comes twice."""
    found: Items = {}
    for item in items:
        match item:
            case {"address": str(address), "distance": int(distance), "verdict": str(verdict)} if address not in found:
                found[address] = (distance, verdict, item.get("hard", False) is True)
            case _:
                return None
    return found
