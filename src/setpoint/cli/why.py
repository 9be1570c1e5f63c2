"""Why a trajectory is where it is: what is open on what evidence, what was tried, and what happens next.

Everything is read from the log; nothing is guessed. ``explain`` gives the document, ``said`` the words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from setpoint.cli.account import Account, budget_of, exit_code, spent_of
from setpoint.cli.grammar import EXIT_CODES
from setpoint.cli.terminal import one_line, styled
from setpoint.cli.wording import dollars, moment_ms, open_ticket, progress_said, span
from setpoint.engine.journal import timestamp
from setpoint.kernel.events import (
    ClaimRejected,
    DriftFound,
    EvidenceRecorded,
    ModelFailed,
    Refused,
    RolledBack,
    Routed,
    SavepointKept,
    Stalled,
)
from setpoint.phases.p2_proposal.routing import TRANSIENT


def explain(account: Account) -> dict[str, Any]:
    """The whole answer as a document."""
    record = account.record
    code = exit_code(record)
    return {
        "trajectory_id": account.trajectory_id,
        "task": record.name,
        "status": account.status,
        "reason": record.finished_reason or record.pause_reason or None,
        "message": record.finished_message or None,
        "exit_code": code,
        "exit_meaning": "it has not ended" if code is None else EXIT_CODES.get(code, ""),
        "delta": progress_said(record.progress),
        "open": [_open(account, item) for item in record.items],
        "met": _met(account),
        "tried": _tried(account),
        "spent": spent_of(record),
        "budget": budget_of(account.task, account.record),
        "next": _next(account),
    }


def _open(account: Account, item: Any) -> dict[str, Any]:
    """One open item with the last evidence of it."""
    told: dict[str, Any] = {
        "address": item.address,
        "distance": item.distance,
        "hard": item.hard,
        "verdict": item.verdict,
        "reason": item.reason or None,
        "evidence": None,
    }
    found = account.evidence(item.address)
    if found is not None:
        told["evidence"] = _evidence_document(*found)
    return told


def _evidence_document(fact: Any, event: EvidenceRecorded) -> dict[str, Any]:
    return {
        "verdict": event.verdict,
        "level": event.level,
        "reason": event.reason or None,
        "collected": event.collected,
        "passed": event.passed,
        "failed": event.failed,
        "errors": event.errors,
        "failures": [{"name": f.name, "message": f.message} for f in event.failures],
        "turn": fact.turn,
        "seq": fact.seq,
        "at": fact.at,
        "fingerprint": event.fingerprint,
    }


def _met(account: Account) -> list[dict[str, Any]]:
    """Every check that passed about the standing state."""
    waiting = {item.address for item in account.record.items}
    met: list[dict[str, Any]] = []
    for address in dict.fromkeys(event.check for _, event in account.of_type(EvidenceRecorded)):
        found = account.evidence(address)
        if address not in waiting and found is not None and found[1].verdict == "pass":
            met.append({"address": address} | _evidence_document(*found))
    return met


def _tried(account: Account) -> dict[str, Any]:
    refusals = Counter(event.reason for _, event in account.of_type(Refused))
    failures = Counter(event.kind for _, event in account.of_type(ModelFailed))
    return {
        "turns": account.record.turn,
        "model_calls": account.record.spent.model_calls,
        "tool_calls": account.record.spent.tool_calls,
        "kept": len(account.of_type(SavepointKept)),
        "rolled_back": [
            {"turn": fact.turn, "reason": event.reason, "note": event.note}
            for fact, event in account.of_type(RolledBack)
            if event.reason != "interrupted"
        ],
        "claims_rejected": len(account.of_type(ClaimRejected)),
        "refused": dict(refusals.most_common()),
        "model_failures": dict(failures.most_common()),
        "stalls": [
            {"turn": fact.turn, "tier": event.tier, "reason": event.reason} for fact, event in account.of_type(Stalled)
        ],
        "routes": [
            {"turn": fact.turn, "route": event.route or None, "reason": event.reason}
            for fact, event in account.of_type(Routed)
        ],
        "drift": [{"what": event.what, "decision": event.decision} for _, event in account.of_type(DriftFound)],
    }


# What happens next


def _next(account: Account) -> dict[str, Any]:
    """``what`` happens, ``how`` a person makes it happen (commands), ``when`` it happens by itself."""
    record, name = account.record, account.trajectory_id
    match account.status:
        case "converged":
            how = [f"setpoint certificate export {name} -o {record.name}.cert.json"]
            if record.committed and not record.undone:
                how.append(f"setpoint undo {name}")
            return _step("nothing: it is done", how)
        case "undone":
            return _step("its commit was undone: the tree is what it was before", _again(account, ""))
        case "failed" | "cancelled":
            return _after_the_end(account)
        case "asks":
            assert record.question is not None
            what = f"waiting for an answer to {record.question.question_id}: {record.question.question}"
            return _step(what, [f'setpoint answer {name} "..."', f"setpoint resume {name}"], "no deadline")
        case "waiting" if (ticketed := open_ticket(record)) is not None:
            what = f"waiting for people's yes to {ticketed.ticket_id}; without one it is a no"
            how = [f"setpoint {verb} {ticketed.ticket_id}" for verb in ("approvals show", "approve", "deny")]
            until = f"expires {timestamp(ticketed.expires_at_ms)}"
            return _step(what, [*how, f"setpoint resume {name}"], until)
        case "paused" if record.pause_reason in ("turns", "tokens", "usd", "wall"):
            what = f"paused, since the {record.pause_reason} budget does not allow another turn; a person can allow it"
            amount = {"turns": "10", "tokens": "100000", "usd": "1.00", "wall": "10m"}[record.pause_reason]
            more = f"setpoint resume {name} --more-{record.pause_reason} {amount}"
            return _step(what, [more, f"setpoint cancel {name}"], "no deadline")
        case "paused":
            why = f" ({record.pause_reason})" if record.pause_reason else ""
            return _step(f"paused by a person{why}", [f"setpoint resume {name}"], "no deadline")
        case "interrupted":
            what = "its worker is gone; the log says where to go on, and no recorded model call is repeated"
            return _step(what, [f"setpoint resume {name}", "setpoint recover"])
        case _:
            what, when = _running(account)
            return _step(what, [f"setpoint events -f {name}", f"setpoint pause {name}", f"setpoint kill {name}"], when)


def _step(what: str, how: list[str], when: str | None = None) -> dict[str, Any]:
    return {"what": what, "how": how, "when": when}


def _running(account: Account) -> tuple[str, str | None]:
    """What a live worker is doing, and when it goes on when it waits for a moment that is known."""
    last = account.facts[-1]
    failed = account.of_type(ModelFailed)
    if failed and failed[-1][0].seq >= last.seq - 1 and failed[-1][1].retry_after_ms:
        fact, event = failed[-1]
        when = timestamp(moment_ms(fact.at) + event.retry_after_ms)
        return f"the model said {event.kind}; it is asked again after the pause it named", f"not before {when}"
    state = {"CALLING_MODEL": "waiting for the model", "WAITING_TOOL": "running an action"}
    doing = state.get(account.record.state, "between two turns")
    until = f"its lease ends {timestamp(account.lease_until_ms)} unless it is renewed; then anyone may take it over"
    return f"{account.owner} works on it: {doing} since {last.at}", until


_REMEDIES: Final = {
    "Stalled": "no route made progress; another model, a clearer goal or a criterion that discloses more may",
    "EvidenceMissing": "a check gave no verdict; mend the check (`setpoint diff` runs it alone), then go on",
    "Conflict": "the workspace was changed meanwhile; nothing was overwritten. Look at both, then converge again",
    "Drifted": "what the evidence rests on changed meanwhile; converge again on what is there now",
    "StalePlan": "the plan was made for another state; make it again",
    "Planned": "a plan writes nothing by itself; apply it, or converge",
    "ContextTooLarge": "goal and criteria alone do not fit the model's window; shorten them, or name a larger model",
}


_ROUTE_REMEDIES: Final = {
    "auth": "the server refused the key, or the right to use this model; check the key and the route, or name another "
    "model",
    "invalid": "the server refused the request as such: a model name it does not know, a wrong base_url or an option; "
    "check the route, or name another model",
    "refused": "the model declined; another model, or another wording of the goal, may not",
}


def _route_remedy(account: Account) -> str:
    """What helps when no route is left: it depends on how the last one failed."""
    failed = account.of_type(ModelFailed)
    kind = failed[-1][1].kind if failed else "exhausted"
    if kind in TRANSIENT:
        return f"the model could not be reached ({kind}); try again later, or name another one"
    return _ROUTE_REMEDIES.get(kind, "no model had a further proposal; name another one")


def _after_the_end(account: Account) -> dict[str, Any]:
    record = account.record
    reason = record.finished_reason
    if reason.startswith("Budget:"):
        dimension = reason.partition(":")[2]
        what = f"the {dimension} budget is spent; raise spec.budget.{dimension} in the file, or narrow the task"
    elif reason == "RoutesExhausted":
        what = _route_remedy(account)
    else:
        what = _REMEDIES.get(reason, "it ended; start again, or live again from one of its turns")
    how = _again(account, "")
    if record.turn > 1:
        how.append(f"setpoint fork {account.trajectory_id} --turn {max(1, record.turn - 1)} --model ROUTE --resume")
    return _step(what, how)


def _again(account: Account, with_what: str) -> list[str]:
    source = account.record.source or "FILE"
    other = " --model ROUTE" if account.record.finished_reason in ("Stalled", "RoutesExhausted") else ""
    return [f"setpoint converge -f {source}{other}" + (f"   ({with_what})" if with_what else "")]


# In words


def said(told: dict[str, Any]) -> Iterator[str]:
    """The document as a page."""
    reason = f" ({told['reason']})" if told["reason"] else ""
    yield styled(f"{told['task']}  {told['trajectory_id']}  {told['status']}{reason}", "bold")
    if told["message"]:
        yield f"  {one_line(told['message'], 1000)}"
    code = "no exit code yet" if told["exit_code"] is None else f"exit {told['exit_code']}"
    yield f"  {code}: {told['exit_meaning']}"
    if told["open"]:
        yield ""
        yield f"open (delta {told['delta']}: hard violations / unmet criteria / distance)"
        for item in told["open"]:
            yield from _item_said(item)
    if told["met"]:
        yield ""
        yield "met"
        for item in told["met"]:
            counted = f", {item['passed']} of {item['collected']} passed" if item["collected"] is not None else ""
            yield f"  ✓ {item['address']}  at level {item['level']}{counted}  (turn {item['turn']}, {item['at']})"
    yield ""
    yield from _tried_said(told)
    yield ""
    yield f"next: {one_line(told['next']['what'], 1000)}"
    yield from (f"  $ {command}" for command in told["next"]["how"])
    if told["next"]["when"]:
        yield f"  when: {told['next']['when']}"


def _item_said(item: dict[str, Any]) -> Iterator[str]:
    mark = "!" if item["hard"] else "✗" if item["verdict"] == "fail" else "?"
    yield f"  {mark} {item['address']}  {item['verdict']}, distance {item['distance']}" + (" (hard)" * item["hard"])
    evidence = item["evidence"]
    if evidence is None:
        yield f"      {one_line(item['reason'] or 'not judged yet')}"
        return
    if item["reason"] and item["reason"] != evidence["reason"]:
        yield f"      {one_line(item['reason'])}"
    counted = f"; {evidence['passed']} of {evidence['collected']} passed" if evidence["collected"] is not None else ""
    words = one_line(evidence["reason"] or "")
    yield f"      {evidence['verdict']} at level {evidence['level']}{counted}: {words}".rstrip(": ")
    yield f"      judged in turn {evidence['turn']} at {evidence['at']} (event {evidence['seq']})"
    for failure in evidence["failures"][:8]:
        message = f": {one_line(failure['message'])}" if failure["message"] else ""
        yield f"      - {one_line(failure['name'])}{message}"


def _tried_said(told: dict[str, Any]) -> Iterator[str]:
    tried, spent, budget = told["tried"], told["spent"], told["budget"]
    yield (
        f"tried: {tried['turns']} of {budget['turns']} turns, {spent['tokens']} of {budget['tokens']} tokens, "
        f"${dollars(spent['usd_micros'])} of ${dollars(budget['usd_micros'])}, "
        f"{span(spent['wall_ms'])} of {span(budget['wall_ms'])}"
    )
    yield (
        f"  {tried['model_calls']} model calls, {tried['tool_calls']} actions, {tried['kept']} savepoints kept, "
        f"{tried['claims_rejected']} claims rejected"
    )
    for back in tried["rolled_back"]:
        yield f"  turn {back['turn']}: {one_line(back['note'] or 'rolled back (' + back['reason'] + ')', 300)}"
    for name, counts in (("refused", tried["refused"]), ("model failures", tried["model_failures"])):
        if counts:
            yield f"  {name}: {', '.join(f'{reason} {number}x' for reason, number in counts.items())}"
    for stall in tried["stalls"]:
        yield f"  turn {stall['turn']}: stalled ({stall['reason']}), then {stall['tier']}"
    for route in tried["routes"]:
        yield f"  turn {route['turn']}: route {route['route'] or 'none is left'} ({one_line(route['reason'])})"
    for drift in tried["drift"]:
        yield f"  drift of {drift['what']}: {drift['decision']}"
