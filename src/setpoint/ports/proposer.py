"""Context in, reply out. The proposer holds no handle to anything (law L1).

Promises every adapter keeps (each sentence has a conformance test):

- ``propose`` returns a Reply or raises ProposerFault with a kind; it never retries by itself, so that the log sees
  every attempt, and it ends within ``deadline_ms`` (kind "timeout"), counted in real milliseconds from the call.
- Usage is the provider's report; what the model's text says about usage is ignored.
- A stream that breaks is ProposerFault(broken_stream) with the tokens already spent; a partial reply is never returned.
- A reply that the provider cut by length has stop "length".
- A script's position lives in ``Context.cursor`` and ``Reply.cursor``, never in the adapter: after a restart the same
  context gets the same reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from setpoint.kernel.proposal import Reply

Zone = Literal["root", "trunk", "leaf"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as shown to a model: canonical JSON Schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One block of a prompt. ``digest`` is of ``text``; equal parts are stored once."""

    zone: Zone
    name: str
    text: str
    tokens: int
    digest: str


@dataclass(frozen=True, slots=True)
class Context:
    """Everything a model is told in one turn. ``tools`` belong to the root zone, in canonical order."""

    trajectory_id: str
    turn: int
    parts: tuple[Part, ...]
    tools: tuple[ToolSpec, ...]
    tokens: int
    digest: str
    cursor: int = 0
    items: tuple[dict[str, Any], ...] = ()  # the delta, as data: address, distance, reason
    notes: tuple[str, ...] = ()

    def zone(self, zone: Zone) -> str:
        """The text of one zone, parts joined by a blank line."""
        return "\n\n".join(part.text for part in self.parts if part.zone == zone)

    @property
    def text(self) -> str:
        """The whole prompt as one text (what `when: {note_contains: ...}` and `show --prompt` look at)."""
        return "\n\n".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """What a route can take and what it costs, in micro-dollars per million tokens (None: charged as reported)."""

    context_tokens: int = 128_000
    output_tokens: int = 4_096
    usd_micros_per_mtok_in: int | None = None
    usd_micros_per_mtok_out: int | None = None


class Proposer(Protocol):
    route: str  # as written in `models`, e.g. "scripted:script.yaml"
    limits: RouteLimits

    async def propose(self, context: Context, deadline_ms: int) -> Reply: ...

    async def close(self) -> None: ...
