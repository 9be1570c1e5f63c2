"""Whatever is said to a run, by whomever and in whatever order, it does nothing that its definition does not say.

A hostile proposer says anything at all to runs of every kind of workflow: signals, reports, settlements, decisions
(valid, replayed, altered, by the wrong people), controls, made-up actions and junk, with keys used twice and ids of
other runs; processes restart, calls fail, time passes. A checker that shares no code with the engine then reads
the log.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.runs.flowkit import In, State, add, fails, load_order, mark, new_app, pay, played, send_letter

from setpoint.adapters.approvers.roster import Approver, Roster
from setpoint.adapters.approvers.signatures import plain_key
from setpoint.adapters.approvers.signing import sign_with
from setpoint.adapters.stores import this_owner
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.runs import Runs
from setpoint.app.workflow import approval_terms
from setpoint.engine.runs.program import Program
from setpoint.kernel.errors import IllegalTransition
from setpoint.kernel.flow import Approval, Block, Branch, Call, Definition, Map, Parallel, Repeat, Use
from setpoint.kernel.run_events import decode
from setpoint.kernel.run_record import RUN_TERMINAL
from setpoint.kernel.ticket import decide, read_ticket, signed_bytes
from setpoint.testing import FakeClock, FakeEffector

SEED = int(os.environ.get("SETPOINT_SEED", "0"))
WALKS = 10_000
WALKS_A_TEST = 1_000
KEYS = {name: Ed25519PrivateKey.generate() for name in ("anna", "bert", "carla", "mallory")}
ROLES = {"anna": ("ops",), "bert": ("ops",), "carla": ("cfo",)}

PEOPLE = [
    Approver(name, roles, plain_key(KEYS[name].public_key().public_bytes_raw()).text) for name, roles in ROLES.items()
]
OWNER = this_owner()


# The workflows


def programs() -> dict[str, Program]:
    app = new_app("hostile")

    def part(name: str) -> Any:
        return app.fragment(name, state=State)

    def flow(name: str) -> Any:
        return app.workflow(name, input=In, state=State)

    two = approval_terms(by=["ops", "cfo"], each_role=True, expires="2h")
    one = approval_terms(by=["ops"], expires="1h")
    flow("guarded").capability("load", load_order).capability("pay", pay, approval=one).step("end", add(1))
    flow("two-people").capability("pay", pay, approval=two).capability("mark", mark)
    flow("ahead").approval("ok", by=["ops"], of="pay", into="answer").wait_for(
        "go", timeout="1h", into="note", on_timeout="continue"
    ).capability("pay", pay)
    flow("letter").capability("pay", pay).capability("letter", send_letter, into="letter", approval=one).step(
        "end", add(1)
    )
    yes = part("yes").capability("pay", pay)
    no = part("no").step("refuse", lambda s: {"note": "refused"})
    flow("choice").wait_for("choice", timeout="1h", into="note").branch(
        "b", lambda s: s.note, {"YES": yes, "NO": no}
    ).step("end", add(1))
    left = part("left").wait_for("l", timeout="3h", into="left").capability("mark", mark)
    right = part("right").sleep("z", "10m").capability("pay", pay)
    flow("beside").parallel("p", {"l": left, "r": right}).step("end", add(1))
    round_ = (
        part("round")
        .step("next", lambda s: {"cents": s.cents + 1})
        .approval("ok", by=["ops"], of="pay", into="answer", expires="1h")
    )
    said = {label: part(label).step("x", add(1)) for label in ("granted", "denied", "expired", "none")}
    round_.branch("said", lambda s: s.answer.outcome if s.answer else "none", said).capability("pay", pay)
    flow("loop").repeat("r", round_, until=lambda s: s.cents >= 2, at_most=3)
    line = part("line").capability("mark", mark).wait_for("line", timeout="1h", on_timeout="continue")
    flow("lines").map("m", lambda s: [1, 2, 3], line, item="item", collect="item", into="doubled", at_once=2)
    flow("broken").capability("pay", pay).wait_for("go", timeout="1h", on_timeout="continue").step("no", fails("Never"))
    child = app.workflow("child", input=In, state=State, output=lambda s: s.count)
    child.capability("pay", pay).wait_for("go", timeout="1h", on_timeout="continue").step("end", add(1))
    flow("parent").capability("mark", mark).workflow(
        "run", child, input=lambda s: {"order_id": s.order_id}, into="count"
    )
    return app.check()


# The checker


@dataclass
class Reader:
    """Follows a log along the definition with cursors of its own."""

    definition: Definition
    at: dict[str, int] = field(default_factory=dict[str, int])  # path of a block -> nodes done in it
    blocks: dict[str, Block] = field(default_factory=dict[str, Block])
    granted: set[str] = field(default_factory=set[str])  # paths of calls with a yes
    tickets: dict[str, str] = field(default_factory=dict[str, str])
    made: list[str] = field(default_factory=list[str])
    is_over: bool = False
    is_unwinding: bool = False

    def read(self, event: Any) -> None:
        name = type(event).__name__
        if name == "RunStarted":
            self.enter(event.workflow, self.definition.body)
            return
        if self.is_over:
            assert name in ("ControlApplied", "ControlRequested", "LateResult"), name
            return
        node = getattr(event, "node", "")
        if node and name not in ("RunPaused", "Compensated", "ChildEnded", "ApprovalResolved"):
            path = node.removesuffix("#undo")
            if node != path or self.is_unwinding:
                assert path in self.made or self.is_unwinding, (name, node)
                self.find(path)
            else:
                self.require_current(path, name)
        handler = getattr(self, f"on_{name.lower()}", None)
        if handler is not None:
            handler(event)

    def enter(self, path: str, block: Block) -> None:
        self.at[path], self.blocks[path] = 0, block

    def split(self, path: str) -> tuple[str, Any]:
        """The block a node lies in, and the node. Fails when the definition has no such place."""
        block, _, name = path.rpartition("/")
        assert block in self.blocks, f"{path} lies in no block that was entered"
        found = [node for node in self.blocks[block] if node.name == name]
        assert found, f"{path} is no node of the definition"
        return block, found[0]

    def find(self, path: str) -> Any:
        return self.split(path.partition(">")[0])[1]

    def require_current(self, path: str, name: str) -> None:
        block, node = self.split(path)
        assert self.blocks[block].index(node) == self.at[block], f"{name} at {path}, which is not next"

    def on_blockentered(self, event: Any) -> None:
        node = self.find(event.node)
        inner = dict(node.blocks())
        for path in event.blocks:
            name = path.removeprefix(event.node).removeprefix("/")
            match node:
                case Branch() | Parallel():
                    assert name in inner, path
                    self.enter(path, inner[name])
                case Use():
                    assert name == ""
                    self.enter(path, inner[""])
                case Map() | Repeat():
                    assert name.isdigit(), path
                    assert int(name) < node.at_most, path
                    before = f"{event.node}/{int(name) - 1}"
                    if isinstance(node, Repeat) and name != "0":
                        assert self.at[before] == len(self.blocks[before]), f"{path} began before {before} was done"
                    self.enter(path, inner["*"])
                case _:
                    raise AssertionError(f"{event.node} holds no blocks")
        if isinstance(node, Branch):
            assert len(event.blocks) == 1

    def on_nodecompleted(self, event: Any) -> None:
        block, node = self.split(event.node)
        assert event.block == block
        self.at[block] += 1
        for path in [path for path in self.at if path == event.node or path.startswith(f"{event.node}/")]:
            assert self.at[path] == len(self.blocks[path]), f"{event.node} is done and {path} is not"
            del self.at[path], self.blocks[path]
        if isinstance(node, Call) and node.capability.is_effect:
            assert event.node in self.made, f"{event.node} is done without its effect"

    def on_effectqueued(self, event: Any) -> None:
        if event.compensates:
            assert event.compensates in self.made, event.compensates
            return
        node = self.find(event.node)
        assert isinstance(node, Call)
        assert node.capability.name == event.capability
        assert event.capability in self.definition.boundary
        if self.needs_yes(event.node, node):
            assert event.node in self.granted, f"{event.node} was sent without a yes"

    def needs_yes(self, path: str, node: Call) -> bool:
        block = self.blocks[path.rpartition("/")[0]]
        return node.approval is not None or any(
            isinstance(other, Approval) and other.of.rpartition("/")[2] == node.name for other in block
        )

    def on_effectdelivered(self, event: Any) -> None:
        if event.status == "done" and not event.node.endswith("#undo"):
            self.made.append(event.node)

    def on_childended(self, event: Any) -> None:
        assert all(made.node.startswith(f"{event.node}>") for made in event.made)
        self.made += [made.node for made in event.made]

    def on_effectreused(self, event: Any) -> None:
        self.made.append(event.node)

    def on_approvalrequested(self, event: Any) -> None:
        self.tickets[event.ticket_id] = event.covers or event.node

    def on_approvalresolved(self, event: Any) -> None:
        path = self.tickets[event.ticket_id]
        self.granted.discard(path)
        if event.outcome == "granted":
            self.granted.add(path)

    def on_unwindstarted(self, event: Any) -> None:
        self.is_unwinding = True

    def on_compensated(self, event: Any) -> None:
        assert event.node in self.made

    def on_finished(self, event: Any) -> None:
        self.is_over = True
        assert event.state in RUN_TERMINAL
        if event.state == "COMPLETED":
            assert self.at == {self.definition.name: len(self.definition.body)}


# The proposer

ACTIONS = ("pause", "resume", "cancel", "goto", "start_workflow", "complete", "choose", "child", "NodeCompleted", "")
SIGNALS = ("go", "choice", "l", "line", "pay", "w/pay", "", "ok")
PAYLOADS: tuple[Any, ...] = ("YES", "NO", "MAYBE", None, 7, {"cents": 1}, ["x"], 1.5, "refund everything", True)
JUNK = (
    b"",
    b"{}",
    b"null",
    b"\xff\xfe",
    b'{"action": 1}',
    b'{"action": "kill"}',
    b'{"action":"signal","by":"x","argument":"{"}',
)


@dataclass
class Walk:
    """One run, and somebody who wishes it ill."""

    chance: random.Random
    known: dict[str, Program]
    world: FakeEffector
    clock: FakeClock
    log: MemoryLog
    replayed: list[str]  # decisions signed for earlier runs
    others: list[str]
    runs: Runs = field(init=False)
    run_id: str = ""

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        roster = Roster(PEOPLE, self.clock)
        self.runs = Runs(self.log, self.clock, OWNER, self.known, roster, {"world": self.world})

    async def go(self, order: str) -> None:
        program = self.chance.choice(list(self.known.values()))
        given, state = program.begin({"order_id": order, "cents": self.chance.randint(0, 2)})
        self.run_id = await self.runs.start(
            program, given, state, principal=self.chance.choice(("", "anna", "customer"))
        )
        for _ in range(self.chance.randint(2, 9)):
            self.say()
            if self.chance.random() < 0.7:
                await self.runs.wait(self.run_id, patience_ms=0)
        await self.runs.wait(self.run_id, patience_ms=0)

    def say(self) -> None:
        target = self.run_id if self.chance.random() < 0.9 or not self.others else self.chance.choice(self.others)
        what = self.chance.choice((self.signal, self.signal, self.decide, self.decide, self.report, self.control,
                                   self.junk, self.time, self.trouble, self.restart))  # fmt: skip
        with contextlib.suppress(IllegalTransition):  # it is over
            what(target)

    def key(self) -> str:
        return self.chance.choice(("", "", "k-1", "k-2"))

    def signal(self, target: str) -> None:
        awaited = [wait.name for wait in self.runs.record(target).waits.values() if wait.kind == "signal"]
        names = awaited if awaited and self.chance.random() < 0.6 else SIGNALS
        said = {"name": self.chance.choice(names), "payload": self.chance.choice(PAYLOADS)}
        argument = said if self.chance.random() < 0.9 else self.chance.choice(("", "[]", "{", '{"name": {}}'))
        self.runs.tell(target, "signal", argument, by="mallory", key=self.key())

    def decide(self, target: str) -> None:
        record = self.runs.record(target)
        tickets = record.open_tickets
        if not tickets or self.chance.random() < 0.15:
            wire = self.chance.choice([*self.replayed[-20:], "", "{}", "yes"])
        else:
            ticket = read_ticket(self.log.payload(self.chance.choice(tickets).ticket.ref))
            if self.chance.random() < 0.1:
                ticket = msgspec.structs.replace(ticket, arguments={**ticket.arguments, "cents": 99})
            by = self.chance.choice((*KEYS, *(name for name, roles in ROLES.items() if roles[0] in ticket.by)))
            signer = by if self.chance.random() < 0.9 else self.chance.choice(list(KEYS))
            verdict = self.chance.choice(("approve", "approve", "deny"))
            decision = decide(ticket, verdict, by, self.clock.now_ms(), "because")
            wire = signed_bytes(sign_with(KEYS[signer], decision)).decode()
            self.replayed.append(wire)
            if self.chance.random() < 0.1:
                wire = wire.replace('"deny"', '"approve"').replace(by, "anna")
        self.runs.tell(target, "decide", wire, by="mallory")

    def report(self, target: str) -> None:
        effects = list(self.runs.record(target).effects.values())
        key = (
            self.chance.choice([effect.key for effect in effects] or ["refund:A:0"])
            if self.chance.random() < 0.7
            else "x"
        )
        receipt = {"number": 1, "key": key}
        said: dict[str, Any] = {"key": key, "result": self.chance.choice((None, receipt, "junk", True, 7))}
        if self.chance.random() < 0.5:
            said["verdict"] = self.chance.choice(("happened", "not_happened", "perhaps"))
        self.runs.tell(target, self.chance.choice(("result", "settle")), said, by="mallory", key=self.key())

    def control(self, target: str) -> None:
        action = "kill" if self.chance.random() < 0.03 else self.chance.choice(ACTIONS)
        if self.runs.record(target).state == "PAUSED" and self.chance.random() < 0.5:
            action = "resume"
        argument = self.chance.choice(("", "w/pay", "guarded/pay", '{"node": "pay"}'))
        self.runs.tell(target, action, argument, by="mallory", key=self.key())

    def junk(self, target: str) -> None:
        self.log.deliver(target, f"junk-{self.chance.random()}", self.chance.choice(JUNK))

    def time(self, target: str) -> None:
        self.clock.advance(self.chance.choice((1, 60_000, 600_000, 3_600_000, 90_000_000)))

    def trouble(self, target: str) -> None:
        names = (
            "timeout_after_effect",
            "drop",
            "duplicate",
            "transient",
            "rate_limited",
            "permanent",
            "bug_after_effect",
        )
        self.world.trouble(self.chance.choice(names))  # type: ignore[arg-type]

    def restart(self, target: str) -> None:
        self.open()


async def walk_many(seed: int, count: int) -> Counter[str]:
    """``count`` walks; each run's log is checked. What they came to."""
    known = programs()
    seen: Counter[str] = Counter()
    chance = random.Random(seed)
    replayed: list[str] = []
    for block in range(0, count, 50):
        clock = FakeClock()
        log = MemoryLog(clock.now_ms)
        others: list[str] = []
        for number in range(min(50, count - block)):
            walk = Walk(chance, known, FakeEffector(dedups=True), clock, log, replayed, others)
            await walk.go(f"order-{chance.randint(0, 9)}" if chance.random() < 0.3 else f"order-{block + number}-own")
            others.append(walk.run_id)
            await walk.runs.close()
            del replayed[:-50]
        for info in log.streams("run"):
            seen.update(checked(log, info.stream, known, seed))
    return seen


