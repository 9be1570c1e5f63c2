"""``describe``: everything known of a trajectory on one page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from setpoint.app.runtime import Runtime
from setpoint.cli.account import Account, record_document
from setpoint.cli.terminal import one_line, table
from setpoint.cli.wording import age, dollars, paths_said, progress_said, span
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.events import CommitPlanned, Committed, EvidenceRecorded, RolledBack, SavepointKept, Undone
from setpoint.kernel.layers import boundary_attempts, layers


def describe_document(account: Account) -> dict[str, Any]:
    """The document of `get` with what the events add: savepoints, roll-backs, commits, evidence."""
    accepted = account.accepted
    return record_document(account) | {
        "goal": account.task["spec"]["goal"]["text"],
        "exposure": accepted.exposure,
        "required_level": accepted.required_level,
        "isolation": {"tier": accepted.tier, "rung": accepted.rung},
        "runtime": accepted.runtime,
        "accepted_at": account.facts[0].at,
        "events": len(account.facts),
        "savepoints": [
            {
                "savepoint": event.savepoint,
                "turn": fact.turn,
                "fingerprint": event.fingerprint,
                "changed": event.changed,
            }
            for fact, event in account.of_type(SavepointKept)
        ],
        "rolled_back": [
            {"turn": fact.turn, "to": event.savepoint, "reason": event.reason, "note": event.note}
            for fact, event in account.of_type(RolledBack)
        ],
        "undo": _undo_entries(account),
        "evidence": [_line(account, address) for address in _checks(account)],
        "notes": list(account.record.notes),
        "blocked": len(account.record.blocked),
    }


def layers_document(runtime: Runtime, account: Account) -> list[dict[str, Any]] | None:
    """The standing state in four ordered layers; None when the contract's files are not there any more."""
    try:
        task = runtime.task_of(account.record)
    except UsageFault:
        return None
    found = layers(task, account.record, boundary_attempts(fact.event for fact in account.facts))
    return [
        {"layer": one.name, "outcome": one.outcome, "checked": one.checked, "grounds": list(one.grounds)}
        for one in found
    ]


def _checks(account: Account) -> list[str]:
    return list(dict.fromkeys(event.check for _, event in account.of_type(EvidenceRecorded)))


def _line(account: Account, address: str) -> dict[str, Any]:
    found = account.evidence(address)
    assert found is not None
    fact, event = found
    return {
        "check": address,
        "level": event.level,
        "verdict": event.verdict,
        "distance": event.distance,
        "reason": event.reason or None,
        "collected": event.collected,
        "passed": event.passed,
        "turn": fact.turn,
        "at": fact.at,
        "stale": event.fingerprint != account.record.fingerprint,
    }


def _undo_entries(account: Account) -> list[dict[str, Any]]:
    """Commits, and what became of them; a planned one that never was carried out is listed as such."""
    entries: dict[str, dict[str, Any]] = {}
    for fact, event in account.of_type(CommitPlanned):
        entries[event.commit_id] = {"commit_id": event.commit_id, "state": "planned", "at": fact.at, "paths": []}
    for fact, event in account.of_type(Committed):
        if event.commit_id:
            entries[event.commit_id] = {
                "commit_id": event.commit_id,
                "state": "committed",
                "at": fact.at,
                "paths": list(event.paths),
            }
    for fact, event in account.of_type(Undone):
        entries.setdefault(event.commit_id, {"commit_id": event.commit_id, "paths": []})
        entries[event.commit_id] |= {"state": "undone", "at": fact.at, "by": event.by}
    return list(entries.values())


