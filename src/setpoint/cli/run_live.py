"""A run while it is worked on: one line for whatever happens, on stderr; with ``--json`` envelopes on stdout."""

from __future__ import annotations

from typing import Any, Final

from setpoint.app.runtime import Runtime
from setpoint.cli.live import Watch
from setpoint.cli.run_account import approvals_of
from setpoint.cli.run_effects import settled_said
from setpoint.cli.terminal import one_line, talk
from setpoint.cli.wording import span
from setpoint.engine.journal import timestamp
from setpoint.kernel.events import ControlApplied, Event, Finished, LeaseClaimed
from setpoint.kernel.flow import is_below, read_definition
from setpoint.kernel.run_events import (
    ApprovalRequested,
    ApprovalResolved,
    ApprovalSigned,
    BlockEntered,
    ChildStarted,
    Compensated,
    EffectDelivered,
    EffectPending,
    EffectQueued,
    EffectReused,
    EffectSettled,
    EffectUnknown,
    LateResult,
    NodeCompleted,
    NodeFailed,
    RunPaused,
    RunResumed,
    SignalAwaited,
    SignalReceived,
    TimerSet,
    UnwindStarted,
    decode,
)
from setpoint.kernel.run_record import RunRecord
from setpoint.ports.log import ZERO_HASH

LINE_CHARS_MAX: Final = 300
_ASKS: Final = ApprovalRequested.__name__
_MILESTONES: Final = (
    *(Finished, RunPaused, RunResumed, UnwindStarted, ApprovalRequested, ApprovalResolved),
    *(SignalAwaited, EffectUnknown, EffectPending),
)
"""What a worker says of each of its runs; ``-v`` says everything."""


class RunWatch(Watch):
    """What is shown of runs that are worked on. ``is_brief``: only what changes where a run stands."""

    def __init__(self, runtime: Runtime, *, as_json: bool, is_named: bool = False, is_brief: bool = False) -> None:
        super().__init__(runtime, as_json=as_json)
        self._is_named = is_named
        self._is_brief = is_brief
        self._approvals: dict[str, tuple[str, ...]] = {}  # digest of a definition -> its nodes that ask people

    def observe_run(self, event: Event, record: RunRecord) -> None:
        """Given to the engine; only takes notes and writes lines, and never raises for want of a reader."""
        if not self._as_json:
            self._say(event, record)
            return
        if record.run_id not in self._positions:
            self._positions[record.run_id] = self._before(event, record)
        self._news.set()

    def look(self) -> None:
        """Something may have been written by others."""
        self._news.set()

    def _before(self, event: Event, record: RunRecord) -> tuple[int, str]:
        """The position before this owner's first event: everything from there on is news."""
        seq, prev = 0, ZERO_HASH
        if not isinstance(event, LeaseClaimed):
            return seq, prev
        before = seq, prev
        for stored in self._runtime.log.read(record.run_id):
            if stored.type == "LeaseClaimed" and decode(stored.type, stored.data) == event:
                before = seq, prev
            seq, prev = stored.seq, stored.hash
        return before

    def _say(self, event: Event, record: RunRecord) -> None:
        if self._is_brief and not isinstance(event, _MILESTONES):
            return
        said = event_line(event, record)
        if said is None:
            return
        text, style = said
        if isinstance(event, NodeCompleted) and self._asked_nobody(event.node, record):
            text, style = f"{_short(event.node, record)}  no approval is needed", "dim"
        name = f"{record.run_id}  {record.workflow}  " if self._is_named else "  "
        talk(one_line(name + text, LINE_CHARS_MAX) if self._is_named else "  " + one_line(text, LINE_CHARS_MAX), style)

    def _asked_nobody(self, node: str, record: RunRecord) -> bool:
        """Whether a node that may ask people has not: its condition did not hold."""
        assert record.definition is not None
        digest = record.definition_digest
        if digest not in self._approvals:
            definition = read_definition(self._runtime.log.payload(record.definition.ref))
            self._approvals[digest] = approvals_of(definition)
        if not any(is_below(path, node) for path in self._approvals[digest]):
            return False
        asked = (decode(s.type, s.data) for s in self._runtime.log.read(record.run_id) if s.type == _ASKS)
        return all(getattr(event, "node", "") != node for event in asked)


