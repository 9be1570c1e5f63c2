"""C and D. The proposer gets data and gives data; the parts of the system are each replaceable."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.harness import STREAM, Rig, criterion, holds, invariant, make_task

from setpoint.adapters.proposers.scripted import ScriptedProposer
from setpoint.adapters.stores.export import envelope_line, export_lines, verify_lines
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.engine.reading import apply, read_record
from setpoint.kernel import delta
from setpoint.kernel.contract import Goal, Task
from setpoint.kernel.errors import ProposerFault
from setpoint.kernel.events import (
    ContextBuilt,
    EvidenceRecorded,
    RolledBack,
    SavepointKept,
    ToolResult,
    TurnEnded,
    TurnStarted,
)
from setpoint.kernel.evidence import Evidence
from setpoint.kernel.proposal import RawCall, Reply
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.phases.p4_dispatch.outcome import Outcome, completed
from setpoint.phases.p4_dispatch.run import dispatch
from setpoint.phases.p6_verdict import completion
from setpoint.ports.log import Stored
from setpoint.ports.proposer import Context, Proposer
from setpoint.ports.verifier import Verifier
from setpoint.testing import FakeClock, FixedVerifier, ReplyProposer, ScriptedReplies, call, claim, reply

PLAIN = (str, bytes, int, float, bool, type(None))
MENDED = reply(call("file_write", path="src/a", content="1"))


def write(path: str, content: str, *more: RawCall) -> Reply:
    return reply(call("file_write", path=path, content=content), *more)


# Zero authority


def reachable(value: object) -> Iterator[object]:
    """Everything that can be reached from a value by its fields and members."""
    yield value
    if dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from reachable(getattr(value, each.name))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from reachable(key)
            yield from reachable(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from reachable(inner)


def test_a_proposer_is_given_data_and_gives_data() -> None:
    """R064: nothing in a context, and nothing in a reply, is a handle: no file, process, socket, clock, function."""
    rig = Rig([ScriptedReplies([write("src/b", "x", claim()), MENDED])])
    rig.start()
    for shown in [*rig.proposers[0].contexts, MENDED]:
        for found in reachable(shown):
            assert isinstance(found, PLAIN) or type(found) in (tuple, list, dict) or dataclasses.is_dataclass(found)
            assert not callable(found) and not isinstance(found, (io.IOBase, os.PathLike))


def test_a_proposer_is_asked_by_one_method_with_a_context_and_a_deadline() -> None:
    """R064: and an adapter that plays a script keeps nothing but the script."""
    hints = typing.get_type_hints(Proposer.propose)
    assert hints == {"context": Context, "deadline_ms": int, "return": Reply}


def test_the_scripted_adapter_keeps_a_name_a_script_and_its_limits(tmp_path: Path) -> None:
    """R064"""
    (tmp_path / "script.yaml").write_text("proposals: [{text: nothing}]\n")
    adapter = ScriptedProposer("scripted:script.yaml", tmp_path / "script.yaml")
    assert set(vars(adapter)) == {"route", "limits", "_path", "_script"}


# The trajectory as an object


@pytest.fixture
def told() -> Rig:
    """Five turns: a look, a bypass that is rolled back, a detour, a refusal, the mend."""
    rig = Rig(
        [
            ScriptedReplies(
                [
                    reply(call("shell_exec", command="look")),
                    write("tests/t", "pass", claim()),
                    write("src/b", "x"),
                    reply(call("no_such_tool")),
                    write("src/a", "1", claim()),
                ]
            )
        ],
        task=make_task(invariants=(invariant("tests"),)),
        checks={"done/unit": holds("src/a", "1"), "invariants/tests": holds("tests/t", "assert a == 1")},
        commands={"look": lambda: (0, "seen")},
    )
    assert rig.start().state == "COMPLETED"
    return rig


def test_a_trajectory_goes_out_as_lines_and_comes_back_the_same(told: Rig) -> None:
    """R082: exported, verified from the lines alone, taken in: the same events, record and number of turns."""
    lines = [envelope_line(stored) for stored in told.store.read(STREAM)]
    assert [line + b"\n" for line in lines] == list(export_lines(told.store, STREAM))
    assert verify_lines(lines) == told.store.head(STREAM)
    again = read_record(told.store, STREAM)[0].__class__(trajectory_id=STREAM)
    for line in lines:
        envelope = msgspec.json.decode(line)
        data = msgspec.json.encode(envelope.pop("data"), order="sorted")
        again = apply(again, Stored(**envelope, data=data))
    assert again == told.record
    assert len(told.events(TurnStarted)) == len(told.events(TurnEnded)) == again.turn == 5


def test_every_turn_holds_its_action_its_observation_and_its_evidence_in_order(told: Rig) -> None:
    """R082, R111: the tuples (a, o, v); no evidence where nothing changed; a roll-back leads back to its savepoint."""
    tuples = {
        turn: [name for name in told.types(turn) if name in ("ToolIntent", "Refused", "ToolResult", "EvidenceRecorded")]
        for turn in range(1, 6)
    }
    assert tuples[1] == ["ToolIntent", "ToolResult"] and tuples[4] == ["Refused"]
    for turn in (2, 3, 5):
        assert tuples[turn][:2] == ["ToolIntent", "ToolResult"] and set(tuples[turn][2:]) == {"EvidenceRecorded"}
    assert [event.savepoint for event in told.events(SavepointKept)] == [1, 2]
    (back,) = told.events(RolledBack)
    assert back.savepoint == 0 and "SavepointKept" not in told.types(2), "an edge back to the base"


# The system tuple


class _Widened(FixedVerifier):
    """Passes everything, whatever was asked of it."""

    async def judge(self, check: Any, candidate: Any, baseline_counts: Any) -> Evidence:
        self.verdicts[check.address] = "pass"
        return await super().judge(check, candidate, baseline_counts)


def _plain() -> Rig:
    return Rig([ScriptedReplies([MENDED])])


def _other_policy() -> Rig:
    return Rig([ReplyProposer([MENDED])])


def _other_harness() -> Rig:
    async def body(permit: Any, bench: Any, wall_ms: int) -> Outcome:
        bench.workspace.write("src/a", b"1")
        return completed("done by another dispatcher")

    return Rig([ScriptedReplies([reply(call("shell_exec", command="whatever"))])], dispatch=body)


def _other_environment() -> Rig:
    return Rig([ScriptedReplies([MENDED])], files={f"src/{n}": str(n) for n in range(50)})


def _other_memory() -> Rig:
    return Rig([ScriptedReplies([MENDED])], wrap=_Passing)


class _Passing:
    """Another log: hands everything on, and is no MemoryLog."""

    def __init__(self, inner: MemoryLog) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize(
    "made",
    [_plain, _other_policy, _other_harness, _other_environment, _other_memory],
    ids=["none", "policy", "harness", "environment", "memory"],
)
def test_each_part_is_replaced_without_touching_another(made: Callable[[], Rig]) -> None:
    """R083: policy, harness, environment, memory; the verifier below."""
    rig = made()
    record = rig.start()
    assert (record.state, rig.workspace.user["src/a"]) == ("COMPLETED", b"1")


def test_another_verifier_is_believed_as_the_first_one_was() -> None:
    """R083: what counts as met is the verifier's word alone."""
    rig = _plain()
    rig.verifier = _Widened()  # type: ignore[assignment]
    assert rig.start().state == "COMPLETED" and rig.record.turn == 0


