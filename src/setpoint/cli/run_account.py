"""What the log knows of one workflow run, gathered once and given to the verbs that look at it.

Nothing here needs the application: definitions, tickets and results are in the log.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from setpoint.app.runs import KIND, RunOutcome
from setpoint.app.runtime import Runtime
from setpoint.engine.journal import timestamp
from setpoint.engine.runs.journal import read_run
from setpoint.kernel.errors import LogCorrupt, UnknownTrajectory
from setpoint.kernel.events import Event, Ref
from setpoint.kernel.flow import Approval, Definition, read_definition, walk
from setpoint.kernel.run_events import decode
from setpoint.kernel.run_record import Effect, RunRecord, Ticketed
from setpoint.kernel.ticket import Ticket, needs, read_ticket
from setpoint.ports.log import WAKE_BY_MESSAGE

MANY: Final = 1 << 31
"""More runs than a store holds."""


@dataclass(frozen=True, slots=True)
class RunFact:
    """One event with its place in the log."""

    seq: int
    step: int
    at: str
    event: Event


@dataclass(frozen=True, slots=True)
class RunAccount:
    """A run as its log tells it."""

    runtime: Runtime
    record: RunRecord
    facts: tuple[RunFact, ...]
    owner: str  # who works on it now, "" when nobody does
    is_due: bool  # something can be done for it now

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def status(self) -> str:
        return status(self.record, is_owned=bool(self.owner), is_due=self.is_due)

    @property
    def definition(self) -> Definition:
        assert self.record.definition is not None
        return read_definition(self.runtime.log.payload(self.record.definition.ref))

    @property
    def approvals(self) -> tuple[str, ...]:
        """The nodes that ask people, by their static paths."""
        return approvals_of(self.definition)

    def value(self, ref: Ref | None) -> Any:
        """The JSON a reference stands for."""
        return None if ref is None else msgspec.json.decode(self.runtime.log.payload(ref.ref))


def approvals_of(definition: Definition) -> tuple[str, ...]:
    """The static paths of the nodes that ask people: one that completes and asked nobody was not needed."""
    return tuple(path for path, node in walk(definition.body, definition.name) if isinstance(node, Approval))


def read_account(runtime: Runtime, run_id: str) -> RunAccount:
    """Everything, verified: LogCorrupt when the chain does not hold."""
    record, _ = read_run(runtime.log, run_id)
    facts = tuple(
        RunFact(stored.seq, stored.turn, stored.at, decode(stored.type, stored.data))
        for stored in runtime.log.read(run_id)
    )
    holder = runtime.log.holder(run_id)
    return RunAccount(runtime, record, facts, "" if holder is None else holder.owner, run_id in due_ids(runtime))


def due_ids(runtime: Runtime) -> frozenset[str]:
    """Runs for which something can be done now."""
    return frozenset(run for run, _ in runtime.log.due(KIND, runtime.clock.now_ms(), MANY))


def open_runs(runtime: Runtime, faults: list[LogCorrupt] | None = None) -> Iterator[RunRecord]:
    """The record of every run that is not over, oldest wake-up time first. A corrupt one goes to ``faults``.

    A run that is over has no wake-up time, so this costs what is open, not what ever was.
    """
    for run_id, _ in runtime.log.due(KIND, WAKE_BY_MESSAGE, MANY):
        try:
            record, _ = read_run(runtime.log, run_id)
        except LogCorrupt as fault:
            if faults is None:
                raise
            faults.append(fault)
            continue
        if not record.is_terminal:
            yield record


def status(record: RunRecord, *, is_owned: bool, is_due: bool) -> str:
    """One word for where a run stands."""
    if record.is_terminal:
        return record.state.lower()
    if record.unknown:
        return "unknown"
    if record.state == "PAUSED":
        return "paused"
    if is_owned:
        return "unwinding" if record.state == "UNWINDING" else "running"
    if is_due:
        return "due"
    return "unwinding" if record.state == "UNWINDING" else "waiting"


def exit_code(record: RunRecord) -> int:
    """The code `run` or `resume` returned for this record, or would."""
    return RunOutcome(record.run_id, record).exit_code


# Waiting


def waits_of(runtime: Runtime, record: RunRecord) -> list[dict[str, Any]]:
    """What the run waits for, each with until when, who or what ends it, and the command that does.

    Kinds: pause | unknown | approval | signal | report | child | retry | timer.
    """
    if record.is_terminal:
        return []
    found: list[dict[str, Any]] = []
    if record.state == "PAUSED":
        found.append(_wait("pause", "", record.message, "a person", [f"setpoint resume {record.run_id}"]))
    found += [_unknown(record, effect) for effect in record.unknown]
    for node, wait in record.waits.items():
        if record.state == "PAUSED" and wait.kind in ("timer", "retry"):
            continue
        found.append(_wait_of(runtime, record, node, wait.kind, wait.name, wait.at_ms))
    for node, child in record.children.items():
        found += _child_waits(runtime, node, child)
    return found


def _child_waits(runtime: Runtime, node: str, child: str) -> list[dict[str, Any]]:
    """The run that is waited for, and what that one waits for; nothing when it is over."""
    below: list[dict[str, Any]] = []
    try:
        record = read_run(runtime.log, child)[0]
    except (UnknownTrajectory, LogCorrupt):  # not started yet, or not to be read
        pass
    else:
        if record.is_terminal:
            return []
        below = waits_of(runtime, record)
    return [_wait("child", node, f"the run {child}", "that run", [f"setpoint why {child}"]), *below]


def _wait(kind: str, node: str, what: str, who: str, how: list[str], until_ms: int = 0) -> dict[str, Any]:
    return {
        "kind": kind,
        "node": node or None,
        "for": what,
        "who": who,
        "until": timestamp(until_ms) if until_ms else None,
        "until_ms": until_ms or None,
        "next": how,
    }


def _unknown(record: RunRecord, effect: Effect) -> dict[str, Any]:
    settle = f"setpoint effects settle {quoted(effect.key)}"
    how = [f"{settle} --happened --result JSON", f"{settle} --not-happened"]
    what = f"nobody knows whether {effect.capability} ({effect.key}) happened"
    return _wait("unknown", effect.node, what, "a person who can look at the other side", how)


def _wait_of(runtime: Runtime, record: RunRecord, node: str, kind: str, name: str, at_ms: int) -> dict[str, Any]:
    match kind:
        case "approval" if (ticketed := record.tickets.get(node)) is not None:
            return _approval(runtime, ticketed)
        case "signal":
            how = [f"setpoint signal {record.run_id} {quoted(name)} --payload JSON"]
            return _wait("signal", node, f"the signal {name}", "whoever sends it", how, at_ms)
        case "effect":
            effect = record.effects[node]
            how = [f"setpoint effects settle {quoted(effect.key)} --happened --result JSON"]
            what = f"the report on {effect.capability} ({effect.key})"
            return _wait("report", node, what, "the other side", how, at_ms)
        case "retry":
            return _wait("retry", node, "its next attempt", "a worker", [_work(record)], at_ms)
        case _:
            return _wait("timer", node, "a time", "a worker", [_work(record)], at_ms)


def _work(record: RunRecord) -> str:
    return f"setpoint resume {record.run_id}"


def _approval(runtime: Runtime, ticketed: Ticketed) -> dict[str, Any]:
    ticket = ticket_of(runtime, ticketed)
    how = [f"setpoint approve {ticketed.ticket_id}", f"setpoint deny {ticketed.ticket_id}"]
    what = f"{ticketed.ticket_id}: {ticket.preview}"
    return _wait("approval", ticketed.node, what, needs(ticket), how, ticketed.expires_at_ms)


def ticket_of(runtime: Runtime, ticketed: Ticketed) -> Ticket:
    return read_ticket(runtime.log.payload(ticketed.ticket.ref))


def as_typed(command: str, store: str | None) -> str:
    """A command as it has to be typed here: with the store, and with an application where it needs one and neither
    the environment nor the project names it."""
    from setpoint.app.app_loading import app_name

    needs_app = command.startswith(("setpoint resume ", "setpoint run "))
    app = " --app APP" if needs_app and app_name(None) is None else ""
    return command + app + (f" --store {quoted(store)}" if store else "")


def quoted(word: str) -> str:
    """As one word of a shell."""
    return shlex.quote(word)


# Documents


def summary(runtime: Runtime, record: RunRecord, due: frozenset[str]) -> dict[str, Any]:
    """What `get` lists of a run."""
    is_owned = not record.is_terminal and runtime.log.holder(record.run_id) is not None
    return {
        "run_id": record.run_id,
        "workflow": record.workflow,
        "version": record.version,
        "status": status(record, is_owned=is_owned, is_due=record.run_id in due),
        "state": record.state,
        "step": record.step,
        "reason": record.reason,
        "exit_code": record.finished_code if record.is_terminal else None,
        "waits": waits_of(runtime, record),
        "parent": record.parent or None,
        "updated_at": record.last_event_at,
    }


def corrupt_summary(run_id: str, fault: LogCorrupt) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "workflow": "",
        "version": None,
        "status": "corrupt",
        "state": "NEW",
        "step": 0,
        "reason": fault.message,
        "exit_code": None,
        "waits": [],
        "parent": None,
        "updated_at": "",
    }


def state_values(account: RunAccount, record: RunRecord | None = None) -> dict[str, Any]:
    """The state as it stands at the root, long values fetched."""
    scope = (record or account.record).scopes.get("")
    if scope is None:
        return {}
    return dict(scope.values) | {name: account.value(ref) for name, ref in scope.refs.items()}


def run_document(account: RunAccount) -> dict[str, Any]:
    """One run with everything that is open."""
    runtime, record = account.runtime, account.record
    return summary(runtime, record, frozenset({record.run_id} if account.is_due else ())) | {
        "message": record.message,
        "definition_digest": record.definition_digest,
        "input": account.value(record.input),
        "values": state_values(account),
        "principal": record.principal or None,
        "tenant": record.tenant or None,
        "scopes": list(record.scopes_held),
        "session": record.session or None,
        "parent_node": record.parent_node or None,
        "owner": account.owner or None,
        "blocks": record.blocks,
        "children": record.children,
        "effects_made": record.effects_made,
        "can_be_taken_back": [done.node for done in record.undo],
        "pivot": record.pivot or None,
        "spent": {"tokens": record.spent.tokens, "usd_micros": record.spent.usd_micros},
    }
