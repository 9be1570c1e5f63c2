"""Verify a certificate file: every check by name, in order; nothing of the runtime, no network, no store.

Trust comes from outside the file: the public keys, and the task when the caller has an opinion of it. A certificate
that holds says what was checked and at what level, by a runtime that had the key; it does not say correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from . import bundle, contract, dsse, log, statement
from .approvals import Approver, untrusted
from .canonical import parse
from .replay import AFTER_COMMIT, Replay
from .report import CHECKS, Check, Invalid, Report
from .tree import tree_digest

FINDINGS_MAX = 20
"""Of one check; the first are the ones that matter, a forged log can have one per event."""


def verify(
    data: bytes,
    trusted: Sequence[Ed25519PublicKey],
    *,
    task: bytes | None = None,
    tree: Path | None = None,
    approvers: Sequence[Approver] | None = None,
) -> Report:
    """Check a certificate file against keys the caller trusts.

    ``task``: canonical JSON of the task document the caller wants to have been pursued; without it the certificate is
    about whatever task it carries, and names it. ``tree``: a directory to compare with the certified state now.
    ``approvers``: the people whose approvals the caller accepts; without them a signature shows only that its own key
    made it.
    Never raises for what the file holds: a file that is nonsense is a report whose first check failed.
    """
    try:
        read = bundle.read(data)
    except Invalid as invalid:
        return _report([Check(invalid.check, "failed", (invalid.message,))], {})
    checks = [
        Check("structure", "passed"),
        _check("signature", _signature(read, trusted)),
        _check("log", _log(read)),
        _check("task", _task(read, task)),
    ]
    try:
        asked = contract.read(read.task)
    except ValueError as error:
        checks[-1] = Check("task", "failed", (*checks[-1].findings, str(error)))
        return _report(checks, read.predicate)
    replay = Replay(asked, read.payloads)
    if read.events:
        replay.run(read.events)
    checks.append(_check("coverage", _coverage(read, replay)))
    checks.append(_check("replay", iter(replay.problems or ([] if read.events else ["there is nothing to replay"]))))
    checks.append(_check("statement", _statement(read, replay)))
    if approvers is not None:
        checks.append(_check("approvers", untrusted(replay.held, approvers)))
    drift = None
    if tree is not None:
        drift = _drift(read.predicate["state_digest"], tree)
        checks.append(Check("workspace", "failed", (drift,)) if drift else Check("workspace", "passed"))
    return _report(checks, read.predicate, drift)


def content(data: bytes) -> dict[str, Any]:
    """What a certificate says, without what differs between two runs that did the same: places, times, durations.

    Two runs of one task with the same proposals have equal content, also when one of them crashed and went on.
    Raises Invalid for a file that is no certificate; verifies nothing else.
    """
    predicate = bundle.read(data).predicate
    said = {
        name: predicate[name] for name in predicate.keys() - {"trajectory", "log", "started_at", "ended_at", "keyid"}
    }
    for part in ("criteria", "invariants"):
        said[part] = [_without(item, "evidence_digest", "seq") for item in predicate[part]]
    said["savepoints"] = [_without(item, "seq") for item in predicate["savepoints"]]
    said["budget"] = {**predicate["budget"], "used": _without(predicate["budget"]["used"], "wall_ms")}
    return said


def _without(item: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}


def _report(checks: list[Check], predicate: dict[str, Any], drift: str | None = None) -> Report:
    """Fill in the checks that were not made, so that a report always names all of them."""
    made = {check.name: check for check in checks}
    return Report(tuple(made.get(name, Check(name, "not made")) for name in CHECKS), predicate, drift)


def _check(name: str, findings: Iterator[str]) -> Check:
    found = list(findings)
    if len(found) > FINDINGS_MAX:
        found = [*found[:FINDINGS_MAX], f"and {len(found) - FINDINGS_MAX} more"]
    return Check(name, "failed" if found else "passed", tuple(found))


def _signature(read: bundle.Bundle, trusted: Sequence[Ed25519PublicKey]) -> Iterator[str]:
    if not trusted:
        yield "no trusted key was given: a signature by an unknown key shows nothing"
        return
    for what, sealed in (("certificate", read.envelope), ("SVR", read.svr_envelope)):
        if sealed is None:
            continue
        if all(sealed.keyid != dsse.key_id(key) for key in trusted):
            yield f"the {what} is signed by {sealed.keyid}, which is not a trusted key"
        elif not any(dsse.signed_by(sealed, key) for key in trusted):
            yield f"the signature of the {what} does not hold: the statement was changed, or another key made it"
    if read.predicate["keyid"] != read.envelope.keyid:
        yield f"the statement names the key {read.predicate['keyid']}, the envelope {read.envelope.keyid}"


def _log(read: bundle.Bundle) -> Iterator[str]:
    yield from log.breaks(read.events)
    signed, found = read.predicate["log"], log.head(read.events)
    for name, value in found.items():
        if signed[name] != value:
            yield f"the signed log has {name} {signed[name]}, the bundled events give {value}"
    kinds = [event["type"] for event in read.events]
    while kinds and kinds[-1] in AFTER_COMMIT:
        kinds.pop()
    if not kinds or kinds[-1] != "Committed":
        yield f"the log ends with {kinds[-1] if kinds else 'nothing'}, not with a commit: cut, or not finished"
    if read.events and read.predicate["trajectory"] != read.events[0]["stream"]:
        yield f"the events are of {read.events[0]['stream']!r}, the statement is about {read.predicate['trajectory']!r}"


def _task(read: bundle.Bundle, expected: bytes | None) -> Iterator[str]:
    signed, carried = read.predicate["task"]["digest"], contract.task_digest(read.task)
    if signed != carried:
        yield f"the signed task digest is {signed}, that of the carried document is {carried}"
    if expected is None:
        return
    try:
        document = parse(expected.rstrip(b"\n"))
    except ValueError as error:
        yield f"the task given to compare with is not canonical: {error}"
        return
    if (wanted := contract.task_digest(document)) != signed:
        yield f"the certificate is about the task {signed}, not about the one given ({wanted})"


def _coverage(read: bundle.Bundle, replay: Replay) -> Iterator[str]:
    """Every criterion and invariant of the task, exactly once, with passing evidence about the committed state."""
    predicate, fingerprint = read.predicate, read.predicate["fingerprint"]
    committed = replay.committed
    if committed is None or committed["fingerprint"] != fingerprint:
        yield f"the statement is about the state {fingerprint}, which was not the one committed"
    for part, checks in (("criteria", replay.contract.criteria), ("invariants", replay.contract.invariants)):
        stated = [item["id"] for item in predicate[part]]
        for missing in sorted({check.id for check in checks} - set(stated)):
            yield f"{part} lacks {missing!r}, which the task demands"
        for extra in sorted(set(stated) - {check.id for check in checks}):
            yield f"{part} holds {extra!r}, which the task does not have"
        if len(set(stated)) != len(stated):
            yield f"{part} states something twice"
        for item in predicate[part]:
            check = next((check for check in checks if check.id == item["id"]), None)
            if check is not None:
                yield from _covered(check, item, fingerprint, replay)


def _covered(check: contract.Check, item: dict[str, Any], fingerprint: str, replay: Replay) -> Iterator[str]:
    judged = replay.verdicts.judged(check, fingerprint)
    if judged is None:
        yield f"{check.address}: the log holds no evidence about the certified state"
        return
    found = {
        "level_required": statement.LEVELS[check.level],
        "level_reached": statement.LEVELS[judged.level],
        "verdict": judged.verdict,
        "check_digest": judged.check_digest,
        "evidence_digest": judged.digest,
        "seq": judged.seq,
    } | ({"severity": check.severity} if check.severity else {})
    for name, value in found.items():
        if item[name] != value:
            yield f"{check.address}: {name} is stated as {item[name]!r}, the log and the task give {value!r}"
    if judged.verdict != "pass":
        yield f"{check.address}: the newest evidence about the certified state is {judged.verdict!r}, not a pass"
    if judged.level < check.level:
        yield f"{check.address}: judged at level {found['level_reached']}, {found['level_required']} is required"


def _statement(read: bundle.Bundle, replay: Replay) -> Iterator[str]:
    """Every other fact of the statement, computed again from the events."""
    predicate = read.predicate
    if replay.accepted is None or replay.committed is None or replay.fingerprint is None:
        yield "the log holds no accepted task or no commit"
        return
    for name, value in _expected(read, replay, replay.accepted, replay.committed).items():
        if predicate[name] != value:
            yield f"{name} is stated as {predicate[name]!r}, the events give {value!r}"
    if read.statement["subject"] != statement.subjects(predicate):
        yield "the subjects are not the state and the task of the predicate"
    if read.svr_statement is not None and read.svr_statement != statement.svr(predicate):
        yield "the SVR says something else than the certificate"
    level, rank = predicate["level"], statement.LEVELS.index
    if level["reached"] not in statement.LEVELS or rank(level["reached"]) < rank(level["required"]):
        yield f"no criterion was judged at level {level['required']}, which the task's exposure requires"
    if (least := contract.required_level(predicate["exposure"])) is None or rank(level["required"]) < rank(least):
        yield f"the exposure {predicate['exposure']!r} requires {least}, the statement says {level['required']}"
    if contract.horizon(predicate["exposure"]) != replay.contract.budget["turns"]:
        yield f"the exposure {predicate['exposure']!r} is not that of {replay.contract.budget['turns']} turns"


def _expected(
    read: bundle.Bundle, replay: Replay, accepted: dict[str, Any], committed: dict[str, Any]
) -> dict[str, Any]:
    asked = replay.contract
    reached = sorted((item["level_reached"] for item in read.predicate["criteria"]), key=statement.LEVELS.index)
    return {
        "runtime": {"name": "setpoint", "version": accepted["runtime"]},
        "task": {"name": asked.name, "digest": asked.digest},
        "policy_digest": asked.policy_digest,
        "base_digest": accepted["base_digest"],
        "state_digest": committed["state_digest"],
        "fingerprint": replay.fingerprint,
        "exposure": accepted["exposure"],
        "level": {
            "required": accepted["required_level"],
            "reached": reached[-1] if reached else "claim",
            "weakest": reached[0] if reached else "claim",
        },
        "savepoints": [
            {"savepoint": kept.savepoint, "fingerprint": kept.fingerprint, "seq": kept.seq}
            for kept in replay.savepoints
        ],
        "counts": replay.counts,
        "budget": {"limit": replay.limit, "used": replay.used},
        "isolation": {"tier": accepted["tier"], "rung": accepted["rung"]},
        "started_at": read.events[0]["at"],
        "ended_at": replay.committed_at,
        "covers": statement.COVERS,
    }


def _drift(certified: str, tree: Path) -> str | None:
    """How the directory differs from the certified state now, None when it does not."""
    try:
        found = tree_digest(tree)
    except OSError as error:
        return f"{tree} cannot be read: {error}"
    return None if found == certified else f"{tree} has the digest {found} now; {certified} was certified"
