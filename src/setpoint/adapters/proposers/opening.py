"""Routes as they are written (``models: [...]``, ``--model``) -> proposers.

Adapters are imported when a route names them: importing this module imports no client library, and no YAML.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Final

from setpoint.kernel.errors import UsageFault
from setpoint.ports.proposer import Proposer

SCHEMES: Final = ("scripted", "replay", "command", "openai", "anthropic")


def open_proposer(route: str, *, base_dir: Path) -> Proposer:
    """The proposer of one route. Nothing is started or connected yet; whoever opens it closes it.

    ``base_dir`` is the manifest's directory: relative files start there, and programs run there. UsageFault when the
    route is not a route, its file is not readable, or the extra it needs is not installed.
    """
    scheme, colon, rest = route.partition(":")
    if not colon or not rest.strip():
        raise UsageFault(f"{route!r} is not a model route.", hint=f"A route is KIND:WHAT, KIND one of {_schemes()}.")
    match scheme:
        case "scripted":
            from setpoint.adapters.proposers.scripted import ScriptedProposer

            return ScriptedProposer(route, base_dir / rest)
        case "replay":
            from setpoint.adapters.proposers.replay import ReplayProposer

            return ReplayProposer(route, base_dir / rest)
        case "command":
            from setpoint.adapters.proposers.command import CommandProposer

            return CommandProposer(route, rest, base_dir)
        case "openai":
            from setpoint.adapters.proposers.openai import OpenAIProposer

            return OpenAIProposer(route, rest)
        case "anthropic":
            from setpoint.adapters.proposers.anthropic import AnthropicProposer

            return AnthropicProposer(route, rest)
        case _:
            near = get_close_matches(scheme, SCHEMES, 1)
            hint = f"Did you mean {near[0]}:{rest}?" if near else f"The kinds are {_schemes()}."
            raise UsageFault(f"{route!r} names an unknown kind of model, {scheme!r}.", hint=hint)


def _schemes() -> str:
    return ", ".join(SCHEMES)
