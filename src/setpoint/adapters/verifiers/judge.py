"""The Verifier port: one check against one candidate, dispatched on the kind of its predicate.

Whatever the candidate does ends as evidence. What keeps a check from being run at all (no sandbox, unpinned or changed
sealed files, an unregistered probe, an expression that does not evaluate) is verdict "missing" with the reason: missing
is never a pass, and the loop can still say why it stands still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, assert_never

from setpoint.adapters.verifiers import exhaustive, expression, oracle, probe
from setpoint.adapters.verifiers.scrub import scrub, sealed_lines
from setpoint.adapters.verifiers.sealed_command import HARNESS_VERSION, run_command
from setpoint.adapters.verifiers.sealed_files import SealedFilesUnusable, digest_directory
from setpoint.adapters.verifiers.verdicts import Judgement
from setpoint.kernel.contract import (
    Criterion,
    Environment,
    ExprCheck,
    Invariant,
    Level,
    OracleCheck,
    Predicate,
    ProbeCheck,
    RunCheck,
)
from setpoint.kernel.errors import SandboxFault
from setpoint.kernel.evidence import SEAL_BROKEN, Counts, Evidence
from setpoint.kernel.keys import digest
from setpoint.ports.sandbox import Sandbox
from setpoint.ports.verifier import Candidate


class CheckVerifier:
    """Judges the checks of one trajectory. The sandbox stays the caller's to close."""

    def __init__(
        self,
        sandbox: Sandbox,
        environment: Environment,
        probes: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._environment = environment
        self._probes = dict(probes or {})

    async def judge(
        self, check: Criterion | Invariant, candidate: Candidate, baseline_counts: Counts | None
    ) -> Evidence:
        started = time.monotonic()
        if problem := await asyncio.to_thread(sealed_problem, check):
            judgement, output = Judgement.missing(problem), ""
        else:
            judgement, output = await self._judge_predicate(check, candidate, baseline_counts)
            if check.files is not None and judgement.verdict != "pass":
                judgement = await _scrubbed(judgement, check.files)
        return Evidence(
            address=check.address,
            level=check.level,
            verdict=judgement.verdict,
            fingerprint=candidate.fingerprint,
            distance=judgement.distance,
            check_digest=check_digest(check),
            reason=judgement.reason,
            counts=judgement.counts,
            failures=judgement.failures,
            output_sha256=output,
            duration_ms=round((time.monotonic() - started) * 1000),
        )

    async def _judge_predicate(
        self, check: Criterion | Invariant, candidate: Candidate, baseline: Counts | None
    ) -> tuple[Judgement, str]:
        """The judgement, and the digest of the raw output it rests on."""
        try:
            match check.predicate:
                case RunCheck() as run:
                    ran = await run_command(
                        run, check.level, check.files, self._environment, candidate.view, self._sandbox, baseline
                    )
                    return ran.judgement, ran.output_sha256
                case ExprCheck() as expr:
                    return expression.judge(expr, candidate), ""
                case ProbeCheck() as named:
                    return await probe.judge(named, candidate, self._probes, self._environment.limits.wall_ms)
                case OracleCheck() as judged:
                    ask = exhaustive.judge if check.level is Level.PROOF else oracle.judge
                    return await ask(
                        judged,
                        check_digest(check),
                        check.files,
                        self._environment,
                        candidate,
                        self._sandbox,
                        baseline,
                    )
                case unknown:
                    assert_never(unknown)
        except SandboxFault as fault:
            return Judgement.missing(f"no sandbox for the check: {fault.message}"), ""

    async def close(self) -> None:
        """Nothing outlives a judgement."""


async def _scrubbed(judgement: Judgement, files: str) -> Judgement:
    try:
        return scrub(judgement, await asyncio.to_thread(sealed_lines, files))
    except OSError as fault:  # what cannot be scrubbed is not recorded
        return Judgement.missing(f"sealed files became unreadable while the check ran: {fault.strerror}")


def sealed_problem(check: Criterion | Invariant) -> str:
    """Why the sealed files of this check cannot be trusted, or "". Compared before every use."""
    if check.files is None:
        return ""
    if check.files_digest is None:
        return f"the sealed files of {check.id} were never pinned; accept the task again"
    try:
        found = digest_directory(check.files)
    except SealedFilesUnusable as fault:
        return f"{SEAL_BROKEN}the sealed files of {check.id} cannot be used: {fault}"
    if found != check.files_digest:
        changed = f"{check.files_digest} -> {found}"
        return f"{SEAL_BROKEN}the sealed files of {check.id} changed since the task was accepted ({changed})"
    return ""


def check_digest(check: Criterion | Invariant) -> str:
    """Digest of what decides the verdict: command or expression, parser, level, pinned files, and this harness."""
    return digest([HARNESS_VERSION, check.level.label, check.files_digest, _decisive(check.predicate)])


def _decisive(predicate: Predicate) -> list[Any]:
    match predicate:
        case RunCheck():
            return ["run", predicate.command, predicate.parse, predicate.timeout_ms]
        case ExprCheck():
            return ["expr", predicate.expr]
        case ProbeCheck():
            return ["probe", predicate.name]
        case OracleCheck():
            return ["oracle", predicate.judge, predicate.timeout_ms]
        case unknown:
            assert_never(unknown)
