"""Live again from turn K under a new identity: the recorded past is copied, its workspace is made anew.

The staged state of turn K is rebuilt by dispatching the recorded intents again in a fresh transaction and comparing
each savepoint's fingerprint with the recorded one, so a fork starts from exactly the state the log tells of, or not at
all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from setpoint.kernel.contract import Task
from setpoint.kernel.errors import IllegalTransition, ReplayDiverged
from setpoint.kernel.events import (
    ApprovalResolved,
    Authorized,
    Ref,
    RolledBack,
    SavepointKept,
    TaskAccepted,
    ToolIntent,
    TurnEnded,
    TurnStarted,
    decode,
    encode,
)
from setpoint.kernel.proposal import Call
from setpoint.kernel.ruling import Permit
from setpoint.phases.p4_dispatch.run import Bench, dispatch
from setpoint.ports.log import Draft, Log, Stored
from setpoint.ports.workspace import Workspace

_NOT_COPIED: Final = frozenset(
    {"LeaseClaimed", "ControlRequested", "ControlApplied", "CheckpointWritten", "DriftFound", "RoutesOpened"}
)


def copied_past(events: Sequence[Stored], turn: int, models: Sequence[str], models_directory: str) -> list[Draft]:
    """The events of a trajectory up to the end of ``turn``, as the beginning of another one."""
    end = _end_of(events, turn)
    _refuse_approved(events[:end])
    drafts: list[Draft] = []
    for stored in events[:end]:
        if stored.type in _NOT_COPIED:
            continue
        data = stored.data
        if stored.type == "TaskAccepted":
            accepted = decode(stored.type, stored.data)
            assert isinstance(accepted, TaskAccepted)
            changed = msgspec.structs.replace(
                accepted,
                parent=stored.stream,
                fork_turn=turn,
                models=list(models) or accepted.models,
                models_directory=models_directory or accepted.models_directory,
            )
            data = encode(changed)
        drafts.append(Draft(stored.turn, stored.type, data, stored.at, stored.v))
    return drafts


def _refuse_approved(past: Sequence[Stored]) -> None:
    """A past with a call that people approved is not dispatched again: they said yes to it once, in that trajectory."""
    for stored in past:
        event = decode(stored.type, stored.data)
        if isinstance(event, ApprovalResolved) and event.outcome == "granted":
            raise IllegalTransition(
                f"in turn {stored.turn} {', '.join(event.by)} approved a call of {stored.stream}, for one use; "
                "a fork would use that approval a second time",
                hint=f"Fork from turn {stored.turn - 1} or earlier; the call is asked for anew when it is proposed.",
            )


def _end_of(events: Sequence[Stored], turn: int) -> int:
    if turn == 0:
        return next((i for i, stored in enumerate(events) if stored.turn > 0), _before_the_end(events))
    for index, stored in enumerate(events):
        if stored.turn == turn and stored.type == "TurnEnded":
            return index + 1
    turns = max((stored.turn for stored in events), default=0)
    raise IllegalTransition(f"there is no finished turn {turn} to fork from; the trajectory has {turns} turns")


def _before_the_end(events: Sequence[Stored]) -> int:
    last = {"CommitPlanned", "Committed", "Certified", "Finished"}
    return next((i for i, stored in enumerate(events) if stored.type in last), len(events))


async def rebuild(task: Task, past: Sequence[Draft], log: Log, bench: Bench, workspace: Workspace) -> None:
    """Bring a fresh transaction to the state the copied past ends in. ReplayDiverged when it cannot be reached."""
    paths: dict[int, str] = {}
    kept = True
    for draft in past:
        event = decode(draft.type, draft.data)
        match event:
            case TurnStarted():
                await asyncio.to_thread(workspace.begin)
                paths, kept = {}, False
            case Authorized(ordinal=ordinal, path=path):
                paths[ordinal] = path
            case ToolIntent() if event.effect not in ("pure", "read"):
                await dispatch(_permit(task, event, paths, log), bench, task.environment.limits.wall_ms)
            case SavepointKept(savepoint=savepoint, fingerprint=fingerprint):
                found = (await asyncio.to_thread(workspace.changes)).fingerprint
                if found != fingerprint:
                    raise ReplayDiverged(
                        f"savepoint {savepoint} of turn {draft.turn} cannot be made again: its recorded actions give "
                        f"{found}, the log holds {fingerprint}",
                        hint="An action of that turn is not deterministic; fork from an earlier turn.",
                    )
                await asyncio.to_thread(workspace.keep, savepoint)
                kept = True
            case RolledBack():
                await _take_back(event, workspace)
                kept = True
            case TurnEnded():
                if not kept:
                    await asyncio.to_thread(workspace.discard)
            case _:
                pass


async def _take_back(event: RolledBack, workspace: Workspace) -> None:
    if event.reason == "interrupted":
        await asyncio.to_thread(workspace.begin)
    elif workspace.savepoint() != event.savepoint:
        await asyncio.to_thread(workspace.restore, event.savepoint)
    else:
        await asyncio.to_thread(workspace.discard)


def _permit(task: Task, intent: ToolIntent, paths: dict[int, str], log: Log) -> Permit:
    grant = task.grant(intent.tool)
    if grant is None:
        raise IllegalTransition(f"the contract no longer grants {intent.tool}")
    arguments: dict[str, Any] | None = intent.arguments
    if arguments is None:
        ref: Ref | None = intent.arguments_ref
        assert ref is not None
        arguments = msgspec.json.decode(log.payload(ref.ref), type=dict[str, Any])
    effect: Any = intent.effect
    call = Call(intent.ordinal, intent.tool, arguments, intent.call_digest)
    return Permit(call, grant, effect, paths.get(intent.ordinal) or None)
