"""The record of a session: the fold of its log, bounded however long the session lasts (L3).

It holds what carries forward: identity, values of systems of record, results of runs, open runs, and the message that
is being worked on. ``version`` counts what a decision may rest on; a write names the one it was decided on.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from setpoint.kernel.errors import LogCorrupt
from setpoint.kernel.events import (
    ContextBuilt,
    ControlApplied,
    ControlRequested,
    Event,
    ModelFailed,
    ModelReplied,
    QuestionAnswered,
    QuestionAsked,
    Ref,
    Refused,
    Routed,
)
from setpoint.kernel.record import PendingReply, Question, Spent
from setpoint.kernel.session_events import (
    ActionDone,
    ActionIntended,
    ActionsOffered,
    ContextHydrated,
    MessageAnswered,
    MessageReceived,
    ReplySettled,
    RunEnded,
    SessionOpened,
    SessionRenewed,
)

EXCHANGES_KEPT_MAX: Final = 5
"""Past messages with their answers that an agent may be shown; a reference further back is asked for."""
KEYS_KEPT_MAX: Final = 64
"""Keys of past messages: a client that sends one again does so within its next few dozen."""
ANSWERS_KEPT_MAX: Final = 4


class Hydrated(msgspec.Struct, frozen=True, array_like=True):
    """A value of a system of record, inline or by reference."""

    version: int
    at_ms: int
    digest: str
    value: Any = None
    ref: Ref | None = None


class Fact(msgspec.Struct, frozen=True, array_like=True):
    """The output of the newest completed run of a workflow."""

    run_id: str
    value: Any = None
    ref: Ref | None = None


class OpenRun(msgspec.Struct, frozen=True, array_like=True):
    """A run of this session that was not seen to end."""

    workflow: str
    definition: str


class Acted(msgspec.Struct, frozen=True):
    """One call of a reply and what became of it. ``status``: intended | done | failed | refused."""

    step: int
    ordinal: int
    action: str
    kind: str
    status: str
    reason: str = ""
    run_id: str = ""
    workflow: str = ""
    definition: str = ""
    signal: str = ""
    text: str | Ref = ""
    arguments: Any = None
    arguments_ref: Ref | None = None


class Exchange(msgspec.Struct, frozen=True, array_like=True):
    message: str | Ref
    text: str | Ref


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """What a person of the operator's said to a question of the agent's."""

    question: str
    answer: str
    by: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The newest turn: what was said, and how far the agent has come with it."""

    turn: int
    agent: str
    agent_digest: str
    message: str | Ref
    digest: str
    key: str = ""
    by: str = ""
    calls: int = 0  # of models, failed ones too
    step: int = 0  # replies settled
    decided_on: str = ""  # version of the offer that the pending reply answers
    pending: PendingReply | None = None
    acted: tuple[Acted, ...] = ()
    route_index: int = 0
    route_failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd_micros: int = 0
    status: str = ""  # "" while it is worked on
    text: str | Ref = ""
    reason: str = ""

    @property
    def is_open(self) -> bool:
        return not self.status

    def of_step(self) -> tuple[Acted, ...]:
        """What became of the calls of the reply that is pending."""
        return tuple(one for one in self.acted if one.step == self.step)


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the runtime knows of a session. Only ``fold_session`` makes a new one."""

    session_id: str
    principal: str = ""
    tenant: str = ""
    expires_at_ms: int = 0
    scopes: tuple[str, ...] = ()
    app: str = ""
    version: int = 0
    context: dict[str, Hydrated] = {}
    facts: dict[str, Fact] = {}  # by workflow
    runs: dict[str, OpenRun] = {}
    turn: int = 0
    current: Message | None = None
    recent: tuple[Exchange, ...] = ()
    keys: tuple[str, ...] = ()
    question: Question | None = None
    answers: tuple[Answered, ...] = ()
    cursors: dict[str, int] = {}
    spent: Spent = Spent()
    last_call: tuple[int, int, int] = (0, 0, 0)  # input tokens, output tokens, micro-dollars of the newest call
    prompt_tokens: int = 0
    inbox_position: int = 0
    last_event_at: str = ""
    seq: int = 0

    def is_expired(self, now_ms: int) -> bool:
        return now_ms >= self.expires_at_ms


def fold_session(record: SessionRecord, event: Event) -> SessionRecord:
    """The record after one more event. Pure."""
    try:
        change = _FOLDS[type(event)]
    except KeyError:
        raise LogCorrupt(f"the log of session {record.session_id} holds a {type(event).__name__}") from None
    return replace(change(record, event), seq=record.seq + 1)


def _opened(record: SessionRecord, event: SessionOpened) -> SessionRecord:
    return replace(
        record,
        principal=event.principal,
        tenant=event.tenant,
        expires_at_ms=event.expires_at_ms,
        scopes=tuple(event.scopes),
        app=event.app,
        version=1,
    )


def _renewed(record: SessionRecord, event: SessionRenewed) -> SessionRecord:
    return replace(record, expires_at_ms=event.expires_at_ms, scopes=tuple(event.scopes), version=record.version + 1)


def _hydrated(record: SessionRecord, event: ContextHydrated) -> SessionRecord:
    """The same value again only makes it fresh: nothing that was decided rests on less."""
    before = record.context.get(event.name)
    is_new = before is None or before.digest != event.digest
    value = Hydrated(event.version, event.at_ms, event.digest, event.value, event.value_ref)
    return replace(record, context={**record.context, event.name: value}, version=record.version + is_new)


def _received(record: SessionRecord, event: MessageReceived) -> SessionRecord:
    message = Message(
        turn=event.turn,
        agent=event.agent,
        agent_digest=event.agent_digest,
        message=event.message,
        digest=event.message_digest,
        key=event.key,
        by=event.by,
    )
    keys = (*record.keys, event.key)[-KEYS_KEPT_MAX:] if event.key else record.keys
    return replace(record, turn=event.turn, current=message, keys=keys, version=record.version + 1)


def _message(record: SessionRecord) -> Message:
    if record.current is None:
        raise LogCorrupt(f"session {record.session_id} acts before a message was received")
    return record.current


def _offered(record: SessionRecord, event: ActionsOffered) -> SessionRecord:
    return replace(record, current=replace(_message(record), decided_on=event.version))


def _built(record: SessionRecord, event: ContextBuilt) -> SessionRecord:
    return replace(record, prompt_tokens=event.tokens)


def _replied(record: SessionRecord, event: ModelReplied) -> SessionRecord:
    record = _charged(record, event)
    pending = PendingReply(event.route, event.reply, event.reply_ref)
    return replace(
        record,
        current=replace(_message(record), pending=pending, route_failures=0),
        last_call=(event.input_tokens, event.output_tokens, event.usd_micros),
    )


def _model_failed(record: SessionRecord, event: ModelFailed) -> SessionRecord:
    record = _charged(record, event)
    message = _message(record)
    return replace(record, current=replace(message, route_failures=message.route_failures + 1))


def _charged(record: SessionRecord, event: ModelReplied | ModelFailed) -> SessionRecord:
    message = _message(record)
    message = replace(
        message,
        calls=message.calls + 1,
        input_tokens=message.input_tokens + event.input_tokens,
        output_tokens=message.output_tokens + event.output_tokens,
        usd_micros=message.usd_micros + event.usd_micros,
    )
    cursors = record.cursors if event.cursor is None else {**record.cursors, event.route: event.cursor}
    record = _spent(record, event)
    spent = replace(
        record.spent,
        cached_tokens=record.spent.cached_tokens + event.cached_tokens,
        model_calls=record.spent.model_calls + 1,
    )
    return replace(record, current=message, cursors=cursors, spent=spent)


def _spent(record: SessionRecord, event: ModelReplied | ModelFailed | RunEnded) -> SessionRecord:
    spent = replace(
        record.spent,
        input_tokens=record.spent.input_tokens + event.input_tokens,
        output_tokens=record.spent.output_tokens + event.output_tokens,
        usd_micros=record.spent.usd_micros + event.usd_micros,
    )
    return replace(record, spent=spent)


def _routed(record: SessionRecord, event: Routed) -> SessionRecord:
    return replace(record, current=replace(_message(record), route_index=event.index, route_failures=0))


def _refused(record: SessionRecord, event: Refused) -> SessionRecord:
    message = _message(record)
    acted = Acted(message.step, event.ordinal, event.tool, event.gate, "refused", event.reason, text=event.message)
    return replace(record, current=replace(message, acted=(*message.acted, acted)))


def _intended(record: SessionRecord, event: ActionIntended) -> SessionRecord:
    message = _message(record)
    acted = Acted(
        message.step,
        event.ordinal,
        event.action,
        event.kind,
        "intended",
        run_id=event.run_id,
        workflow=event.workflow,
        definition=event.definition,
        signal=event.signal,
        arguments=event.arguments,
        arguments_ref=event.arguments_ref,
    )
    return replace(record, current=replace(message, acted=(*message.acted, acted)), version=record.version + 1)


def _done(record: SessionRecord, event: ActionDone) -> SessionRecord:
    """Only now is a run the session's: an intent alone may never have been carried out."""
    message = _message(record)
    acted: list[Acted] = []
    runs = record.runs
    for one in message.acted:
        if (one.step, one.ordinal) == (message.step, event.ordinal) and one.status == "intended":
            if one.kind == "start_workflow" and event.status == "done":
                runs = {**runs, one.run_id: OpenRun(one.workflow, one.definition)}
            acted.append(replace(one, status=event.status, text=event.text))
        else:
            acted.append(one)
    return replace(record, current=replace(message, acted=tuple(acted)), runs=runs)


