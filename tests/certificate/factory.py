"""An honest history built from scratch with the runtime's own events, fold and measure, and ways to forge it.

``history()`` is the three-turn story: a look around, a bypass that edits the test and is rolled back with its claim
rejected, the real fix; then the commit. ``forge`` changes it and makes it look whole again: chain, root, signature.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from setpoint.certificate import bundle, dsse, key_id, log, seal
from setpoint.certificate.canonical import canonical, digest, from_base64, parse
from setpoint.kernel import chain, keys
from setpoint.kernel.contract import (
    Budget,
    Criterion,
    Environment,
    ExprCheck,
    Goal,
    Invariant,
    Level,
    Observe,
    Policy,
    RunCheck,
    Task,
    ToolGrant,
)
from setpoint.kernel.delta import measure
from setpoint.kernel.events import (
    Authorized,
    ChangeItem,
    ChangesObserved,
    ClaimRejected,
    CommitPlanned,
    Committed,
    ContextBuilt,
    DeltaMeasured,
    Event,
    EvidenceRecorded,
    LeaseClaimed,
    ModelReplied,
    Ref,
    Refused,
    RolledBack,
    SavepointKept,
    TaskAccepted,
    ToolIntent,
    ToolResult,
    TurnEnded,
    TurnStarted,
    encode,
)
from setpoint.kernel.record import Record
from setpoint.kernel.trajectory import fold
from setpoint.phases.p5_evidence.implicit import IMPLICIT
from setpoint.phases.p6_verdict.certificate import Statement, Uncertifiable, build_statement
from setpoint.ports.log import ZERO_HASH, Stored

KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"\x08" * 32)
BASE, BYPASS, FIXED = ("sha256:" + hashlib.sha256(name).hexdigest() for name in (b"base", b"bypass", b"fixed"))
STATE = "sha256:" + hashlib.sha256(b"final tree").hexdigest()
PATCH = {
    "path": "src/config.py",
    "old_str": "return value",
    "new_str": "return value if value >= 0 else 5.0" + " " * 1200,
}


def document() -> dict[str, Any]:
    """A canonical task document, every default filled in as the manifest loader does."""
    common = {"weight": 1}
    return {
        "apiVersion": "setpoint.dev/v1",
        "kind": "Task",
        "metadata": {"name": "clamp"},
        "spec": {
            "goal": {"text": "Negative timeouts are clamped.", "forbid": [".git/**", "secrets/*"]},
            "environment": {"workspace": ".", "base": None, "toolchain": ["python"], "mounts": [], "env": {}},
            "actions": [
                {"tool": "shell_exec", "require": [], "ensure": []},
                {"tool": "file_edit", "paths": ["src/**", "tests/**"], "require": [], "ensure": [], "max_calls": 5},
                {"tool": "complete_task", "require": [], "ensure": []},
            ],
            "observe": {"max_tokens": 4000, "redact": []},
            "done": [
                {"id": "unit", "run": "pytest", "level": "visible", "parse": "pytest", "disclose": "names", **common},
                {"id": "golden", "run": "pytest $SEALED", "level": "sealed", "files": "./sealed", "parse": "pytest"}
                | {"files_digest": "sha256:" + "5" * 64, "disclose": "names", **common},
            ],
            "invariants": [
                {"id": "tests-untouched", "expr": "true", "level": "static", "severity": "hard", **common},
                {"id": "small", "expr": "size(changes) < 9", "level": "static", "severity": "soft", **common},
            ],
            "budget": {"turns": 30, "tokens": 200_000, "usd": "2.0", "wall": "20m", "on_exceed": "fail"},
            "policy": {"commit": "converged", "stall_after": 4, "on_stall": ["ask"], "approve": [], "drift": "detect"},
            "models": [],
        },
    }


def task(found: dict[str, Any] | None = None) -> Task:
    found = document() if found is None else found
    return Task(
        name="clamp",
        goal=Goal("Negative timeouts are clamped.", (".git/**", "secrets/*")),
        environment=Environment("/nowhere"),
        actions=(ToolGrant("shell_exec"), ToolGrant("file_edit", ("src/**", "tests/**")), ToolGrant("complete_task")),
        observe=Observe(),
        done=(
            Criterion("unit", RunCheck("pytest", "pytest"), Level.VISIBLE),
            Criterion("golden", RunCheck("pytest $SEALED", "pytest"), Level.SEALED, "/sealed"),
        ),
        invariants=(
            Invariant("tests-untouched", ExprCheck("true")),
            Invariant("small", ExprCheck("size(changes) < 9"), "soft"),
        ),
        budget=Budget(),
        policy=Policy(),
        models=(),
        document=found,
        digest=keys.digest(found),
    )


def short(name: str, arguments: dict[str, Any]) -> str:
    """A call digest as events carry it."""
    return keys.digest([name, arguments]).removeprefix("sha256:")[:32]


@dataclass
class Writer:
    """Writes events as a journal and a store would: folded, chained, payloads aside."""

    task: Task
    stream: str = "t-1"
    record: Record = field(default_factory=lambda: Record(trajectory_id="t-1"))
    events: list[Stored] = field(default_factory=list)
    payloads: dict[str, bytes] = field(default_factory=dict)
    clock_ms: int = 1_767_225_600_000

    def emit(self, event: Event, turn: int | None = None) -> None:
        turn = self.record.turn if turn is None else turn
        self.clock_ms += 250
        data, at = encode(event), chain.instant(self.clock_ms)
        prev = self.events[-1].hash if self.events else ZERO_HASH
        seq, kind = len(self.events) + 1, type(event).__name__
        raw = chain.link(chain.envelope_template(self.stream), seq, turn, kind, 1, at, prev, data)
        self.events.append(Stored(self.stream, seq, turn, kind, 1, at, prev, chain.hash_text(raw), data))
        self.record = fold(self.record, turn, event)

    def store(self, value: Any) -> Ref:
        data = keys.canonical(value)
        self.payloads[keys.digest_bytes(data)] = data
        return Ref(keys.digest_bytes(data), len(data))

    def accept(self) -> None:
        self.emit(LeaseClaimed(owner="host:1", fence=1))
        self.emit(
            TaskAccepted(
                name=self.task.name,
                task=self.store(self.task.document),
                task_digest=self.task.digest,
                workspace="/nowhere",
                base_digest="sha256:" + "b" * 64,
                exposure="H=30 S2 A1",
                required_level="visible",
                models=["scripted:x"],
                tier="namespaces",
                rung="bubblewrap",
                runtime="0.1.0",
                directory="/nowhere",
            )
        )

    def observe(self, fingerprint: str, paths: Sequence[str]) -> None:
        changes = [ChangeItem(path, "modified", "file", 0o644, 7, "0" * 64) for path in paths]
        is_long = len(changes) > 5
        held = [msgspec.to_builtins(change) for change in changes]
        self.emit(
            ChangesObserved(
                fingerprint=fingerprint,
                changed=len(changes),
                changes=None if is_long else changes,
                changes_ref=self.store(held) if is_long else None,
            )
        )

    def judge(
        self,
        fingerprint: str,
        failing: dict[str, int],
        phase: str = "turn",
        skipped: Sequence[str] = (),
        paths: Sequence[str] = ("src/config.py",),
    ) -> None:
        """The changes of a state, evidence of every check about it, and its delta by the runtime's own rule."""
        if phase == "turn":
            self.observe(fingerprint, paths)
        for check in (*IMPLICIT, *self.task.invariants, *self.task.done):
            address = check.address
            counted = address.startswith("done/")
            distance = failing.get(address, 0)
            if address in skipped:
                self.emit(
                    EvidenceRecorded(
                        check=address,
                        level="claim",
                        verdict="missing",
                        fingerprint=fingerprint,
                        check_digest="",
                        distance=1,
                        reason="skipped: a broken invariant",
                        phase=phase,
                    )
                )
                continue
            self.emit(
                EvidenceRecorded(
                    check=address,
                    level=check.level.label,
                    verdict="fail" if distance else "pass",
                    fingerprint=fingerprint,
                    check_digest=keys.digest(["check", address]),
                    distance=distance,
                    collected=4 if counted else None,
                    passed=4 - distance if counted else 0,
                    failed=distance if counted else 0,
                    duration_ms=17,
                    phase=phase,
                )
            )
        self.measure(fingerprint)

    def measure(self, fingerprint: str) -> None:
        every = (*IMPLICIT, *self.task.invariants)
        items, progress = measure(self.task.done, every, self.record.evidence, fingerprint)
        self.emit(DeltaMeasured(fingerprint=fingerprint, progress=tuple(progress), items=list(items)))

    def start(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """A turn up to the recorded reply."""
        number = self.record.turn + 1
        self.emit(TurnStarted(elapsed_ms=1000 * number), number)
        self.emit(ContextBuilt(digest="sha256:" + "c" * 64, tokens=900))
        written = [{"name": name, "arguments": json.dumps(arguments), "id": ""} for name, arguments in calls]
        reply = {"stop": "tool_use", "calls": written}
        is_long = len(keys.canonical(reply)) > 1024
        self.emit(
            ModelReplied(
                route="scripted:x",
                stop="tool_use",
                reply=None if is_long else reply,
                reply_ref=self.store(reply) if is_long else None,
                input_tokens=1000,
                output_tokens=100,
                usd_micros=4000,
            )
        )

    def permit(self, ordinal: int, name: str, arguments: dict[str, Any], effect: str, path: str = "") -> None:
        self.emit(Authorized(ordinal=ordinal, tool=name, call_digest=short(name, arguments), effect=effect, path=path))

    def run(
        self, ordinal: int, name: str, arguments: dict[str, Any], effect: str, path: str = "", attempt: int = 1
    ) -> None:
        """Permit, intent and result of one call."""
        self.permit(ordinal, name, arguments, effect, path)
        self.intend(ordinal, name, arguments, effect, attempt)
        self.emit(ToolResult(ordinal=ordinal, tool=name, status="COMPLETED", exit_code=0, attempt=attempt))

    def intend(self, ordinal: int, name: str, arguments: dict[str, Any], effect: str, attempt: int = 1) -> None:
        is_long = len(keys.canonical(arguments)) > 1024
        self.emit(
            ToolIntent(
                ordinal=ordinal,
                tool=name,
                call_digest=short(name, arguments),
                key=keys.call_key("t-1", self.record.turn, ordinal, name, arguments),
                effect=effect,
                arguments=None if is_long else arguments,
                arguments_ref=self.store(arguments) if is_long else None,
                attempt=attempt,
            )
        )

    def keep(self, savepoint: int, fingerprint: str, paths: list[str]) -> None:
        self.emit(SavepointKept(savepoint=savepoint, fingerprint=fingerprint, changed=len(paths), paths=paths))
        self.emit(TurnEnded(outcome="kept"))

    def commit(self, fingerprint: str, paths: list[str]) -> None:
        name = f"t-1-{self.record.savepoint}"
        self.emit(CommitPlanned(commit_id=name, savepoint=self.record.savepoint, fingerprint=fingerprint))
        self.emit(
            Committed(commit_id=name, fingerprint=fingerprint, state_digest=STATE, changed=len(paths), paths=paths)
        )

    def statement(self) -> Statement | Uncertifiable:
        return build_statement(self.task, (*IMPLICIT, *self.task.invariants), self.events, key_id(KEY.public_key()))

    def bundle(self, key: Ed25519PrivateKey = KEY) -> bytes:
        built = self.statement()
        assert isinstance(built, Statement), built
        held = [self.payloads[name] for name in built.payloads]
        return seal(built.predicate, key, self.task.document, built.envelopes, held)


LOOK = ("shell_exec", {"command": "grep -rn parse_timeout src/"})
CHEAT = ("file_edit", {"path": "tests/test_config.py", "old_str": "assert x", "new_str": "assert True"})
OUTSIDE = ("file_edit", {"path": "../etc/passwd", "old_str": "a", "new_str": "b"})
FIX = ("file_edit", PATCH)
CLAIM = ("complete_task", {"summary": "done"})
UNMET = {"done/golden": 2}


def history(*, crash: bool = False) -> Writer:
    """The honest story. ``crash``: the worker died in the third turn and the turn was taken up again."""
    w = Writer(task())
    w.accept()
    w.judge(BASE, {"done/unit": 1, **UNMET}, phase="baseline")
    w.start([LOOK, OUTSIDE])
    w.run(0, *LOOK, "read")
    w.emit(
        Refused(
            ordinal=1,
            tool="file_edit",
            gate="isolation",
            reason="OUTSIDE_WORKSPACE",
            message="'../etc/passwd' leads outside the workspace",
            call_digest=short(*OUTSIDE),
        )
    )
    w.emit(TurnEnded(outcome="unchanged"))
    w.start([CHEAT, CLAIM])
    w.run(0, *CHEAT, "reversible", "tests/test_config.py")
    w.permit(1, *CLAIM, "pure")
    w.judge(BYPASS, {"invariants/tests-untouched": 1, **UNMET}, paths=["tests/test_config.py"])
    w.emit(ClaimRejected(note="not met: done/golden", items=["done/golden"]))
    w.emit(RolledBack(savepoint=0, fingerprint=BASE, reason="invariant", note="rolled back", blocked="sha256:1"))
    w.measure(BASE)
    w.emit(TurnEnded(outcome="rolled_back"))
    w.start([FIX, CLAIM])
    attempt = 1
    if crash:
        w.permit(0, *FIX, "reversible", "src/config.py")
        w.intend(0, *FIX, "reversible")
        w.emit(LeaseClaimed(owner="host:2", fence=2))
        w.emit(RolledBack(savepoint=0, fingerprint=BASE, reason="interrupted"))
        attempt = 2
    w.run(0, *FIX, "reversible", "src/config.py", attempt)
    w.permit(1, *CLAIM, "pure")
    w.judge(FIXED, {})
    w.keep(1, FIXED, ["src/config.py"])
    w.commit(FIXED, ["src/config.py"])
    return w


def loaded(data: bytes) -> dict[str, Any]:
    """A bundle as a plain document."""
    return parse(data[:-1])


def predicate_of(found: dict[str, Any]) -> dict[str, Any]:
    return parse(from_base64(found["envelope"]["payload"]))["predicate"]


def rechain(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make a changed history chain again: what a forger does."""
    prev = ZERO_HASH
    for seq, event in enumerate(events, start=1):
        event["seq"], event["prev"] = seq, prev
        event["hash"] = prev = log.event_hash(event)
    return events


Change = Callable[[dict[str, Any], dict[str, Any]], None]


def forge(data: bytes, change: Change, *, key: Ed25519PrivateKey = KEY, whole: bool = True) -> bytes:
    """Apply ``change(document, predicate)`` and sign anew. ``whole``: also chain anew and restate the log."""
    found = copy.deepcopy(loaded(data))
    predicate = predicate_of(found)
    change(found, predicate)
    if whole:
        rechain(found["events"])
        predicate["log"] = log.head(found["events"])
        restate(found, predicate)
    predicate["keyid"] = key_id(key.public_key())
    held = [from_base64(text) for text in found.get("payloads", {}).values()]
    return bundle.seal(predicate, key, found["task"], found["events"], held)


def restate(found: dict[str, Any], predicate: dict[str, Any]) -> None:
    """Point the stated checks at the evidence as it lies now, as a careful forger would."""
    for part, prefix in (("criteria", "done"), ("invariants", "invariants")):
        for item in predicate[part]:
            for event in found["events"]:
                if event["type"] == "EvidenceRecorded" and event["data"]["check"] == f"{prefix}/{item['id']}":
                    if event["data"]["fingerprint"] != predicate["fingerprint"]:
                        continue
                    item["seq"], item["evidence_digest"] = event["seq"], digest(event["data"])
                    item["verdict"], item["level_reached"] = event["data"]["verdict"], event["data"]["level"]
                    item["check_digest"] = event["data"]["check_digest"]
    for kept in predicate["savepoints"]:
        for event in found["events"]:
            if event["type"] == "SavepointKept" and event["data"]["savepoint"] == kept["savepoint"]:
                kept["seq"] = event["seq"]


def resign(found: dict[str, Any], key: Ed25519PrivateKey) -> bytes:
    """The same statements under another key."""
    for name in ("envelope", "svr"):
        found[name] = dsse.sign(from_base64(found[name]["payload"]), key)
    return canonical(found) + b"\n"


def of_type(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in found["events"] if event["type"] == kind]


__all__ = [name for name in dir() if not name.startswith("_")]
