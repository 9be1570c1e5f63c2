"""What every path through a workflow must keep, proved over its whole graph before it runs. Pure.

The proof is about the graph as declared: which node can come before which. What the engine does at a node (gate,
intent, settlement) is model-checked in ``kernel/protocol.py``, and what a capability really does, its author says.

Decisions:

- An approval that a function of the state can leave out (``when=``) is allowed and shown as *conditional*: the amount
  above which people are asked is the author's to draw. The proof does not say that people are always asked.
- A block without nodes is refused: a case that deliberately does nothing says so with a step.
- A call inside a map, a repetition or a parallel counts once for every round or block that may hold it.
- Of another workflow that a node starts, its effect classes count here; its own graph is proved where it is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from setpoint.kernel.effects import is_mutation
from setpoint.kernel.flow import (
    AnyNode,
    Approval,
    ApprovalTerms,
    Block,
    Branch,
    Call,
    Contract,
    Definition,
    Map,
    Parallel,
    Repeat,
    in_same_rounds,
    join,
    walk,
)
from setpoint.kernel.pathways import Offence, TooManyPaths, Walk, is_pivot_call, ways
from setpoint.kernel.protocol import check_protocol

Standing = Literal["holds", "conditional", "broken", "not tried"]


@dataclass(frozen=True, slots=True)
class Broken:
    """An obligation that does not hold. ``path``: the nodes of a shortest path that breaks it, where one does."""

    message: str
    hint: str = ""
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Obligation:
    """One line of the proof. ``notes`` say what it rests on, or what a reader should know beside it."""

    name: str
    claim: str
    broken: tuple[Broken, ...] = ()
    notes: tuple[str, ...] = ()
    is_conditional: bool = False
    was_tried: bool = True

    @property
    def standing(self) -> Standing:
        if self.broken:
            return "broken"
        if not self.was_tried:
            return "not tried"
        return "conditional" if self.is_conditional else "holds"


@dataclass(frozen=True, slots=True)
class Proof:
    """Every obligation of one definition, over ``ways`` ways through it. ``remarks`` break nothing."""

    workflow: str
    ways: int
    positions: int
    obligations: tuple[Obligation, ...]
    remarks: tuple[str, ...]

    @property
    def broken(self) -> tuple[Broken, ...]:
        return tuple(broken for obligation in self.obligations for broken in obligation.broken)


def broken_obligations(definition: Definition) -> list[Broken]:
    """Every obligation that some path breaks; empty when the definition is sound."""
    return list(prove(definition).broken)


def prove(definition: Definition) -> Proof:
    """Walk every path and say of each obligation whether it holds on all of them."""
    nodes = tuple(walk(definition.body, definition.name))
    shape = (_names(definition), _blocks(definition), _bounds(nodes), _approvals(definition, nodes))
    if any(obligation.broken for obligation in shape[:3]):  # nothing to walk over
        return Proof(definition.name, 0, 0, (*shape, *_not_tried()), ())
    try:
        walked = Walk(definition)
    except TooManyPaths:
        message = f"{definition.name} has too many paths to prove anything of it ({ways(definition.body):,})"
        hint = "Put a part of it into a workflow of its own; ask for approvals beside the call they are for."
        paths = Obligation("paths", "every path can be walked", (Broken(message, hint),))
        return Proof(definition.name, ways(definition.body), 0, (*shape, paths, *_not_tried()), ())
    proofs = (
        _reachable(nodes, walked),
        _boundary(definition, nodes, walked),
        _gates(nodes, walked),
        _one_pivot(walked),
        _pivot_last(walked),
        _protocol(definition),
    )
    return Proof(definition.name, ways(definition.body), walked.positions, (*shape, *proofs), tuple(_remarks(nodes)))


_CLAIMS: Final = {
    "names": "every block has a name that a path can hold",
    "blocks": "no case, branch or round is empty",
    "bounds": "every repetition and every wait has a bound",
    "approvals": "every approval names who may give it, stands before its call, and is the call's only one",
    "reachable": "some path reaches every node",
    "boundary": "no path calls a capability outside the boundary",
    "gates": "no path makes an irreversible call that people were not asked about",
    "one pivot": "no path makes two irreversible calls",
    "pivot last": "no path makes a call that would have to be taken back after an irreversible one",
    "protocol": "no crash, lost reply, retry, rival or stale approval makes a call twice, or without its approval",
}


def _not_tried() -> Iterator[Obligation]:
    for name in ("reachable", "boundary", "gates", "one pivot", "pivot last", "protocol"):
        yield Obligation(name, _CLAIMS[name], was_tried=False)


def _obligation(
    name: str, broken: Iterable[Broken], notes: Iterable[str] = (), *, conditional: bool = False
) -> Obligation:
    return Obligation(name, _CLAIMS[name], tuple(broken), tuple(notes), conditional)


# The shape of the graph


def _names(definition: Definition) -> Obligation:
    broken: list[Broken] = []
    for path, node in walk(definition.body, definition.name):
        if isinstance(node, (Branch, Parallel)):
            for label, _ in node.blocks():
                if not label or "/" in label or label == "*":
                    message = f"{path} has a block named {label!r}, which no path can hold"
                    broken.append(Broken(message, "A label has no '/' in it, is not '*' and not empty."))
    return _obligation("names", broken)


def _blocks(definition: Definition) -> Obligation:
    broken: list[Broken] = []
    if not definition.body:
        broken.append(Broken(f"the workflow {definition.name} has no nodes", "Give it at least one step."))
    for path, node in walk(definition.body, definition.name):
        if isinstance(node, Branch) and not node.cases:
            broken.append(Broken(f"the branch {path} has no cases, so no path goes on behind it"))
        for label, block in node.blocks():
            if not block:
                message = f"{join(path, label)} is an empty fragment: nobody can tell whether it was forgotten"
                broken.append(
                    Broken(message, 'When nothing is to be done there, say so: .step("nothing", lambda s: {}).')
                )
    return _obligation("blocks", broken)


def _bounds(nodes: Iterable[tuple[str, AnyNode]]) -> Obligation:
    broken: list[Broken] = []
    for path, node in nodes:
        match node:
            case Map(at_most=at_most, at_once=at_once) if at_most < 1 or at_once < 1:
                broken.append(Broken(f"{path} takes at most {at_most} items, {at_once} at once; both are at least 1"))
            case Repeat(at_most=at_most) if at_most < 1:
                broken.append(Broken(f"{path} repeats at most {at_most} times; the bound is at least 1"))
            case _:
                pass
    return _obligation("bounds", broken)


def _approvals(definition: Definition, nodes: Iterable[tuple[str, AnyNode]]) -> Obligation:
    broken: list[Broken] = []
    asked: dict[str, list[tuple[str, ApprovalTerms]]] = {}
    for path, node in nodes:
        if isinstance(node, Call) and node.approval is not None:
            broken += _seats(path, node.approval)
            asked.setdefault(path, []).append((path, node.approval))
        if isinstance(node, Approval):
            broken += _seats(path, node.terms)
            if node.of:
                asked.setdefault(node.of, []).append((path, node.terms))
    broken += _placed(definition.body, definition.name)
    for call, rules in asked.items():
        terms = rules[0][1]
        if len(rules) > 1 and (terms.is_conditional or any(other != terms for _, other in rules)):
            places = " and ".join(place for place, _ in rules)
            message = f"{places} ask about the call {call} by different rules; the weaker one would do"
            broken.append(Broken(message, "Ask in one place, or everywhere by the same rule and without when=."))
    return _obligation("approvals", broken)


def _seats(path: str, terms: ApprovalTerms) -> Iterator[Broken]:
    if not terms.by or not all(role.strip() for role in terms.by):
        yield Broken(f"the approval at {path} names no role that may give it", "Pass by=[ROLE, ...].")
    if terms.quorum < 1:
        yield Broken(f"the approval at {path} asks for {terms.quorum} people; it is at least 1")


def _placed(block: Block, at: str) -> Iterator[Broken]:
    """Approvals for a call that do not stand before it, in the same rounds."""
    for place, node in enumerate(block):
        path = join(at, node.name)
        if isinstance(node, Approval) and node.of:
            below = dict(walk(block[place + 1 :], at))
            if not isinstance(below.get(node.of), Call):
                yield Broken(
                    f"{path} approves {node.of}, and no such call comes after it in its own block",
                    "Put the approval before the call, beside it or beside the node that holds it.",
                )
            elif in_same_rounds(node.of, path) is None:
                yield Broken(
                    f"{path} is asked once, and {node.of} is called in every round",
                    "Put the approval into the block that is repeated.",
                )
        for name, inner in node.blocks():
            yield from _placed(inner, join(path, name))


# What is proved over all paths


def _reachable(nodes: Iterable[tuple[str, AnyNode]], walked: Walk) -> Obligation:
    return _obligation(
        "reachable", (Broken(f"no path leads to {path}") for path, _ in nodes if path not in walked.first)
    )


def _boundary(definition: Definition, nodes: Iterable[tuple[str, AnyNode]], walked: Walk) -> Obligation:
    allowed = ", ".join(definition.boundary) or "none"
    names = frozenset(definition.boundary)
    broken: list[Broken] = []
    for path, node in nodes:
        if isinstance(node, Call) and node.capability.name not in names:
            message = (
                f"{path} calls {node.capability.name}, which is outside the boundary of {definition.name} ({allowed})"
            )
            found = walked.first[path].nodes if path in walked.first else ()
            broken.append(Broken(message, "Add it to boundary=, or take the call out.", found))
    return _obligation("boundary", broken, (f"the boundary: {allowed}",))


def _gates(nodes: Iterable[tuple[str, AnyNode]], walked: Walk) -> Obligation:
    def words(offence: Offence) -> Broken:
        return Broken(
            f"{offence.node} is irreversible, and on this path nobody is asked first: {_shown(offence.path)}",
            "Add .approval(..., of=NODE, by=[ROLE]) on every path before it, or approval=approval_terms(by=[ROLE]).",
            offence.path,
        )

    notes = [
        f"{path}: people are asked only when the function of the state at its approval says so"
        for path in sorted(walked.conditional)
    ]
    if not any(is_pivot_call(node) for _, node in nodes):
        notes.append("there is no irreversible call")
    return _obligation("gates", _of("no_gate", walked, words), notes, conditional=bool(walked.conditional))


def _one_pivot(walked: Walk) -> Obligation:
    def words(offence: Offence) -> Broken:
        return Broken(
            f"{offence.earlier} and {offence.node} are both irreversible and on one path: {_shown(offence.path)}",
            "At most one: nothing could make up for the first when the second fails. Split the workflow.",
            offence.path,
        )

    return _obligation("one pivot", _of("second_pivot", walked, words))


def _pivot_last(walked: Walk) -> Obligation:
    def words(offence: Offence) -> Broken:
        return Broken(
            f"{offence.node} can be taken back but comes after {offence.earlier}, which cannot: {_shown(offence.path)}",
            "Make what can be taken back first, and the irreversible call last.",
            offence.path,
        )

    return _obligation("pivot last", _of("undo_after_pivot", walked, words))


def _protocol(definition: Definition) -> Obligation:
    verdicts = check_protocol(definition)
    broken = [
        Broken(f"{path} can be {verdict.broken}: {_shown(verdict.events)}", path=verdict.events)
        for path, verdict in verdicts.items()
        if verdict.broken
    ]
    states = sum(verdict.states for verdict in verdicts.values())
    return _obligation(
        "protocol", broken, (f"{states:,} states of a model of {len(verdicts)} calls that change something",)
    )


def _of(kind: str, walked: Walk, words: Callable[[Offence], Broken]) -> list[Broken]:
    return [words(offence) for offence in walked.offences if offence.kind == kind]


def _shown(path: tuple[str, ...]) -> str:
    return " -> ".join(path)


# What is worth knowing


def _remarks(nodes: Iterable[tuple[str, AnyNode]]) -> Iterator[str]:
    for path, node in nodes:
        if isinstance(node, Call) and may_end_unknown(node.capability):
            yield (
                f"{path} may end in EffectUnknown: {node.capability.name} has no probe and its other side does not "
                "remember keys, so after a lost reply a person has to look"
            )


def may_end_unknown(contract: Contract) -> bool:
    """Whether a lost reply of it can be settled by a person only (``kernel/effects.py``)."""
    return is_mutation(contract.effect) and not (contract.has_probe or contract.dedups or contract.effect == "keyed")