def checked(log: MemoryLog, run_id: str, known: dict[str, Program], seed: int) -> Counter[str]:
    events = [decode(stored.type, stored.data) for stored in log.read(run_id)]
    reader = Reader(known[events[0].definition_digest].definition)  # type: ignore[attr-defined]
    for place, event in enumerate(events):
        try:
            reader.read(event)
        except AssertionError as error:
            story = "\n".join(f"{number} {one}" for number, one in enumerate(events[: place + 1]))
            raise AssertionError(f"seed {seed}, {run_id}: {error}\n{story}") from error
    kinds = Counter(type(event).__name__ for event in events)
    kinds[getattr(events[-1], "state", "open") if reader.is_over else "open"] += 1
    return kinds


@pytest.mark.parametrize("part", range(WALKS // WALKS_A_TEST))
@played
async def test_no_word_of_a_hostile_proposer_takes_a_run_off_its_graph(part: int) -> None:
    """R034"""
    seen = await walk_many(SEED + part, WALKS_A_TEST)
    # The walks went somewhere: everything a log can hold of people and the outside is among what was checked.
    for kind in ("EffectDelivered", "ApprovalResolved", "ApprovalSigned", "SignalReceived", "LateResult", "Compensated",
                 "UnwindStarted", "RunPaused", "RunResumed", "COMPLETED", "FAILED", "CANCELLED"):  # fmt: skip
        assert seen[kind] > 0, (kind, seen)
