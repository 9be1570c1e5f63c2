"""The outside effects of a run, from its log: what was sent when, and what is known of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from setpoint.cli.run_account import RunFact
from setpoint.kernel.events import Ref
from setpoint.kernel.run_events import (
    ChildEnded,
    Compensated,
    EffectDelivered,
    EffectPending,
    EffectQueued,
    EffectReused,
    EffectSettled,
    EffectUnknown,
    NodeFailed,
)

OPEN = ("queued", "pending", "unknown", "not_sent")
"""Not settled: sent or to be sent, and nobody knows yet."""


@dataclass(slots=True)
class Attempt:
    """One dispatch, and what came of it."""

    number: int
    at: str
    seq: int
    outcome: str = "no answer yet"
    message: str = ""


@dataclass(slots=True)
class Made:
    """One effect: everything that was done under one key at one node."""

    node: str
    capability: str
    effect: str
    key: str
    claim: str
    arguments: Ref | None
    at: str
    seq: int
    status: str = "queued"  # queued | pending | unknown | not_sent | done | declined | undone | reused
    how: str = ""  # reply | reconstructed | inbox | stored | person
    message: str = ""
    result: Ref | None = None
    compensates: str = ""
    holder: str = ""
    attempts: list[Attempt] = field(default_factory=list[Attempt])

    @property
    def is_open(self) -> bool:
        return self.status in OPEN


def effects_of(facts: Iterable[RunFact]) -> list[Made]:
    """Every effect in the order of its first intent; a compensation is one of its own."""
    made: list[Made] = []
    newest: dict[str, Made] = {}
    for fact in facts:
        match fact.event:
            case EffectQueued() as event:
                _queued(made, newest, fact, event)
            case EffectReused() as event:
                capability = event.key
                reused = Made(event.node, capability, "", event.key, "", None, fact.at, fact.seq, "reused")
                reused.holder = event.holder
                made.append(reused)
            case Compensated() as event:
                if (undone := newest.get(event.node)) is not None:
                    undone.status = "undone"
            case (
                EffectDelivered(node=node)
                | EffectPending(node=node)
                | EffectUnknown(node=node)
                | EffectSettled(node=node)
                | NodeFailed(node=node)
            ) if node in newest:
                _learned(newest[node], fact.event)
            case ChildEnded():  # what a child made is in the child's log
                pass
            case _:
                pass
    return made


def _queued(made: list[Made], newest: dict[str, Made], fact: RunFact, event: EffectQueued) -> None:
    found = newest.get(event.node)
    if found is None or found.key != event.key or not found.is_open:
        found = Made(
            event.node, event.capability, event.effect, event.key, event.claim, event.arguments, fact.at, fact.seq
        )
        found.compensates = event.compensates
        newest[event.node] = found
        made.append(found)
    found.status, found.message = "queued", ""
    found.attempts.append(Attempt(event.attempt, fact.at, fact.seq))


def settled_said(event: EffectSettled) -> str:
    """``settled by the probe: not happened``. To send again is no answer: nobody could look, or it was too early."""
    if event.verdict != "resend":
        return f"settled by {'the probe' if event.by == 'probe' else event.by}: {event.verdict.replace('_', ' ')}"
    if event.by != "probe":
        return f"to be sent again under its key, says {event.by}"
    return "not known; to be sent again under its key, for which the other side acts once"


def _learned(effect: Made, event: object) -> None:
    last = effect.attempts[-1]
    match event:
        case EffectDelivered():
            effect.status, effect.how, effect.message = event.status, event.how, event.message
            effect.result = event.result
            last.outcome = event.status if event.how == "reply" else f"{event.status} ({event.how})"
            last.message = event.message
        case EffectPending():
            effect.status, last.outcome = "pending", "accepted; its result is reported later"
        case EffectUnknown():
            effect.status, effect.message = "unknown", event.reason
            last.outcome, last.message = "unknown", event.reason
        case EffectSettled():
            last.outcome = settled_said(event)
            if event.verdict != "happened":
                effect.status = "not_sent"
        case NodeFailed() if effect.is_open:
            last.message = event.message
            if event.kind == "in_doubt":
                last.outcome = "in doubt"
        case _:
            pass
