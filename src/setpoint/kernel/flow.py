"""What may happen: a workflow as a graph of named nodes, without any code.

A **definition** is a tree of blocks; a block is a sequence of nodes, and some nodes hold blocks. It has no cycles: a
repetition is one node with a bound. The digest of its document pins a run to it, so the document holds everything
that decides which way a run may go (names, order, classes, schemas, bounds) and nothing that only decides how a node
does its work (the code of a step): results are recorded and never computed twice, so code may be mended under a run.

A node is known by its **path**, the names from the workflow down: ``refund/decision/APPROVED/issue``. Inside a map or
a repetition the number of the round is a name too: ``order/lines/3/charge``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from setpoint.kernel.effects import EffectClass, is_mutation
from setpoint.kernel.keys import digest
from setpoint.kernel.retry import RatePolicy, RetryPolicy


class Contract(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a capability's author declares of it. Nothing a caller or a server says changes it."""

    name: str
    effect: EffectClass
    arguments: dict[str, Any]  # JSON Schema
    result: dict[str, Any] = {}  # JSON Schema
    has_key: bool = False  # the author's business key; else the runtime derives one
    has_probe: bool = False
    has_compensator: bool = False
    dedups: bool = False  # the other side acts once for a key, however often it is told
    timeout_ms: int = 30_000
    worst_ms: int = 0  # the longest the other side may still work on a request that timed out here
    retry: RetryPolicy = RetryPolicy()
    rate: RatePolicy | None = None
    dependency: str = ""  # what it needs to be up; one circuit breaker each
    scopes: tuple[str, ...] = ()  # every one of them the principal must hold

    @property
    def is_effect(self) -> bool:
        return is_mutation(self.effect)


class ApprovalTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who must say yes, and how long they have."""

    by: tuple[str, ...]
    quorum: int = 1
    each_role: bool = False  # one of every role in ``by``, instead of any
    expires_ms: int = 86_400_000
    is_conditional: bool = False  # a function of the state says whether a yes is needed at all


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="node"):
    """One place in a workflow."""

    name: str

    def blocks(self) -> Iterator[tuple[str, Block]]:
        """The blocks it holds, each with the name that stands for it in a path."""
        return iter(())


Block = tuple["AnyNode", ...]


class Call(Node, frozen=True, kw_only=True, omit_defaults=True, tag="capability"):
    """Call a capability with arguments from the state; its result goes into the state."""

    capability: Contract
    into: str = ""
    approval: ApprovalTerms | None = None


class Step(Node, frozen=True, kw_only=True, omit_defaults=True, tag="step"):
    """A deterministic change of the state; no I/O."""


class Branch(Node, frozen=True, kw_only=True, omit_defaults=True, tag="branch"):
    """A function of the state picks one labelled block."""

    cases: dict[str, Block]

    def blocks(self) -> Iterator[tuple[str, Block]]:
        return iter(self.cases.items())


class Use(Node, frozen=True, kw_only=True, omit_defaults=True, tag="fragment"):
    """A fragment in line."""

    body: Block
    fragment: str

    def blocks(self) -> Iterator[tuple[str, Block]]:
        yield "", self.body


class Parallel(Node, frozen=True, kw_only=True, omit_defaults=True, tag="parallel"):
    """All blocks at once, each on its own copy of the state; they may not write the same field differently."""

    branches: dict[str, Block]

    def blocks(self) -> Iterator[tuple[str, Block]]:
        return iter(self.branches.items())


class Map(Node, frozen=True, kw_only=True, omit_defaults=True, tag="map"):
    """One block for each item of a list, at most ``at_once`` at a time; ``collect`` of each goes into a list."""

    body: Block
    item: str  # the state field that holds the item inside the block
    at_most: int
    at_once: int
    collect: str = ""
    into: str = ""

    def blocks(self) -> Iterator[tuple[str, Block]]:
        yield "*", self.body


class Repeat(Node, frozen=True, kw_only=True, omit_defaults=True, tag="repeat"):
    """The block again and again until a function of the state says so, at most ``at_most`` times."""

    body: Block
    at_most: int

    def blocks(self) -> Iterator[tuple[str, Block]]:
        yield "*", self.body


class WaitFor(Node, frozen=True, kw_only=True, omit_defaults=True, tag="wait_for"):
    """Until a signal of that name comes; its payload goes into the state."""

    signal: str
    timeout_ms: int
    into: str = ""
    on_timeout: Literal["fail", "continue"] = "fail"


class Sleep(Node, frozen=True, kw_only=True, omit_defaults=True, tag="sleep"):
    """For a time, durably."""

    ms: int


class Approval(Node, frozen=True, kw_only=True, omit_defaults=True, tag="approval"):
    """Until people have said yes: to the call of the node ``of``, or to going on from this state."""

    terms: ApprovalTerms
    of: str = ""  # path below the workflow of the call it stands for
    into: str = ""  # the answer goes there and a no does not end the run


class Child(Node, frozen=True, kw_only=True, omit_defaults=True, tag="workflow"):
    """Another workflow as a run of its own, until it ends."""

    workflow: str
    version: int
    definition: str  # digest
    effects: tuple[EffectClass, ...] = ()  # of everything it may call
    into: str = ""


class Judge(Node, frozen=True, kw_only=True, omit_defaults=True, tag="judge"):
    """A model transforms text, or picks one of the labels. It never chooses what happens next."""

    instructions: str
    into: str
    labels: tuple[str, ...] = ()
    attempts: int = 2


AnyNode = Call | Step | Branch | Use | Parallel | Map | Repeat | WaitFor | Sleep | Approval | Child | Judge


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow as it was declared."""

    name: str
    version: int = 1
    input: dict[str, Any]  # JSON Schema
    state: dict[str, Any]  # JSON Schema
    body: Block
    boundary: tuple[str, ...]  # names of the capabilities that may be called, sorted

    @property
    def document(self) -> dict[str, Any]:
        """As plain JSON."""
        return msgspec.to_builtins(self)

    @property
    def digest(self) -> str:
        """Of the document: what a run is pinned to. Schemas with fractions are hashed by their JSON text."""
        return digest(exact(self.document))


