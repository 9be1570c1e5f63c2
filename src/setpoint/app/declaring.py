"""Whoever declares a workflow is told at that line what is not what it must be, instead of when a run comes by.

``@declaration`` holds the arguments of a function against its own annotations, as far as these are of the kinds below;
what a value must be beyond its type is the function's to say.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from setpoint.app.typed import DefinitionFault
from setpoint.kernel.effects import EFFECT_CLASSES
from setpoint.kernel.flow import ApprovalTerms
from setpoint.kernel.retry import RatePolicy, RetryPolicy

P = ParamSpec("P")
R = TypeVar("R")


def declaration(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with a DefinitionFault for an argument that it does not have, lacks, or that is of another kind."""
    signature = inspect.signature(function)
    kinds = {name: _kind(str(parameter.annotation)) for name, parameter in signature.parameters.items()}

    @functools.wraps(function)
    def checked(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            given = signature.bind(*arguments, **named).arguments
        except TypeError as fault:
            what = _named(function, (*arguments, named.get("name", "")))
            raise DefinitionFault(f"{what}: {fault}", hint=f"It takes {', '.join(_options(signature))}.") from fault
        for name, value in given.items():
            kind = kinds[name]
            if kind is not None and not kind[0](value):
                what = _named(function, tuple(given.values()))
                raise DefinitionFault(f"{name}= of {what} is {repr(value)[:200]}; it is {_words(name, kind[1])}")
        return function(*arguments, **named)

    return checked


def _options(signature: inspect.Signature) -> list[str]:
    return [name for name in signature.parameters if name not in ("self", "function")]


def _named(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """What is declared, as far as it says its name: the first text or function among what it was given."""
    names = (one if isinstance(one, str) else one.__name__ for one in arguments if isinstance(one, str | FunctionType))
    name = next(filter(None, names), "")
    what = function.__qualname__.rpartition(".")[2].strip("_")
    what = {"init": function.__qualname__.partition(".")[0], "declared": "capability"}.get(what, what)
    return f"{what} {name}" if name else what


Kind = tuple[Callable[[Any], bool], str]


def _kind(annotation: str) -> Kind | None:
    """How a value of that annotation is told, and what it is called; None for what is not told here."""
    base, _, rest = annotation.partition(" | ")
    found = _KINDS.get(base) or next((kind for start, kind in _KINDS.items() if base.startswith(f"{start}[")), None)
    if found is None or rest not in ("", "None"):
        return None
    is_it, words = found
    return (lambda value: value is None or is_it(value), f"{words}, or None") if rest else found


def _is_texts(value: Any) -> bool:
    return _is_list(value) and all(isinstance(one, str) for one in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))


_KINDS: Mapping[str, Kind] = {
    "str": (lambda value: isinstance(value, str), "a text"),
    "int": (lambda value: type(value) is int, "a whole number"),
    "bool": (lambda value: type(value) is bool, "True or False"),
    "Literal": (lambda value: isinstance(value, str), "a text"),
    "EffectClass": (lambda value: isinstance(value, str), f"one of {', '.join(EFFECT_CLASSES)}"),
    "Pure": (callable, "a function of the state"),
    "Callable": (callable, "a function"),
    "Sequence[str]": (_is_texts, "a list of texts"),
    "Iterable[str]": (_is_texts, "a list of texts"),
    "Sequence": (_is_list, "a list"),
    "Mapping": (lambda value: isinstance(value, Mapping), "a mapping"),
    "type": (lambda value: not isinstance(value, str), "a type, and not its name"),
    "RetryPolicy": (lambda value: isinstance(value, RetryPolicy), "a RetryPolicy(attempts=..., ...)"),
    "RatePolicy": (lambda value: isinstance(value, RatePolicy), "a RatePolicy(calls=..., per_ms=...)"),
    "ApprovalTerms": (lambda value: isinstance(value, ApprovalTerms), "approval_terms(by=[...], ...)"),
}
_DURATIONS = frozenset({"timeout", "worst", "expires", "duration", "fresh"})


def _words(name: str, words: str) -> str:
    return words.replace("a text", 'a text such as "30s"') if name in _DURATIONS else words
