"""What a run did outside and what became of it: taken back, standing, or open. Its own effects and its children's.

The log alone says it: no application is asked, and none is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from setpoint.cli.run_account import RunAccount, read_account
from setpoint.cli.run_effects import effects_of
from setpoint.cli.terminal import one_line
from setpoint.kernel.errors import UnknownTrajectory
from setpoint.kernel.flow import Call, is_below, walk
from setpoint.kernel.run_events import ChildStarted, Compensated

SHOWN_MAX = 20
"""Effects named in one line; ``--json`` and ``setpoint effects list --all`` have all of them."""


@dataclass(frozen=True, slots=True)
class Remnant:
    """One effect that was made, or may have been. ``has_own_key``: its key is the author's, so that another run can
    come upon it."""

    node: str
    capability: str
    effect: str
    key: str
    has_own_key: bool
    became: str  # taken_back | stands | open: nobody knows yet, or any more


def remnants_of(account: RunAccount) -> list[Remnant]:
    """Every effect the run made, in order; those of a child at ``node>node of the child``."""
    undone = _undone(account.facts) | _undone_above(account)
    return [*_own(account, undone), *_of_children(account, undone)]


def _own(account: RunAccount, undone: frozenset[str]) -> Iterator[Remnant]:
    calls = [(path, node) for path, node in walk(account.definition.body, account.record.workflow)]
    keyed = [path for path, node in calls if isinstance(node, Call) and node.capability.has_key]
    for made in effects_of(account.facts):
        if made.compensates or not (made.is_open or made.status in ("done", "undone")):
            continue
        has_own_key = any(is_below(path, made.node) for path in keyed)
        became = "open" if made.is_open else "taken_back" if made.node in undone else "stands"
        yield Remnant(made.node, made.capability, made.effect, made.key, has_own_key, became)


def _of_children(account: RunAccount, undone: frozenset[str]) -> Iterator[Remnant]:
    for fact in account.facts:
        if not isinstance(fact.event, ChildStarted):
            continue
        try:
            child = read_account(account.runtime, fact.event.run_id)
        except UnknownTrajectory:  # noted down, and not started
            continue
        for one in remnants_of(child):
            node = f"{fact.event.node}>{one.node}"
            became = "taken_back" if node in undone else one.became
            yield Remnant(node, one.capability, one.effect, one.key, one.has_own_key, became)


def _undone(facts: Iterable[Any]) -> frozenset[str]:
    return frozenset(fact.event.node for fact in facts if isinstance(fact.event, Compensated))


def _undone_above(account: RunAccount) -> frozenset[str]:
    """What the run that started this one has taken back of it: a child that is over has its effects on that stack."""
    record = account.record
    if not record.parent_node:
        return frozenset()
    parent = read_account(account.runtime, record.parent)
    before = f"{record.parent_node}>"
    undone = _undone(parent.facts) | _undone_above(parent)
    return frozenset(node.removeprefix(before) for node in undone if node.startswith(before))


# As a document, and in words


def remains_document(remnants: Iterable[Remnant]) -> dict[str, list[dict[str, Any]]]:
    """``taken_back``, ``stands`` and ``open``."""
    told: dict[str, list[dict[str, Any]]] = {"taken_back": [], "stands": [], "open": []}
    for one in remnants:
        entry = asdict(one)
        told[entry.pop("became")].append(entry)
    return told


def remains_said(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Label and text, for a run that was to be taken back: what was, what stands, and of what nobody knows."""
    for label, found in (("taken back", told["taken_back"]), ("stands", told["stands"]), ("not known", told["open"])):
        if found:
            more = f", and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
            shown = ", ".join(f"{one['key']} ({one['capability']}, {one['effect']})" for one in found[:SHOWN_MAX])
            yield label, one_line(shown, 2000) + more


def keys_used_up(told: dict[str, Any]) -> list[str]:
    """Keys of the author's own that no other run can use: what was made under them is taken back, or not known."""
    return list(dict.fromkeys(one["key"] for one in (*told["taken_back"], *told["open"]) if one["has_own_key"]))