def test_the_same_trajectory_over_sqlite(tmp_path: Path) -> None:
    """R083: memory on a disk; the record read back is the one that was folded."""
    rig = _plain()
    clock = FakeClock()
    rig.store = SqliteLog(str(tmp_path / "log.db"), clock.now_ms)  # type: ignore[assignment]
    rig.log = rig.store
    record = rig.start()
    assert record.state == "COMPLETED" and rig.record == record
    asyncio.run(rig.store.close())


def test_the_goal_stays_as_it_was_accepted() -> None:
    """R084: an attempt to change it is an error, and every context refers to the same text."""
    task = make_task()
    for change in (lambda: setattr(task, "goal", Goal("another")), lambda: setattr(task.goal, "text", "another")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert all(parameters.frozen for parameters in _parameters(Task))
    rig = Rig([ScriptedReplies([write("src/b", "x"), MENDED])], task=task)
    rig.start()
    assert len({part.digest for event in rig.events(ContextBuilt) for part in event.parts if part.name == "goal"}) == 1


def _parameters(type_: Any) -> Iterator[Any]:
    yield type_.__dataclass_params__
    for hint in typing.get_type_hints(type_).values():
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part):
                yield from _parameters(part)


# Dispatch, observation, evidence


@pytest.mark.parametrize(
    ("made", "text", "after"),
    [
        (call("shell_exec", command="look"), "seen", {}),
        (call("shell_exec", argv=["look", "closely"]), "closely", {}),
        (call("file_read", path="src/a"), "0", {}),
        (call("file_edit", path="src/a", old_str="0", new_str="1"), "edited src/a at line 1", {"src/a": b"1"}),
        (call("file_write", path="src/new", content="new"), "wrote 3 bytes to src/new", {"src/new": b"new"}),
    ],
    ids=["shell", "argv", "read", "edit", "write"],
)
def test_each_built_in_backend_runs_its_permit(made: RawCall, text: str, after: dict[str, bytes]) -> None:
    """R088, R098, R113: each ends COMPLETED with an exit code and its text, within the limits of the contract."""
    seen: list[tuple[int, dict[str, bytes]]] = []

    async def watched(permit: Any, bench: Any, wall_ms: int) -> Outcome:
        outcome = await dispatch(permit, bench, wall_ms)
        seen.append((wall_ms, rig.workspace.candidate))
        return outcome

    commands = {"look": lambda: (0, "seen"), "look closely": lambda: (0, "closely")}
    rig = Rig([ScriptedReplies([reply(made)])], commands=commands, dispatch=watched)
    rig.start()
    (result,) = rig.events(ToolResult)
    assert (result.status, result.exit_code, result.text) == ("COMPLETED", 0, text)
    ((wall_ms, candidate),) = seen
    assert 0 < wall_ms <= rig.task.budget.wall_ms
    assert candidate == {**rig.workspace.base, **after}


