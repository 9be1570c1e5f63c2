"""What the projection saves: the tokens of the prompts as they were, beside those of a transcript of the same session.

A transcript repeats, with every call, the instructions and everything that was said and seen before: messages, replies,
outcomes. Both are estimates by the same rule, so the ratio compares like with like (R041).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from setpoint.kernel.events import ContextBuilt, Event, ModelReplied, Ref, Refused
from setpoint.kernel.session_events import ActionDone, MessageReceived
from setpoint.phases.p1_context.projection import estimate_tokens


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Of every call of a session, first to last."""

    projected: tuple[int, ...]
    transcript: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """Tokens a transcript would have cost for each that a prompt had; 0.0 before the first call."""
        return sum(self.transcript) / sum(self.projected) if self.projected else 0.0


def prompt_tokens(events: Iterable[Event], text: Callable[[str | Ref], str]) -> PromptTokens:
    """Read off the log; nothing is projected again."""
    said, projected, transcript = 0, list[int](), list[int]()
    for event in events:
        match event:
            case MessageReceived(message=message):
                said += estimate_tokens(text(message))
            case ModelReplied(reply=None, reply_ref=Ref() as ref):
                said += estimate_tokens(text(ref))
            case ModelReplied(reply=reply):
                said += estimate_tokens(msgspec.json.encode(reply).decode())
            case ActionDone(text=outcome):
                said += estimate_tokens(text(outcome))
            case Refused(message=why):
                said += estimate_tokens(why)
            case ContextBuilt(tokens=tokens, parts=parts):
                fixed = sum(part.tokens for part in parts if part.zone != "leaf")
                projected.append(tokens)
                transcript.append(fixed + said)
            case _:
                pass
    return PromptTokens(tuple(projected), tuple(transcript))
