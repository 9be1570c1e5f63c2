"""Every fact the log of a session can hold, one closed union.

The rules are those of ``events``. What a session shares with trajectories (models, prompts, refusals, questions) is
the same event. Nothing here holds a text of the model's as data of the session: what a model said lies in
``ModelReplied`` and in the answer that ended a message, and both are only ever shown.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

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


class SessionOpened(Event, frozen=True):
    """Who it belongs to, for how long, and what they may do. The host's word, never a model's."""

    principal: str
    tenant: str
    expires_at_ms: int
    scopes: list[str]
    app: str
    runtime: str = ""


class SessionRenewed(Event, frozen=True):
    """The host gave it another end or other scopes."""

    expires_at_ms: int
    scopes: list[str]


class ContextHydrated(Event, frozen=True):
    """A value of a system of record, as it was at that time. ``version`` counts the different values there were."""

    name: str
    version: int
    at_ms: int
    digest: str
    value: Any = None
    value_ref: Ref | None = None


class MessageReceived(Event, frozen=True):
    """A turn of the session begins: what the principal said (or, with ``by``, what else the agent is to see to)."""

    turn: int
    agent: str
    agent_digest: str
    message: str | Ref
    message_digest: str
    key: str = ""
    by: str = ""


class ActionsOffered(Event, frozen=True):
    """What the agent may do in this state. A reply is ruled on against this version and no other."""

    version: str
    actions: list[str]


class ActionIntended(Event, frozen=True):
    """An action was permitted; durable before it is done. ``run_id`` is fixed here, so that it is started once."""

    ordinal: int
    action: str
    kind: str
    call_digest: str
    run_id: str = ""
    workflow: str = ""  # that it starts, and the digest of its definition
    definition: str = ""
    signal: str = ""  # that it sends
    arguments: Any = None
    arguments_ref: Ref | None = None


class ActionDone(Event, frozen=True):
    """What came of it, as far as the next prompts may show it."""

    ordinal: int
    status: str  # done | failed
    text: str | Ref = ""


class ReplySettled(Event, frozen=True):
    """Every call of the recorded reply was refused or done."""


class RunEnded(Event, frozen=True):
    """A run of this session is over; the output of one that completed is carried on as a fact."""

    run_id: str
    workflow: str
    state: str
    reason: str
    message: str
    code: int
    output: Any = None
    output_ref: Ref | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    usd_micros: int = 0


class MessageAnswered(Event, frozen=True):
    """The turn is over. ``status``: answered | completed | waiting | refused | budget_exhausted | failed."""

    status: str
    text: str | Ref = ""
    reason: str = ""


SessionEventUnion = (
    SessionOpened
    | SessionRenewed
    | ContextHydrated
    | MessageReceived
    | ActionsOffered
    | ActionIntended
    | ActionDone
    | ReplySettled
    | RunEnded
    | MessageAnswered
    | ContextBuilt
    | ModelReplied
    | ModelFailed
    | Routed
    | Refused
    | QuestionAsked
    | QuestionAnswered
    | ControlRequested
    | ControlApplied
)

SESSION_EVENT_TYPES: Final[dict[str, type[Event]]] = {cls.__name__: cls for cls in SessionEventUnion.__args__}

_decoders: Final = {name: msgspec.json.Decoder(cls) for name, cls in SESSION_EVENT_TYPES.items()}


def decode(type_name: str, data: bytes) -> Event:
    """The event of one stored row of a session. LogCorrupt when the type is unknown or the data does not fit it."""
    decoder = _decoders.get(type_name)
    if decoder is None:
        raise LogCorrupt(
            f"the log of a session holds an event of unknown type {type_name!r}",
            hint="It was written by another version of Setpoint; use that version to read it.",
        )
    try:
        return decoder.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise LogCorrupt(f"an event of type {type_name} does not fit its schema: {error}") from error
