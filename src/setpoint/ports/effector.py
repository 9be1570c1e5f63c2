"""One declared unit with side effects: keyed, with a way to look and a way back.

Promises every effector keeps:

- ``perform`` returns plain JSON, or raises one of the faults of ``kernel/effects.py``: EffectDeclined (the other side
  said no), EffectNotSent (surely no effect), EffectUnready (the same, until a person has seen to it), EffectInDoubt,
  ResultUnfit (made, and the result is of no use). Any other exception of a mutation counts as in doubt.
- It sends ``context.key`` to the other side where that knows keys, and never another key.
- It never tries again by itself: the runtime records every attempt.
- ``probe`` only looks. ``compensate`` may be told twice for the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from setpoint.kernel.effects import EffectUnready, ProbeAnswer
from setpoint.kernel.flow import Contract
from setpoint.ports.log import Statement


class ServiceMissing(EffectUnready, KeyError):
    """A capability asked for a service that the application was not opened with."""


class Services(Mapping[str, Any]):
    """What one call finds in ``ctx.services``. ServiceMissing, a KeyError, for what is not there.

    ``are_used``: it was given one. What it has sent with that nobody here knows.
    """

    def __init__(self, services: Mapping[str, Any]) -> None:
        self._services = services
        self.are_used = False

    def __getitem__(self, name: str) -> Any:
        try:
            found = self._services[name]
        except KeyError:
            known = ", ".join(sorted(map(str, self._services))) or "none"
            raise ServiceMissing(
                f"there is no service {name!r} (there is: {known}); open it in App(services=...), or give it to "
                "Runtime.open(services=...)"
            ) from None
        self.are_used = True
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._services

    def __iter__(self) -> Iterator[str]:
        return iter(self._services)

    def __len__(self) -> int:
        return len(self._services)


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