def _settled(record: SessionRecord, event: ReplySettled) -> SessionRecord:
    message = _message(record)
    return replace(record, current=replace(message, pending=None, step=message.step + 1, decided_on=""))


def _run_ended(record: SessionRecord, event: RunEnded) -> SessionRecord:
    record = _spent(record, event)
    facts = record.facts
    if event.state == "COMPLETED":
        facts = {**facts, event.workflow: Fact(event.run_id, event.output, event.output_ref)}
    runs = {run_id: run for run_id, run in record.runs.items() if run_id != event.run_id}
    return replace(record, facts=facts, runs=runs, version=record.version + 1)


def _answered(record: SessionRecord, event: MessageAnswered) -> SessionRecord:
    message = _message(record)
    acted = tuple(replace(one, status="done") if one.status == "intended" else one for one in message.acted)
    message = replace(
        message, acted=acted, status=event.status, text=event.text, reason=event.reason, pending=None, decided_on=""
    )
    recent = record.recent
    if not message.by or event.text:
        recent = (*recent, Exchange(message.message, event.text))[-EXCHANGES_KEPT_MAX:]
    return replace(record, current=message, recent=recent, answers=(), version=record.version + 1)


def _asked(record: SessionRecord, event: QuestionAsked) -> SessionRecord:
    question = Question(event.question_id, event.question, event.source)
    return replace(record, question=question, version=record.version + 1)


def _question_answered(record: SessionRecord, event: QuestionAnswered) -> SessionRecord:
    asked = record.question.question if record.question is not None else ""
    answers = (*record.answers, Answered(asked, event.answer, event.by))[-ANSWERS_KEPT_MAX:]
    return replace(record, question=None, answers=answers, version=record.version + 1)


def _requested(record: SessionRecord, event: ControlRequested) -> SessionRecord:
    return replace(record, inbox_position=max(record.inbox_position, event.position))


def _same(record: SessionRecord, event: ControlApplied) -> SessionRecord:
    return record


_FOLDS: Final[dict[type[Event], Any]] = {
    SessionOpened: _opened,
    SessionRenewed: _renewed,
    ContextHydrated: _hydrated,
    MessageReceived: _received,
    ActionsOffered: _offered,
    ActionIntended: _intended,
    ActionDone: _done,
    ReplySettled: _settled,
    RunEnded: _run_ended,
    MessageAnswered: _answered,
    ContextBuilt: _built,
    ModelReplied: _replied,
    ModelFailed: _model_failed,
    Routed: _routed,
    Refused: _refused,
    QuestionAsked: _asked,
    QuestionAnswered: _question_answered,
    ControlRequested: _requested,
    ControlApplied: _same,
}
