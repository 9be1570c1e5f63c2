"""``show --turn K``: one past turn whole, and the record as it stood when it was over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from setpoint.cli.account import Account, delta_item, progress_of, spent_of
from setpoint.cli.story import call_said, evidence_said, reply_said, result_said, turns_of
from setpoint.cli.wording import paths_said, progress_said
from setpoint.kernel.record import Record


def turn_document(account: Account, number: int, after: Record) -> dict[str, Any]:
    """What happened in turn ``number``; ``after`` is the record before the first event of a later turn."""
    told = next((turn for turn in turns_of(account, texts=True) if turn["turn"] == number), None)
    return {
        "trajectory_id": account.trajectory_id,
        "task": account.record.name,
        **(told or {"turn": number}),
        "state_after": {
            "state": after.state,
            "savepoint": after.savepoint,
            "fingerprint": after.fingerprint,
            "changed": list(after.paths) if after.savepoint else [],
            "progress": progress_of(after),
            "delta": [delta_item(item) for item in after.items],
            "spent": spent_of(after),
            "route": after.models[after.route_index] if after.route_index < len(after.models) else None,
            "notes": list(after.notes),
            "blocked": len(after.blocked),
        },
    }


def said(told: dict[str, Any]) -> Iterator[str]:
    """The document as a page. What a model or a tool wrote is indented, so that it cannot pass for a line of ours."""
    yield f"{told['task']}  {told['trajectory_id']}  turn {told['turn']}  {told.get('outcome') or ''}".rstrip()
    if told.get("context"):
        yield ""
        yield f"context  {told['context']['tokens']} tokens, digest {told['context']['digest']} (--prompt shows it)"
    if told.get("reply"):
        yield ""
        yield reply_said(told["reply"])
        yield from _proposal(told["reply"]["proposal"] or {})
    for call in told.get("calls", ()):
        yield ""
        yield _hung(call_said(call))
        if call.get("items"):
            yield f"  for {', '.join(call['items'])}"
        if call["intent"] and call["intent"]["arguments"]:
            yield from _indented(_arguments(call["intent"]["arguments"]))
        if call["result"]:
            yield f"  {result_said(call['result'])}"
            yield from _indented(call["result"]["text"].rstrip("\n"), "  | ")
    if told.get("changes"):
        yield ""
        yield f"changes against the base: {told['changes']['changed']}"
        yield from (f"  {one['kind']:<9} {paths_said([one['path']])}" for one in told["changes"]["paths"])
    if told.get("evidence"):
        yield ""
    for one in told.get("evidence", ()):
        yield _hung(evidence_said(one))
        yield from (_hung(f"  - {failure['name']}: {failure['message']}".rstrip(": ")) for failure in one["failures"])
    for one in told.get("decisions", ()):
        yield _hung(f"{one['kind'].replace('_', ' ')}  {one['message']}")
    yield from _state(told["state_after"])


def _proposal(proposal: dict[str, Any]) -> Iterator[str]:
    """The reply as the model gave it, well-formed or not."""
    if proposal.get("text"):
        yield from _indented(proposal["text"], "  > ")
    if proposal.get("raw") is not None:
        yield from _indented(f"raw: {proposal['raw']}")
    for call in proposal.get("calls", ()):
        yield from _indented(f"{call['name']}({_arguments(call['arguments'])})")


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _indented(text: str, before: str = "  ") -> Iterator[str]:
    for line in text.split("\n"):
        yield f"{before}{line}"


def _state(state: dict[str, Any]) -> Iterator[str]:
    progress = progress_said(tuple(state["progress"])) if state["progress"] else "-"
    yield ""
    yield f"after it: {state['state']}, savepoint {state['savepoint']}, delta {progress}"
    yield from (
        _hung(
            f"  open  {item['address']}: {item['verdict']}, distance {item['distance']}"
            + (f", {item['reason']}" if item["reason"] else "")
        )
        for item in state["delta"]
    )
    if state["changed"]:
        yield f"  changed  {paths_said(state['changed'])}"
    yield from (_hung(f"  note  {note}") for note in state["notes"])


def _hung(text: str) -> str:
    return text.replace("\n", "\n      ")
