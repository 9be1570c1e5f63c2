"""A trajectory as turns, and each turn as what led to what: context, reply, rulings, results, evidence, decision.

``turns_of`` gives documents; ``tree`` and ``graph`` draw them. ``trace`` and ``show`` are views of the same facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from setpoint.cli.account import Account, Fact, delta_item
from setpoint.cli.wording import dollars, paths_said, progress_said, span
from setpoint.engine.journal import timestamp
from setpoint.kernel import events as e
from setpoint.kernel.record import UNKNOWN_PROGRESS


def turns_of(account: Account, *, texts: bool = False) -> list[dict[str, Any]]:
    """Every turn in order; 0 is the baseline, and what came before the first turn. ``texts``: arguments and output."""
    turns: dict[int, dict[str, Any]] = {}
    for fact in account.facts:
        turn = turns.setdefault(fact.turn, _blank(fact.turn))
        turn["last_seq"] = fact.seq
        turn.setdefault("first_seq", fact.seq)
        _tell(turn, fact, account, texts)
    return [turns[number] for number in sorted(turns)]


def _blank(number: int) -> dict[str, Any]:
    return {
        "turn": number,
        "outcome": None,
        "context": None,
        "reply": None,
        "calls": [],
        "changes": None,
        "evidence": [],
        "delta": None,
        "decisions": [],
    }


def _tell(turn: dict[str, Any], fact: Fact, account: Account, texts: bool) -> None:
    event = fact.event
    match event:
        case e.ContextBuilt():
            turn["context"] = {"seq": fact.seq, "digest": event.digest, "tokens": event.tokens}
        case e.ModelReplied():
            turn["reply"] = _reply(fact, event, account, texts)
        case e.ModelFailed():
            turn["decisions"].append(_decision(fact, "model_failed", f"{event.kind}: {event.message}"))
        case e.Authorized():
            _call(turn, event.ordinal, event.tool).update(
                ruling="permit",
                seq=fact.seq,
                effect=event.effect,
                blast=event.blast or None,
                path=event.path or None,
                items=list(event.items),
            )
        case e.Refused():
            _call(turn, event.ordinal, event.tool).update(
                ruling="refusal",
                seq=fact.seq,
                gate=event.gate,
                reason=event.reason,
                message=event.message,
                pointer=event.pointer or None,
                path=event.path or None,
            )
        case e.ToolIntent():
            intent: dict[str, Any] = {"seq": fact.seq, "attempt": event.attempt}
            if texts:
                intent["arguments"] = account.value(event.arguments, event.arguments_ref)
            _call(turn, event.ordinal, event.tool)["intent"] = intent
        case e.ToolResult():
            _call(turn, event.ordinal, event.tool)["result"] = _result(fact, event, account, texts)
        case e.ChangesObserved():
            turn["changes"] = _changes(fact, event, account)
        case e.EvidenceRecorded():
            turn["evidence"].append(_evidence(fact, event))
        case e.DeltaMeasured():
            turn["delta"] = {
                "seq": fact.seq,
                "fingerprint": event.fingerprint,
                "progress": list(event.progress),
                "items": [delta_item(item) for item in event.items],
            }
        case e.TurnEnded():
            turn["outcome"] = event.outcome
        case _:
            said = _said(event)
            if said is not None:
                turn["decisions"].append(_decision(fact, *said) | _where(event))


def _decision(fact: Fact, kind: str, message: str) -> dict[str, Any]:
    return {"seq": fact.seq, "kind": kind, "message": message}


def _where(event: e.Event) -> dict[str, Any]:
    savepoint = getattr(event, "savepoint", None)
    return {} if savepoint is None else {"savepoint": savepoint}


def _said(event: e.Event) -> tuple[str, str] | None:
    """What happened besides proposing and judging, in words; None for book-keeping."""
    match event:
        case e.SavepointKept():
            return "kept", f"savepoint {event.savepoint}, {event.changed} changed: {paths_said(event.paths[:5])}"
        case e.RolledBack():
            return "rolled_back", f"to savepoint {event.savepoint} ({event.reason}) {event.note}".rstrip()
        case e.ClaimRejected():
            return "claim_rejected", event.note
        case e.Routed():
            return "routed", f"{event.route or 'no route is left'} ({event.reason})"
        case e.Stalled():
            return "stalled", f"{event.tier} ({event.reason}) {event.message}".rstrip()
        case e.QuestionAsked():
            return "asked", f"{event.question_id} ({event.source}): {event.question}"
        case e.QuestionAnswered():
            return "answered", f"{event.question_id} by {event.by}: {event.answer}"
        case e.ControlRequested():
            said = "" if event.action == "decide" else event.argument  # a signed decision is shown when it is recorded
            return "requested", f"{event.action} by {event.by} {said}".rstrip()
        case e.ApprovalRequested():
            return "asked_people", f"{event.ticket_id} for call {event.node}, until {timestamp(event.expires_at_ms)}"
        case e.ApprovalSigned():
            return "signed", f"{event.verdict} by {event.by}" + ("" if event.counts else f", not counted: {event.why}")
        case e.ApprovalResolved():
            by = f" by {', '.join(event.by)}" if event.by else ""
            return "approval", f"{event.outcome}{by} ({event.ticket_id}) {event.reason}".rstrip()
        case e.CommitPlanned():
            return "commit_planned", f"savepoint {event.savepoint} as {event.commit_id}"
        case e.Committed():
            return "committed", f"{event.changed} changed: {paths_said(event.paths[:5]) or 'nothing to write'}"
        case e.Undone():
            return "undone", f"{event.commit_id} by {event.by}, {event.changed} paths"
        case e.Certified():
            return "certified", f"level {event.level}, key {event.keyid}"
        case e.DriftFound():
            return "drift", f"{event.what}: {event.decision}"
        case e.LeaseClaimed() if event.fence > 1:
            return "taken_over", f"by {event.owner} (fence {event.fence})"
        case e.Finished():
            return "finished", f"{event.state} {event.reason} (exit {event.code}): {event.message}"
        case _:
            return None


def _call(turn: dict[str, Any], ordinal: int, tool: str) -> dict[str, Any]:
    for call in turn["calls"]:
        if call["ordinal"] == ordinal:
            return call
    turn["calls"].append({"ordinal": ordinal, "tool": tool, "ruling": None, "intent": None, "result": None})
    return turn["calls"][-1]


def _reply(fact: Fact, event: e.ModelReplied, account: Account, texts: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "seq": fact.seq,
        "route": event.route,
        "model": event.model or None,
        "stop": event.stop,
        "input_tokens": event.input_tokens,
        "output_tokens": event.output_tokens,
        "usd_micros": event.usd_micros,
        "latency_ms": event.latency_ms,
    }
    return told | ({"proposal": account.value(event.reply, event.reply_ref)} if texts else {})


def _result(fact: Fact, event: e.ToolResult, account: Account, texts: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "seq": fact.seq,
        "status": event.status,
        "exit_code": event.exit_code,
        "reason": event.reason or None,
        "duration_ms": event.duration_ms,
        "output_bytes": event.output_bytes,
    }
    return told | ({"text": account.text(event.text)} if texts else {})


def _changes(fact: Fact, event: e.ChangesObserved, account: Account) -> dict[str, Any]:
    items = event.changes
    if items is None and event.changes_ref is not None:
        listed = account.value(None, event.changes_ref)
    else:
        listed = [[item.path, item.kind] for item in items or ()]
    paths = [
        {"path": item["path"], "kind": item["kind"]} if isinstance(item, dict) else {"path": item[0], "kind": item[1]}
        for item in listed
    ]
    return {"seq": fact.seq, "fingerprint": event.fingerprint, "changed": event.changed, "paths": paths}


def _evidence(fact: Fact, event: e.EvidenceRecorded) -> dict[str, Any]:
    return {
        "seq": fact.seq,
        "check": event.check,
        "level": event.level,
        "verdict": event.verdict,
        "distance": event.distance,
        "reason": event.reason or None,
        "collected": event.collected,
        "passed": event.passed,
        "failed": event.failed,
        "failures": [{"name": f.name, "message": f.message} for f in event.failures],
        "phase": event.phase,
        "duration_ms": event.duration_ms,
    }


# As a tree


@dataclass(frozen=True, slots=True)
class Node:
    """One line, and what it led to."""

    text: str
    below: tuple[Node, ...] = ()


def tree(turns: list[dict[str, Any]]) -> Iterator[str]:
    """Each turn with its consequences below it."""
    for turn in turns:
        outcome = (turn["outcome"] or "").replace("_", " ")
        yield f"turn {turn['turn']}  {outcome}".rstrip() if turn["turn"] else "baseline"
        yield from _drawn(_branches(turn), "")


def _drawn(nodes: Sequence[Node], before: str) -> Iterator[str]:
    for index, node in enumerate(nodes):
        last = index == len(nodes) - 1
        yield before + ("└─ " if last else "├─ ") + node.text
        yield from _drawn(node.below, before + ("   " if last else "│  "))


def _branches(turn: dict[str, Any]) -> list[Node]:
    nodes: list[Node] = []
    if turn["context"]:
        nodes.append(Node(f"context  {turn['context']['tokens']} tokens  {turn['context']['digest'][:12]}"))
    calls = tuple(_call_node(call) for call in turn["calls"])
    if turn["reply"]:
        nodes.append(Node(reply_said(turn["reply"]), calls))
    else:
        nodes += calls
    if turn["changes"]:
        named = ", ".join(f"{paths_said([one['path']])} {one['kind']}" for one in turn["changes"]["paths"][:5])
        nodes.append(Node(f"changes  {turn['changes']['changed']}: {named}"))
    nodes += [Node(evidence_said(one)) for one in turn["evidence"]]
    if turn["delta"]:
        nodes.append(Node(f"delta  {progress_said(tuple(turn['delta']['progress']))}"))
    return nodes + [Node(f"{one['kind'].replace('_', ' ')}  {one['message']}") for one in turn["decisions"]]


def _call_node(call: dict[str, Any]) -> Node:
    return Node(call_said(call), (Node(result_said(call["result"])),) if call["result"] else ())


def reply_said(reply: dict[str, Any]) -> str:
    tokens = f"{reply['input_tokens']}+{reply['output_tokens']} tokens"
    return f"reply  {reply['route']}  {reply['stop']}  {tokens}  ${dollars(reply['usd_micros'])}"


def call_said(call: dict[str, Any]) -> str:
    name = f"#{call['ordinal']} {call['tool'] or '(no call)'}"
    path = f" {paths_said([call['path']])}" if call.get("path") else ""
    if call["ruling"] == "refusal":
        pointer = f" at {call['pointer']}" if call["pointer"] else ""
        return f"{name}{path}  refused by the {call['gate']} gate: {call['reason']}{pointer}: {call['message']}"
    reach = f", {call['blast']} blast radius" if call.get("blast") else ""
    return f"{name}{path}  permitted ({call['effect']}{reach})" if call["ruling"] else f"{name}  not ruled on"


def result_said(result: dict[str, Any]) -> str:
    code = "" if result["exit_code"] is None else f" exit {result['exit_code']}"
    reason = f" ({result['reason']})" if result["reason"] else ""
    return f"{result['status']}{code}{reason}  {result['output_bytes']} bytes  {span(result['duration_ms'])}"


def evidence_said(one: dict[str, Any]) -> str:
    reason = f": {one['reason']}" if one["reason"] else ""
    return f"evidence  {one['check']}  {one['verdict']} at {one['level']}{reason}"


# As a graph


def graph(account: Account, turns: list[dict[str, Any]]) -> Iterator[str]:
    """Mermaid: savepoints, the turns that led from one to the next, and the roll-backs as dotted edges."""
    yield "graph TD"
    first = turns[0]["delta"] if turns else None
    yield f'  S0["base<br/>delta {progress_said(tuple(first["progress"]) if first else UNKNOWN_PROGRESS)}"]'
    standing = 0
    for turn in turns:
        if turn["turn"] == 0:
            continue
        number = turn["turn"]
        calls = "<br/>".join(_quoted(_call_in_graph(call)) for call in turn["calls"]) or "no call"
        yield f'  T{number}("turn {number}<br/>{calls}")'
        yield f"  S{standing} --> T{number}"
        for decision in turn["decisions"]:
            match decision["kind"]:
                case "kept":
                    standing = decision["savepoint"]
                    delta = progress_said(tuple(turn["delta"]["progress"])) if turn["delta"] else "-"
                    yield f'  S{standing}["savepoint {standing}<br/>delta {delta}"]'
                    yield f"  T{number} -->|kept| S{standing}"
                case "rolled_back":
                    standing = decision["savepoint"]
                    yield f'  T{number} -.->|"rolled back: {_quoted(_reason(decision))}"| S{standing}'
                case "asked":
                    yield f'  T{number} --> Q{number}{{"{_quoted(decision["message"][:80])}"}}'
                case _:
                    pass
    record = account.record
    if record.is_terminal:
        yield f'  S{standing} --> END(["{record.state}<br/>{_quoted(record.finished_reason)}"])'


def _call_in_graph(call: dict[str, Any]) -> str:
    path = f" {paths_said([call['path']])}" if call.get("path") else ""
    return f"{call['tool'] or 'reply'}{path}" + (f" refused {call['reason']}" if call["ruling"] == "refusal" else "")


def _reason(decision: dict[str, Any]) -> str:
    return decision["message"].partition("(")[2].partition(")")[0]


def _quoted(text: str) -> str:
    """Text inside a Mermaid label: nothing in it may end the label."""
    return "".join(c if c.isalnum() or c in " ./_-:()*" else f"#{ord(c)};" for c in text)
