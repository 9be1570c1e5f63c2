"""One declared unit with side effects: keyed, with a way to look and a way back.

Promises every effector keeps:

- ``perform`` returns plain JSON, or raises one of the faults of ``kernel/effects.py``: EffectDeclined (the other side
  said no), EffectNotSent (surely no effect), EffectInDoubt. Any other exception of a mutation counts as in doubt.
- It sends ``context.key`` to the other side where that knows keys, and never another key.
- It never tries again by itself: the runtime records every attempt.
- ``probe`` only looks. ``compensate`` may be told twice for the same key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from setpoint.kernel.effects import ProbeAnswer
from setpoint.kernel.flow import Contract
from setpoint.ports.log import Statement


@dataclass(frozen=True, slots=True)
class Context:
    """What the runtime tells a capability about the call it makes. ``key`` is the idempotency key to send along."""

    run_id: str
    node: str
    key: str
    attempt: int
    timeout_ms: int
    principal: str = ""
    tenant: str = ""
    services: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the application was opened with: clients, connections, settings."""


@dataclass(frozen=True, slots=True)
class Later:
    """The other side accepted the request and reports within ``within_ms``; after that the effect is in doubt.

    Whoever receives the report hands it on:
    ``runtime.runs.tell(run_id, "result", {"key": ctx.key, "result": ...}, by="the bank", key="a name of the report")``.
    """

    within_ms: int


class Effector(Protocol):
    @property
    def contract(self) -> Contract: ...

    def key(self, arguments: dict[str, Any]) -> str | None:
        """The author's business key for these arguments, None when none was declared."""
        ...

    def statements(self, context: Context, arguments: dict[str, Any]) -> tuple[Statement, ...] | None:
        """The whole effect as rows of the store's own database: they change with the log, or not at all. Else None."""
        ...

    async def perform(self, context: Context, arguments: dict[str, Any]) -> Any: ...

    async def probe(self, context: Context, arguments: dict[str, Any]) -> ProbeAnswer: ...

    async def compensate(self, context: Context, arguments: dict[str, Any], result: Any) -> Any: ...
