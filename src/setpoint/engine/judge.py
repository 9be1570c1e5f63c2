"""Gather the runtime's own evidence for one state and measure its delta (phase 5)."""

from __future__ import annotations

from typing import Any

from setpoint.engine.pursuit import Pursuit
from setpoint.kernel import limits
from setpoint.kernel.contract import Level
from setpoint.kernel.delta import measure
from setpoint.kernel.events import ChangeItem, ChangesObserved, DeltaMeasured, EvidenceRecorded, FailureItem
from setpoint.kernel.evidence import Counts, Evidence
from setpoint.kernel.redaction import redact
from setpoint.kernel.spelling import encodable, one_line
from setpoint.phases.p5_evidence.implicit import IMPLICIT, judge_implicit
from setpoint.phases.p5_evidence.order import SKIPPED, Check, stages
from setpoint.ports.sandbox import View
from setpoint.ports.verifier import Candidate
from setpoint.ports.workspace import ChangeSet


async def judge_state(p: Pursuit, changes: ChangeSet, *, thorough: bool, phase: str = "turn") -> None:
    """Judge the candidate state: implicit invariants, then the stages in order of cost.

    A stage after one that failed is skipped unless ``thorough`` (a claim, the baseline): its checks are recorded as
    missing with the distance last known. Evidence of this very state is not gathered twice.
    """
    base = phase == "baseline"
    view = p.workspace.base_view() if base else p.workspace.candidate_view()
    broken = ""
    for evidence in judge_implicit(p.task, p.record, changes):
        # A pass is recorded once at the baseline and again only after a break: it says nothing new every turn.
        known = p.record.evidence.get(evidence.address)
        _record(p, evidence, phase)
        if not evidence.passed and known is not None:
            broken = "a broken invariant"
    for stage in stages(p.task):
        failed_here = False
        for check in stage.checks:
            known = p.record.evidence.get(check.address)
            if known is not None and known.fingerprint == changes.fingerprint and known.verdict != "missing":
                failed_here |= known.verdict != "pass"
                continue
            if broken and not thorough:
                _record(p, _skipped(check, changes, broken, known.distance if known else 1), phase)
                continue
            evidence = await p.verifier.judge(check, _candidate(p, view, changes, base), _baseline(p, check))
            _record(p, evidence, phase)
            failed_here |= not evidence.passed
        if failed_here:
            broken = broken or f"a {stage.name} failed"
    items, progress = measure(p.task.done, (*IMPLICIT, *p.task.invariants), p.record.evidence, changes.fingerprint)
    p.journal.emit(
        DeltaMeasured(
            fingerprint=changes.fingerprint, progress=(progress.hard, progress.unmet, progress.debt), items=list(items)
        )
    )


def record_changes(p: Pursuit, changes: ChangeSet) -> None:
    """The exact difference to the base, as a fact of its own: replays and people judge from it."""
    items = [
        ChangeItem(
            encodable(c.path),
            c.kind,
            c.file_type,
            c.mode,
            c.size,
            c.digest,
            c.lines_added,
            c.lines_removed,
            encodable(c.renamed_from),
        )
        for c in changes.changes
    ]
    inline, ref = p.journal.spill_list(items)
    p.journal.emit(
        ChangesObserved(fingerprint=changes.fingerprint, changed=len(items), changes=inline, changes_ref=ref)
    )


def _candidate(p: Pursuit, view: View, changes: ChangeSet, base: bool) -> Candidate:
    record = p.record
    state: dict[str, Any] = {
        line.check.split("/", 1)[1]: {
            "verdict": line.verdict,
            "distance": line.distance,
            "collected": line.collected or 0,
            "failures": [name for name, _ in line.failures],
        }
        for line in record.evidence.values()
        if line.fingerprint == changes.fingerprint
    }
    baseline = {address.split("/", 1)[1]: {"collected": n.collected} for address, n in record.baseline_counts.items()}
    spent = {"tokens": record.spent.tokens, "usd_micros": record.spent.usd_micros}
    return Candidate(view, changes, changes.fingerprint, state, baseline, {"turn": record.turn, "spent": spent}, base)


def _baseline(p: Pursuit, check: Check) -> Counts | None:
    kept = p.record.baseline_counts.get(check.address)
    return None if kept is None else Counts(kept.collected, kept.passed, kept.failed, kept.errors, kept.skipped)


def _skipped(check: Check, changes: ChangeSet, cause: str, distance: int) -> Evidence:
    return Evidence(
        check.address, Level.CLAIM, "missing", changes.fingerprint, max(1, distance), "", f"{SKIPPED}{cause}"
    )


def _record(p: Pursuit, evidence: Evidence, phase: str) -> None:
    counts, patterns = evidence.counts, p.task.observe.redact
    failures = [
        FailureItem(
            one_line(redact(failure.name, patterns))[:300],
            encodable(redact(failure.message, patterns))[: limits.FAILURE_CHARS_MAX],
        )
        for failure in evidence.failures[: limits.FAILURES_RECORDED_MAX]
    ]
    p.journal.emit(
        EvidenceRecorded(
            check=evidence.address,
            level=evidence.level.label,
            verdict=evidence.verdict,
            fingerprint=evidence.fingerprint,
            check_digest=evidence.check_digest,
            distance=evidence.distance,
            reason=encodable(redact(evidence.reason, patterns))[: limits.FAILURE_CHARS_MAX],
            collected=None if counts is None else counts.collected,
            passed=0 if counts is None else counts.passed,
            failed=0 if counts is None else counts.failed,
            errors=0 if counts is None else counts.errors,
            skipped=0 if counts is None else counts.skipped,
            failures=failures,
            output_sha256=evidence.output_sha256[:64],
            duration_ms=evidence.duration_ms,
            phase=phase,
        )
    )
