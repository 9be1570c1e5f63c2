"""A key that another run holds, or another node: what became of its effect there, and what that means here.

At most one effect is ever made under a key (R138). Whoever comes second has its stored result, when it wants the very
same; else there is a conflict, and its words say which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from setpoint.engine.runs.hand import Fails, Hand
from setpoint.kernel.events import Finished, Ref
from setpoint.kernel.run_events import (
    Compensated,
    EffectDelivered,
    EffectQueued,
    EffectSettled,
    EffectUnknown,
    NodeFailed,
    decode,
)

Standing = Literal["under way", "left", "unknown", "made", "taken back"]
_TOLD = frozenset({"Finished", "EffectQueued", "EffectDelivered", "EffectUnknown", "EffectSettled", "Compensated"})


@dataclass(frozen=True, slots=True)
class Held:
    """An effect as the log of its holder has it."""

    key: str
    holder: str
    standing: Standing
    arguments: str = ""  # digest
    result: Ref | None = None

    def is_same(self, arguments: Ref) -> bool:
        """Whether it stands, and is what these arguments ask for."""
        return self.standing == "made" and self.arguments == arguments.ref


def undo_key(key: str) -> str:
    """The key under which an effect is taken back."""
    return f"undo:{key}"


def held(hand: Hand, claim: str, key: str, holder: str) -> Held:
    found = _in_its_log(hand, claim, key, holder)
    if hand.journal.log.claimant(f"{claim.removesuffix(key)}{undo_key(key)}") is not None:
        # By the run that made it, or by the parent of that run.
        return Held(key, holder, "taken back")
    return found


def conflict(hand: Hand, path: str, at: Held) -> Fails:
    """Recorded with whatever comes next."""
    state, remedy = _words(at)
    message = f"the effect {at.key!r} of {path} belongs to run {at.holder}, {state}; nothing was sent; {remedy}"
    hand.journal.add(NodeFailed(node=path, kind="refused", message=message))
    return Fails("EffectConflict", message, 15)


def _words(at: Held) -> tuple[str, str]:
    """What became of it, and what to do."""
    match at.standing:
        case "made":
            return (
                "which has made it with other arguments",
                "a key stands for one call, so what tells the two apart belongs into it",
            )
        case "taken back":
            return (
                "which made it and took it back",
                "a key is used once, so to make it again put the number of the attempt into the key",
            )
        case "unknown":
            return (
                "where nobody knows whether it was made",
                f"say what happened with `setpoint effects settle {at.key} --run {at.holder}`, then start another run",
            )
        case "under way":
            return "which has it under way", f"start another run when {at.holder} is over"
        case "left":
            return (
                "which was ended while it was under way",
                f"say what happened with `setpoint effects settle {at.key} --run {at.holder}`, then start another run",
            )


def _in_its_log(hand: Hand, claim: str, key: str, holder: str) -> Held:
    queued: EffectQueued | None = None
    standing: Standing = "under way"
    result: Ref | None = None
    for stored in hand.journal.log.read(holder):
        if stored.type not in _TOLD:
            continue
        match decode(stored.type, stored.data):
            case EffectQueued() as event if event.claim == claim and not event.compensates:
                queued, standing = event, "under way"
            case EffectDelivered(node=node, status="done") as event if queued and node == queued.node:
                standing, result = "made", event.result
            case EffectUnknown(node=node) if queued and node == queued.node:
                standing = "unknown"
            case EffectSettled(node=node) if queued and node == queued.node and standing == "unknown":
                standing = "under way"
            case EffectQueued(compensates=node) | Compensated(node=node) if queued and node == queued.node:
                standing = "taken back"
            case Finished() if standing == "under way":
                standing = "left"
            case _:
                pass
    return Held(key, holder, standing, queued.arguments_digest if queued else "", result)
