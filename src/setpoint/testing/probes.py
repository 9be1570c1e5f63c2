"""Does a probe keep its side of the Verifier port? For authors of probes, to run in their own tests.

Usage::

    from setpoint.testing import ProbeFacts, probe_problems

    def test_my_probe_is_sound():
        assert probe_problems(
            ledger_balanced, met=ProbeFacts(state={"open": 0}), unmet=ProbeFacts(state={"open": 2})
        ) == []
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from setpoint.adapters.verifiers.judge import CheckVerifier
from setpoint.kernel.contract import Criterion, Environment, Level, Limits, ProbeCheck
from setpoint.kernel.evidence import Evidence
from setpoint.ports.sandbox import BindView
from setpoint.ports.verifier import Candidate
from setpoint.ports.workspace import Change, ChangeSet
from setpoint.testing.trees import TreeSandbox

Probe = Callable[[dict[str, Any]], Any]
NAME: Final = "probe:under_test"


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """One situation a probe is asked about: changed paths, and what other checks found."""

    changes: tuple[Change, ...] = ()
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    baseline: dict[str, Any] = field(default_factory=dict[str, Any])
    trajectory: dict[str, Any] = field(default_factory=lambda: {"turn": 1, "spent": {"tokens": 0, "usd_micros": 0}})


def probe_problems(probe: Probe, *, met: ProbeFacts, unmet: ProbeFacts, wall_ms: int = 5_000) -> list[str]:
    """Every promise the probe breaks, in words; empty when it keeps all of them. Runs its own event loop.

    - It answers ``met`` with a pass and ``unmet`` with a fail: in time, without raising, in a known form.
    - It answers the facts of an untouched base, where nothing has been judged yet, without raising.
    - The same facts get the same answer: a verdict is a function of the state, else a replay disagrees.
    - Its distance is at least 1 where it fails, and its failing items have names.
    """
    return asyncio.run(_problems(probe, met, unmet, wall_ms))


async def _problems(probe: Probe, met: ProbeFacts, unmet: ProbeFacts, wall_ms: int) -> list[str]:
    problems: list[str] = []
    for name, facts, expected in (("met", met, "pass"), ("unmet", unmet, "fail"), ("the base", ProbeFacts(), "")):
        first = await _judged(probe, facts, wall_ms)
        again = await _judged(probe, facts, wall_ms)
        if first.verdict == "missing":
            problems.append(f"{name}: there is no evidence: {first.reason}")
        elif expected and first.verdict != expected:
            problems.append(f"{name}: the verdict is {first.verdict}, not {expected}")
        if (first.verdict, first.output_sha256) != (again.verdict, again.output_sha256):
            problems.append(f"{name}: the same facts were answered differently the second time")
        if any(not failure.name for failure in first.failures):
            problems.append(f"{name}: a failing item has no name, so nobody can act on it")
    return problems


async def _judged(probe: Probe, facts: ProbeFacts, wall_ms: int) -> Evidence:
    """Through the port, as the runtime asks it."""
    environment = Environment("/nonexistent", limits=Limits(wall_ms=wall_ms))
    verifier = CheckVerifier(TreeSandbox({}), environment, {NAME: probe})
    fingerprint = "sha256:" + "0" * 64
    candidate = Candidate(
        BindView("/nonexistent", readonly=True),
        ChangeSet(facts.changes, fingerprint),
        fingerprint,
        facts.state,
        facts.baseline,
        facts.trajectory,
    )
    return await verifier.judge(Criterion("probe", ProbeCheck(NAME), Level.VISIBLE), candidate, None)
