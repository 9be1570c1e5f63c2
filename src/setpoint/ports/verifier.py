"""Judge a candidate state where no agent can reach (law L9).

Promises every adapter keeps (each sentence has a conformance test):

- ``judge`` never raises for what the candidate does; a check that crashes, times out, cannot start, loses its report
  or collects fewer tests than the baseline is verdict "missing" or "fail", never "pass".
- Nothing a check writes reaches the candidate; the candidate cannot read or write sealed files, and network is off.
- Evidence carries the fingerprint it was given and a check digest that changes with command, parser or sealed files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from setpoint.kernel.contract import Criterion, Invariant
from setpoint.kernel.evidence import Counts, Evidence
from setpoint.ports.sandbox import View
from setpoint.ports.workspace import ChangeSet


@dataclass(frozen=True, slots=True)
class Candidate:
    """The state to judge and the facts expressions may use."""

    view: View
    changes: ChangeSet
    fingerprint: str
    state: dict[str, Any] = field(default_factory=dict[str, Any])  # probe results by id
    baseline: dict[str, Any] = field(default_factory=dict[str, Any])
    trajectory: dict[str, Any] = field(default_factory=dict[str, Any])  # turn, spent
    base: bool = False  # the base itself, before any mutation


class Verifier(Protocol):
    async def judge(
        self, check: Criterion | Invariant, candidate: Candidate, baseline_counts: Counts | None
    ) -> Evidence: ...

    async def close(self) -> None: ...
