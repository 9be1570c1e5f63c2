"""Declare a unit with side effects: its class, its key, how to look, how to take it back.

    @capability(effect="compensable", key=lambda a: f"refund:{a.order_id}",
                probe=find_refund, compensate=reverse_refund)
    async def issue_refund(ctx: Context, order_id: str, cents: int) -> Receipt: ...

The function's parameters after ``ctx`` are its arguments, its annotation is its result. A probe and a compensator take
``ctx`` and any of the arguments by name; a compensator may take ``result`` too. A probe returns what it found, or None
when the effect did not happen; or ``Happened``, ``DidNotHappen``, ``CannotTell``.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, overload

from setpoint.app.declaring import declaration
from setpoint.app.typed import DefinitionFault, Signature, Values, plain, plain_of, structure, unpacked
from setpoint.kernel.effects import (
    EFFECT_CLASSES,
    CannotTell,
    DidNotHappen,
    EffectClass,
    EffectDeclined,
    EffectUnready,
    Happened,
    ProbeAnswer,
    ResultUnfit,
    is_mutation,
)
from setpoint.kernel.flow import Contract
from setpoint.kernel.retry import RatePolicy, RetryPolicy
from setpoint.kernel.units import parse_duration_ms
from setpoint.ports.effector import Context, Later
from setpoint.ports.log import Statement

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
DEFAULT_TIMEOUT = "30s"


@dataclass(frozen=True, slots=True)
class Capability:
    """A declared capability: the ``Effector`` port over the author's functions. Calling it calls the function."""

    function: Callable[..., Any]
    contract: Contract
    signature: Signature
    _key: Callable[[Any], str] | None
    _probe: Callable[..., Any] | None
    _compensate: Callable[..., Any] | None
    _statements: Callable[..., Any] | None

    @property
    def name(self) -> str:
        return self.contract.name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def key(self, arguments: Values) -> str | None:
        if self._key is None:
            return None
        found = self._key(self.signature.read(arguments))
        if not isinstance(found, str) or not found:
            raise ValueError(f"the key of {self.name} is {found!r}, not a text")
        return found

    def statements(self, context: Context, arguments: Values) -> tuple[Statement, ...] | None:
        if self._statements is None:
            return None
        found = self._statements(context, **unpacked(self.signature.read(arguments)))
        return (found,) if isinstance(found, Statement) else tuple(found)

    async def perform(self, context: Context, arguments: Values) -> Any:
        if self._statements is not None:
            raise AssertionError(f"{self.name} is made of statements, which the log performs")
        try:
            given = unpacked(self.signature.read(arguments))
        except ValueError as fault:
            raise EffectUnready(f"{self.name} cannot read its arguments back: {fault}") from fault
        result = await _call(self.function, context, **given)
        return result if isinstance(result, Later) else self._result(result)

    def _result(self, given: Any) -> Any:
        """What the author's function gave, as plain JSON. ResultUnfit when it is not what it declares."""
        try:
            kept = plain(self.signature.result, given)
        except (ValueError, TypeError) as fault:
            if self.signature.result_type is type(None):  # nobody was promised a result
                return None
            raise ResultUnfit(f"{self.name} gave {_briefly(given)}, which JSON cannot hold: {fault}") from fault
        try:
            if self.signature.result_type is not type(None):
                self.signature.result.validate_python(kept, strict=False)
        except ValueError as fault:
            wanted = getattr(self.signature.result_type, "__name__", str(self.signature.result_type))
            raise ResultUnfit(f"{self.name} gave {_briefly(given)}, which is no {wanted}", kept) from fault
        return kept

    async def probe(self, context: Context, arguments: Values) -> ProbeAnswer:
        assert self._probe is not None
        found = await _call(self._probe, context, **_taken(self._probe, unpacked(self.signature.read(arguments))))
        match found:
            case Happened(result):
                return Happened(self._result(result))
            case DidNotHappen() | CannotTell():
                return found
            case None:
                return DidNotHappen()
            case _:
                return Happened(self._result(found))

    async def compensate(self, context: Context, arguments: Values, result: Any) -> Any:
        assert self._compensate is not None
        known = unpacked(self.signature.read(arguments))
        known["result"] = self.signature.result.validate_python(result, strict=False)
        done = await _call(self._compensate, context, **_taken(self._compensate, known))
        if isinstance(done, Statement):  # nobody would run it, and the effect would pass for taken back
            raise EffectDeclined(
                f"the compensator of {self.name} returned a Statement, as only a capability may; nothing was undone",
                hint="Let it change the rows itself, by a connection of its own.",
            )
        return plain_of(done)


def _briefly(value: Any) -> str:
    try:
        return repr(value)[:200]
    except Exception:  # noqa: BLE001  # an author's __repr__ may raise anything
        return f"a {type(value).__name__}"


async def _call(function: Callable[..., Any], context: Context, **named: Any) -> Any:
    """Await a coroutine function; run any other on a thread, since it may wait."""
    if inspect.iscoroutinefunction(function):
        return await function(context, **named)
    found = await asyncio.to_thread(function, context, **named)
    return await found if inspect.isawaitable(found) else found  # a lambda over a coroutine function is none itself


def _taken(function: Callable[..., Any], known: Mapping[str, Any]) -> Values:
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return dict(known)
    return {name: value for name, value in known.items() if name in parameters}


@overload
def capability(function: Callable[..., Any], /) -> Capability: ...


