"""The end of a pursuit: commit, certify, finish; or finish with a reason that names what is still open.

Each step is durable before the next begins, so a crash in between goes on where it was: a planned commit is carried
out again under the same id, which the workspace makes once.
"""

from __future__ import annotations

import asyncio

from setpoint.engine.judge import judge_state
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.turn import measure_again
from setpoint.kernel import limits
from setpoint.kernel.errors import ConflictFault, EvidenceMissing
from setpoint.kernel.events import (
    Certified,
    CommitPlanned,
    Committed,
    DriftFound,
    Finished,
    RolledBack,
)
from setpoint.kernel.spelling import encodable
from setpoint.phases.p5_evidence.order import SKIPPED


async def succeed(p: Pursuit) -> None:
    """The delta of the newest savepoint is empty: make it the user's tree, certify it, finish."""
    over = _over_budget(p)
    if over and not p.record.commit_planned:  # verified, but not accepted (R153)
        await fail(p, f"Budget:{over}", f"every check passes, but the {over} budget is exceeded: not accepted", 14)
        return
    await _judge_what_is_there(p)
    if p.record.items:
        message = "the workspace was changed meanwhile, and with the staged changes it does not meet the task"
        await fail(p, "Drifted", message, 17)
        return
    if not await _commit(p):
        return
    await p.journal.barrier()  # the certificate covers what the log holds
    if p.record.certificate is None:
        try:
            bundle, keyid, level = await asyncio.to_thread(p.certify, p)
        except EvidenceMissing as fault:
            await finish(p, "FAILED", "EvidenceMissing", fault.message, 18)
            return
        p.journal.emit(Certified(certificate=p.journal.store(bundle), keyid=keyid, level=level))
    await finish(p, "COMPLETED", "Converged", "every criterion is met and every invariant holds", 0)


def _over_budget(p: Pursuit) -> str:
    """The ceiling that is exceeded, "" when none is."""
    spent, budget = p.record.spent, p.budget
    if spent.tokens > budget.tokens:
        return "tokens"
    if spent.usd_micros > budget.usd_micros:
        return "usd"
    if spent.elapsed_ms > budget.wall_ms:
        return "wall"
    return "turns" if p.record.turn > budget.turns else ""


async def _judge_what_is_there(p: Pursuit) -> None:
    """Somebody may have changed other files while the task ran: then the evidence is of another state, and what counts
    is gathered again on the tree as it is now, before anything is committed (law L4)."""
    if p.record.committed or p.record.commit_planned:
        return  # what is there is what was committed, or will be by the same commit
    survey = await asyncio.to_thread(p.workspace.survey)
    known = p.record.base_now or p.record.base_digest
    if survey.base == known:
        return
    p.journal.emit(DriftFound(what="workspace", expected=known, found=survey.base, decision="judge_again"))
    changes = await asyncio.to_thread(p.workspace.changes)
    await judge_state(p, changes, thorough=True, phase="final")
    await p.journal.barrier()


async def _commit(p: Pursuit) -> bool:
    """Apply the staged state; False when a conflict, or a change in the very moment, ended the trajectory instead."""
    record = p.record
    if record.committed:
        return True
    expected = (await asyncio.to_thread(p.workspace.survey)).candidate
    if record.changed == 0 and not record.commit_planned:
        if record.state_digest != expected:
            p.journal.emit(Committed(commit_id="", fingerprint=record.fingerprint, state_digest=expected, changed=0))
        return True
    commit_id = record.commit_planned or f"{record.trajectory_id}-{record.savepoint}"
    if not record.commit_planned:
        p.journal.emit(CommitPlanned(commit_id=commit_id, savepoint=record.savepoint, fingerprint=record.fingerprint))
        await p.journal.barrier()
    try:
        receipt = await asyncio.to_thread(p.workspace.commit, commit_id)
    except ConflictFault as fault:
        named = ", ".join(fault.paths[:5]) or fault.message
        message = (
            f"the workspace was changed elsewhere meanwhile: {named}. Nothing was overwritten; the staged version is "
            "kept and can be looked at with `setpoint diff --staged`"
        )
        await finish(p, "FAILED", "Conflict", message, 15)
        return False
    actual = (await asyncio.to_thread(p.workspace.survey)).base
    p.journal.emit(
        Committed(
            commit_id=commit_id,
            fingerprint=record.fingerprint,
            state_digest=actual,
            changed=record.changed,
            paths=[encodable(path) for path in receipt.paths[: limits.PATHS_RECORDED_MAX]],
        )
    )
    await p.journal.barrier()
    if actual == expected:
        return True
    p.journal.emit(DriftFound(what="workspace", expected=expected, found=actual, decision="refuse"))
    message = "the workspace was changed in the moment of the commit; it was committed, and is not certified"
    await finish(p, "FAILED", "Drifted", message, 17)
    return False


async def fail(p: Pursuit, reason: str, message: str, code: int) -> None:
    """End without convergence. Under ``policy.commit: progress`` the best savepoint is committed first."""
    if p.record.best is not None and not p.record.committed and await _meets_it_now(p):
        await succeed(p)
        return
    record = p.record
    best = record.best
    if best is not None and record.savepoint != best.savepoint:
        roll_back_to_best(p, "stall")
        await p.journal.barrier()
        await asyncio.to_thread(p.workspace.restore, best.savepoint)
        best = p.record.best
    if p.task.policy.commit == "progress" and best is not None and best.savepoint > 0 and best.progress[0] == 0:
        await commit_progress(p, reason, message, code)
        return
    blocking = ", ".join(item.address for item in p.record.items)
    if blocking:
        message = f"{message}; still open: {blocking}"
    missing = [item for item in p.record.items if item.verdict == "missing" and not item.reason.startswith(SKIPPED)]
    if code == 11 and missing:
        reason, code = "EvidenceMissing", 18
        message = f"{message}; no evidence for {', '.join(item.address for item in missing)}: {missing[0].reason}"
    await finish(p, "FAILED", reason, message, code)


async def _meets_it_now(p: Pursuit) -> bool:
    """Whether the tree moved meanwhile so that the task is met after all: somebody else may have done the work."""
    if not p.record.items:
        return False  # it was met, and the end has another reason
    await _judge_what_is_there(p)
    return p.record.is_met and not _over_budget(p)


async def commit_progress(p: Pursuit, reason: str, message: str, code: int) -> None:
    """Commit a savepoint that is better than the base although the delta is not empty; never certified.

    What does not lower the distance is not committed (R007).
    """
    record = p.record
    start = record.baseline_progress
    if record.progress[0] or (start is not None and record.progress >= start):
        await finish(p, "FAILED", "NoProgress", f"{message}, but it brings no progress: nothing was committed", 12)
        return
    if not await _commit(p):
        return
    blocking = ", ".join(item.address for item in p.record.items)
    await finish(
        p, "FAILED", reason, f"{message}; the progress was committed, uncertified; still open: {blocking}", code
    )


async def finish(p: Pursuit, state: str, reason: str, message: str, code: int) -> None:
    p.journal.emit(Finished(state=state, reason=reason, message=encodable(message), code=code))
    await p.journal.barrier()


def roll_back_to_best(p: Pursuit, reason: str) -> None:
    """The record goes back to the best savepoint, with its delta. The caller makes that durable, then restores the
    workspace: a crash in between is mended by ``recovery.settle``."""
    best = p.record.best
    assert best is not None
    p.journal.emit(
        RolledBack(
            savepoint=best.savepoint,
            fingerprint=best.fingerprint,
            reason=reason,
            changed=best.changed,
            paths=list(best.paths),
        )
    )
    measure_again(p)
