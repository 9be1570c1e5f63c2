"""Criteria and invariants in code, for ``Task.declare``: the same words as in a manifest, read by the same reader.

    unit = criterion("unit", run="python -m pytest -q tests")

    @criterion(level="visible")
    def ledger_balances(probe: dict) -> bool: ...

What a manifest refuses is refused here, in its words: what is declared becomes a manifest's document.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from setpoint.kernel.errors import UsageFault

LevelName = Literal["static", "visible", "sealed", "proof"]


@dataclass(frozen=True, slots=True)
class Declared:
    """One criterion or invariant. One that was made of a function still is that function when it is called."""

    kind: Literal["criterion", "invariant"]
    fields: dict[str, Any]
    function: Callable[..., Any] | None = None

    @property
    def id(self) -> str:
        return self.fields["id"]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.function is None:
            raise TypeError(f"{self.kind} {self.id!r} is no function")
        return self.function(*arguments, **named)


def criterion(
    id: str | None = None,
    *,
    run: str | None = None,
    expr: str | None = None,
    probe: str | None = None,
    oracle: dict[str, Any] | None = None,
    level: LevelName | None = None,
    files: str | None = None,
    disclose: Literal["none", "verdict", "names", "full"] | None = None,
    parse: Literal["pytest", "junit", "exit", "tap", "json"] | None = None,
    weight: int | None = None,
    **more: Any,
) -> Any:
    """A completion criterion: ``criterion(ID, run=...)``, or ``@criterion(level=...)`` on a probe function.

    Parameters are the fields of ``spec.done[]`` (docs/reference/manifest.md).
    """
    given = dict(
        run=run, expr=expr, probe=probe, oracle=oracle, level=level, files=files, disclose=disclose, parse=parse,
        weight=weight, **more,
    )  # fmt: skip
    return _declared("criterion", id, given)


def invariant(
    id: str | None = None,
    *,
    run: str | None = None,
    expr: str | None = None,
    probe: str | None = None,
    severity: Literal["hard", "soft"] | None = None,
    level: LevelName | None = None,
    files: str | None = None,
    **more: Any,
) -> Any:
    """An invariant: ``invariant(ID, expr=...)``, or ``@invariant(severity="hard")`` on a probe function.

    Parameters are the fields of ``spec.invariants[]`` (docs/reference/manifest.md).
    """
    given = dict(run=run, expr=expr, probe=probe, severity=severity, level=level, files=files, **more)
    return _declared("invariant", id, given)


def _declared(kind: Literal["criterion", "invariant"], id: str | None, given: dict[str, Any]) -> Any:
    fields = {name: value for name, value in given.items() if value is not None}
    if any(way in fields for way in ("run", "expr", "probe", "oracle")):
        if id is None:
            raise UsageFault(f"this {kind} has no id", hint=f'Write {kind}("NAME", ...).')
        return Declared(kind, {"id": id, **fields})

    def declare(function: Callable[..., Any]) -> Declared:
        if "<" in function.__qualname__ or "." in function.__qualname__:
            raise UsageFault(
                f"the {kind} {function.__qualname__} is not at the top of a module, so no later process can find it"
            )
        name = f"{function.__module__}:{function.__name__}"
        return Declared(kind, {"id": id or function.__name__.replace("_", "-"), "probe": name, **fields}, function)

    return declare


def document_of(
    name: str, goal: str, workspace: str, forbid: list[str], checks: dict[str, Any], rest: dict[str, Any]
) -> dict[str, Any]:
    """The manifest's document of a declared task."""
    environment = {"workspace": workspace, **rest.pop("environment", {})}
    spec: dict[str, Any] = {"goal": {"text": goal, "forbid": forbid}, "environment": environment}
    for part, declared in checks.items():
        spec[part] = [_fields(one, part) for one in declared]
    spec.update({part: value for part, value in rest.items() if value is not None})
    return {"apiVersion": "setpoint.dev/v1", "kind": "Task", "metadata": {"name": name}, "spec": spec}


def _fields(declared: Any, part: str) -> dict[str, Any]:
    if isinstance(declared, dict):
        return declared  # type: ignore[reportUnknownVariableType]
    wanted = "criterion" if part == "done" else "invariant"
    if not isinstance(declared, Declared) or declared.kind != wanted:
        raise UsageFault(f"{part} holds {declared!r}, which is no {wanted}", hint=f"Make one with {wanted}(...).")
    return declared.fields