@overload
def capability(
    *,
    effect: EffectClass,
    name: str | None = None,
    key: Callable[[Any], str] | None = None,
    probe: Callable[..., Any] | None = None,
    compensate: Callable[..., Any] | None = None,
    dedups: bool = False,
    timeout: str = DEFAULT_TIMEOUT,
    worst: str | None = None,
    retry: RetryPolicy | None = None,
    rate: RatePolicy | None = None,
    dependency: str = "",
    scopes: Iterable[str] = (),
    statements: bool = False,
) -> Callable[[Callable[..., Any]], Capability]: ...


def capability(function: Any = None, /, **declared: Any) -> Any:
    """Declare a function as a capability. DefinitionFault says what is wrong with the declaration.

    ``effect``: pure | read | reversible | keyed | compensable | irreversible. ``name``: by default the function's.
    ``key`` maps the arguments to the business key, a text; at most one effect under a key is ever made. ``probe`` looks
    whether it happened, ``compensate`` takes it back. ``retry``: a ``RetryPolicy``. ``rate``: a ``RatePolicy``.
    ``dedups``: the other side acts once for a key it is told. ``timeout`` bounds one call, ``worst`` how long the other
    side may work on one that timed out. A function that is not async runs on a thread, which nothing
    stops: what it may still send after the timeout is in ``worst``, too. ``dependency`` shares a circuit breaker.
    ``scopes`` the principal must hold. ``statements``: the function returns ``Statement``s on tables in the store's own
    database, which change with the log or not at all.
    """
    if function is not None:
        raise DefinitionFault(
            f"capability {getattr(function, '__name__', function)!r} declares no effect",
            hint='Write @capability(effect="read"), or whichever class it is.',
        )

    if "effect" not in declared:
        raise DefinitionFault("a capability declares no effect", hint='Write @capability(effect="read", ...).')

    def declare(function: Callable[..., Any]) -> Capability:
        return _declared(function, **declared)

    return declare


@declaration
def _declared(
    function: Callable[..., Any],
    *,
    effect: EffectClass,
    name: str | None = None,
    key: Callable[[Any], str] | None = None,
    probe: Callable[..., Any] | None = None,
    compensate: Callable[..., Any] | None = None,
    dedups: bool = False,
    timeout: str = DEFAULT_TIMEOUT,
    worst: str | None = None,
    retry: RetryPolicy | None = None,
    rate: RatePolicy | None = None,
    dependency: str = "",
    scopes: Iterable[str] = (),
    statements: bool = False,
) -> Capability:
    name = name or function.__name__
    if not NAME.fullmatch(name):
        raise DefinitionFault(f"{name!r} is no name for a capability: letters, digits, - _ . and at most 64 of them")
    if effect not in EFFECT_CLASSES:
        raise DefinitionFault(f"{effect!r} is no effect class; capability {name} is one of {', '.join(EFFECT_CLASSES)}")
    if not callable(function):
        raise DefinitionFault(f"capability {name} is {function!r}, which is no function")
    signature = Signature.of(function, name, has_result=not statements)
    probe, compensate = _bare(probe), _bare(compensate)
    _refuse_nonsense(name, effect, key, probe, compensate)
    known = set(signature.names())
    _refuse_unknown(name, "probe", probe, known)
    _refuse_unknown(name, "compensate", compensate, known | {"result"})
    contract = Contract(
        name=name,
        effect=effect,
        arguments=structure(signature.schema),
        result=structure(signature.result_schema),
        has_key=key is not None,
        has_probe=probe is not None,
        has_compensator=compensate is not None,
        dedups=dedups or effect == "keyed",
        timeout_ms=_duration(name, "timeout", timeout),
        worst_ms=0 if worst is None else _duration(name, "worst", worst),
        retry=retry or RetryPolicy(),
        rate=rate,
        dependency=dependency,
        scopes=tuple(scopes),
    )
    return Capability(function, contract, signature, key, probe, compensate, function if statements else None)


def _duration(name: str, what: str, text: str) -> int:
    try:
        return parse_duration_ms(text)
    except (ValueError, TypeError) as fault:
        raise DefinitionFault(f"{what} of capability {name}: {fault}") from fault


def _bare(function: Any) -> Callable[..., Any] | None:
    return function.function if isinstance(function, Capability) else function


def _refuse_nonsense(name: str, effect: EffectClass, key: Any, probe: Any, compensate: Any) -> None:
    if not is_mutation(effect) and (key or probe or compensate):
        raise DefinitionFault(
            f"capability {name} is {effect}: it changes nothing, so it has no key, probe or compensator"
        )
    for role, function in {"key": key, "probe": probe, "compensate": compensate}.items():
        if function is not None and not callable(function):
            raise DefinitionFault(f"{role} of capability {name} is {function!r}, which is no function")
    if inspect.iscoroutinefunction(key):
        raise DefinitionFault(f"the key of capability {name} is async; a key is computed from the arguments alone")
    if effect == "compensable" and compensate is None:
        raise DefinitionFault(f"capability {name} is compensable but names no compensator (compensate=...)")
    if effect == "irreversible" and compensate is not None:
        raise DefinitionFault(f"capability {name} is irreversible and yet names a compensator; it is compensable")


def _refuse_unknown(name: str, role: str, function: Callable[..., Any] | None, known: set[str]) -> None:
    if function is None:
        return
    parameters = list(inspect.signature(function).parameters.values())[1:]
    for parameter in parameters:
        is_open = parameter.kind is parameter.VAR_KEYWORD or parameter.default is not parameter.empty
        if parameter.name not in known and not is_open:
            raise DefinitionFault(
                f"the {role} of capability {name} takes {parameter.name!r}, which is none of {', '.join(sorted(known))}"
            )


__all__ = ["Capability", "Context", "Later", "capability"]
