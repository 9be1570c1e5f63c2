"""A workflow explained in text: what it may do, node by node, and what is proved of every path through it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Final

from setpoint.app.chart import duration, words_of
from setpoint.kernel.flow import Block, Branch, Call, Child, Contract, Definition, Parallel, walk
from setpoint.kernel.obligations import Obligation, Proof, prove

WIDTH: Final = 100
_MARKS: Final = {"holds": "holds", "conditional": "holds if", "broken": "BROKEN", "not tried": "not tried"}


def explain_workflow(definition: Definition) -> str:
    """Purpose, nodes, capabilities and proof, in words for a terminal. A definition that breaks something is explained
    as well: the text says what, on which path, and what to do."""
    proof = prove(definition)
    parts = (
        _purpose(definition, proof),
        _nodes(definition),
        _capabilities(definition),
        _proved(proof),
        _remarks(proof),
    )
    return "\n\n".join("\n".join(lines) for lines in (list(part) for part in parts) if lines) + "\n"


def workflow_document(definition: Definition) -> dict[str, Any]:
    """The same for programs. ``proof.holds``: nothing is broken, so it may start."""
    proof = prove(definition)
    walked = list(walk(definition.body, definition.name))
    contracts = {node.capability.name: node.capability for _, node in walked if isinstance(node, Call)}
    return {
        "workflow": definition.name,
        "version": definition.version,
        "definition_digest": definition.digest,
        "input": definition.input,
        "state": definition.state,
        "may_call": list(definition.boundary),
        "may_start": sorted({text for _, node in walked for text in _started(node)}),
        "nodes": [{"path": path, "kind": _kind(node), "words": list(words_of(node))} for path, node in walked],
        "capabilities": {name: list(_promises(contracts[name])) for name in sorted(contracts)},
        "proof": {
            "holds": not proof.broken,
            "ways": proof.ways,
            "positions": proof.positions,
            "obligations": [
                {
                    "name": one.name,
                    "claim": one.claim,
                    "standing": one.standing,
                    "broken": [{"message": b.message, "hint": b.hint, "path": list(b.path)} for b in one.broken],
                    "notes": list(one.notes),
                }
                for one in proof.obligations
            ],
            "remarks": list(proof.remarks),
        },
    }


def _purpose(definition: Definition, proof: Proof) -> Iterator[str]:
    yield f"workflow {definition.name}, version {definition.version}"
    yield f"  definition  {definition.digest}"
    yield f"  takes       {_fields(definition.input)}"
    yield f"  carries     {_fields(definition.state)}"
    yield f"  may call    {', '.join(definition.boundary) or 'nothing'}"
    started = sorted({text for _, node in walk(definition.body, definition.name) for text in _started(node)})
    if started:
        yield f"  may start   {', '.join(started)}"
    nodes = sum(1 for _ in walk(definition.body, definition.name))
    yield f"  size        {_count(nodes, 'node')}, {_count(proof.ways, 'way')} through"


def _started(node: object) -> Iterator[str]:
    if isinstance(node, Child):
        yield f"{node.workflow} (version {node.version})"


def _fields(schema: dict[str, object]) -> str:
    properties = schema.get("properties", {})
    return ", ".join(properties) if isinstance(properties, dict) and properties else "nothing"  # type: ignore[reportUnknownArgumentType]


def _nodes(definition: Definition) -> Iterator[str]:
    yield "nodes"
    yield from _listed(definition.body, 1)


def _listed(block: Block, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for node in block:
        words = f" ({'; '.join(words_of(node))})" if words_of(node) else ""
        yield f"{indent}{node.name}: {_kind(node)}{words}"
        is_labelled = isinstance(node, (Branch, Parallel))
        for label, inner in node.blocks():
            if is_labelled:
                yield f"{indent}  {label}:"
            yield from _listed(inner, depth + (2 if is_labelled else 1))


def _kind(node: object) -> str:
    return str(type(node).__struct_config__.tag).replace("_", " ")  # type: ignore[attr-defined]


def _capabilities(definition: Definition) -> Iterator[str]:
    found = {
        node.capability.name: node.capability
        for _, node in walk(definition.body, definition.name)
        if isinstance(node, Call)
    }
    if found:
        yield "capabilities"
    for name in sorted(found):
        yield f"  {name}: {', '.join(_promises(found[name]))}"


def _promises(contract: Contract) -> Iterator[str]:
    yield contract.effect
    if contract.is_effect:
        yield "business key" if contract.has_key else "derived key"
    for has, words in (
        (contract.has_probe, "probe"),
        (contract.dedups and contract.effect != "keyed", "the other side acts once for a key"),
        (contract.has_compensator, "compensator"),
    ):
        if has:
            yield words
    yield f"timeout {duration(contract.timeout_ms)}"
    yield _count(contract.retry.attempts, "attempt")
    if contract.rate is not None:
        yield f"at most {contract.rate.calls} in {duration(contract.rate.per_ms)}"
    if contract.dependency:
        yield f"needs {contract.dependency}"
    if contract.scopes:
        yield f"scopes {' '.join(contract.scopes)}"


def _proved(proof: Proof) -> Iterator[str]:
    broken = len(proof.broken)
    result = f"{_count(broken, 'breach')}, so it does not start" if broken else "it may start"
    yield f"proof, over {_count(proof.ways, 'way')} and {_count(proof.positions, 'position')}: {result}"
    for obligation in proof.obligations:
        yield from _line(obligation)


def _line(obligation: Obligation) -> Iterator[str]:
    mark = _MARKS[obligation.standing]
    yield from _wrapped(f"{mark:<9} {obligation.name}: {obligation.claim}", 2, 12)
    for broken in obligation.broken:
        yield from _wrapped(broken.message, 12, 12)
        if broken.hint:
            yield from _wrapped(f"-> {broken.hint}", 12, 15)
    for note in obligation.notes:
        yield from _wrapped(f"({note})", 12, 13)


def _remarks(proof: Proof) -> Iterable[str]:
    lines = [line for remark in proof.remarks for line in _wrapped(remark, 2, 4)]
    return ["worth knowing", *lines] if lines else []


def _count(number: int, noun: str) -> str:
    """A number with its noun; one too long to read as a power of ten."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {plural}" if number < 10**9 else f"about 10^{len(str(number)) - 1} {plural}"


def _wrapped(text: str, first: int, rest: int) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