def said(told: dict[str, Any], now_ms: int) -> Iterator[str]:
    """The document as a page."""
    yield f"{told['task']}  {told['trajectory_id']}  {told['status']}"
    yield f"  goal       {one_line(told['goal'], 300)}"
    if told["message"]:
        yield f"  message    {one_line(told['message'], 500)}"
    yield f"  task       {told['task_digest']} from {told['source'] or 'stdin'}"
    yield f"  workspace  {told['workspace']}"
    isolation = told["isolation"]
    yield (
        f"  exposure   {told['exposure']}: {told['required_level']} evidence required; "
        f"isolation {isolation['tier']} ({isolation['rung']})"
    )
    ago = age(told["updated_at"], now_ms)
    yield f"  accepted   {told['accepted_at']}; {told['events']} events, the last {ago} ago"
    if told["parent"]:
        yield f"  parent     {told['parent']}"
    yield f"  route      {told['route'] or 'none is left'} of {', '.join(told['models']) or 'none'}"
    if told["owner"]:
        yield f"  owner      {told['owner']}"
    if told["question"]:
        yield f"  asks       {told['question']['id']}: {one_line(told['question']['text'], 500)}"
    if told["certificate"]:
        yield f"  certified  {told['certificate']}"
    yield from _section("conditions", ("TYPE", "STATUS", "REASON", "MESSAGE"), [
        (c["type"], c["status"], c["reason"], c["message"]) for c in told["conditions"]
    ])  # fmt: skip
    yield from _section("spend", ("DIMENSION", "SPENT", "BUDGET", "USED"), _spend(told))
    if told["delta"]:
        progress = progress_said(tuple(told["progress"])) if told["progress"] else "-"
        yield from _section(f"delta {progress}", ("ITEM", "DISTANCE", "VERDICT", "REASON"), [
            (i["address"], str(i["distance"]), i["verdict"], i["reason"]) for i in told["delta"]
        ])  # fmt: skip
    yield from _section("evidence", ("CHECK", "LEVEL", "VERDICT", "PASSED", "TURN", "REASON"), [
        (e["check"], e["level"], e["verdict"] + " (of another state)" * e["stale"], _passed(e), str(e["turn"]),
         e["reason"] or "")
        for e in told["evidence"]
    ])  # fmt: skip
    if told.get("layers"):
        yield from _section("layers (a lower failure voids the higher)", ("LAYER", "OUTCOME", "CHECKED", "GROUNDS"), [
            (one["layer"], one["outcome"], str(one["checked"]), "; ".join(one["grounds"])) for one in told["layers"]
        ])  # fmt: skip
    if told["savepoints"]:
        yield from _section("savepoints", ("SAVEPOINT", "TURN", "CHANGED", "FINGERPRINT"), [
            (str(s["savepoint"]) + " <- stands" * (s["savepoint"] == told["savepoint"]), str(s["turn"]),
             str(s["changed"]), s["fingerprint"])
            for s in told["savepoints"]
        ])  # fmt: skip
    if told["rolled_back"]:
        yield from _section("rolled back", ("TURN", "TO", "REASON", "NOTE"), [
            (str(r["turn"]), str(r["to"]), r["reason"], r["note"]) for r in told["rolled_back"]
        ])  # fmt: skip
    if told["undo"]:
        yield from _section("commits", ("COMMIT", "STATE", "AT", "PATHS"), [
            (u["commit_id"], u["state"], u["at"], paths_said(u["paths"])) for u in told["undo"]
        ])  # fmt: skip
    if told["notes"]:
        yield ""
        yield "notes the next prompt holds"
        yield from (f"  - {one_line(note, 500)}" for note in told["notes"])


def _section(title: str, headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield ""
    yield title
    yield from (f"  {line}" for line in table(headers, rows))


def _spend(told: dict[str, Any]) -> list[tuple[str, ...]]:
    spent, budget = told["spent"], told["budget"]
    written = {"usd_micros": lambda n: f"${dollars(n)}", "wall_ms": span}
    rows: list[tuple[str, ...]] = []
    for name in ("turns", "tokens", "usd_micros", "wall_ms"):
        write = written.get(name, str)
        used = f"{100 * spent[name] // budget[name]} %" if budget[name] else "-"
        rows.append((name.partition("_")[0], write(spent[name]), write(budget[name]), used))
    return rows


def _passed(one: dict[str, Any]) -> str:
    return "-" if one["collected"] is None else f"{one['passed']} of {one['collected']}"
