"""A run as what led to what: its nodes in order, below each its attempts and effects, and what took them back.

``trace_document`` gives the tree, ``tree`` and ``graph`` draw it. A child run is a link, with its own tree beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from setpoint.app.runtime import Runtime
from setpoint.cli.run_account import RunAccount, RunFact, read_account
from setpoint.cli.run_effects import Made, effects_of
from setpoint.cli.run_live import event_line
from setpoint.cli.terminal import one_line
from setpoint.kernel.errors import UnknownTrajectory
from setpoint.kernel.flow import is_below
from setpoint.kernel.run_events import (
    BlockEntered,
    ChildStarted,
    Compensated,
    EffectQueued,
    NodeCompleted,
    NodeFailed,
)
from setpoint.kernel.run_record import RunRecord, fold_run

DEPTH_MAX = 16
"""Children of children that one trace shows; deeper ones have a trace of their own."""


def trace_document(runtime: Runtime, account: RunAccount, depth: int = 0) -> dict[str, Any]:
    """run > node > attempt or effect > compensation; the children of the run whole, in ``children``."""
    nodes: dict[str, dict[str, Any]] = {}
    effects = effects_of(account.facts)
    undone = {made.compensates: made for made in effects if made.compensates}
    for fact in account.facts:
        _tell(nodes, fact, account)
    for made in effects:
        if not made.compensates:
            node = _node(nodes, made.node, made.at, made.seq)
            node["effects"].append(_effect(made, undone.get(made.node)))
    for path, node in nodes.items():
        node["within"] = _nearest(nodes, path)
        is_asked = any(one["type"] == "ApprovalRequested" for one in node["happenings"])
        if node["status"] == "done" and not is_asked and any(is_below(at, path) for at in account.approvals):
            node["status"] = "not needed"
    return {
        "run_id": account.run_id,
        "workflow": account.record.workflow,
        "version": account.record.version,
        "status": account.status,
        "parent": account.record.parent or None,
        "parent_node": account.record.parent_node or None,
        "nodes": sorted(nodes.values(), key=lambda node: node["seq"]),
        "decisions": [
            {"seq": fact.seq, "at": fact.at, "said": said}
            for fact in account.facts
            if not hasattr(fact.event, "node") and (said := _said(fact, account.record)) is not None
        ],
        "children": list(_children(runtime, account, depth)),
    }


def _nearest(nodes: dict[str, Any], path: str) -> str | None:
    """The innermost node that holds this one."""
    while path := path.rpartition("/")[0]:
        if path in nodes:
            return path
    return None


def _node(nodes: dict[str, dict[str, Any]], path: str, at: str, seq: int) -> dict[str, Any]:
    return nodes.setdefault(
        path,
        {
            "node": path,
            "within": None,
            "status": "begun",
            "seq": seq,
            "at": at,
            "completed_at": None,
            "label": None,
            "child": None,
            "changes": {},
            "happenings": [],
            "effects": [],
        },
    )


def _tell(nodes: dict[str, dict[str, Any]], fact: RunFact, account: RunAccount) -> None:
    event = fact.event
    path = getattr(event, "node", "")
    if not path or (isinstance(event, EffectQueued) and event.compensates) or path.endswith("#undo"):
        return
    node = _node(nodes, path, fact.at, fact.seq)
    match event:
        case NodeCompleted():
            node["status"], node["completed_at"] = "done", fact.at
            node["changes"] = dict(event.values) | {name: account.value(ref) for name, ref in event.refs.items()}
            return
        case BlockEntered():
            node["label"] = event.label or node["label"]
        case ChildStarted():
            node["child"] = event.run_id
        case NodeFailed() if not event.retry_at_ms:
            node["status"] = "failed"
        case Compensated():
            node["status"] = "taken back"
        case _:
            pass
    if (said := _said(fact, account.record)) is not None:
        node["happenings"].append({"seq": fact.seq, "at": fact.at, "type": type(event).__name__, "said": said})


def _said(fact: RunFact, record: RunRecord) -> str | None:
    line = event_line(fact.event, record)
    if line is None:
        return None
    node = getattr(fact.event, "node", "").removeprefix(f"{record.workflow}/")
    return one_line(line[0].removeprefix(node), 500)


def _effect(made: Made, undo: Made | None) -> dict[str, Any]:
    told = _made(made)
    told["compensation"] = None if undo is None else _made(undo)
    return told


def _made(made: Made) -> dict[str, Any]:
    return {
        "capability": made.capability,
        "effect": made.effect or None,
        "key": made.key,
        "status": made.status,
        "how": made.how or None,
        "message": made.message,
        "holder": made.holder or None,
        "seq": made.seq,
        "attempts": [
            {"attempt": one.number, "seq": one.seq, "at": one.at, "outcome": one.outcome, "message": one.message}
            for one in made.attempts
        ],
    }


def _children(runtime: Runtime, account: RunAccount, depth: int) -> Iterator[dict[str, Any]]:
    for fact in account.facts:
        if isinstance(fact.event, ChildStarted) and depth < DEPTH_MAX:
            try:
                child = read_account(runtime, fact.event.run_id)
            except UnknownTrajectory:  # noted down, and not started yet
                continue
            yield trace_document(runtime, child, depth + 1)


# Drawing


def tree(told: dict[str, Any]) -> Iterator[str]:
    """The trace as a tree, one line a fact."""
    yield f"{told['run_id']}  {told['workflow']} version {told['version']}  {told['status']}"
    yield from _branches(told)


def _branches(told: dict[str, Any]) -> Iterator[str]:
    """The nodes at the top of the workflow, each with those inside it, and what was decided about the run."""
    entries = [(node["seq"], list(_node_lines(node, told))) for node in told["nodes"] if node["within"] is None]
    entries += [(one["seq"], [one["said"]]) for one in told["decisions"]]
    entries.sort(key=lambda entry: entry[0])
    for place, (_, lines) in enumerate(entries):
        yield from _hung(lines, is_last=place == len(entries) - 1)


def _node_lines(node: dict[str, Any], told: dict[str, Any]) -> Iterator[str]:
    name = node["node"].removeprefix(f"{node['within'] or told['workflow']}/")
    label = f" -> {node['label']}" if node["label"] else ""
    changed = f"  {', '.join(node['changes'])}" if node["changes"] else ""
    yield f"{name}{label}  {node['status']}{changed}"
    below: list[list[str]] = [
        [one["said"]]
        for one in node["happenings"]
        if not one["type"].startswith("Effect") and not (one["type"] == "BlockEntered" and node["label"])
    ]
    below += [list(_effect_lines(effect)) for effect in node["effects"]]
    below += [list(_node_lines(inner, told)) for inner in told["nodes"] if inner["within"] == node["node"]]
    below += [list(tree(child)) for child in told["children"] if child["run_id"] == node["child"]]
    for place, lines in enumerate(below):
        yield from _hung(lines, is_last=place == len(below) - 1)


def _effect_lines(effect: dict[str, Any]) -> Iterator[str]:
    known = f", known by {effect['how']}" if effect["how"] not in (None, "reply") else ""
    holder = f" by {effect['holder']}" if effect["holder"] else ""
    kind = f"{effect['capability']} ({effect['effect']})" if effect["effect"] else "effect"
    yield f"{kind} {effect['key']}  {effect['status']}{known}{holder}"
    below = [[_attempt_said(one)] for one in effect["attempts"]]
    if effect.get("compensation"):
        below.append([f"taken back by {line}" if at == 0 else line for at, line in enumerate(_undo(effect))])
    for place, lines in enumerate(below):
        yield from _hung(lines, is_last=place == len(below) - 1)


def _undo(effect: dict[str, Any]) -> list[str]:
    return list(_effect_lines(effect["compensation"]))


def _attempt_said(one: dict[str, Any]) -> str:
    why = f": {one['message']}" if one["message"] else ""
    return f"attempt {one['attempt']}  {one['at'][11:23]}  {one['outcome']}{why}"


def _hung(lines: list[str], *, is_last: bool) -> Iterator[str]:
    for at, line in enumerate(lines):
        if at == 0:
            yield ("└─ " if is_last else "├─ ") + line
        else:
            yield ("   " if is_last else "│  ") + line


def graph(told: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The trace as a Mermaid graph: nodes in order, effects and what took them back, children as graphs inside."""
    if not prefix:
        yield "graph TD"
    before = f"{prefix}R"
    yield f'  {before}["{told["workflow"]} {told["run_id"]}: {told["status"]}"]'
    for number, node in enumerate(told["nodes"]):
        own = f"{prefix}N{number}"
        name = node["node"].removeprefix(f"{told['workflow']}/").replace('"', "'")
        yield f'  {own}["{name}: {node["status"]}"]'
        yield f"  {before} --> {own}"
        before = own
        for at, effect in enumerate(node["effects"]):
            yield f'  {own}E{at}(["{_label(effect)}"])'
            yield f"  {own} --> {own}E{at}"
            if effect["compensation"]:
                yield f'  {own}U{at}(["{_label(effect["compensation"])}"])'
                yield f"  {own}U{at} -.->|takes back| {own}E{at}"
        for child in told["children"]:
            if child["run_id"] == node["child"]:
                yield from graph(child, f"{own}C")
                yield f"  {own} --> {own}CR"


def _label(effect: dict[str, Any]) -> str:
    return f"{effect['capability']} {effect['key']}: {effect['status']}".replace('"', "'")


# The state after a step


def record_after(account: RunAccount, step: int) -> RunRecord:
    """The record as it stood when ``step`` nodes were done: before the first fact of the next one."""
    record = RunRecord(run_id=account.run_id)
    for fact in account.facts:
        after = fold_run(record, fact.event)
        if after.step > step:
            break
        record = after
    return record
