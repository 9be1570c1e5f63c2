"""One turn, six phases: order, rulings, verdicts, and what of it the next prompt holds."""

from __future__ import annotations

from typing import Any

import pytest

from setpoint.kernel.contract import ApprovalRule, Budget, Goal, Observe, Policy, ToolGrant
from setpoint.kernel.errors import ProposerFault
from setpoint.kernel.events import (
    Authorized,
    ClaimRejected,
    ContextBuilt,
    DeltaMeasured,
    EvidenceRecorded,
    Finished,
    ModelFailed,
    ModelReplied,
    Refused,
    RolledBack,
    Routed,
    SavepointKept,
    ToolIntent,
    ToolResult,
    TurnEnded,
    TurnStarted,
)
from setpoint.kernel.evidence import Failure
from setpoint.kernel.proposal import RawCall, Usage
from setpoint.phases.p4_dispatch.run import dispatch
from setpoint.ports.proposer import RouteLimits
from setpoint.testing.crash import DiaryLog
from setpoint.testing.replies import ScriptedReplies, call, claim, raw, reply

from .harness import TOOLS, Rig, criterion, holds, invariant, make_task


def write(path: str, content: str, *more: RawCall, **usage: Any) -> Any:
    return reply(call("file_write", path=path, content=content), *more, **usage)


def shell(command: str, *more: RawCall) -> Any:
    return reply(call("shell_exec", command=command), *more)


LOOK = {"look": lambda: (0, "seen"), "fail": lambda: (1, "no")}
MENDED = write("src/a", "1")


def run(*script: Any, **parts: Any) -> Rig:
    rig = Rig([ScriptedReplies(list(script))], **({"commands": LOOK} | parts))
    rig.start()
    return rig


# Success and its conditions


@pytest.mark.parametrize(
    ("claims", "passes", "ends"),
    [(True, True, True), (True, False, False), (False, True, True), (False, False, False)],
)
def test_the_evidence_decides_and_the_claim_only_asks(claims: bool, passes: bool, ends: bool) -> None:
    """R005, R020, R021, R103, R104: the four combinations. Without a claim an empty delta halts the loop as well."""
    rig = run(write("src/a", "1" if passes else "2", *([claim()] if claims else [])), reply(text="nothing more"))
    after_first = rig.types(turn=1)
    assert (rig.record.state == "COMPLETED") == ends
    assert ("ClaimRejected" in after_first) == (claims and not passes)
    assert len(rig.proposers[0].contexts) == 1 if ends else len(rig.proposers[0].contexts) > 1
    assert rig.certified == ends and rig.workspace.user["src/a"] == (b"1" if ends else b"0")


def test_a_converged_tree_needs_no_model_and_no_mutation() -> None:
    """R005"""
    rig = Rig([ScriptedReplies([])], files={"src/a": "1"})
    record = rig.start()
    assert (record.state, record.turn, record.spent.model_calls) == ("COMPLETED", 0, 0)
    assert rig.proposers[0].contexts == [] and rig.workspace.commits == 0 and rig.certified == 1


def test_saying_done_in_words_does_nothing() -> None:
    """R021, R108, R114: nor does a command in a thought."""
    rig = run(
        reply(text="I am done. complete_task"),
        reply(call("shell_exec", command="look"), text='{"name": "file_write", "arguments": {"path": "src/a"}}'),
        MENDED,
    )
    assert rig.types(turn=1) == ["TurnStarted", "ContextBuilt", "ModelReplied", "Refused", "TurnEnded"]
    assert rig.events(Refused)[0].reason == "NO_CALL" and rig.sandbox.ran == ["look"]
    assert rig.record.turn == 3


def test_a_claim_without_any_change_is_judged_by_the_evidence_at_hand() -> None:
    """R021, R104: the delta is unchanged and the loop goes on."""
    rig = run(reply(claim()), MENDED)
    assert rig.events(ClaimRejected)[0].items == ["done/unit"]
    assert "the claim was rejected; not met: done/unit" in rig.prompt(1)
    assert rig.record.state == "COMPLETED"


def test_an_empty_level_of_evidence_never_certifies() -> None:
    """R150, R152: a criterion that is judged below its level stays open."""
    rig = Rig([ScriptedReplies([MENDED])], checks={"done/unit": lambda tree: ("missing", 1, ())})
    record = rig.start()
    assert record.state == "FAILED" and record.finished_code == 18 and rig.certified == 0


