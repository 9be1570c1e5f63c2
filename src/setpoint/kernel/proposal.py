"""What a model may say: data without effect (law L1).

``Reply`` is what a proposer returned, verbatim; ``Proposal`` is what the runtime made of it: per call either a typed
``Call`` or a typed ``Malformed`` complaint with a JSON pointer. Thought and text carry no weight (R108, R114).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

StopReason = Literal["end_turn", "tool_use", "length", "stop_sequence", "refusal"]
CLAIM_TOOL = "complete_task"
ASK_TOOL = "ask_operator"


@dataclass(frozen=True, slots=True)
class Usage:
    """Metered by the provider, never read from the model's text (R233). ``usd_micros`` None: price by the route."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    usd_micros: int | None = None


@dataclass(frozen=True, slots=True)
class RawCall:
    """One call as the provider gave it.

    ``arguments`` is JSON text when it is a ``str`` and a decoded value otherwise. Adapters give text, so that a
    reply can lie in the log as it came, floats and all.
    """

    name: Any
    arguments: Any
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A proposer's answer. ``raw`` is set when the proposer gives one text that should hold the call itself."""

    text: str = ""
    calls: tuple[RawCall, ...] = ()
    raw: str | None = None
    stop: StopReason = "tool_use"
    usage: Usage = Usage()
    model: str = ""
    cursor: int | None = None  # position in a script; recorded, and handed back with the next context

    def document(self) -> dict[str, Any]:
        """The reply as ``ModelReplied.reply`` holds it; usage, model and cursor are fields of the event itself."""
        document: dict[str, Any] = {"stop": self.stop}
        if self.text:
            document["text"] = self.text
        if self.calls:
            document["calls"] = [{"name": c.name, "arguments": c.arguments, "id": c.call_id} for c in self.calls]
        if self.raw is not None:
            document["raw"] = self.raw
        return document

    @classmethod
    def of(
        cls, document: Mapping[str, Any], *, usage: Usage = Usage(), model: str = "", cursor: int | None = None
    ) -> Reply:
        """The inverse of ``document``."""
        calls = tuple(RawCall(c["name"], c["arguments"], c["id"]) for c in document.get("calls", ()))
        return cls(document.get("text", ""), calls, document.get("raw"), document["stop"], usage, model, cursor)


@dataclass(frozen=True, slots=True)
class Call:
    """One well-formed proposed call; still without authority."""

    ordinal: int
    name: str
    arguments: dict[str, Any]
    digest: str  # of [name, arguments]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A call, or a whole reply, that is not a call. ``pointer`` is a JSON pointer into the reply."""

    ordinal: int
    name: str
    reason: (
        str  # not_json | not_object | unknown_field | missing_name | null_arguments | double_encoded | too_large ...
    )
    pointer: str
    message: str


@dataclass(frozen=True, slots=True)
class Proposal:
    calls: tuple[Call | Malformed, ...]
    thought: str
    digest: str  # of the calls' names and canonical arguments; equal proposals are the same attempt

    @property
    def claims(self) -> bool:
        """Whether the model asks for the criteria to be judged."""
        return any(isinstance(call, Call) and call.name == CLAIM_TOOL for call in self.calls)
