"""One proposal looked at without a write, and exactly that proposal applied later.

A plan is a trajectory of one turn that keeps nothing: it ends as CANCELLED/Planned, and its log holds the reply, the
exact changes and the evidence. Applying dispatches the recorded reply again on the same base and commits only when the
same state comes out. Neither asks people: a call that needs an approval is refused in both (``desk`` is None).
"""

from __future__ import annotations

import asyncio

from setpoint.engine.context import build_context
from setpoint.engine.finalize import commit_progress, finish, succeed
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.reconcile import baseline, may_continue_now
from setpoint.engine.turn import run_turn
from setpoint.kernel.record import Record
from setpoint.phases.p1_context.continuation import Stop


async def make_plan(p: Pursuit) -> tuple[Record, str]:
    """Ask for one proposal and judge it. Returns the record as the attempt left it, and the unified diff."""
    p.desk = None
    if p.record.best is None:
        await baseline(p)
    if p.record.items:
        await _one_turn(p)
    diff = await asyncio.to_thread(p.workspace.diff, DIFF_BYTES_MAX) if p.record.savepoint else ""
    record = p.record
    await finish(p, "CANCELLED", "Planned", "a plan: one proposal was judged and nothing was written", 0)
    return record, diff


async def apply_plan(p: Pursuit, base_digest: str, fingerprint: str) -> Record:
    """Dispatch the planned reply and commit it, if base and result are those of the plan; exit 15 otherwise."""
    p.desk = None
    if p.record.best is None:
        await baseline(p)
    if p.record.base_digest != base_digest:
        await finish(p, "FAILED", "StalePlan", "the workspace is not what the plan was made for; plan again", 15)
        return p.record
    if not p.record.items:
        await succeed(p)
        return p.record
    if p.record.turn == 0 or p.record.state != "READY":
        await _one_turn(p)
    if p.record.fingerprint != fingerprint:
        await finish(p, "FAILED", "StalePlan", "the planned proposal came to another state; nothing was written", 15)
    elif not p.record.items:
        await succeed(p)
    elif p.task.policy.commit == "progress":
        await commit_progress(p, "Applied", "the plan was applied", 11)
    else:
        blocking = ", ".join(item.address for item in p.record.items)
        message = f"the plan leaves {blocking} open, and policy.commit is converged: nothing was written"
        await finish(p, "FAILED", "NotConverging", message, 12)
    return p.record


async def _one_turn(p: Pursuit) -> None:
    if p.record.state != "READY":
        await run_turn(p, p.record.stage, None)
        return
    context = await build_context(p, "nominal")
    admitted = may_continue_now(p, context.tokens)
    if isinstance(admitted, Stop):
        await finish(p, "FAILED", f"Budget:{admitted.dimension}", admitted.message, 14)
        return
    await run_turn(p, admitted.stage, context)


DIFF_BYTES_MAX = 1 << 20
"""A diff is for people; a larger one is cut with a note."""