def event_line(event: Event, record: RunRecord) -> tuple[str, str] | None:
    """One event in words, and its colour. None for book-keeping."""
    match event:
        case NodeCompleted(node=node):
            return f"{_short(node, record)}  done{_changes(event)}", ""
        case BlockEntered(node=node, label=label) if label:
            return f"{_short(node, record)}  -> {label}", ""
        case NodeFailed(node=node, kind="declined") if (made := record.effects.get(node)) and made.status == "declined":
            return None  # the answer that says so was told, with the same words
        case NodeFailed(node=node):
            again = f"; again at {timestamp(event.retry_at_ms)}" if event.retry_at_ms else ""
            return f"{_short(node, record)}  {event.kind.replace('_', ' ')}: {event.message}{again}", "yellow"
        case TimerSet(node=node):
            return f"{_short(node, record)}  waits until {timestamp(event.at_ms)} ({event.why})", "dim"
        case SignalAwaited(node=node):
            return f"{_short(node, record)}  waits for the signal {event.signal} until {timestamp(event.until_ms)}", ""
        case SignalReceived():
            return f"signal {event.signal} came", ""
        case ApprovalRequested(node=node):
            until = timestamp(event.expires_at_ms)
            return f"{_short(node, record)}  asks people: {event.ticket_id}, until {until}", "cyan"
        case ApprovalSigned():
            counts = "" if event.counts else f", which does not count: {event.why}"
            return f"{event.ticket_id}: {event.by} says {event.verdict}{counts}", ""
        case ApprovalResolved(node=node):
            by = f" by {', '.join(event.by)}" if event.by else ""
            why = f": {event.reason}" if event.reason else ""
            return f"{_short(node, record)}  {event.outcome}{by}{why}", _OUTCOMES.get(event.outcome, "yellow")
        case _:
            return _effect_line(event, record) or _run_line(event, record)


def _effect_line(event: Event, record: RunRecord) -> tuple[str, str] | None:
    match event:
        case EffectQueued(node=node):
            attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
            return f"{_short(node, record)}  {event.capability} ({event.key}{attempt})", "dim"
        case EffectDelivered(node=node, status="declined"):
            return f"{_short(node, record)}  declined: {event.message}", "yellow"
        case EffectDelivered(node=node, how=how) if event.status == "done" and how != "reply":
            return f"{_short(node, record)}  happened, known by {how}", ""
        case EffectPending(node=node):
            return f"{_short(node, record)}  is reported later, until {timestamp(event.until_ms)}", ""
        case EffectUnknown(node=node):
            return f"{_short(node, record)}  nobody knows whether {event.key} happened: {event.reason}", "red"
        case EffectSettled(node=node):
            return f"{_short(node, record)}  {settled_said(event)}", ""
        case EffectReused(node=node):
            return f"{_short(node, record)}  was made by {event.holder} already ({event.key}); nothing was sent", ""
        case LateResult():
            return f"dropped a message ({event.key or 'no key'}): {event.reason}", "yellow"
        case Compensated(node=node):
            return f"{_short(node, record)}  taken back", "yellow"
        case _:
            return None


def _run_line(event: Event, record: RunRecord) -> tuple[str, str] | None:
    match event:
        case UnwindStarted():
            return f"{event.message}; what can be taken back is, last first, and the rest stands", "yellow"
        case RunPaused():
            return f"paused ({event.reason}): {event.message}", "yellow"
        case RunResumed():
            return f"resumed by {event.by}", ""
        case ChildStarted(node=node):
            return f"{_short(node, record)}  starts {event.run_id}", ""
        case ControlApplied(action=action) if action in ("none",):
            return "a request did not apply in this state", "yellow"
        case Finished():
            return f"{event.state.lower()}{f': {event.message}' if event.message else ''}", _ENDS.get(event.state, "")
        case _:
            return None


_OUTCOMES: Final = {"granted": "green", "denied": "red", "expired": "red"}
_ENDS: Final = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow"}


def _short(node: str, record: RunRecord) -> str:
    """The path without the name of the workflow, which every line would repeat."""
    return node.removeprefix(f"{record.workflow}/")


def _changes(event: NodeCompleted) -> str:
    shown = [f"{name}={_value(value)}" for name, value in event.values.items()]
    shown += [f"{name}=<{ref.bytes} bytes>" for name, ref in event.refs.items()]
    return f"  {' '.join(shown)}" if shown else ""


def _value(value: Any) -> str:
    import json

    return one_line(json.dumps(value, ensure_ascii=False), 80)


def until_said(until_ms: int, now_ms: int) -> str:
    """``until 2026-01-01T00:00:00.000Z (in 3m05s)``."""
    left = until_ms - now_ms
    return f"until {timestamp(until_ms)} ({f'in {span(left)}' if left > 0 else 'now'})"
