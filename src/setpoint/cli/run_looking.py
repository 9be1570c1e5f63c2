"""``describe``, ``why`` and ``show`` of a run: what the log says, as a document and in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from setpoint.cli.grammar import EXIT_CODES
from setpoint.cli.run_account import RunAccount, as_typed, exit_code, run_document, state_values, waits_of
from setpoint.cli.run_effects import effects_of
from setpoint.cli.run_live import until_said
from setpoint.cli.run_remains import keys_used_up, remains_document, remains_said, remnants_of
from setpoint.cli.run_story import record_after
from setpoint.cli.terminal import one_line, styled, table
from setpoint.cli.wording import age, counted
from setpoint.engine.journal import timestamp
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.run_events import ApprovalRequested, ApprovalResolved, NodeCompleted, NodeFailed

VALUE_CHARS_MAX = 400
"""Of one field of the state on a page; ``--json`` has the whole of it."""


# describe


def describe_document(account: RunAccount) -> dict[str, Any]:
    return (
        run_document(account)
        | remains_document(remnants_of(account))
        | {
            "started_at": account.facts[0].at,
            "events": len(account.facts),
            "exit_code": exit_code(account.record) if account.record.is_terminal else None,
            "failures": _failures(account),
            "effects": [
                {
                    "key": made.key,
                    "capability": made.capability,
                    "node": made.node,
                    "status": made.status,
                    "attempts": len(made.attempts),
                    "message": made.message,
                }
                for made in effects_of(account.facts)
            ],
            "approvals": _approvals(account),
        }
    )


def _failures(account: RunAccount) -> list[dict[str, Any]]:
    """Attempts that came to nothing, newest last."""
    return [
        {
            "node": event.node,
            "kind": event.kind,
            "message": event.message,
            "attempt": event.attempt,
            "at": fact.at,
            "seq": fact.seq,
            "next_attempt_at": timestamp(event.retry_at_ms) if event.retry_at_ms else None,
        }
        for fact in account.facts
        if isinstance(event := fact.event, NodeFailed)
    ]


def _approvals(account: RunAccount) -> list[dict[str, Any]]:
    resolved = {fact.event.ticket_id: fact.event for fact in account.facts if isinstance(fact.event, ApprovalResolved)}
    return [
        {
            "ticket_id": event.ticket_id,
            "node": event.node,
            "outcome": resolved[event.ticket_id].outcome if event.ticket_id in resolved else "waiting",
            "by": resolved[event.ticket_id].by if event.ticket_id in resolved else [],
            "at": fact.at,
        }
        for fact in account.facts
        if isinstance(event := fact.event, ApprovalRequested)
    ]


def described(told: dict[str, Any], now_ms: int, store: str | None = None) -> Iterator[str]:
    """The document as a page. ``store``: as it was typed, for the commands that follow."""
    yield f"{told['workflow']} version {told['version']}  {told['run_id']}  {told['status']}"
    if told["message"]:
        yield f"  {'reason'.ljust(11)} {told['reason']}: {one_line(told['message'], 1000)}"
    yield f"  {'definition'.ljust(11)} {told['definition_digest']}"
    rights = f", with {', '.join(told['scopes'])}" if told["scopes"] else ""
    yield f"  {'for'.ljust(11)} {told['principal'] or 'nobody'}{rights}"
    ago = age(told["updated_at"], now_ms)
    yield f"  {'started'.ljust(11)} {told['started_at']}; {told['events']} events, the last {ago} ago"
    made = counted(told["effects_made"], "effect")
    yield f"  {'done'.ljust(11)} {counted(told['step'], 'node')}, {made}"
    for name, label in (("parent", "parent"), ("session", "session"), ("owner", "owner"), ("pivot", "no way back")):
        if told[name]:
            yield f"  {label.ljust(11)} {told[name]}"
    if told["can_be_taken_back"]:
        yield f"  {'undo stack'.ljust(11)} {', '.join(told['can_be_taken_back'])}"
    yield from _remains(told)
    yield from _waits(told["waits"], now_ms, store)
    yield from _section("state", ("FIELD", "VALUE"), [(name, _value(value)) for name, value in told["values"].items()])
    yield from _section("effects", ("KEY", "CAPABILITY", "NODE", "STATUS", "ATTEMPTS", "SAID"), [
        (e["key"], e["capability"], e["node"], e["status"], str(e["attempts"]), e["message"]) for e in told["effects"]
    ])  # fmt: skip
    yield from _section("approvals", ("TICKET", "NODE", "OUTCOME", "BY"), [
        (a["ticket_id"], a["node"], a["outcome"], ", ".join(a["by"])) for a in told["approvals"]
    ])  # fmt: skip
    yield from _section("attempts that came to nothing", ("NODE", "KIND", "ATTEMPT", "MESSAGE"), [
        (f["node"], f["kind"], str(f["attempt"]), f["message"]) for f in told["failures"][-10:]
    ])  # fmt: skip


def _section(title: str, headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield ""
        yield title
        yield from (f"  {line}" for line in table(headers, rows))


def _remains(told: dict[str, Any]) -> Iterator[str]:
    """Only of a run that is over without its end, or on the way there: of another one, everything stands."""
    if told["state"] in ("UNWINDING", "FAILED", "CANCELLED") or told["taken_back"]:
        yield from (f"  {label.ljust(11)} {text}" for label, text in remains_said(told))


def _waits(waits: list[dict[str, Any]], now_ms: int, store: str | None) -> Iterator[str]:
    if waits:
        yield ""
        yield "waits for"
    for one in waits:
        until = f" {until_said(one['until_ms'], now_ms)}" if one["until_ms"] else ""
        at = f" at {one['node']}" if one["node"] else ""
        yield f"  {one['kind']}{at}: {one_line(one['for'], 500)}{until}; it is up to {one['who']}"
        yield from (f"    {as_typed(command, store)}" for command in one["next"])


def _value(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False), VALUE_CHARS_MAX)


# why


def why_document(account: RunAccount) -> dict[str, Any]:
    """Which node stands in the way, on what evidence, what happens next and when, and who has to act (O2)."""
    record = account.record
    failures = _failures(account)
    waits = waits_of(account.runtime, record)
    code = None if account.owner or account.status == "due" else exit_code(record)
    remains = remains_document(remnants_of(account))
    return remains | {
        "run_id": account.run_id,
        "workflow": record.workflow,
        "status": account.status,
        "state": record.state,
        "reason": record.reason or None,
        "message": record.message or None,
        "exit_code": code,
        "exit_meaning": _meaning(code, waits),
        "done": record.step,
        "last_done": _last_done(account),
        "blocked_at": _blocked(account, waits),
        "waits": waits,
        "last_failure": failures[-1] if failures and not _is_past(account, failures[-1]) else None,
        "attempts_failed": dict(record.attempts),
        "next": _next(account, waits, remains),
    }


def _meaning(code: int | None, waits: list[dict[str, Any]]) -> str:
    if code is None:
        return "something can be done for it"
    if code == 13 and waits and all(one["kind"] in ("timer", "retry") for one in waits):
        return "waiting for a time"
    return EXIT_CODES.get(code, "")


def _is_past(account: RunAccount, failure: dict[str, Any]) -> bool:
    """Whether the node that failed was done afterwards."""
    return any(
        fact.seq > failure["seq"] and isinstance(fact.event, NodeCompleted) and fact.event.node == failure["node"]
        for fact in account.facts
    )


def _last_done(account: RunAccount) -> dict[str, Any] | None:
    for fact in reversed(account.facts):
        if isinstance(fact.event, NodeCompleted):
            return {"node": fact.event.node, "at": fact.at, "seq": fact.seq}
    return None


def _blocked(account: RunAccount, waits: list[dict[str, Any]]) -> list[str]:
    """The nodes that are next in their blocks: those that wait, else by the cursors of the definition."""
    record = account.record
    if record.is_terminal:
        return []
    at = [one["node"] for one in waits if one["node"]]
    failed = [node for node in record.attempts if node not in at]
    return list(dict.fromkeys([*at, *failed, *record.effects])) or [_cursor(account)]


def _cursor(account: RunAccount) -> str:
    record = account.record
    block = max(record.blocks, key=len, default=record.workflow)
    if block == record.workflow:
        body = account.definition.body
        place = record.blocks.get(block, 0)
        if place < len(body):
            return f"{block}/{body[place].name}"
    return block


def _next(account: RunAccount, waits: list[dict[str, Any]], remains: dict[str, Any]) -> dict[str, Any]:
    """``what`` happens, ``who`` makes it happen, ``how``, and ``when`` it happens by itself."""
    record, run_id = account.record, account.run_id
    if record.is_terminal:
        return _after_the_end(account, remains)
    if account.owner:
        return _step("it is being worked on", account.owner, [f"setpoint events -f {run_id}"], None)
    if account.is_due:  # a decision came, say, or its process has died
        return _step("something can be done for it, and nobody works on it", "a worker, or you",
                     [f"setpoint resume {run_id}"], None)  # fmt: skip
    people = [one for one in waits if one["kind"] in ("pause", "unknown", "approval", "signal", "report", "child")]
    times = [one["until_ms"] for one in waits if one["kind"] in ("retry", "timer") and one["until_ms"]]
    when = timestamp(min(times)) if times else None
    if people:
        first = next((one for one in people if one["kind"] != "child"), people[0])  # what a child waits for, not it
        return _step(first["for"] or first["kind"], first["who"], first["next"], when)
    if times:
        return _step("it goes on by itself", "a worker", [f"setpoint resume {run_id}"], when)
    return _step("nobody works on it", "a worker", [f"setpoint resume {run_id}"], None)


def _after_the_end(account: RunAccount, remains: dict[str, Any]) -> dict[str, Any]:
    """A plain new run is only named where nothing stands in its way: a key that was used for what was taken back, or
    that another run holds, would end it as well."""
    record = account.record
    if record.state == "COMPLETED":
        return _step("nothing: it is done", "", [], None)
    if record.parent:
        return _step(f"nothing: it is over; it was started by {record.parent}", "", [f"setpoint why {record.parent}"],
                     None)  # fmt: skip
    used = keys_used_up(remains)
    if used:
        what = f"nothing: it is over, and {', '.join(used)} cannot be used again; a new run of it would be refused"
        return _step(f"{what} (EffectConflict) unless its key differs, by the number of the attempt for example",
                     "", [], None)  # fmt: skip
    if record.reason == "EffectConflict":
        what = "nothing: it is over; a new run comes upon the same key, unless the number of the attempt is part of it"
        return _step(what, "", [], None)
    return _step("nothing: it is over; a new run starts afresh", "", [f"setpoint run {record.workflow} --input JSON"],
                 None)  # fmt: skip


def _step(what: str, who: str, how: list[str], when: str | None) -> dict[str, Any]:
    return {"what": what, "who": who, "how": how, "when": when}


def why_said(told: dict[str, Any], now_ms: int, store: str | None = None) -> Iterator[str]:
    """The document in words. ``store``: as it was typed, for the commands that follow."""
    style = {"completed": "green", "failed": "red", "unknown": "red"}.get(told["status"], "yellow")
    yield styled(f"{told['workflow']}  {told['run_id']}  {told['status']}", style)
    if told["message"]:
        yield f"  {told['reason']}: {one_line(told['message'], 1000)}"
    last = told["last_done"]
    done = counted(told["done"], "node")
    yield f"  done       {done}" + (f", the last {last['node']} at {last['at']}" if last else "")
    if told["blocked_at"]:
        yield f"  stands at  {', '.join(told['blocked_at'])}"
    if (failure := told["last_failure"]) is not None:
        kind = failure["kind"].replace("_", " ")
        is_said = bool(told["message"]) and failure["message"] in told["message"]  # above, as what ended the run
        message = "" if is_said else f": {one_line(failure['message'], 1000)}"
        yield f"  failed     {failure['node']}, attempt {failure['attempt']}, {kind}{message}"
        if failure["next_attempt_at"]:
            yield f"  again at   {failure['next_attempt_at']}"
    yield from _remains(told)
    yield from _waits(told["waits"], now_ms, store)
    yield ""
    upcoming = told["next"]
    when = f" at {upcoming['when']}" if upcoming["when"] else ""
    who = f"; it is up to {upcoming['who']}" if upcoming["who"] else ""
    yield f"next: {one_line(upcoming['what'], 500)}{when}{who}"
    if not any(upcoming["how"] == one["next"] for one in told["waits"]):  # they stand above
        yield from (f"  {as_typed(command, store)}" for command in upcoming["how"])
    code = "no exit code yet" if told["exit_code"] is None else f"exit {told['exit_code']}"
    yield f"{code}: {told['exit_meaning']}"


# show


def show_document(account: RunAccount, step: int) -> dict[str, Any]:
    """The state when ``step`` nodes were done. UsageFault when there are not so many."""
    if not 0 <= step <= account.record.step:
        raise UsageFault(
            f"{account.run_id} has no step {step}; it has done {counted(account.record.step, 'node')}, "
            "and 0 is before the first"
        )
    record = record_after(account, step)
    completed = [fact for fact in account.facts if isinstance(fact.event, NodeCompleted) and fact.seq <= record.seq]
    last = completed[-1] if completed else None
    return {
        "run_id": account.run_id,
        "workflow": record.workflow,
        "step": step,
        "node": last.event.node if last is not None and isinstance(last.event, NodeCompleted) else None,
        "at": last.at if last is not None else account.facts[0].at,
        "seq": record.seq,
        "state": record.state,
        "values": state_values(account, record),
        "blocks": record.blocks,
        "effects": {node: effect.status for node, effect in record.effects.items()},
        "waits_at": list(record.waits),
        "can_be_taken_back": [one.node for one in record.undo],
    }


def shown(told: dict[str, Any]) -> Iterator[str]:
    yield f"{told['workflow']}  {told['run_id']}  step {told['step']}: {told['node'] or 'before the first node'}"
    yield f"  at {told['at']}, event {told['seq']}; the run was {told['state']} then"
    yield from _section("state", ("FIELD", "VALUE"), [(name, _value(value)) for name, value in told["values"].items()])
    yield from _section("effects under way", ("NODE", "STATUS"), list(told["effects"].items()))
    if told["can_be_taken_back"]:
        yield ""
        yield f"could be taken back: {', '.join(told['can_be_taken_back'])}"
