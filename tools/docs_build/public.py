"""reference/python.md: every name the three public packages promise."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, NewType, get_args, get_overloads

import msgspec

from docs_build.markdown import code, page, prose

PUBLIC = ("setpoint", "setpoint.ports", "setpoint.testing")
INTRO = (
    "What is listed here is promised. Every other module may change between releases. "
    "[Use as a library](../how-to/use-as-a-library.md) shows it at work."
)
USED_BY_METHODS = frozenset(
    {"App", "AppKit", "FakeEffector", "Fragment", "Runtime", "Session", "SyncRuntime", "Workflow"}
)
"""Classes whose methods are the interface: each is listed with what it says of itself."""
CONSTRUCTED = frozenset({"App", "AppKit", "FakeEffector", "HttpClient"})
"""Those of them that the reader makes himself; the others come from a method."""
OWN_USE = frozenset({"moved_to", "equipment"})
"""Methods of these classes that only other parts of Setpoint call."""
REACHED = (
    ("runtime.runs", "setpoint.app.runs:Runs", "wait go_on work tell retry record outcome is_at_work rest"),
    ("runtime.sessions", "setpoint.app.sessions:Sessions", "open turn resume answer actions record tokens"),
    ("setpoint.adapters.effectors.http.HttpClient", "setpoint.adapters.effectors.http:HttpClient", "send get close"),
    ("setpoint.adapters.effectors.http.wire_key", "setpoint.adapters.effectors.http:wire_key", ""),
)
"""What is reached by an attribute or by its module: heading, place, the methods that are promised."""


def python() -> str:
    blocks = [INTRO]
    for module in PUBLIC:
        package = importlib.import_module(module)
        blocks.append(f"## {module}\n\n{prose(package.__doc__).splitlines()[0]}")
        blocks += [_name(module, name, getattr(package, name)) for name in sorted(package.__all__, key=str.lower)]
    blocks.append("## Reached by an attribute, or by their module")
    blocks += [_reached(*one) for one in REACHED]
    return page("Python", "`__all__` of `setpoint`, `setpoint.ports` and `setpoint.testing`", *blocks)


def _name(module: str, name: str, value: Any) -> str:
    lines = [f"### {module}.{name}", ""]
    if isinstance(value, NewType):
        lines.append(f"{code(value.__supertype__.__name__)} under a name of its own.")
    elif inspect.isclass(value):
        lines += [_meaning(value), "", *(f"- `{said}`" for said in _fields(value)), *_said_methods(name, value)]
    elif inspect.isfunction(value):
        lines += _function(name, value)
    else:
        lines.append(_said(value))
    return "\n".join(lines).rstrip()


def _reached(heading: str, place: str, verbs: str) -> str:
    module, _, name = place.partition(":")
    value = getattr(importlib.import_module(module), name)
    if inspect.isfunction(value):
        return "\n".join([f"### {heading}", "", *_function(name, value)])
    return "\n".join([f"### {heading}", "", _meaning(value), "", *_made(name, value), *_told(value, verbs.split())])


def _function(name: str, function: Any) -> list[str]:
    """The signature (the fullest of those that are declared), and all that it says of itself."""
    fullest = (get_overloads(function) or [function])[-1]
    return [code(f"{name}{_signature(fullest)}"), "", _whole(function.__doc__)]


def _said_methods(name: str, cls: type[Any]) -> list[str]:
    if name == "Fragment":
        return ["Its nodes are those of `Workflow`."]
    if name == "Workflow":  # each node gives the chain back; what else a chain can do is the runtime's
        chain = cls.__mro__[1]
        return _told(chain, [one for one, what in vars(chain).items() if _gives_itself(one, what)])
    if name not in USED_BY_METHODS:
        return [f"- `{said}`" for said in _methods(cls)]
    return [
        *_made(name, cls),
        *_told(cls, [one for one in vars(cls) if not one.startswith("_") and one not in OWN_USE]),
    ]


def _gives_itself(name: str, what: Any) -> bool:
    return inspect.isfunction(what) and not name.startswith("_") and what.__annotations__.get("return") == "Self"


def _made(name: str, cls: type[Any]) -> list[str]:
    return [f"- `{name}{_signature(cls.__init__).removesuffix(' -> None')}`"] if name in CONSTRUCTED else []


def _told(cls: type[Any], names: Iterable[str]) -> list[str]:
    """Each method and property with its docstring below it."""
    lines: list[str] = []
    for name in names:
        value = inspect.getattr_static(cls, name)
        for said in _member(name, value):
            lines += [f"- `{said}`", *_below(_code_of(value))]
    return lines


def _below(function: Callable[..., Any] | None) -> list[str]:
    words = _whole(function.__doc__) if function is not None else ""
    return ["", textwrap.indent(words, "  "), ""] if words else []


def _meaning(cls: type[Any]) -> str:
    """What the class says of itself; a port is what its module promises."""
    own = cls.__doc__ or ""
    generated = own.startswith(f"{cls.__name__}(")
    if getattr(cls, "_is_protocol", False) and cls.__module__.startswith("setpoint.ports"):
        promises = prose(sys.modules[cls.__module__].__doc__)
        own = inspect.cleandoc(own)
        return promises if not own or cls.__name__.lower() == cls.__module__.rpartition(".")[2] else prose(own)
    return "" if generated else _first_paragraph(own)


def _first_paragraph(docstring: str | None) -> str:
    return _whole(docstring).split("\n\n")[0]


def _whole(docstring: str | None) -> str:
    return prose(inspect.cleandoc(docstring or ""))


def _fields(cls: type[Any]) -> list[str]:
    if issubclass(cls, msgspec.Struct):
        kinds = {name: kind for base in cls.__mro__ for name, kind in inspect.get_annotations(base).items()}
        return [f"{name}: {kinds[name]}" for name in cls.__struct_fields__ if not name.startswith("_")]
    if not dataclasses.is_dataclass(cls):
        return []
    return [f"{field.name}: {field.type}" for field in dataclasses.fields(cls) if not field.name.startswith("_")]


def _methods(cls: type[Any]) -> list[str]:
    return [said for name, value in vars(cls).items() if not name.startswith("_") for said in _member(name, value)]


def _member(name: str, value: Any) -> list[str]:
    """How a method or property is written; nothing for what is neither."""
    function = _code_of(value)
    if function is None:
        return []
    if isinstance(value, property):
        return [f"{name}: {function.__annotations__.get('return', '')}"]
    return [f"{'async ' if inspect.iscoroutinefunction(function) else ''}{name}{_signature(function)}"]


def _code_of(value: Any) -> Callable[..., Any] | None:
    if isinstance(value, property):
        return value.fget
    plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    return plain if inspect.isfunction(plain) else None


def _signature(function: Any) -> str:
    """The signature as written; ``self`` and ``cls`` left out."""
    signature = inspect.signature(function)
    said: list[str] = []
    starred = False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            said.append("*")
            starred = True
        starred |= parameter.kind is parameter.VAR_POSITIONAL
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        kind = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        said.append(f"{mark}{parameter.name}{kind}{default if len(default) < 40 else ' = ...'}")
    returns = signature.return_annotation
    return f"({', '.join(said)})" + ("" if returns is signature.empty else f" -> {returns}")


def _said(value: Any) -> str:
    """A constant, a choice of literals, or a union."""
    choices = get_args(value)
    if isinstance(value, UnionType):
        return "One of " + ", ".join(code(choice.__name__) for choice in choices) + "."
    if choices:
        return "One of " + ", ".join(code(repr(choice)) for choice in choices) + "."
    return code(str(value))