def test_a_tool_of_the_hosts_own_is_dispatched_like_a_built_in_one() -> None:
    """R088: another backend is a body beside the built-in ones."""
    import types

    from setpoint.kernel.proposal import Call

    async def fetch(permit: Any) -> Outcome:
        return completed("fetched")

    permit = types.SimpleNamespace(call=Call(0, "fetch", {}, ""), path=None)
    bench = types.SimpleNamespace(extra={"fetch": fetch})
    assert asyncio.run(dispatch(permit, bench, 1000)).text == "fetched"  # type: ignore[arg-type]


def test_the_built_in_actions_are_the_six_of_the_manual() -> None:
    """R113: each closed, with its arguments typed."""
    assert list(BUILTIN) == ["shell_exec", "file_read", "file_edit", "file_write", "ask_operator", "complete_task"]
    for tool in BUILTIN.values():
        assert tool.spec.schema["type"] == "object" and tool.spec.schema["additionalProperties"] is False
        assert all("type" in rules for rules in tool.spec.schema["properties"].values())


@pytest.mark.parametrize(
    ("old", "content", "said"),
    [
        ("absent", "one one", "does not occur"),
        ("one", "one one", "occurs 2 times"),
        ("aa", "aaa", "occurs 2 times"),
        ("two", "one two", None),
    ],
)
def test_an_edit_replaces_exactly_one_occurrence_or_nothing(old: str, content: str, said: str | None) -> None:
    """R097: an absent or ambiguous old text is an answer with exit code 1, and the file stays."""
    edit = reply(call("file_edit", path="src/a", old_str=old, new_str="new"))
    rig = Rig([ScriptedReplies([edit])], files={"src/a": content}, checks={"done/unit": holds("src/a", "one new")})
    rig.start()
    (result,) = rig.events(ToolResult)
    if said is None:
        assert result.exit_code == 0 and rig.workspace.user["src/a"] == b"one new"
        return
    assert result.exit_code == 1 and said in result.text and "Nothing was changed" in result.text
    assert rig.workspace.candidate["src/a"] == content.encode() and rig.events(SavepointKept) == []


