"""Every path through a definition, walked without running anything. Pure.

What a function of the state answers is not known before a run, so every case of a branch is a path, a list may have
any number of items up to its bound, and the blocks of a parallel may be done in any order. What is asked of a path is
always about two of its nodes ("this one only after that one"), which keeps the walk small and still complete:

- Two rounds stand for many: whatever two nodes of different rounds do wrong, those of the first two do.
- Each block of a parallel is done first once, with all others behind it: every order of two nodes of different blocks
  occurs, and so does the one in which nothing beside a node has been done yet.

A round is a number in a path, as in a run: ``order/lines/1/charge`` is the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, assert_never

from setpoint.kernel.flow import (
    AnyNode,
    Approval,
    Block,
    Branch,
    Call,
    Child,
    Contract,
    Definition,
    Judge,
    Map,
    Parallel,
    Repeat,
    Sleep,
    Step,
    Use,
    WaitFor,
    in_same_rounds,
    join,
    walk,
)

POSITIONS_MAX: Final = 50_000
"""Nodes entered in one walk, once for each thing that may have happened before. A chain of 1,000 nodes needs 1,000;
only parallels nested eight deep, or many optional approvals in a row, come near. Such a definition is refused."""
ROUNDS_WALKED: Final = 2


class TooManyPaths(Exception):
    """The walk would pass its bound: nothing is proved of such a definition."""


class Situation(NamedTuple):
    """What of the past matters at a place. Calls are named by their path in the run."""

    pivot: str = ""  # the irreversible call that was made
    asked: frozenset[str] = frozenset()  # irreversible calls ahead that people said yes to
    maybe: frozenset[str] = frozenset()  # those ahead that people are asked about only when a condition holds


@dataclass(frozen=True, slots=True)
class Trace:
    """How a place was reached, and from where. The first one is before all nodes."""

    path: str = ""
    before: Trace | None = None
    length: int = 0

    def then(self, path: str) -> Trace:
        return Trace(path, self, self.length + 1)

    @property
    def nodes(self) -> tuple[str, ...]:
        found: list[str] = []
        at = self
        while at.before is not None:
            found.append(at.path)
            at = at.before
        return tuple(reversed(found))


Reached = dict[Situation, Trace]


@dataclass(frozen=True, slots=True)
class Offence:
    """A path on which a node may not be reached.

    ``kind``: second_pivot | undo_after_pivot | no_gate. ``earlier`` is the node it collides with, "" where it is none.
    """

    kind: str
    node: str
    earlier: str
    path: tuple[str, ...]


class Walk:
    """What one walk over all paths found. TooManyPaths when there are too many for it."""

    def __init__(self, definition: Definition) -> None:
        self.first: dict[str, Trace] = {}
        """Static path of every node that some path enters, with the shortest way to it."""
        self.conditional: set[str] = set()
        """Static paths of irreversible calls that people are asked about only when a function of the state says so."""
        self.positions = 0
        self._offences: dict[tuple[str, ...], Offence] = {}
        self._statics: dict[str, str] = {}  # path in a run -> path in the definition
        nodes = dict(walk(definition.body, definition.name))
        self._irreversible = {path for path, node in nodes.items() if is_pivot_call(node)}
        self._unordered = {path for path, node in nodes.items() if isinstance(node, (Parallel, Map))}
        self._block(definition.body, definition.name, definition.name, {Situation(): Trace()})

    @property
    def offences(self) -> tuple[Offence, ...]:
        """The shortest path of each kind and pair of nodes; the shortest of all first."""
        return tuple(sorted(self._offences.values(), key=lambda one: (len(one.path), one.path)))

    def _block(self, block: Block, path: str, static: str, before: Reached) -> Reached:
        for node in block:
            if not before:
                break  # no path comes here
            before = self._node(node, join(path, node.name), join(static, node.name), before)
        return before

    def _node(self, node: AnyNode, path: str, static: str, before: Reached) -> Reached:
        self.positions += len(before)
        if self.positions > POSITIONS_MAX:
            raise TooManyPaths
        self._statics[path] = static
        entered = {situation: trace.then(path) for situation, trace in before.items()}
        shortest = min(entered.values(), key=lambda trace: trace.length)
        if static not in self.first or shortest.length < self.first[static].length:
            self.first[static] = shortest
        match node:
            case Call():
                return merged(self._call(node, path, static, *one) for one in entered.items())
            case Approval():
                return merged((self._approved(node, path, situation), trace) for situation, trace in entered.items())
            case Child(effects=effects):
                return merged(self._child(effects, path, static, *one) for one in entered.items())
            case Step() | Sleep() | WaitFor() | Judge():
                return entered
            case Branch(cases=cases):
                inner = [self._block(cases[at], join(path, at), join(static, at), entered) for at in cases]
            case Use(body=body):
                inner = [self._block(body, path, static, entered)]
            case Parallel(branches=branches):
                inner = self._any_order(branches, path, static, entered)
            case Map(body=body, at_most=at_most):
                inner = [entered, *self._rounds(body, path, static, entered, at_most)]
            case Repeat(body=body, at_most=at_most):
                inner = self._rounds(body, path, static, entered, at_most)
            case _:
                assert_never(node)
        return merged((_left(path, situation), trace) for reached in inner for situation, trace in reached.items())

    def _any_order(self, branches: Mapping[str, Block], path: str, static: str, entered: Reached) -> Iterator[Reached]:
        names = list(branches)
        for first in range(len(names)):
            reached = entered
            for name in names[first:] + names[:first]:
                reached = self._block(branches[name], join(path, name), join(static, name), reached)
            yield reached

    def _rounds(self, body: Block, path: str, static: str, entered: Reached, at_most: int) -> Iterator[Reached]:
        for number in range(min(ROUNDS_WALKED, at_most)):
            entered = self._block(body, join(path, str(number)), join(static, "*"), entered)
            yield entered

    # What the nodes mean

    def _call(self, node: Call, path: str, static: str, before: Situation, trace: Trace) -> tuple[Situation, Trace]:
        if can_be_undone(node.capability) and before.pivot:
            self._offend("undo_after_pivot", path, static, before.pivot, trace)
        if not is_pivot_call(node):
            return before, trace
        self._gate(node, path, static, before, trace)
        return self._pivot(path, static, before, trace)

    def _gate(self, node: Call, path: str, static: str, before: Situation, trace: Trace) -> None:
        own = node.approval
        if (own is not None and own.is_conditional) or path in before.maybe:
            self.conditional.add(static)
        elif own is None and path not in before.asked:
            self._offend("no_gate", path, static, "", trace)

    def _pivot(self, path: str, static: str, before: Situation, trace: Trace) -> tuple[Situation, Trace]:
        if before.pivot:
            self._offend("second_pivot", path, static, before.pivot, trace)
        after = before._replace(pivot=before.pivot or path, asked=before.asked - {path}, maybe=before.maybe - {path})
        return after, trace

    def _child(
        self, effects: Iterable[str], path: str, static: str, before: Situation, trace: Trace
    ) -> tuple[Situation, Trace]:
        """Another workflow is one node here: its own order and its own approvals are proved where it is declared."""
        if "compensable" in effects and before.pivot:
            self._offend("undo_after_pivot", path, static, before.pivot, trace)
        return self._pivot(path, static, before, trace) if "irreversible" in effects else (before, trace)

    def _approved(self, node: Approval, path: str, before: Situation) -> Situation:
        if node.of not in self._irreversible:
            return before
        call = in_same_rounds(node.of, path)
        if call is None:
            return before  # obligations refuse it
        if node.terms.is_conditional:
            return before._replace(maybe=before.maybe | {call})
        return before._replace(asked=before.asked | {call})

    def _offend(self, kind: str, path: str, static: str, earlier: str, trace: Trace) -> None:
        pair = (self._statics.get(earlier, ""), static)
        place = (kind, *(sorted(pair) if kind == "second_pivot" else pair))
        nodes = self._needed(trace.nodes, earlier or path)
        known = self._offences.get(place)
        if known is None or len(nodes) < len(known.path):
            self._offences[place] = Offence(kind, path, earlier, nodes)

    def _needed(self, nodes: tuple[str, ...], earlier: str) -> tuple[str, ...]:
        """Of a path, what must come before its last node or before ``earlier``: not what merely runs beside them."""
        last, turn = nodes[-1], nodes.index(earlier)
        return tuple(
            node
            for at, node in enumerate(nodes)
            if not self._beside(node, last) or (at <= turn and not self._beside(node, earlier))
        )

    def _beside(self, one: str, other: str) -> bool:
        """Whether two nodes of a run are in different blocks of one parallel, or rounds of one map."""
        left, right = one.split("/"), other.split("/")
        same = 0
        while same < min(len(left), len(right)) and left[same] == right[same]:
            same += 1
        return same < min(len(left), len(right)) and self._statics.get("/".join(left[:same])) in self._unordered


def merged(reached: Iterable[tuple[Situation, Trace]]) -> Reached:
    """One trace for each situation: the shortest."""
    found: Reached = {}
    for situation, trace in reached:
        if situation not in found or trace.length < found[situation].length:
            found[situation] = trace
    return found


def _left(path: str, situation: Situation) -> Situation:
    """Behind a node that holds blocks, no approval of a call inside it matters any more."""
    inside = f"{path}/"
    if not any(call.startswith(inside) for call in (*situation.asked, *situation.maybe)):
        return situation
    return situation._replace(
        asked=frozenset(call for call in situation.asked if not call.startswith(inside)),
        maybe=frozenset(call for call in situation.maybe if not call.startswith(inside)),
    )


def is_pivot_call(node: AnyNode) -> bool:
    return isinstance(node, Call) and node.capability.effect == "irreversible"


def can_be_undone(contract: Contract) -> bool:
    """Whether a failing run would take its effect back."""
    return contract.effect == "compensable" or contract.has_compensator


def ways(block: Block) -> int:
    """How many ways lead through a block, with no, one and two rounds of a repetition; the order among blocks of a
    parallel is not counted."""
    count = 1
    for node in block:
        count *= _ways_of(node)
    return count


def _ways_of(node: AnyNode) -> int:
    inner = [ways(block) for _, block in node.blocks()]
    match node:
        case Branch():
            return sum(inner)
        case Parallel():
            count = 1
            for one in inner:
                count *= one
            return count
        case Map(at_most=at_most):
            return sum(inner[0] ** rounds for rounds in range(min(ROUNDS_WALKED, at_most) + 1))
        case Repeat(at_most=at_most):
            return sum(inner[0] ** rounds for rounds in range(1, min(ROUNDS_WALKED, at_most) + 1))
        case Use():
            return inner[0]
        case _:
            return 1