# Order


PHASES = ["TurnStarted", "ContextBuilt", "ModelReplied", "Authorized", "ToolIntent", "ToolResult"]


def test_a_turn_that_mends_goes_through_the_six_phases_in_order() -> None:
    """R066, R106: context, proposal, ruling, dispatch, evidence, verdict; then commit, certificate, end."""
    rig = run(write("src/a", "1", claim()))
    turn = rig.types(turn=1)
    assert turn == [
        *PHASES,
        "Authorized",  # the claim
        "ChangesObserved",
        *["EvidenceRecorded"] * 4,
        "DeltaMeasured",
        "SavepointKept",
        "TurnEnded",
        "CommitPlanned",
        "Committed",
        "Certified",
        "Finished",
    ]


def test_a_rejected_turn_is_rolled_back_and_its_delta_measured_again() -> None:
    """R014: reject, roll back, observe, delta."""
    rig = run(
        write("tests/t", "pass", claim()),
        MENDED,
        task=make_task(invariants=(invariant("tests"),)),
        checks={"done/unit": holds("src/a", "1"), "invariants/tests": holds("tests/t", "assert a == 1")},
    )
    after = rig.types(turn=1)[rig.types(turn=1).index("DeltaMeasured") :]
    assert after == ["DeltaMeasured", "ClaimRejected", "RolledBack", "DeltaMeasured", "TurnEnded"]
    first, again = list(rig.events(DeltaMeasured))[1:3]
    assert first.progress[0] == 1 and again.progress == (0, 1, 1)
    assert again.fingerprint == rig.events(DeltaMeasured)[0].fingerprint
    assert rig.workspace.user == {"src/a": b"1", "tests/t": b"assert a == 1"}


@pytest.mark.parametrize("command", ["touch x", "look"])
def test_an_intent_is_durable_before_anything_is_dispatched(command: str) -> None:
    """R170, L2: Authorized < ToolIntent (synced) < dispatch < ToolResult; a pure read alone needs no sync."""
    rig: Rig

    async def watched(permit: Any, bench: Any, wall_ms: int) -> Any:
        rig.log.diary.append(f"dispatch {permit.call.name}")
        return await dispatch(permit, bench, wall_ms)

    rig = Rig(
        [ScriptedReplies([shell(command), reply(call("file_read", path="src/a")), MENDED])],
        commands={**LOOK, "touch x": lambda: (0, "")},
        wrap=DiaryLog,
        dispatch=watched,
    )
    rig.start()
    diary = rig.log.diary
    for name in ("shell_exec", "file_write"):
        at = diary.index(f"dispatch {name}")
        assert "ToolIntent" in diary[:at] and diary[:at][-1] in ("ToolIntent", "dispatch file_read"), diary
        before = diary[:at]
        assert before.count("ToolIntent") > before.count("ToolResult"), "its own intent, not an older one"
        assert before.count("Authorized") >= before.count("ToolIntent")


def test_the_commit_is_planned_durably_before_the_users_tree_is_touched() -> None:
    """L2, R189"""
    rig = Rig([ScriptedReplies([MENDED])], wrap=DiaryLog)
    commit = rig.workspace.commit

    def watched(commit_id: str) -> Any:
        rig.log.diary.append("commit")
        return commit(commit_id)

    rig.workspace.commit = watched  # type: ignore[method-assign]
    rig.start()
    diary = rig.log.diary
    assert diary.index("CommitPlanned") < diary.index("commit") < diary.index("Committed") < diary.index("Certified")


def test_at_most_one_append_of_a_turn_waits_for_the_disk() -> None:
    """R170: the intent's; what follows is handed over while the model thinks."""
    script = [write("src/a", str(n)) for n in range(2, 6)]
    rig = Rig([ScriptedReplies(script)], wrap=DiaryLog, task=make_task(policy=Policy(stall_after=9)))
    rig.start()
    durable = [types for waits, types in rig.log.appends if waits and "TurnStarted" in (*types, "")]
    assert [types for types in durable if types.count("TurnStarted") > 1] == []
    waits = [types for waits, types in rig.log.appends if waits and ("ToolIntent" in types or "TurnStarted" in types)]
    assert len(waits) == len(script), rig.log.appends


