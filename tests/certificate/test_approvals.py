"""A certificate over a history in which people approved a call: honest ones hold, forged approvals do not (D3)."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from setpoint.adapters.approvers.signatures import plain_key
from setpoint.adapters.approvers.signing import sign_with, sign_with_ssh
from setpoint.app.keys import public_pem
from setpoint.certificate import Approver, read_approvers, verify
from setpoint.certificate.approvals import is_signed, read_ticket
from setpoint.certificate.canonical import digest, from_base64, parse, to_base64
from setpoint.kernel import keys
from setpoint.kernel.events import (
    ApprovalRequested,
    ApprovalResolved,
    ApprovalSigned,
    LeaseClaimed,
    RolledBack,
    TurnEnded,
)
from setpoint.kernel.ticket import Ticket, action_digest, decide, signed_bytes, ticket_bytes
from setpoint.phases.p6_verdict.certificate import policy_digest

from .factory import (
    BASE,
    CLAIM,
    FIX,
    FIXED,
    KEY,
    PATCH,
    Writer,
    document,
    forge,
    loaded,
    task,
)

TRUSTED = [KEY.public_key()]
ANNA, BEN, MALLORY = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (21, 22, 23))
RULE = {"when": "effect == 'reversible'", "by": ["ops"], "quorum": 1, "expires": "24h", "each_role": False}
DAY_MS = 86_400_000


def line(key: Ed25519PrivateKey) -> str:
    return plain_key(key.public_key().public_bytes_raw()).text


PEOPLE = (Approver("anna", ("ops",), line(ANNA) + " anna@laptop"), Approver("ben", ("ops", "sec"), line(BEN)))


def held_document(**rule: Any) -> dict[str, Any]:
    found = document()
    found["spec"]["policy"]["approve"] = [RULE | rule]
    return found


class HeldWriter(Writer):
    """A writer whose first turn proposes the fix, which people are asked about."""

    ticket: Ticket
    signatures: int = 0

    def begin(self, **changes: Any) -> None:
        self.accept()
        self.judge(BASE, {"done/unit": 1, "done/golden": 2}, phase="baseline")
        self.start([FIX, CLAIM])
        self.ask(**changes)

    def ask(self, **changes: Any) -> None:
        rule = self.task.document["spec"]["policy"]["approve"][0]
        fields: dict[str, Any] = {
            "ticket_id": f"ap-{len(self.events)}",
            "stream": self.stream,
            "name": "clamp",
            "node": f"{self.record.turn}.0",
            "capability": FIX[0],
            "effect": "reversible",
            "target": "src/config.py",
            "authority": "grant file_edit",
            "arguments": dict(PATCH),
            "preview": "-a\n+b",
            "preconditions": (),
            "base_digest": keys.digest(["sha256:" + "b" * 64, self.record.fingerprint]),
            "definition_digest": self.task.digest,
            "policy_digest": policy_digest(self.task),
            "requester": "task:clamp",
            "by": tuple(rule["by"]),
            "quorum": rule["quorum"],
            "each_role": rule["each_role"],
            "requested_at_ms": self.clock_ms,
            "expires_at_ms": self.clock_ms + DAY_MS,
            "budget": "1 of 30 turns",
            "nonce": f"nonce-{len(self.events):012d}",
        }
        self.ticket = Ticket(**{**fields, **changes})
        found = self.ticket
        self.emit(
            ApprovalRequested(
                node=found.node,
                ticket_id=found.ticket_id,
                ticket=self.store(parse(ticket_bytes(found))),
                action_digest=action_digest(found.capability, found.arguments, found.base_digest, found.policy_digest),
                expires_at_ms=found.expires_at_ms,
            )
        )

    def sign(self, by: str = "anna", key: Ed25519PrivateKey = ANNA, verdict: Any = "approve", **more: Any) -> None:
        self.signatures += 1
        signed = sign_with(key, decide(more.get("about", self.ticket), verdict, by, more.get("at_ms", self.clock_ms)))
        self.emit(
            ApprovalSigned(
                ticket_id=self.ticket.ticket_id,
                by=by,
                verdict=verdict,
                decision=self.store(parse(signed_bytes(signed))),
                position=self.signatures,
                counts=more.get("counts", True),
            )
        )

    def resolve(self, outcome: str = "granted", *by: str) -> None:
        ticket = self.ticket
        self.emit(ApprovalResolved(node=ticket.node, ticket_id=ticket.ticket_id, outcome=outcome, by=list(by)))

    def act(self, attempt: int = 1) -> None:
        self.run(0, *FIX, "reversible", "src/config.py", attempt)

    def finish(self) -> bytes:
        self.permit(1, *CLAIM, "pure")
        self.judge(FIXED, {})
        self.keep(1, FIXED, ["src/config.py"])
        self.commit(FIXED, ["src/config.py"])
        return self.bundle()


def writer(**rule: Any) -> HeldWriter:
    return HeldWriter(task(held_document(**rule)))


def honest() -> HeldWriter:
    w = writer()
    w.begin()
    w.sign()
    w.resolve("granted", "anna")
    w.act()
    return w


def findings(data: bytes, **more: Any) -> list[str]:
    return [failure.message for failure in verify(data, TRUSTED, **more).failures()]


def test_an_approved_history_holds_alone_and_by_the_people_a_caller_trusts() -> None:
    """R124"""
    data = honest().finish()
    assert findings(data) == [] and findings(data, approvers=PEOPLE) == []
    named = {check.name: check.outcome for check in verify(data, TRUSTED, approvers=PEOPLE).checks}
    assert named["approvers"] == "passed"
    assert {c.name: c.outcome for c in verify(data, TRUSTED).checks}["approvers"] == "not made"


@pytest.mark.parametrize(
    ("people", "word"),
    [
        ((), "key that is none of theirs"),
        ((Approver("anna", ("ops",), line(BEN)),), "key that is none of theirs"),
        ((Approver("eve", ("ops",), line(ANNA)),), "key that is none of theirs"),
        ((Approver("anna", ("sec",), line(ANNA)),), "none of the roles"),
    ],
)
def test_whom_the_caller_does_not_trust_has_approved_nothing(people: tuple[Approver, ...], word: str) -> None:
    """R124, R129"""
    [found] = findings(honest().finish(), approvers=people)
    assert word in found


def test_a_crash_after_the_grant_uses_the_approval_once_all_the_same() -> None:
    w = honest()
    w.emit(LeaseClaimed(owner="host:2", fence=2))
    w.emit(RolledBack(savepoint=0, fingerprint=BASE, reason="interrupted"))
    w.act(2)
    assert findings(w.finish()) == []


def test_a_denied_call_is_followed_by_one_that_is_approved() -> None:
    w = writer()
    w.begin()
    w.sign(verdict="deny")
    w.resolve("denied", "anna")
    w.emit(TurnEnded(outcome="refused"))
    w.start([FIX, CLAIM])
    w.ask()
    w.sign()
    w.resolve("granted", "anna")
    w.act()
    assert findings(w.finish()) == []


def test_a_no_after_the_grant_is_an_honest_end_of_it() -> None:
    w = writer()
    w.begin()
    w.sign()
    w.resolve("granted", "anna")
    w.sign("ben", BEN, "deny")
    w.resolve("denied", "ben")
    w.emit(TurnEnded(outcome="refused"))
    w.start([FIX, CLAIM])
    w.ask()
    w.sign()
    w.resolve("granted", "anna")
    w.act()
    assert findings(w.finish()) == []


def test_two_roles_are_two_people() -> None:
    """R129"""
    w = writer(by=["ops", "sec"], quorum=1, each_role=True)
    w.begin()
    w.sign()
    w.sign("ben", BEN)
    w.resolve("granted", "anna", "ben")
    w.act()
    data = w.finish()
    assert findings(data, approvers=PEOPLE) == []
    only_ops = (PEOPLE[0], Approver("ben", ("ops",), line(BEN)))
    assert "one is missing" in findings(data, approvers=only_ops)[0]


def forged(story: Callable[[HeldWriter], None], **rule: Any) -> list[str]:
    w = writer(**rule)
    story(w)
    return findings(w.finish())


def without_a_grant(w: HeldWriter) -> None:
    w.begin()
    w.sign()
    w.act()


def after_a_no(w: HeldWriter) -> None:
    w.begin()
    w.sign("ben", BEN, "deny")
    w.sign()
    w.resolve("granted", "anna")
    w.act()


def by_nobody(w: HeldWriter) -> None:
    w.begin()
    w.resolve("granted", "anna")
    w.act()


def by_too_few(w: HeldWriter) -> None:
    w.begin()
    w.sign()
    w.resolve("granted", "anna")
    w.act()


def by_one_key_under_two_names(w: HeldWriter) -> None:
    w.begin()
    w.sign()
    w.sign("ben", ANNA)
    w.resolve("granted", "anna", "ben")
    w.act()


def of_another_ticket(w: HeldWriter) -> None:
    w.begin()
    w.sign(about=msgspec.structs.replace(w.ticket, preview="harmless"))
    w.resolve("granted", "anna")
    w.act()


def too_late(w: HeldWriter) -> None:
    w.begin()
    w.sign()
    w.clock_ms += DAY_MS
    w.resolve("granted", "anna")
    w.act()


def used_days_later(w: HeldWriter) -> None:
    w.begin()
    w.sign()
    w.resolve("granted", "anna")
    w.clock_ms += DAY_MS
    w.act()


def of_another_trajectory(w: HeldWriter) -> None:
    w.begin(stream="t-0")
    w.sign()
    w.resolve("granted", "anna")
    w.act()


def of_another_state(w: HeldWriter) -> None:
    w.begin(base_digest=keys.digest("another"))
    w.sign()
    w.resolve("granted", "anna")
    w.act()


def of_another_policy(w: HeldWriter) -> None:
    w.begin(policy_digest=keys.digest("another"))
    w.sign()
    w.resolve("granted", "anna")
    w.act()


def of_another_task(w: HeldWriter) -> None:
    w.begin(definition_digest=keys.digest("another"))
    w.sign()
    w.resolve("granted", "anna")
    w.act()


def for_other_people(w: HeldWriter) -> None:
    w.begin(by=("friends",))
    w.sign()
    w.resolve("granted", "anna")
    w.act()


def of_another_call(w: HeldWriter) -> None:
    w.begin(arguments={**PATCH, "new_str": "harmless"})
    w.sign()
    w.resolve("granted", "anna")
    w.act()


def of_another_path(w: HeldWriter) -> None:
    w.begin(target="tests/x")
    w.sign()
    w.resolve("granted", "anna")
    w.act()


def by_its_requester(w: HeldWriter) -> None:
    w.begin(requester="anna")
    w.sign()
    w.resolve("granted", "anna")
    w.act()


def voided(w: HeldWriter) -> None:
    w.begin()
    w.sign()
    w.resolve("granted", "anna")
    w.resolve("void")
    w.act()


def by_a_decision_that_did_not_count(w: HeldWriter) -> None:
    w.begin()
    w.sign(counts=False)
    w.resolve("granted", "anna")
    w.act()


@pytest.mark.parametrize(
    ("story", "rule", "word"),
    [
        (without_a_grant, {}, "people had not approved"),
        (after_a_no, {}, "granted after a no"),
        (by_nobody, {}, "did not all say yes"),
        (by_too_few, {"quorum": 2}, "too few"),
        (by_too_few, {"by": ["ops", "sec"], "each_role": True}, "too few"),
        (by_one_key_under_two_names, {"quorum": 2}, "too few"),
        (of_another_ticket, {}, "in another form"),
        (too_late, {}, "after it had expired"),
        (used_days_later, {}, "an approval that had expired"),
        (of_another_trajectory, {}, "not to this trajectory"),
        (of_another_state, {}, "base_digest of the ticket"),
        (of_another_policy, {}, "policy_digest of the ticket"),
        (of_another_task, {}, "definition_digest of the ticket"),
        (for_other_people, {}, "asks other people"),
        (of_another_call, {}, "another call was permitted"),
        (of_another_path, {}, "was approved"),
        (by_its_requester, {}, "the requester decided"),
        (voided, {}, "people had not approved"),
        (by_a_decision_that_did_not_count, {}, "did not all say yes"),
    ],
)
def test_no_approval_that_was_not_given_for_this_call_survives(
    story: Callable[[HeldWriter], None], rule: dict[str, Any], word: str
) -> None:
    """D3, R124, R126, R127: each contradicts itself in the log, although every event chains and the key is right."""
    found = forged(story, **rule)
    assert any(word in message for message in found), found


def test_an_approval_is_used_once() -> None:
    """R124: the same grant does not carry a second permit in the turn, nor the next turn."""
    w = honest()
    w.emit(TurnEnded(outcome="unchanged"))
    w.start([FIX, CLAIM])
    w.emit(ApprovalResolved(node=w.ticket.node, ticket_id=w.ticket.ticket_id, outcome="granted", by=["anna"]))
    w.act()
    assert any("is not what people were asked about in this turn" in message for message in findings(w.finish()))


def test_a_changed_decision_or_ticket_in_the_file_is_found() -> None:
    """R124: chained and signed anew with the right certificate key; the approver's signature is what it cannot make."""
    data = honest().finish()
    for payload, change in (("decision", b'"anna"'), ("preview", b'"preview"')):

        def swap(found: dict[str, Any], predicate: dict[str, Any], *, mark: bytes = change) -> None:
            name = next(n for n, text in found["payloads"].items() if mark in from_base64(text))
            kept = from_base64(found["payloads"][name])
            changed = json.loads(kept)
            if "decision" in changed:
                changed["decision"]["reason"] = "yes, yes"
            else:
                changed["preview"] = "nothing to see"
            fresh = json.dumps(changed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
            del found["payloads"][name]
            found["payloads"][digest(changed)] = to_base64(fresh)
            for event in found["events"]:
                for field in ("ticket", "decision"):
                    if event["data"].get(field) == {"ref": name, "bytes": len(kept)}:
                        event["data"][field] = {"ref": digest(changed), "bytes": len(fresh)}

        assert findings(forge(data, swap)), payload


def test_a_missing_ticket_is_found() -> None:
    data = honest().finish()

    def drop(found: dict[str, Any], predicate: dict[str, Any]) -> None:
        name = next(n for n, text in found["payloads"].items() if b'"preview"' in from_base64(text))
        del found["payloads"][name]

    assert any("payload" in message for message in findings(forge(data, drop)))


def test_signatures_by_ssh_keys_hold_and_changed_ones_do_not(tmp_path: Path) -> None:
    """R124: what the runtime accepts, the standalone verifier accepts; nothing else."""
    key = tmp_path / "id"
    try:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    w = writer()
    w.begin()
    signed = parse(signed_bytes(sign_with_ssh(key, decide(w.ticket, "approve", "anna", w.clock_ms))))
    assert is_signed(signed)
    for path, value in ((("decision", "verdict"), "deny"), (("decision", "by"), "ben"), (("key",), line(BEN))):
        changed = copy.deepcopy(signed)
        inner = changed
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
        assert not is_signed(changed), path
    assert not is_signed({**signed, "scheme": "ed25519"})
    assert not is_signed({**signed, "signature": signed["signature"].replace("A", "B", 1)})


def test_a_ticket_is_read_strictly_and_a_roster_in_json_is_read() -> None:
    w = writer()
    w.begin()
    good = ticket_bytes(w.ticket)
    assert read_ticket(good)["capability"] == "file_edit"
    for bad in (good + b" ", good.replace(b'"quorum":1', b'"quorum":-1'), good.replace(b'"v":1', b'"w":1'), b"[]"):
        with pytest.raises(ValueError):
            read_ticket(bad)
    people = [{"name": "anna", "roles": ["ops"], "key": line(ANNA)}]
    assert read_approvers(json.dumps({"approvers": people}).encode()) == (Approver("anna", ("ops",), line(ANNA)),)
    for worse in (b"{}", b"[", b'{"approvers": [{"name": "x", "roles": ["ops"], "key": "ssh-rsa AAAA"}]}'):
        with pytest.raises(ValueError):
            read_approvers(worse)


def test_the_command_line_takes_a_roster(tmp_path: Path) -> None:
    (tmp_path / "a.cert.json").write_bytes(honest().finish())
    (tmp_path / "signing.pub").write_bytes(public_pem(KEY.public_key()))
    roles = {"anna": ["ops"], "ben": ["ops"]}
    for name, key, code in (("anna", ANNA, 0), ("anna", MALLORY, 19)):
        people = [{"name": name, "roles": roles[name], "key": line(key)}]
        (tmp_path / "people.json").write_text(json.dumps({"approvers": people}))
        command = [sys.executable, "-m", "setpoint.certificate", "verify", "a.cert.json", "--key", "signing.pub"]
        done = subprocess.run(
            [*command, "--approvers", "people.json"], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, done.stdout + done.stderr


def test_the_bundle_carries_ticket_and_decisions_that_count() -> None:
    w = writer()
    w.begin()
    w.sign("mallory", MALLORY, counts=False)
    w.sign()
    w.resolve("granted", "anna")
    w.act()
    data = w.finish()
    held = [from_base64(text) for text in loaded(data)["payloads"].values()]
    assert any(b'"nonce"' in one for one in held)
    assert sum(b'"setpoint-approval"' in one for one in held) == 1
    assert findings(data) == []
