"""reference/python.md: every name the three public packages promise."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from types import UnionType
from typing import Any, NewType, get_args

import msgspec

from docs_build.markdown import code, page, prose

PUBLIC = ("setpoint", "setpoint.ports", "setpoint.testing")
INTRO = (
    "What is listed here is promised. Every other module may change between releases. "
    "[Use as a library](../how-to/use-as-a-library.md) shows it at work."
)


def python() -> str:
    blocks = [INTRO]
    for module in PUBLIC:
        package = importlib.import_module(module)
        blocks.append(f"## {module}\n\n{prose(package.__doc__).splitlines()[0]}")
        blocks += [_name(module, name, getattr(package, name)) for name in sorted(package.__all__, key=str.lower)]
    return page("Python", "`__all__` of `setpoint`, `setpoint.ports` and `setpoint.testing`", *blocks)


def _name(module: str, name: str, value: Any) -> str:
    lines = [f"### {module}.{name}", ""]
    if isinstance(value, NewType):
        lines.append(f"{code(value.__supertype__.__name__)} under a name of its own.")
    elif inspect.isclass(value):
        lines += [_meaning(value), "", *(f"- `{said}`" for said in (*_fields(value), *_methods(value)))]
    elif inspect.isfunction(value):
        lines += [code(f"{name}{_signature(value)}"), "", _first_paragraph(value.__doc__)]
    else:
        lines.append(_said(value))
    return "\n".join(lines).rstrip()


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
    return prose(inspect.cleandoc(docstring or "")).split("\n\n")[0]


def _fields(cls: type[Any]) -> list[str]:
    if issubclass(cls, msgspec.Struct):
        kinds = {name: kind for base in cls.__mro__ for name, kind in inspect.get_annotations(base).items()}
        return [f"{name}: {kinds[name]}" for name in cls.__struct_fields__ if not name.startswith("_")]
    if not dataclasses.is_dataclass(cls):
        return []
    return [f"{field.name}: {field.type}" for field in dataclasses.fields(cls) if not field.name.startswith("_")]


def _methods(cls: type[Any]) -> list[str]:
    found: list[str] = []
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property) and value.fget is not None:
            found.append(f"{name}: {value.fget.__annotations__.get('return', '')}")
        plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if inspect.isfunction(plain):
            found.append(f"{'async ' if inspect.iscoroutinefunction(plain) else ''}{name}{_signature(plain)}")
    return found


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