# Rulings, one by one


def test_each_call_of_a_proposal_is_ruled_on_by_itself_and_in_order() -> None:
    """R045, R065, R100: refused ones never start; the others run."""
    rig = run(
        reply(
            call("shell_exec", command="look"),
            call("no_such_tool", x=1),
            RawCall("file_write", "null"),
            call("file_write", path="/etc/passwd", content="x"),
            call("file_write", path="docs/x", content="x"),
            call("file_write", path="src/a", content="1"),
            claim(),
        )
    )
    assert [(event.ordinal, event.reason) for event in rig.events(Refused)] == [
        (1, "UNKNOWN_TOOL"),
        (2, "MALFORMED"),
        (3, "OUTSIDE_WORKSPACE"),
        (4, "OUTSIDE_GRANT"),
    ]
    assert [event.ordinal for event in rig.events(Authorized)] == [0, 5, 6]
    assert [event.ordinal for event in rig.events(ToolIntent)] == [0, 5] == [e.ordinal for e in rig.events(ToolResult)]
    assert rig.record.state == "COMPLETED" and rig.workspace.user == {**rig.workspace.base, "src/a": b"1"}


@pytest.mark.parametrize(
    ("name", "said", "reason", "pointer"),
    [
        ("malformed", raw('{"name": "shell_exec", "arguments": '), "MALFORMED", "/raw"),
        ("null", reply(RawCall("shell_exec", "null")), "MALFORMED", "/calls/0/arguments"),
        (
            "double-encoded",
            reply(RawCall("shell_exec", '"{\\"command\\": \\"look\\"}"')),
            "MALFORMED",
            "/calls/0/arguments",
        ),
        ("unknown-tool", reply(call("rm_rf", path="/")), "UNKNOWN_TOOL", "/name"),
        ("unknown-argument", reply(call("shell_exec", command="look", sudo=True)), "SCHEMA", "/arguments"),
        ("wrong-type", reply(call("file_read", path=["src/a"])), "SCHEMA", "/arguments/path"),
        ("no-name", raw('{"arguments": {}}'), "MALFORMED", "/raw/name"),
        ("list", reply(RawCall("shell_exec", "[1]")), "MALFORMED", "/calls/0/arguments"),
        ("cut", reply(call("shell_exec", command="look"), stop="length"), "CUT_OFF", "/calls/0"),
        ("deep", reply(RawCall("shell_exec", "[" * 99 + "]" * 99)), "MALFORMED", "/calls/0/arguments"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_call_is_a_typed_refusal_with_its_place(name: str, said: Any, reason: str, pointer: str) -> None:
    """R069, R075, R087, R094, R117: never an exception, never dispatched, costs a turn, and the model is told."""
    rig = run(said, MENDED)
    refusal = rig.events(Refused)[0]
    assert (refusal.reason, refusal.pointer) == (reason, pointer), refusal
    assert "ToolIntent" not in rig.types(turn=1) and rig.types(turn=1)[-1] == "TurnEnded"
    assert rig.events(TurnEnded)[0].outcome == "refused" and rig.record.turn == 2
    assert refusal.message[:40] in rig.prompt(1), "the original error reaches the next prompt"


def test_a_reply_cut_by_length_is_never_dispatched_however_complete_it_looks() -> None:
    """R087"""
    rig = run(write("src/a", "1", claim(), stop="length"), MENDED)
    assert "ToolIntent" not in rig.types(turn=1) and rig.workspace.user["src/a"] == b"1" and rig.record.turn == 2
    assert "cut off at the length limit" in rig.prompt(1)


def test_a_call_that_needs_a_person_is_refused_where_nobody_is_asked() -> None:
    """L10, R123"""
    rule = ApprovalRule("effect == 'reversible'", ("ops",))
    rig = run(MENDED, task=make_task(policy=Policy(approve=(rule,))))
    assert rig.events(Refused)[0].reason == "APPROVAL_REQUIRED" and rig.events(ToolIntent) == []
    assert rig.workspace.user == rig.workspace.base


def test_every_intent_names_the_delta_item_it_may_work_on() -> None:
    """R008"""
    rig = run(
        shell("look"),
        write("src/b", "x"),
        MENDED,
        task=make_task(done=(criterion("unit"), criterion("other"))),
        checks={"done/unit": holds("src/a", "1"), "done/other": holds("src/b", "x")},
    )
    assert [event.items for event in rig.events(ToolIntent)] == [
        ["done/unit", "done/other"],
        ["done/unit", "done/other"],
        ["done/unit"],
    ]


def test_a_broken_precondition_touches_nothing() -> None:
    """R010"""
    grant = ToolGrant("file_write", require=("trajectory.turn > 1",))
    rig = run(MENDED, MENDED, task=make_task(actions=(grant, *TOOLS[:3], *TOOLS[4:])))
    assert rig.events(Refused)[0].reason == "PRECONDITION"
    assert [event.ordinal for event in rig.events(ToolIntent)] == [0] and rig.record.turn == 2


def test_a_broken_postcondition_takes_the_change_back_and_skips_the_rest() -> None:
    """R012: the tool says it succeeded."""
    grant = ToolGrant("shell_exec", ensure=("call.exit_code == 0",))
    rig = Rig(
        [ScriptedReplies([shell("bad", call("file_write", path="src/b", content="x")), MENDED])],
        task=make_task(actions=(grant, *TOOLS[1:])),
    )
    rig.sandbox._commands = {"bad": lambda: (rig.workspace.write("src/a", b"half"), (3, "done!"))[1]}  # type: ignore[arg-type]
    rig.start()
    back = rig.events(RolledBack)[0]
    assert back.reason == "postcondition" and "call.exit_code == 0" in back.note
    assert [event.tool for event in rig.events(ToolIntent)] == ["shell_exec", "file_write"]
    assert rig.workspace.user == {**rig.workspace.base, "src/a": b"1"}


# Reject, and another way


CHEAT = "UNIQUE_TEXT_OF_THE_FAILED_ATTEMPT"


def cheating(*script: Any, **parts: Any) -> Rig:
    return run(
        *script,
        task=make_task(invariants=(invariant("tests"),), **parts),
        checks={"done/unit": holds("src/a", "1"), "invariants/tests": holds("tests/t", "assert a == 1")},
    )


def test_the_next_prompt_holds_one_short_note_and_nothing_of_the_failed_attempt() -> None:
    """R016, L5: neither its text, nor its observations, nor what its command printed."""
    commands = {"print": lambda: (0, f"printed {CHEAT}")}
    rig = Rig(
        [
            ScriptedReplies(
                [
                    reply(
                        call("shell_exec", command="print"),
                        call("file_write", path="tests/t", content=CHEAT),
                        text=CHEAT,
                    ),
                    MENDED,
                ]
            )
        ],
        task=make_task(invariants=(invariant("tests"),)),
        checks={"done/unit": holds("src/a", "1"), "invariants/tests": holds("tests/t", "assert a == 1")},
        commands=commands,
    )
    rig.start()
    following = rig.prompt(1)
    assert CHEAT not in following
    notes = following.split("# Notes")[1].strip().splitlines()
    assert len(notes) == 1 and "rolled back" in notes[0] and "invariants/tests" in notes[0]
    whole = b"".join(stored.data for stored in rig.store.read("tr-1"))
    assert CHEAT.encode() in whole, "the whole story stays in the log"


def test_a_proposal_that_was_rolled_back_is_refused_the_second_time() -> None:
    """R017: without dispatch; its claim is judged all the same."""
    cheat = write("tests/t", "pass", claim())
    rig = cheating(cheat, cheat, MENDED)
    assert "ToolIntent" not in rig.types(turn=2)
    assert [event.reason for event in rig.events(Refused)] == ["BLOCKED"]
    assert rig.record.state == "COMPLETED" and rig.record.turn == 3


def test_the_same_change_in_other_words_is_not_the_same_proposal_but_is_judged_the_same() -> None:
    """R017, C2"""
    rig = cheating(write("tests/t", "pass"), write("tests/t", "pass "), MENDED)
    assert [event.reason for event in rig.events(RolledBack)] == ["invariant", "invariant"]


@pytest.mark.parametrize("path", ["secrets/key", "tests/t"])
def test_the_negative_scope_holds_for_what_a_command_did_not_only_for_what_it_said(path: str) -> None:
    """R011, R237, H5: judged from the observed change."""
    rig = Rig([ScriptedReplies([shell("sneak"), MENDED])], task=make_task(goal=Goal("g", ("secrets/**", "tests/**"))))
    rig.sandbox._commands = {"sneak": lambda: (rig.workspace.write(path, b"x"), (0, ""))[1]}  # type: ignore[arg-type]
    rig.start()
    assert rig.events(RolledBack)[0].reason == "invariant"
    assert f"@forbid ({path})" in rig.events(RolledBack)[0].note
    assert rig.workspace.user == {**rig.workspace.base, "src/a": b"1"}


# Failing models


def test_a_failed_call_is_classified_charged_and_tried_again_through_the_clock() -> None:
    """J1, R086, R118, R130: no real sleep; the server's pause is honoured; spent tokens are charged."""
    busy = ProposerFault("rate_limited", "slow down", retry_after_ms=7000, usage=Usage(11, 2, 0, 30))
    rig = run(busy, ProposerFault("broken_stream", "cut at token 10", usage=Usage(5, 10, 0, 9)), MENDED)
    assert [event.kind for event in rig.events(ModelFailed)] == ["rate_limited", "broken_stream"]
    assert rig.clock.slept == [7000, 1000]
    spent = rig.record.spent
    assert (spent.input_tokens, spent.output_tokens, spent.usd_micros) == (1016, 112, 4039)
    assert rig.record.state == "COMPLETED" and rig.events(Routed) == []


def two_routes(first: list[Any], second: list[Any], **parts: Any) -> Rig:
    rig = Rig(
        [ScriptedReplies(first), ScriptedReplies(second, "replies:2")],
        commands=LOOK,
        task=make_task(models=("replies:1", "replies:2"), **parts),
    )
    rig.start()
    return rig


@pytest.mark.parametrize(
    ("kind", "tries"), [("overloaded", 3), ("timeout", 3), ("refused", 1), ("auth", 1), ("exhausted", 1)]
)
def test_a_route_that_fails_is_left_for_the_next(kind: str, tries: int) -> None:
    """J1, R019: transient failures after three tries, others at once; the next model gets the same task."""
    rig = two_routes([ProposerFault(kind, "no")] * 9, [MENDED])
    assert len(rig.proposers[0].contexts) == tries and len(rig.proposers[1].contexts) == 1
    assert [(event.index, event.reason) for event in rig.events(Routed)] == [(1, kind)]
    assert rig.record.state == "COMPLETED"


def test_when_no_route_is_left_it_ends_and_says_what_is_open() -> None:
    """R105, L11"""
    rig = run(ProposerFault("auth", "401: this key is not known"))
    assert rig.record.finished_reason == "RoutesExhausted" and rig.record.finished_code == 11
    assert "failed (auth): 401: this key is not known; still open: done/unit" in rig.record.finished_message
    assert rig.events(Routed)[-1].reason.endswith("(auth): 401: this key is not known")


def test_a_reply_that_the_provider_ended_by_refusal_is_a_failure_of_the_route() -> None:
    """J1: its usage is charged."""
    rig = two_routes([reply(stop="refusal", usage=Usage(3, 4, 0, 5))], [MENDED])
    assert rig.events(ModelFailed)[0].kind == "refused" and rig.record.spent.input_tokens == 1003


def test_escalation_carries_the_task_and_the_diagnostic_and_never_the_failed_text() -> None:
    """R019, DESIGN 8"""
    rig = Rig(
        [ScriptedReplies([write("src/a", CHEAT + str(n)) for n in range(4)]), ScriptedReplies([MENDED], "replies:2")],
        task=make_task(models=("replies:1", "replies:2"), policy=Policy(stall_after=3)),
        checks={"done/unit": lambda tree: 0 if tree["src/a"] == b"1" else ("fail", 2, (Failure("test_clamp", ""),))},
    )
    rig.start()
    prompt = rig.prompt(0, route=1)
    assert CHEAT not in prompt and "make src/a hold 1" in prompt and "test_clamp" in prompt
    assert rig.record.state == "COMPLETED"


# Stalls


def test_a_stall_steers_then_goes_back_to_the_best_and_takes_the_next_model() -> None:
    """R019, R023, C2: whatever the arguments were."""
    rig = two_routes([write("src/b", f"variation {n}") for n in range(9)], [MENDED], policy=Policy(stall_after=4))
    stalled = [(event.tier, event.reason) for event in rig.events() if type(event).__name__ == "Stalled"]
    assert stalled == [("steer", "NoProgress"), ("backtrack", "NoProgress")]
    assert len(rig.proposers[0].contexts) == 4
    assert rig.workspace.user == {**rig.workspace.base, "src/a": b"1"}, "nothing of the stalled way is left"


def test_a_stalled_task_without_another_way_ends_with_code_11_and_the_users_tree_as_it_was() -> None:
    """R023, R105"""
    rig = run(*[write("src/b", str(n)) for n in range(9)], task=make_task(policy=Policy(stall_after=4)))
    record = rig.record
    assert (record.state, record.finished_reason, record.finished_code) == ("FAILED", "Stalled", 11)
    assert "done/unit" in record.finished_message and rig.workspace.user == rig.workspace.base


def test_a_stall_may_ask_a_person_and_goes_on_with_the_answer() -> None:
    """R122: the answer reaches the prompt, and the stall begins to be counted anew."""
    policy = Policy(stall_after=2, on_stall=("ask",))
    rig = run(write("src/b", "1"), write("src/b", "2"), MENDED, task=make_task(policy=policy))
    assert rig.record.state == "PAUSED" and "done/unit" in rig.record.question.question  # type: ignore[union-attr]
    rig.ask("answer", "look at src/a")
    record = rig.resume()
    assert record.state == "COMPLETED" and "look at src/a" in rig.prompt(2)


def test_reading_for_ever_is_steered_and_then_stops() -> None:
    """L7, C2: reads are free of the progress rule, but not without bound."""
    commands = {f"look {n}": lambda: (0, "seen") for n in range(40)}
    rig = run(*[shell(f"look {n}") for n in range(40)], commands=commands, task=make_task(budget=Budget(turns=40)))
    assert rig.record.finished_reason == "Stalled" and rig.record.turn == 16
    tiers = [event.tier for event in rig.events() if type(event).__name__ == "Stalled"]
    assert tiers[0] == "steer" and "halt" in tiers


# Budgets


@pytest.mark.parametrize(
    ("budget", "calls"),
    [
        (Budget(turns=3), 3),
        (Budget(tokens=3500), 3),
        (Budget(usd_micros=12_000), 3),
        (Budget(wall_ms=30_000), 3),
    ],
    ids=["turns", "tokens", "usd", "wall"],
)
def test_each_budget_ends_it_before_the_call_that_would_break_it(
    budget: Budget, calls: int, request: pytest.FixtureRequest
) -> None:
    """R091, R105, R217: T_max = 3: the fourth model call is never made; the dimension is named; exit 14."""
    name = request.node.callspec.id
    rig = Rig(
        [ScriptedReplies([write("src/b", str(n)) for n in range(9)])],
        task=make_task(budget=budget, policy=Policy(stall_after=20)),
    )

    async def slow(permit: Any, bench: Any, wall_ms: int) -> Any:
        rig.clock.advance(10_000)
        return await dispatch(permit, bench, wall_ms)

    rig.dispatch = slow
    record = rig.start()
    assert len(rig.proposers[0].contexts) == calls
    assert (record.state, record.finished_reason, record.finished_code) == ("FAILED", f"Budget:{name}", 14)
    assert "done/unit" in record.finished_message and rig.workspace.user == rig.workspace.base


def test_a_budget_may_pause_instead_and_says_which_dimension() -> None:
    """R091: exit 14 is the caller's; the trajectory waits."""
    rig = run(*[write("src/b", str(n)) for n in range(9)], task=make_task(budget=Budget(turns=2, on_exceed="pause")))
    assert rig.record.state == "PAUSED" and rig.record.pause_reason == "turns" and rig.record.turn == 2
    rig.ask("resume")
    assert rig.resume().state == "PAUSED" and len(rig.proposers[0].contexts) == 2, "no call is made beyond it"


def test_from_ninety_percent_on_only_reads_are_offered_and_permitted() -> None:
    """R042, R080, R091, R218: a guarantee, not a request; at seventy it is a request."""
    rig = run(
        *[shell("look")] * 1,
        *[write("src/b", str(n)) for n in range(12)],
        task=make_task(budget=Budget(turns=10), policy=Policy(stall_after=50)),
    )
    stages = [event.stage for event in rig.events(TurnStarted)]
    assert stages == ["nominal"] * 7 + ["steer"] * 2 + ["restrict"]
    assert "file_write" in rig.prompt(8) and "file_write" not in rig.prompt(9).split("# Goal")[0]
    assert "Over 70 %" in rig.prompt(7) and "Over 90 %" in rig.prompt(9)
    assert [event.reason for event in rig.events(Refused)] == ["RESTRICTED"]


def test_a_run_that_meets_everything_but_overspent_is_verified_and_not_accepted() -> None:
    """R153"""
    rig = run(write("src/a", "1", usage=Usage(5000, 0, 0, 0)), task=make_task(budget=Budget(tokens=4000)))
    assert rig.record.finished_reason == "Budget:tokens" and rig.record.finished_code == 14 and rig.certified == 0
    assert rig.workspace.user == rig.workspace.base


def test_a_model_cannot_talk_its_usage_down() -> None:
    """R233: usage is the provider's."""
    said = raw('{"calls": [{"name": "shell_exec", "arguments": {"command": "look"}}], "usage": {"input_tokens": 0}}')
    rig = run(said, MENDED)
    assert rig.events(ModelReplied)[0].input_tokens == 1000 and rig.record.spent.input_tokens == 2000


def test_the_price_is_the_routes_when_the_provider_reports_none() -> None:
    """R233: rounded up to the micro-dollar."""
    proposer = ScriptedReplies([write("src/a", "1", usage=Usage(1001, 100, 0, None))])
    proposer.limits = RouteLimits(usd_micros_per_mtok_in=3_000_000, usd_micros_per_mtok_out=15_000_000)
    rig = Rig([proposer])
    assert rig.start().spent.usd_micros == 1001 * 3 + 100 * 15


# Commit


def test_by_default_nothing_is_committed_before_everything_is_met() -> None:
    """R007, R013"""
    task = make_task(done=(criterion("unit"), criterion("other")))
    rig = run(MENDED, task=task, checks={"done/unit": holds("src/a", "1"), "done/other": holds("src/b", "x")})
    assert rig.record.finished_code == 11 and rig.workspace.user == rig.workspace.base and rig.workspace.commits == 0


def test_progress_is_committed_uncertified_when_the_task_says_so() -> None:
    """R007: only what lowers the distance."""
    task = make_task(done=(criterion("unit"), criterion("other")), policy=Policy(commit="progress"))
    rig = run(MENDED, task=task, checks={"done/unit": holds("src/a", "1"), "done/other": holds("src/b", "x")})
    record = rig.record
    assert record.finished_code == 11 and "done/other" in record.finished_message and rig.certified == 0
    assert rig.workspace.user == {**rig.workspace.base, "src/a": b"1"} and rig.workspace.commits == 1


@pytest.mark.parametrize("content", ["00", "x"])
def test_what_brings_no_progress_is_never_committed(content: str) -> None:
    """R007: a no-op and a harmful edit."""
    rig = run(write("src/b", content), task=make_task(policy=Policy(commit="progress", stall_after=1)))
    assert rig.workspace.user == rig.workspace.base and rig.workspace.commits == 0
    assert rig.record.state == "FAILED"


def test_a_conflict_overwrites_nothing() -> None:
    """R025: exit 15, and the paths are named."""
    rig = Rig([ScriptedReplies([MENDED])])
    rig.workspace.user["src/a"] = b"edited by the user meanwhile"
    record = rig.start()
    assert (record.finished_reason, record.finished_code) == ("Conflict", 15) and "src/a" in record.finished_message
    assert rig.workspace.user["src/a"] == b"edited by the user meanwhile"


# Evidence


def test_missing_evidence_ends_with_code_18_and_its_reason() -> None:
    """G5, L4: a check that could not be run is never a pass, and not merely a stall."""
    rig = run(MENDED, checks={"done/unit": lambda tree: ("missing", 1, ())})
    assert (rig.record.finished_reason, rig.record.finished_code) == ("EvidenceMissing", 18)
    assert "done/unit" in rig.record.finished_message


def test_checks_run_only_when_the_state_changed_and_in_order_of_cost() -> None:
    """R102, R147: reads bring no evidence; a broken cheap check spares the dear ones; a claim has them all judged."""
    from setpoint.kernel.contract import Level

    done = (criterion("sealed", Level.SEALED), criterion("visible"), criterion("static", Level.STATIC))
    checks = {"done/sealed": holds("src/a", "1"), "done/visible": holds("src/a", "1")}
    rig = run(
        shell("look"),
        write("src/a", "syntax error"),
        write("src/a", "2", claim()),
        MENDED,
        task=make_task(done=done),
        checks={**checks, "done/static": lambda tree: 1 if b"syntax error" in tree["src/a"] else 0},
    )
    judged = rig.verifier.judged
    assert judged[:3] == ["done/static", "done/visible", "done/sealed"], "the baseline judges everything"
    assert "EvidenceRecorded" not in rig.types(turn=1)
    assert judged[3:4] == ["done/static"], "broken syntax never starts the others"
    skipped = [e for e in rig.events(EvidenceRecorded) if e.verdict == "missing"]
    assert {e.check for e in skipped} == {"done/visible", "done/sealed"}
    assert all(e.reason.startswith("skipped: a static check failed") for e in skipped)
    assert judged[4:7] == ["done/static", "done/visible", "done/sealed"], "a claim"
    assert rig.record.state == "COMPLETED"


def test_evidence_names_the_very_state_it_judged() -> None:
    """L4, R003"""
    rig = run(write("src/a", "2"), MENDED)
    kept = [event.fingerprint for event in rig.events(SavepointKept)]
    judged = [event.fingerprint for event in rig.events(EvidenceRecorded) if event.check == "done/unit"]
    assert judged[1:] == kept and len(set(judged)) == 3


def test_what_the_task_hides_by_redaction_is_in_no_event_and_no_prompt() -> None:
    """R239"""
    secret = "api_key = sk-1234567890"
    rig = run(
        shell("leak"),
        MENDED,
        commands={"leak": lambda: (0, f"config: {secret}\nrest")},
        task=make_task(observe=Observe(redact=(r"(?i)api[_-]?key\s*[:=]\s*\S+",))),
    )
    whole = b"".join(stored.data for stored in rig.store.read("tr-1")) + rig.prompt(1).encode()
    assert secret.encode() not in whole and b"[redacted]" in whole


# Context


def test_each_context_is_recorded_by_reference_and_with_the_observations_that_entered() -> None:
    """R084, R112, E2: the goal's part is the same in every one, and no prompt is stored as a copy."""
    rig = run(shell("look"), shell("fail"), MENDED)
    built = rig.events(ContextBuilt)
    assert [event.observations for event in built] == [[], ["1.0"], ["1.0", "2.0"]]
    goals = {part.digest for event in built for part in event.parts if part.name == "goal"}
    assert len(goals) == 1
    assert [event.digest for event in built] == [context.digest for context in rig.proposers[0].contexts]


def test_a_working_file_is_read_afresh_for_every_prompt() -> None:
    """R168, R169: the disk wins over what the model remembers."""
    rig = run(write("src/a", "first"), shell("look"), write("src/a", "second"), MENDED)
    assert "first" in rig.prompt(1) and "first" in rig.prompt(2)
    assert "second" in rig.prompt(3) and "first" not in rig.prompt(3).split("<file", 1)[1].split("</file>")[0]


# Why


ENDINGS = {
    "stalled": lambda: run(*[write("src/b", str(n)) for n in range(9)], task=make_task(policy=Policy(stall_after=2))),
    "budget": lambda: run(write("src/b", "1"), task=make_task(budget=Budget(turns=1))),
    "exhausted": lambda: run(write("src/b", "1")),
    "missing": lambda: run(MENDED, checks={"done/unit": lambda tree: ("missing", 1, ())}),
    "asked": lambda: run(reply(call("ask_operator", question="which?"))),
    "paused": lambda: run(write("src/b", "1"), task=make_task(budget=Budget(turns=1, on_exceed="pause"))),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_whoever_does_not_go_on_says_which_items_block_on_what_evidence_and_why(ending: str) -> None:
    """L11, R023, O2: everything `why` needs is in the record."""
    rig = ENDINGS[ending]()
    record = rig.record
    assert record.items and all(item.address and item.verdict for item in record.items)
    line = record.evidence[record.items[0].address]
    assert line.seq > 0 and line.verdict in ("fail", "missing")
    if record.is_terminal:
        assert record.finished_reason and record.finished_code > 0 and record.finished_message
        assert rig.events(Finished)[0].message == record.finished_message
    else:
        assert record.state == "PAUSED" and (record.question or record.pause_reason)
