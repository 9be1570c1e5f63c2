"""Any model, any crash: random scripts over ports in memory, and the laws that hold for all of them (L1-L12).

Hypothesis prints the script that breaks a law; `@reproduce_failure` plays it again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.engine.replay import replay
from setpoint.kernel import limits
from setpoint.kernel.contract import Budget, Goal, Policy
from setpoint.kernel.errors import ProposerFault
from setpoint.kernel.events import (
    Authorized,
    Committed,
    DeltaMeasured,
    EvidenceRecorded,
    ModelFailed,
    ModelReplied,
    RolledBack,
    SavepointKept,
    ToolIntent,
    ToolResult,
)
from setpoint.kernel.proposal import RawCall, Usage
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.ports.workspace import ResolvedPath
from setpoint.testing.crash import Crash, CrashingLog
from setpoint.testing.replies import ScriptedReplies, call, claim, raw, reply

from .harness import STREAM, Rig, criterion, holds, invariant, make_task

CALLS = st.sampled_from(
    [
        call("file_write", path="src/a", content="1"),
        call("file_write", path="src/a", content="2"),
        call("file_write", path="src/b", content="1"),
        call("file_write", path="src/b", content="x"),
        call("file_edit", path="src/a", old_str="0", new_str="1"),
        call("file_edit", path="src/a", old_str="absent", new_str="1"),
        call("file_write", path="tests/t", content="pass"),
        call("file_write", path="secret/x", content="1"),
        call("file_write", path="../x", content="1"),
        call("file_write", path=".", content="1"),
        call("file_read", path="src/a"),
        call("shell_exec", command="look"),
        call("shell_exec", command="fail"),
        call("shell_exec", command="unknown"),
        call("shell_exec", command="sneak"),
        call("shell_exec", argv=0),
        call("shell_exec"),
        call("no_such_tool", x=1),
        RawCall("file_write", "null"),
        RawCall("", "{}"),
        RawCall("file_write", '{"path": "src/a", "content": 1.5}'),
        claim(),
        claim(),
    ]
)
REPLIES = st.one_of(
    st.lists(CALLS, max_size=4).map(lambda calls: reply(*calls)),
    st.lists(CALLS, min_size=1, max_size=2).map(lambda calls: reply(*calls, stop="length")),
    st.lists(CALLS, min_size=17, max_size=18).map(lambda calls: reply(*calls)),
    st.sampled_from([raw('{"name": '), raw("[]"), reply(text="done"), reply(stop="refusal", usage=Usage(1, 1, 0, 1))]),
    st.sampled_from(["overloaded", "refused", "timeout", "broken_stream"]).map(lambda kind: ProposerFault(kind, "no")),
)
SCRIPTS = st.lists(REPLIES, max_size=10)
POLICIES = st.builds(
    Policy,
    commit=st.sampled_from(["converged", "progress"]),
    stall_after=st.integers(1, 5),
    on_stall=st.sampled_from([("next_model",), ()]),
)
BUDGETS = st.builds(
    Budget,
    turns=st.integers(0, 12),
    tokens=st.sampled_from([500, 5_000, 200_000]),
    usd_micros=st.sampled_from([9_000, 2_000_000]),
)


def make_rig(first: list[Any], second: list[Any], policy: Policy, budget: Budget) -> Rig:
    task = make_task(
        done=(criterion("unit"), criterion("other")),
        invariants=(invariant("tests"), invariant("soft", severity="soft")),
        goal=Goal("g", ("secret/**",)),
        policy=policy,
        budget=budget,
        models=("replies:1", "replies:2"),
    )
    rig = Rig(
        [ScriptedReplies(first), ScriptedReplies(second, "replies:2")],
        task=task,
        checks={
            "done/unit": holds("src/a", "1"),
            "done/other": lambda tree: 0 if tree.get("src/b") == b"1" else 2,
            "invariants/tests": holds("tests/t", "assert a == 1"),
            "invariants/soft": lambda tree: 1 if tree.get("src/b") == b"x" else 0,
        },
        commands={
            "look": lambda: (0, "seen"),
            "fail": lambda: (1, "no"),
            "sneak": lambda: (rig.workspace.write(ResolvedPath("secret/x"), b"1"), (0, ""))[1],
        },
    )
    return rig


def assert_lawful(rig: Rig) -> None:
    record, base = rig.record, rig.workspace.base
    assert record.is_terminal, "nobody is asked here, so it ends (L7)"
    assert record.finished_reason and record.finished_message and record.finished_code >= 0  # L11
    met = rig.workspace.user.get("src/a") == b"1" and rig.workspace.user.get("src/b") == b"1"
    assert (record.finished_code == 0) == (record.state == "COMPLETED") == (rig.certified == 1)
    if record.state == "COMPLETED":
        assert met and record.items == (), "done only by evidence (L4)"
    elif rig.task.policy.commit == "converged":
        assert rig.workspace.user == base, "nothing reaches the user before everything is met"
    assert rig.workspace.user["tests/t"] == base["tests/t"] and "secret/x" not in rig.workspace.user
    assert record.turn <= rig.task.budget.turns and rig.workspace.commits <= 1
    spent, budget = record.spent, rig.task.budget
    assert spent.tokens <= budget.tokens and spent.usd_micros <= budget.usd_micros, (
        "the call that breaks it is not made"
    )
    charged = rig.events(ModelReplied, ModelFailed)
    assert spent.tokens == sum(event.input_tokens + event.output_tokens for event in charged)  # L3
    assert_each_dispatch_was_ruled_on_and_settled(rig)
    assert_savepoints_follow_evidence(rig)


def assert_each_dispatch_was_ruled_on_and_settled(rig: Rig) -> None:
    """L1, L2, L8, R008, R066: Authorized < ToolIntent < ToolResult, each with its delta item, within its grant."""
    permitted: set[tuple[int, int]] = set()
    open_calls: set[tuple[int, int]] = set()
    for stored, event in zip(rig.store.read(STREAM), rig.events(), strict=True):
        key = (stored.turn, getattr(event, "ordinal", -1))
        match event:
            case Authorized(path=path, tool=tool, items=items):
                permitted.add(key)
                assert items, "linked to what it may work on"
                assert tool not in ("file_write", "file_edit") or path.startswith(("src/", "tests/"))
            case ToolIntent():
                assert key in permitted
                open_calls.add(key)
            case ToolResult():
                assert key in open_calls
                open_calls.discard(key)
            case RolledBack(reason="interrupted"):
                open_calls.clear()
            case _:
                pass
    assert not open_calls


def assert_savepoints_follow_evidence(rig: Rig) -> None:
    """L4, R007, R011: what is kept was judged, and breaks no hard invariant; a commit is of a kept state."""
    judged: set[str] = set()
    harmless: set[str] = set()
    kept = {rig.events(DeltaMeasured)[0].fingerprint}
    for event in rig.events():
        match event:
            case EvidenceRecorded(fingerprint=fingerprint):
                judged.add(fingerprint)
            case DeltaMeasured(fingerprint=fingerprint, progress=(hard, _, _)):
                assert fingerprint in judged
                (harmless.add if hard == 0 else harmless.discard)(fingerprint)
            case SavepointKept(fingerprint=fingerprint):
                assert fingerprint in harmless
                kept.add(fingerprint)
            case Committed(fingerprint=fingerprint):
                assert fingerprint in kept
            case _:
                pass


@settings(max_examples=120, deadline=None)
@given(SCRIPTS, SCRIPTS, POLICIES, BUDGETS)
def test_whatever_a_model_says_the_laws_hold_and_the_story_replays(
    first: list[Any], second: list[Any], policy: Policy, budget: Budget
) -> None:
    """L1-L11, R021, R034, R172, R183"""
    rig = make_rig(first, second, policy, budget)
    rig.start()
    assert_lawful(rig)
    replayed = asyncio.run(replay(rig.task, rig.store, STREAM, BUILTIN))
    assert replayed.record == rig.record
    prompts = [context for proposer in rig.proposers for context in proposer.contexts]
    assert all(context.tokens <= limits.PROMPT_TOKENS_MAX for context in prompts)
    assert len({context.zone("root") for context in prompts}) <= 2, (
        "one while the legal set stands, one when restricted"
    )


@settings(max_examples=80, deadline=None)
@given(SCRIPTS, SCRIPTS, POLICIES, BUDGETS, st.lists(st.integers(0, 40), min_size=1, max_size=3))
def test_whatever_a_model_says_and_whenever_the_owner_dies_the_laws_hold(
    first: list[Any], second: list[Any], policy: Policy, budget: Budget, deaths: list[int]
) -> None:
    """L3, L6, R051, R173: torn appends included; the log of it all replays."""
    rig = make_rig(first, second, policy, budget)
    rig.log = CrashingLog(rig.store, deaths[0] + 2)
    started = False
    for death in [*deaths[1:], None]:
        try:
            rig.resume() if started else rig.start()
            break
        except Crash:
            started = True
            rig.log.left = death
    if not rig.record.is_terminal:
        rig.log.left = None
        rig.resume()
    assert_lawful(rig)
    positions = [(event.route, event.cursor) for event in rig.events(ModelReplied)]
    assert len(positions) == len(set(positions)), "a recorded reply was asked for again"
    assert asyncio.run(replay(rig.task, rig.store, STREAM, BUILTIN)).record == rig.record
