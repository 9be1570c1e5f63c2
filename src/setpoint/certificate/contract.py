"""The task, as much of it as verdicts rest on: read from the canonical document.

The canonical document has every default filled in and holds no floats: durations and money are text (``20m``, ``2.0``)
and exact. Its digest is the identity of the task; the pinned digests of sealed files are part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from .canonical import digest
from .statement import LEVELS

IMPLICIT: Final = ("@forbid", "@sensitive", "@grants")
"""Hard static invariants of every task, written or not: negative scope, host tools' own files, granted paths."""
HORIZON_SEALED: Final = 100
"""Turns from which a sealed check is required."""

_EXPOSURE: Final = re.compile(r"H=?([0-9]{1,9}) S([0-3]) A([0-3])")
_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AMOUNT: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,6})")
_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class Check:
    """A criterion or invariant. ``level`` indexes LEVELS."""

    id: str
    address: str
    level: int
    weight: int
    severity: str  # "" for a criterion, else hard | soft

    @property
    def is_hard(self) -> bool:
        return self.severity == "hard"


@dataclass(frozen=True, slots=True)
class Action:
    """An allowed tool. ``paths`` None: no path bound."""

    tool: str
    paths: tuple[str, ...] | None
    max_calls: int | None
    rate: tuple[int, int] | None = None  # calls in so many milliseconds of active time


@dataclass(frozen=True, slots=True)
class Approval:
    """Who a rule asks, as the tickets of its calls must say it."""

    by: tuple[str, ...]
    quorum: int
    each_role: bool
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Contract:
    name: str
    digest: str
    policy_digest: str
    criteria: tuple[Check, ...]
    invariants: tuple[Check, ...]
    actions: dict[str, Action]
    forbid: tuple[str, ...]
    budget: dict[str, int]
    approvals: tuple[Approval, ...] = ()

    def checks(self) -> Iterator[Check]:
        """Invariants first, as the runtime measures them."""
        yield from self.invariants
        yield from self.criteria


def task_digest(document: dict[str, Any]) -> str:
    """The task digest: that of the canonical document, which holds the pinned digests of its sealed files."""
    return digest(document)


def policy_digest(document: dict[str, Any]) -> str:
    """The digest of what the gate rules by: actions, negative scope, budget and policy."""
    spec = document["spec"]
    return digest([spec["actions"], spec["goal"]["forbid"], spec["budget"], spec["policy"]])


def read(document: dict[str, Any]) -> Contract:
    """The contract of a task document. ValueError says what is not as a task has it."""
    try:
        spec = document["spec"]
        if document["kind"] != "Task":
            raise ValueError(f"the document is a {document['kind']!r}, not a Task")
        contract = Contract(
            _text(document["metadata"]["name"]),
            task_digest(document),
            policy_digest(document),
            tuple(_check(item, "done") for item in spec["done"]),
            (*(_check(item, "invariants") for item in spec["invariants"]), *map(_implicit, IMPLICIT)),
            {action.tool: action for action in map(_action, spec["actions"])},
            _patterns(spec["goal"]["forbid"]),
            _budget(spec["budget"]),
            tuple(map(_approval, spec["policy"].get("approve", []))),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the task document lacks or misshapes a part: {type(error).__name__} {error}") from error
    addresses = [check.address for check in contract.checks()]
    if not contract.criteria or len(set(addresses)) != len(addresses):
        raise ValueError("the task has no criterion, or two checks share an id")
    return contract


def required_level(exposure: str) -> str | None:
    """The evidence at least one criterion must reach at a position such as ``H=30 S2 A1``; None when it is none."""
    match = _EXPOSURE.fullmatch(exposure)
    if match is None:
        return None
    horizon, state, authority = map(int, match.groups())
    return "sealed" if horizon >= HORIZON_SEALED or state >= 3 or authority >= 2 else "visible"


def horizon(exposure: str) -> int | None:
    match = _EXPOSURE.fullmatch(exposure)
    return int(match[1]) if match else None


def _implicit(name: str) -> Check:
    return Check(name, f"invariants/{name}", LEVELS.index("static"), 1, "hard")


def _check(item: dict[str, Any], part: str) -> Check:
    level, weight = item["level"], item["weight"]
    severity = "" if part == "done" else item["severity"]
    if level not in LEVELS or severity not in ("", "hard", "soft") or _count(weight) < 1:
        raise ValueError(f"the check {item['id']!r} has level {level!r}, severity {severity!r}, weight {weight!r}")
    return Check(_text(item["id"]), f"{part}/{item['id']}", LEVELS.index(level), weight, severity)


def _action(item: dict[str, Any]) -> Action:
    calls = item.get("max_calls")
    return Action(
        _text(item["tool"]),
        _patterns(item["paths"]) if "paths" in item else None,
        None if calls is None else _count(calls),
        (_count(item["rate"]["calls"]), _milliseconds(item["rate"]["per"])) if "rate" in item else None,
    )


def _approval(item: dict[str, Any]) -> Approval:
    each_role = item.get("each_role", False) is True
    return Approval(_patterns(item["by"]), _count(item["quorum"]), each_role, _milliseconds(item["expires"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def _patterns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list of patterns")
    return tuple(map(_text, value))


def _budget(item: dict[str, Any]) -> dict[str, int]:
    return {
        "turns": _count(item["turns"]),
        "tokens": _count(item["tokens"]),
        "usd_micros": _micros(item["usd"]),
        "wall_ms": _milliseconds(item["wall"]),
    }


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _micros(value: Any) -> int:
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not an amount of dollars such as 2.0")
    return int(match[1]) * 1_000_000 + int(match[2].ljust(6, "0"))


def _milliseconds(value: Any) -> int:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration such as 20m")
    return int(match[1]) * _MS[match[2]]
