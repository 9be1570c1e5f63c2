"""A. Declarative reconciliation: the ways to the desired state do not matter, and a proposal alone does nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec
import pytest
from tests.engine.harness import STREAM, Rig, criterion, holds, make_task

from setpoint.engine import reconcile
from setpoint.engine.reading import read_record
from setpoint.kernel.contract import Budget, Policy
from setpoint.kernel.errors import LogCorrupt
from setpoint.kernel.events import CheckpointWritten, ModelReplied, SavepointKept, ToolIntent
from setpoint.ports.log import Checkpoint
from setpoint.testing import Crash, CrashingLog, ScriptedReplies, call, reply

DESIRED = {"src/a": "1", "src/b": "2", "src/c": "3"}
EDITS = {path: reply(call("file_write", path=path, content=text)) for path, text in DESIRED.items()}
CHECKS = {f"done/{path[-1]}": holds(path, text) for path, text in DESIRED.items()}
THREE = make_task(done=tuple(criterion(path[-1]) for path in DESIRED))


@pytest.mark.parametrize(
    "start",
    [{}, {"src/a": "0"}, {"src/a": "1", "src/b": "9"}, {"src/c": "3", "src/b": "\x00"}, DESIRED],
    ids=["empty", "one-wrong", "one-right", "binary", "there-already"],
)
def test_five_different_starts_end_in_the_same_state(start: dict[str, str]) -> None:
    """R004: observe, delta, propose, validate, apply, observe again, until nothing is left."""
    rig = Rig([ScriptedReplies(list(EDITS.values()))], checks=CHECKS, task=THREE, files=start)
    record = rig.start()
    assert (record.state, record.finished_code, record.items) == ("COMPLETED", 0, ())
    assert rig.workspace.user == {path: text.encode() for path, text in DESIRED.items()}
    reference = Rig([ScriptedReplies([])], checks=CHECKS, task=THREE, files=DESIRED)
    assert record.state_digest == reference.start().state_digest


@pytest.mark.parametrize("order", list(itertools.permutations(DESIRED)))
@pytest.mark.parametrize("detours", [0, 1, 2])
def test_neither_order_nor_number_of_mutations_changes_where_it_ends(order: tuple[str, ...], detours: int) -> None:
    """R006: every order of the edits, each after ``detours`` wrong ones."""
    script = [
        step
        for n, path in enumerate(order)
        for step in (*(_wrong(path, n, detour) for detour in range(detours)), EDITS[path])
    ]
    rig = Rig(
        [ScriptedReplies(script)],
        checks=CHECKS,
        task=replace(THREE, policy=Policy(stall_after=9)),
        files={"src/a": "0"},
    )
    record = rig.start()
    assert record.state == "COMPLETED" and record.turn == 3 * (1 + detours)
    assert rig.workspace.user == {path: text.encode() for path, text in DESIRED.items()}


def _wrong(path: str, n: int, detour: int):
    return reply(call("file_write", path=path, content=f"wrong {n} {detour}"))


def test_a_proposal_whose_owner_dies_before_the_gate_has_touched_nothing() -> None:
    """R009: the reply is stored, the process is gone, and tree and staging are as before; it is then ruled on once."""
    whole = Rig([ScriptedReplies([EDITS["src/a"]])])
    whole.start()
    stored = whole.types().index("ModelReplied") + 1
    rig = Rig([ScriptedReplies([EDITS["src/a"]])], wrap=lambda log: CrashingLog(log, stored))
    with pytest.raises(Crash):
        rig.start()
    assert rig.types()[-1] == "ModelReplied" and rig.events(ToolIntent) == []
    assert rig.workspace.user == rig.workspace.base == rig.workspace.reopened().candidate
    assert rig.sandbox.ran == []
    rig.log = rig.store
    assert rig.resume().state == "COMPLETED"
    assert len(rig.proposers[0].contexts) == len(rig.events(ModelReplied)) == 1, "and the model is not asked again"


# Checkpoints


@pytest.fixture
def checkpointed(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A trajectory that ran out of turns, with a checkpoint every second turn."""
    monkeypatch.setattr(reconcile.limits, "CHECKPOINT_EVERY_TURNS", 2)
    script = [reply(call("file_write", path="src/b", content=str(n))) for n in range(9)]
    budget = Budget(turns=5, on_exceed="pause")
    rig = Rig([ScriptedReplies(script)], task=make_task(budget=budget, policy=Policy(stall_after=9)))
    assert rig.start().state == "PAUSED"
    assert len(rig.events(CheckpointWritten)) == 2
    return rig


def _damaged(found: Checkpoint, how: str) -> Checkpoint:
    match how:
        case "cut":
            return replace(found, record=found.record[: len(found.record) // 2])
        case "no-text":
            return replace(found, record=b"\xff\x00" + found.record[2:])
        case "of-another":
            return replace(found, record=found.record.replace(STREAM.encode(), b"tr-2"))
        case "of-another-position":
            return replace(found, record=msgspec.json.encode({**msgspec.json.decode(found.record), "seq": 3}))
        case _:
            return replace(found, hash="sha256:" + "e" * 64)


@pytest.mark.parametrize("how", ["cut", "no-text", "of-another", "of-another-position", "moved"])
def test_a_damaged_checkpoint_is_passed_over_and_the_log_gives_the_same_record(checkpointed: Rig, how: str) -> None:
    """R015: the state after is that of the log, and the pursuit goes on from the last kept savepoint."""
    before, head = read_record(checkpointed.store, STREAM)
    held = checkpointed.store._streams[STREAM]
    assert held.checkpoint is not None
    held.checkpoint = _damaged(held.checkpoint, how)
    assert read_record(checkpointed.store, STREAM) == (before, head)
    assert before.savepoint == checkpointed.events(SavepointKept)[-1].savepoint == 5
    checkpointed.ask("cancel")
    assert checkpointed.resume().state == "CANCELLED"


def test_a_checkpoint_beyond_the_end_of_the_log_says_that_events_are_missing(checkpointed: Rig) -> None:
    """R015, L3: that is no damaged checkpoint but a log that was cut, and nothing goes on over it."""
    held = checkpointed.store._streams[STREAM]
    assert held.checkpoint is not None
    held.checkpoint = replace(held.checkpoint, seq=held.head.seq + 1)
    with pytest.raises(LogCorrupt, match="ends before its checkpoint"):
        read_record(checkpointed.store, STREAM)
