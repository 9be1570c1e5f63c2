"""Small definitions by hand, and random ones, for what is proved of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

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
    Step,
    Use,
    join,
    walk,
)

OPS = ApprovalTerms(by=("ops",))


def contract(name: str, effect: Any = "keyed", **more: Any) -> Contract:
    compensator = {"has_compensator": True} if effect == "compensable" else {}
    return Contract(name=name, effect=effect, arguments={}, **{**compensator, **more})


def call(name: str, effect: Any = "read", *, approval: ApprovalTerms | None = None, **more: Any) -> Call:
    return Call(name=name, capability=contract(f"do_{name}", effect, **more), approval=approval)


def wire(name: str = "wire", **more: Any) -> Call:
    """An irreversible call; people are asked at the call unless said otherwise."""
    return call(name, "irreversible", **{"approval": OPS, **more})


def step(name: str) -> Step:
    return Step(name=name)


def branch(name: str, **cases: Block) -> Branch:
    return Branch(name=name, cases=cases)


def definition(*body: AnyNode, boundary: tuple[str, ...] | None = None, name: str = "w", **more: Any) -> Definition:
    called = tuple(sorted({n.capability.name for _, n in walk(body, name) if isinstance(n, Call)}))
    fields: dict[str, Any] = {"input": {}, "state": {}, **more}
    return Definition(name=name, body=body, boundary=called if boundary is None else boundary, **fields)


# Random ones


def _numbered(block: Block, names: Iterator[int]) -> Block:
    """The block with names that are unique in the whole definition."""
    from msgspec.structs import replace

    found: list[AnyNode] = []
    for node in block:
        name = f"n{next(names)}"
        match node:
            case Branch():
                made = replace(node, name=name, cases={k: _numbered(b, names) for k, b in node.cases.items()})
            case Parallel():
                made = replace(node, name=name, branches={k: _numbered(b, names) for k, b in node.branches.items()})
            case Map() | Repeat() | Use():
                made = replace(node, name=name, body=_numbered(node.body, names))
            case _:
                made = replace(node, name=name)
        found.append(made)
    return tuple(found)


_LEAVES = st.sampled_from(
    [
        Step(name="x"),
        call("read"),
        call("undoable", "compensable"),
        wire(),
        wire(approval=None),
        wire(approval=ApprovalTerms(by=("ops",), is_conditional=True)),
        Approval(name="x", terms=OPS),
    ]
)


def _holders(inner: st.SearchStrategy[AnyNode]) -> st.SearchStrategy[AnyNode]:
    block = st.lists(inner, min_size=1, max_size=2).map(tuple)
    return st.one_of(
        st.dictionaries(st.sampled_from("ABC"), block, min_size=1, max_size=2).map(
            lambda cases: Branch(name="x", cases=cases)
        ),
        st.dictionaries(st.sampled_from("PQR"), block, min_size=2, max_size=3).map(
            lambda branches: Parallel(name="x", branches=branches)
        ),
        block.map(lambda body: Use(name="x", body=body, fragment="f")),
        st.tuples(block, st.integers(1, 3)).map(
            lambda one: Map(name="x", body=one[0], item="i", at_most=one[1], at_once=1)
        ),
        st.tuples(block, st.integers(1, 3)).map(lambda one: Repeat(name="x", body=one[0], at_most=one[1])),
    )


_NODES = st.recursive(_LEAVES, _holders, max_leaves=5)


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    """Any structure; approvals stand for calls behind them in their own block, or below one of its nodes."""
    from itertools import count

    body = _numbered(tuple(draw(st.lists(_NODES, min_size=1, max_size=4))), count())
    return definition(*_aimed(draw, body, "w"))


def _aimed(draw: st.DrawFn, block: Block, at: str) -> Block:
    from msgspec.structs import replace

    found: list[AnyNode] = []
    for place, node in enumerate(block):
        path = join(at, node.name)
        match node:
            case Approval():
                targets = [
                    to
                    for to, one in walk(block[place + 1 :], at)
                    if isinstance(one, Call) and one.approval is None and "*" not in to.removeprefix(at)
                ]
                if targets:
                    conditional = draw(st.booleans())
                    terms = replace(node.terms, is_conditional=conditional)
                    node = replace(node, of=draw(st.sampled_from(targets)), terms=terms)
            case Branch():
                node = replace(node, cases={k: _aimed(draw, b, join(path, k)) for k, b in node.cases.items()})
            case Parallel():
                inner = {k: _aimed(draw, b, join(path, k)) for k, b in node.branches.items()}
                node = replace(node, branches=inner)
            case Map() | Repeat():
                node = replace(node, body=_aimed(draw, node.body, join(path, "*")))
            case Use():
                node = replace(node, body=_aimed(draw, node.body, path))
            case _:
                pass
        found.append(node)
    return tuple(found)
