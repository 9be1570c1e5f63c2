"""What carries forward: who somebody is, what systems of record say of them, and what earlier runs came to.

    @app.hydrator(fresh="5m")
    async def account_tier(ctx: Hydrating) -> str:
        return await ctx.services["crm"].tier_of(ctx.principal)

    session = await runtime.session("customer-17", principal="customer:17")
    session.context.account_tier          # as recorded, with the type that was declared
    session.facts["refund"]               # the output of the newest completed run, plain JSON

A ``Session`` is a reading of the log at one version. A turn on it is refused when the session has moved on since.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from setpoint.app.capability import NAME
from setpoint.app.typed import DefinitionFault, adapter_of
from setpoint.engine.sessions.journal import SessionJournal
from setpoint.kernel.errors import Fault
from setpoint.kernel.events import Ref
from setpoint.kernel.keys import digest_bytes
from setpoint.kernel.session_events import ContextHydrated
from setpoint.kernel.session_record import SessionRecord
from setpoint.kernel.units import parse_duration_ms

Load = Callable[[Any, Ref | None], Any]
"""A recorded value: itself, or what its reference leads to."""


class HydrationFault(Fault):
    """A system of record did not say what an agent must know. Nothing was decided without it."""

    exit_code = 18


@dataclass(frozen=True, slots=True)
class Hydrating:
    """Whom a value is loaded for, and with what."""

    session_id: str
    principal: str
    tenant: str = ""
    services: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Hydrator:
    """How one value of the context is loaded, and how long it stays fresh."""

    name: str
    load: Callable[[Hydrating], Any]
    type: TypeAdapter[Any]
    fresh_ms: int

    @classmethod
    def of(cls, name: str, load: Callable[[Hydrating], Any], fresh: str) -> Hydrator:
        """DefinitionFault when the name is none, or the function does not say what it returns."""
        if not NAME.fullmatch(name) or not name.isidentifier():
            raise DefinitionFault(f"{name!r} is no name for a value of the context; it is read as session.context.NAME")
        try:
            hints = get_type_hints(load, include_extras=True)
        except (NameError, TypeError) as fault:
            raise DefinitionFault(
                f"an annotation of the hydrator {name} is not known in its module: {fault}"
            ) from fault
        if "return" not in hints:
            raise DefinitionFault(
                f"the hydrator {name} does not say what it returns", hint=f"async def {name}(ctx: Hydrating) -> str"
            )
        try:
            fresh_ms = parse_duration_ms(fresh)
        except ValueError as fault:
            raise DefinitionFault(f"fresh of the hydrator {name}: {fault}") from fault
        return cls(name, load, adapter_of(hints["return"], f"the value of the hydrator {name}"), fresh_ms)


async def hydrate(
    journal: SessionJournal, hydrators: Mapping[str, Hydrator], now_ms: int, services: Mapping[str, Any]
) -> None:
    """Load what is missing or stale and record it with its version and time. HydrationFault: one cannot be loaded."""
    record = journal.record
    for hydrator in hydrators.values():
        known = record.context.get(hydrator.name)
        if known is not None and now_ms - known.at_ms < hydrator.fresh_ms:
            continue
        plain = await _loaded(hydrator, Hydrating(record.session_id, record.principal, record.tenant, services))
        data = hydrator.type.dump_json(hydrator.type.validate_python(plain))
        found = digest_bytes(data)
        value, ref = journal.spill(plain)
        version = 1 if known is None else known.version + (known.digest != found)
        journal.add(
            ContextHydrated(name=hydrator.name, version=version, at_ms=now_ms, digest=found, value=value, value_ref=ref)
        )


async def _loaded(hydrator: Hydrator, hydrating: Hydrating) -> Any:
    try:
        if inspect.iscoroutinefunction(hydrator.load):
            value = await hydrator.load(hydrating)
        else:  # it may wait for a database
            value = await asyncio.to_thread(hydrator.load, hydrating)
        return hydrator.type.dump_python(hydrator.type.validate_python(value), mode="json")
    except Exception as error:  # whatever a system of record, or the author's code, does: the value is not known
        raise HydrationFault(
            f"{hydrator.name} of {hydrating.principal or hydrating.session_id} could not be loaded: "
            f"{type(error).__name__}: {error}"[:1000],
            hint="The agent was not asked. Try again when the system of record answers.",
        ) from error


class SessionContext:
    """The hydrated values by name, each of its declared type. AttributeError names those there are."""

    __slots__ = ("_hydrators", "_load", "_record")

    def __init__(self, record: SessionRecord, hydrators: Mapping[str, Hydrator], load: Load) -> None:
        self._record, self._hydrators, self._load = record, hydrators, load

    def __getattr__(self, name: str) -> Any:
        known, hydrator = self._record.context.get(name), self._hydrators.get(name)
        if known is None or hydrator is None:
            names = ", ".join(sorted(self._hydrators)) or "none"
            raise AttributeError(
                f"the context of session {self._record.session_id} holds no {name!r}; there are hydrators for {names}"
            )
        try:
            return hydrator.type.validate_python(self._load(known.value, known.ref))
        except ValidationError as fault:  # recorded by an older version of the application
            raise AttributeError(f"{name} was recorded as something else than it is declared now: {fault}") from fault

    def version_of(self, name: str) -> int:
        """How many different values of this name there were, this one included; 0 when it was never loaded."""
        known = self._record.context.get(name)
        return 0 if known is None else known.version


class Facts(Mapping[str, Any]):
    """Outputs of completed runs, the newest of each workflow, as plain JSON."""

    __slots__ = ("_load", "_record")

    def __init__(self, record: SessionRecord, load: Load) -> None:
        self._record, self._load = record, load

    def __getitem__(self, workflow: str) -> Any:
        fact = self._record.facts[workflow]
        return self._load(fact.value, fact.ref)

    def __iter__(self) -> Iterator[str]:
        return iter(self._record.facts)

    def __len__(self) -> int:
        return len(self._record.facts)


class Session:
    """A session as it stood when it was read. ``Runtime.turn`` moves it on to where its turn left it."""

    __slots__ = ("_hydrators", "_load", "_record")

    def __init__(self, record: SessionRecord, hydrators: Mapping[str, Hydrator], load: Load) -> None:
        self._record, self._hydrators, self._load = record, hydrators, load

    @property
    def id(self) -> str:
        return self._record.session_id

    @property
    def principal(self) -> str:
        return self._record.principal

    @property
    def tenant(self) -> str:
        return self._record.tenant

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset(self._record.scopes)

    @property
    def version(self) -> int:
        """Counts what a decision may rest on: identity, values, facts, runs, messages."""
        return self._record.version

    @property
    def expires_at_ms(self) -> int:
        return self._record.expires_at_ms

    @property
    def context(self) -> SessionContext:
        return SessionContext(self._record, self._hydrators, self._load)

    @property
    def facts(self) -> Facts:
        return Facts(self._record, self._load)

    @property
    def open_runs(self) -> tuple[str, ...]:
        """Runs that were not seen to end."""
        return tuple(self._record.runs)

    @property
    def question(self) -> str:
        """What the agent has asked the operator and was not answered yet; "" when nothing."""
        return self._record.question.question if self._record.question is not None else ""

    def __repr__(self) -> str:
        return f"<Session {self.id} of {self.principal} at version {self.version}>"

    def moved_to(self, record: SessionRecord) -> None:
        """Only the runtime calls this, with what it has just recorded."""
        self._record = record


__all__ = ["Facts", "Hydrating", "HydrationFault", "Hydrator", "Session", "SessionContext", "hydrate"]
