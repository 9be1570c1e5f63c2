"""After a crash: bring the workspace to what the log says, then go on. No model and no tool is asked (R175).

The log is the truth. The workspace may be ahead of it by one savepoint (kept, event not recorded) or may still stand
where a recorded roll-back left it: both are mended by restoring the recorded savepoint. A turn in flight whose reply
is recorded is dispatched again from there; its earlier dispatches only ever touched the attempt, which is gone.
"""

from __future__ import annotations

import asyncio

from setpoint.engine.judge import judge_state, record_changes
from setpoint.engine.pursuit import Pursuit
from setpoint.engine.turn import measure_again
from setpoint.kernel import limits
from setpoint.kernel.errors import IllegalTransition
from setpoint.kernel.events import RolledBack, RoutesOpened, RouteTerms, TurnEnded
from setpoint.kernel.record import Record
from setpoint.ports.proposer import RouteLimits


async def settle(p: Pursuit) -> None:
    """Make the workspace what the record says, and note that the turn in flight begins again."""
    _open_routes(p)
    record = p.record
    if record.best is None or record.is_terminal:
        return
    if not record.commit_planned and p.workspace.savepoint() != record.savepoint:
        await asyncio.to_thread(p.workspace.restore, record.savepoint)
    ticket = record.ticket
    half_done = record.state in ("CALLING_MODEL", "WAITING_TOOL") or (ticket is not None and ticket.used)
    if half_done and record.reply is not None:
        p.journal.emit(
            RolledBack(
                savepoint=record.savepoint,
                fingerprint=record.fingerprint,
                reason="interrupted",
                note="",
            )
        )
    if p.record.measured != record.fingerprint:
        measure_again(p)  # the newest delta is of an attempt that is gone
    await p.journal.hand_over()


def _open_routes(p: Pursuit) -> None:
    """Note what the routes of this owner can take and cost, unless the record has it so already (R186)."""
    terms = tuple(terms_of(proposer.limits) for proposer in p.proposers)
    usual = RouteTerms(limits.PROMPT_TOKENS_MAX)
    if terms != p.record.terms and (p.record.terms or any(each != usual for each in terms)):
        p.journal.emit(RoutesOpened(terms=list(terms)))


def terms_of(route: RouteLimits) -> RouteTerms:
    """As much of a route's limits as decisions can depend on."""
    window = max(1, min(limits.PROMPT_TOKENS_MAX, route.context_tokens - route.output_tokens))
    if route.usd_micros_per_mtok_in is None or route.usd_micros_per_mtok_out is None:
        return RouteTerms(window)
    return RouteTerms(window, route.output_tokens, route.usd_micros_per_mtok_in, route.usd_micros_per_mtok_out)


def limits_of(terms: RouteTerms) -> RouteLimits:
    """Limits by which everything is decided as under ``terms``."""
    return RouteLimits(
        terms.prompt_tokens + terms.output_tokens,
        terms.output_tokens,
        terms.usd_micros_per_mtok_in,
        terms.usd_micros_per_mtok_out,
    )


async def roll_back_to(p: Pursuit, savepoint: int, by: str) -> Record:
    """A person takes the trajectory back to a kept savepoint; its state is judged again. UsageFault for others."""
    record = p.record
    kept = p.kept_savepoint(savepoint)
    if kept is None or savepoint > record.savepoint:
        raise IllegalTransition(
            f"there is no savepoint {savepoint} to go back to; the trajectory stands at {record.savepoint}",
            hint="`setpoint describe` lists the savepoints.",
        )
    note = f"{by} took the work back to savepoint {savepoint}"
    p.journal.emit(
        RolledBack(
            savepoint=savepoint,
            fingerprint=kept.fingerprint,
            reason="operator",
            note=note,
            changed=kept.changed,
            paths=list(kept.paths),
        )
    )
    if record.state not in ("READY", "PAUSED"):
        p.journal.emit(TurnEnded(outcome="rolled_back", elapsed_ms=p.elapsed_ms()))
    await p.journal.barrier()
    await asyncio.to_thread(p.workspace.restore, savepoint)
    await asyncio.to_thread(p.workspace.begin)
    changes = await asyncio.to_thread(p.workspace.changes)
    record_changes(p, changes)
    await judge_state(p, changes, thorough=True, phase="operator")
    await asyncio.to_thread(p.workspace.discard)
    await p.journal.barrier()
    return p.record
