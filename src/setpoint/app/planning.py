"""A plan as a document, and the route that says a planned reply again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from setpoint.kernel.errors import ProposerFault, UsageFault
from setpoint.kernel.events import Item, ModelReplied, decode
from setpoint.kernel.proposal import Reply
from setpoint.kernel.record import Record
from setpoint.ports.log import Log
from setpoint.ports.proposer import Context, RouteLimits

API_VERSION = "setpoint.dev/v1"


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One judged proposal. ``fingerprint`` is the state it leads to over ``base_digest``; equal to the base's own when
    it leads nowhere. Holds no secret: the reply itself stays in the log."""

    apiVersion: str = API_VERSION
    kind: str = "Plan"
    trajectory_id: str
    task: str
    task_digest: str
    workspace: str
    base_digest: str
    fingerprint: str
    outcome: str  # converges | progresses | rolled_back | nothing | converged_already
    progress_before: tuple[int, int, int] | None
    progress_after: tuple[int, int, int]
    changed: list[str]
    items: list[Item]
    notes: list[str]
    diff: str

    def encode(self) -> bytes:
        """The bytes of a plan file: indented JSON with a final newline."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def read_plan(data: bytes) -> Plan:
    """UsageFault when the bytes are no plan of this version."""
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UsageFault(
            f"this is no plan: {error}", hint="`setpoint plan -f task.yaml -o FILE` writes one."
        ) from error
    if plan.apiVersion != API_VERSION or plan.kind != "Plan":
        raise UsageFault(f"this is {plan.kind} {plan.apiVersion}, not Plan {API_VERSION}")
    return plan


def plan_of(record: Record, diff: str) -> Plan:
    """The plan a planning trajectory came to; ``record`` as its one turn left it."""
    before = record.baseline_progress
    if record.turn == 0 and not record.items:
        outcome = "converged_already"
    elif record.savepoint == 0:
        outcome = "rolled_back" if record.notes else "nothing"
    elif not record.items:
        outcome = "converges"
    else:
        outcome = "progresses" if before is not None and record.progress < before else "nothing"
    return Plan(
        trajectory_id=record.trajectory_id,
        task=record.name,
        task_digest=record.task_digest,
        workspace=record.workspace,
        base_digest=record.base_digest,
        fingerprint=record.fingerprint,
        outcome=outcome,
        progress_before=before,
        progress_after=record.progress,
        changed=list(record.paths) if record.savepoint else [],
        items=list(record.items),
        notes=list(record.notes),
        diff=diff,
    )


def planned_reply(log: Log, trajectory_id: str) -> Reply:
    """The reply a planning trajectory recorded. UsageFault when it recorded none."""
    for stored in log.read(trajectory_id):
        if stored.type == "ModelReplied":
            event = decode(stored.type, stored.data)
            assert isinstance(event, ModelReplied)
            document = event.reply
            if document is None:
                assert event.reply_ref is not None
                document = msgspec.json.decode(log.payload(event.reply_ref.ref), type=dict[str, Any])
            return Reply.of(document, model=event.model)
    raise UsageFault(f"the plan {trajectory_id} holds no proposal; there is nothing to apply")


class PlannedProposer:
    """Says one recorded reply, once. Nothing is charged: the plan's own trajectory paid for it."""

    def __init__(self, route: str, reply: Reply) -> None:
        self.route = route
        self.limits = RouteLimits()
        self._reply = reply

    async def propose(self, context: Context, deadline_ms: int) -> Reply:
        if context.cursor:
            raise ProposerFault("exhausted", "a plan holds one proposal", cursor=context.cursor)
        return replace(self._reply, cursor=1)

    async def close(self) -> None:
        return None