def read_definition(data: bytes) -> Definition:
    """The definition of a document's JSON. msgspec.ValidationError when it is not one."""
    return msgspec.json.decode(data, type=Definition)


def exact(value: Any) -> Any:
    """The value with every fraction as text, since canonical JSON holds none."""
    if isinstance(value, float):
        return f"float:{value!r}"
    if isinstance(value, dict):
        return {str(key): exact(item) for key, item in value.items()}  # type: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [exact(item) for item in value]  # type: ignore[reportUnknownVariableType]
    return value


def join(*names: str) -> str:
    """A path of names; empty ones are left out."""
    return "/".join(filter(None, names))


def walk(block: Block, at: str) -> Iterator[tuple[str, AnyNode]]:
    """Every node below ``at`` with its path, in the order of the definition; rounds are ``*``."""
    for node in block:
        path = join(at, node.name)
        yield path, node
        for name, inner in node.blocks():
            yield from walk(inner, join(path, name))


def is_below(pattern: str, path: str) -> bool:
    """Whether a path of a run is the static path ``pattern`` with numbers for its ``*``."""
    wanted, found = pattern.split("/"), path.split("/")
    return len(wanted) == len(found) and all(
        w == f or (w == "*" and f.isdigit()) for w, f in zip(wanted, found, strict=True)
    )


def in_same_rounds(of: str, path: str) -> str | None:
    """The path of the call ``of`` that an approval node at ``path`` (in a run, or static) stands for; None when it is
    asked for once and the call is made in every round of a repetition."""
    here = path.split("/")
    found: list[str] = []
    for at, name in enumerate(of.split("/")):
        if name == "*" and not (at < len(here) and (here[at] == "*" or here[at].isdigit())):
            return None
        found.append(here[at] if name == "*" else name)
    return "/".join(found)