def test_an_observation_has_status_code_both_streams_size_and_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """R089: one envelope; the exact difference is an event of its own."""
    from hashlib import sha256

    from setpoint.ports.sandbox import Captured, Finished

    def captured(data: bytes) -> Captured:
        return Captured(data, len(data), sha256(data).hexdigest(), False)

    rig = Rig([ScriptedReplies([reply(call("shell_exec", command="make")), MENDED])])

    async def run(action: Any) -> Finished:
        return Finished(2, None, "", captured(b"out\n"), captured(b"err\n"), 7)

    monkeypatch.setattr(rig.sandbox, "run", run)
    rig.start()
    result = rig.events(ToolResult)[0]
    assert (result.status, result.exit_code, result.duration_ms, result.output_bytes) == ("COMPLETED", 2, 7, 8)
    assert result.text == "out\n[stderr]\nerr\n" and len(result.output_sha256) == 32
    assert "ChangesObserved" in rig.types(2) and "changes" not in ToolResult.__struct_fields__


@pytest.mark.parametrize("cause", ["wall", "cpu", "memory", "output", "killed", "cancelled", "sandbox"])
def test_each_way_a_transport_fails_has_the_same_status_and_its_own_reason(
    cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R101: time, a limit, a signal, a sandbox that died: no exit code, and the model is told which."""
    from setpoint.kernel.errors import SandboxFault
    from setpoint.ports.sandbox import Captured, Finished

    rig = Rig([ScriptedReplies([reply(call("shell_exec", command="make")), MENDED])])
    nothing = Captured(b"", 0, "", False)

    async def run(action: Any) -> Finished:
        if cause == "sandbox":
            raise SandboxFault("the keeper died")
        return Finished(None, 9, cause, nothing, nothing, 5)

    monkeypatch.setattr(rig.sandbox, "run", run)
    assert rig.start().state == "COMPLETED"
    result = rig.events(ToolResult)[0]
    assert (result.status, result.reason, result.exit_code) == ("TRANSPORT_FAILURE", cause, None)
    assert 'status="TRANSPORT_FAILURE"' in rig.prompt(1)


def test_an_observation_cannot_stand_where_evidence_is_asked_for() -> None:
    """R090: an outcome has no level, verdict or fingerprint; no verifier sees one and no verdict takes one."""
    asked = {name for name in vars(delta.Judged) if not name.startswith("_")}
    assert asked <= {"level", "verdict", "fingerprint", "distance", "reason"}
    assert {"level", "verdict", "fingerprint"}.isdisjoint({f.name for f in dataclasses.fields(Outcome)})
    assert {"level", "verdict", "fingerprint"}.isdisjoint(ToolResult.__struct_fields__)
    assert {"level", "verdict", "fingerprint"} <= {f.name for f in dataclasses.fields(Evidence)}
    takers = [Verifier.judge, delta.measure, completion.decide, completion.corrective_note]
    for taker in takers:
        hints = set(map(str, typing.get_type_hints(taker).values()))
        assert not [hint for hint in hints if "Outcome" in hint or "ToolResult" in hint], (taker, hints)


def test_an_exit_code_of_zero_is_no_evidence() -> None:
    """R090: a command that says all is well leaves the delta where it was; only the verifier's run counts."""
    rig = Rig(
        [ScriptedReplies([reply(call("shell_exec", command="pytest"), claim())])],
        commands={"pytest": lambda: (0, "1 passed")},
    )
    record = rig.start()
    assert rig.events(ToolResult)[0].exit_code == 0
    assert record.state == "FAILED" and [item.address for item in record.items] == ["done/unit"]
    assert {event.check for event in rig.events(EvidenceRecorded)} >= {"done/unit"}
    assert rig.certified == 0


# How a reply ends


@pytest.mark.parametrize(
    ("said", "outcome", "dispatched"),
    [
        (reply(text="all done", stop="end_turn"), "refused", 0),
        (reply(call("file_write", path="src/b", content="x"), stop="tool_use"), "kept", 1),
        (reply(call("file_write", path="src/b", content="x"), stop="length"), "refused", 0),
        (reply(call("file_write", path="src/b", content="x"), stop="stop_sequence"), "kept", 1),
        (reply(call("file_write", path="src/b", content="x"), stop="refusal"), "model_failed", 0),
        (ProposerFault("timeout", "no answer"), "model_failed", 0),
    ],
    ids=["end-of-turn", "tool-use", "length", "stop-sequence", "refusal", "error"],
)
def test_each_way_a_reply_ends_has_its_own_consequence(said: Any, outcome: str, dispatched: int) -> None:
    """R227: words end nothing, a cut dispatches nothing, a refusal or an error is a failure of the route."""
    rig = Rig([ScriptedReplies([said] * (3 if isinstance(said, ProposerFault) else 1))])
    rig.start()
    assert (rig.events(TurnEnded)[0].outcome, rig.types(1).count("ToolIntent")) == (outcome, dispatched)
    assert rig.record.state == "FAILED" and rig.certified == 0


# Yielding


def test_while_one_trajectory_waits_for_its_tool_the_other_has_the_model() -> None:
    """R119: one model slot; it is free during a dispatch, so the second trajectory goes through in the meantime."""

    async def story() -> tuple[list[str], Rig, Rig]:
        slot = asyncio.Semaphore(1)
        other_is_done = asyncio.Event()
        diary: list[str] = []

        class OneSlot(ScriptedReplies):
            def __init__(self, name: str) -> None:
                super().__init__([MENDED])
                self.name = name

            async def propose(self, context: Context, deadline_ms: int) -> Reply:
                async with slot:
                    diary.append(f"{self.name} has the model")
                    return await super().propose(context, deadline_ms)

        async def waits(permit: Any, bench: Any, wall_ms: int) -> Outcome:
            diary.append("first waits for its tool")
            await asyncio.wait_for(other_is_done.wait(), 10)
            return await dispatch(permit, bench, wall_ms)

        first, second = Rig([OneSlot("first")], dispatch=waits), Rig([OneSlot("second")])
        running = asyncio.create_task(first._start())
        while len(diary) < 2:
            await asyncio.sleep(0)
        await second._start()
        other_is_done.set()
        await running
        return diary, first, second

    diary, first, second = asyncio.run(story())
    assert diary == ["first has the model", "first waits for its tool", "second has the model"]
    assert first.record.state == second.record.state == "COMPLETED"


# Invariants


def test_every_invariant_is_judged_at_every_kept_state_and_on_the_base() -> None:
    """R120: not only at the end, and a state in which one is broken is never kept."""
    rig = Rig(
        [ScriptedReplies([write("src/b", "1"), write("tests/t", "pass"), write("src/b", "2"), MENDED])],
        task=make_task(invariants=(invariant("tests"),), done=(criterion("unit"),)),
        checks={"done/unit": holds("src/a", "1"), "invariants/tests": holds("tests/t", "assert a == 1")},
    )
    rig.start()
    judged = {e.fingerprint: e.verdict for e in rig.events(EvidenceRecorded) if e.check == "invariants/tests"}
    kept = [event.fingerprint for event in rig.events(SavepointKept)]
    assert len(kept) == 3 and len(judged) == 5, "the base, three kept states, and the one that was rolled back"
    assert all(judged[fingerprint] == "pass" for fingerprint in kept)
    assert list(judged.values()).count("fail") == 1
