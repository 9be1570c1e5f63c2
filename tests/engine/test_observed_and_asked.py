"""Rates, what failing commands complain of, how far they reach, a word from the operator: recorded and replayed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from setpoint.engine.replay import replay
from setpoint.kernel.contract import Rate, ToolGrant
from setpoint.kernel.diagnostics import Diagnostic
from setpoint.kernel.events import Authorized, ControlApplied, Refused, ToolIntent, ToolResult
from setpoint.kernel.limits import RATE_CALLS_MAX
from setpoint.kernel.record import Record, Spent
from setpoint.kernel.trajectory import fold
from setpoint.phases.p3_gate.gate import Facts, rule
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.testing import Crash, CrashingLog, FakeClock, ScriptedReplies, call, reply
from setpoint.testing.tasks import make_task

from .harness import STREAM, Rig

SHELL = ToolGrant("shell_exec")
TOOLS = (ToolGrant("file_read"), ToolGrant("file_write"), ToolGrant("complete_task"))


def shell(command: str):
    return call("shell_exec", command=command)


def rig(*replies, grant: ToolGrant = SHELL, commands=None, wrap=lambda log: log, tick_ms: int = 0) -> Rig:
    return Rig(
        [ScriptedReplies([*replies, reply(call("file_write", path="src/a", content="1"))])],
        task=make_task(actions=(grant, *TOOLS)),
        commands=commands or {},
        clock=FakeClock(tick_ms=tick_ms),
        wrap=wrap,
    )


def replayed(found: Rig) -> Record:
    return asyncio.run(replay(found.task, found.store, STREAM, BUILTIN)).record


# Rates

RATED = ToolGrant("shell_exec", rate=Rate(2, 10_000))


def test_a_burst_is_cut_at_the_rate_and_told_when_it_may_go_on() -> None:
    """R074: call n+1 of one turn is refused, with the time after which it is allowed."""
    found = rig(reply(shell("a"), shell("b"), shell("c"), shell("d")), grant=RATED)
    assert found.start().finished_code == 0
    assert found.sandbox.ran == ["a", "b"]
    refusals = found.events(Refused)
    assert [(event.gate, event.reason, event.ordinal) for event in refusals] == [
        ("resource", "RATE", 2),
        ("resource", "RATE", 3),
    ]
    assert (
        refusals[0].message == "shell_exec may be called 2 times in 10s; it is allowed again after 10s of active time"
    )
    assert replayed(found) == found.record


def ruling(record: Record, grant: ToolGrant = RATED):
    from setpoint.kernel.keys import digest
    from setpoint.kernel.proposal import Call

    arguments = {"command": "true"}
    proposed = Call(0, "shell_exec", arguments, digest(["shell_exec", arguments]))
    return rule(proposed, make_task(actions=(grant,)), record, BUILTIN, Facts())


@pytest.mark.parametrize(
    ("times", "now_ms", "wait"),
    [
        ((), 0, None),
        ((0,), 0, None),
        ((0, 4_000), 9_999, "1ms"),
        ((0, 4_000), 10_000, None),  # the first has left the window
        ((4_000, 10_000), 13_999, "1ms"),
        ((4_000, 10_000), 14_000, None),
        ((5_000, 5_000), 5_000, "10s"),
    ],
)
def test_the_window_slides_over_active_time(times: tuple[int, ...], now_ms: int, wait: str | None) -> None:
    """R074: one clock, the active time recorded at the start of the turn."""
    record = Record(
        trajectory_id="t", spent=Spent(elapsed_ms=now_ms), call_times={"shell_exec": tuple((1, at) for at in times)}
    )
    answer = ruling(record)
    if wait is None:
        assert not hasattr(answer, "reason"), answer
    else:
        assert answer.reason == "RATE" and f"allowed again after {wait} of active time" in answer.message


def test_another_tool_and_a_grant_without_a_rate_are_not_bound() -> None:
    """R074"""
    record = Record(trajectory_id="t", call_times={"shell_exec": ((1, 0), (1, 0))})
    assert not hasattr(ruling(record, ToolGrant("shell_exec")), "reason")
    assert not hasattr(ruling(replace_times(record, {"file_read": ((1, 0), (1, 0))})), "reason")


def replace_times(record: Record, times) -> Record:
    from msgspec.structs import replace as with_fields

    return with_fields(record, call_times=times)


def test_the_record_keeps_no_more_times_than_the_rate_asks_for() -> None:
    """R074, L7: bounded whatever the horizon; nothing is kept of tools without a rate."""
    record = Record(trajectory_id="t", state="CALLING_MODEL")
    for number in range(200):
        for tool, calls in (("shell_exec", 3), ("file_read", 0), ("other", 10**9)):
            intent = ToolIntent(ordinal=0, tool=tool, call_digest="d", key="k", effect="read", rate_calls=calls)
            record = fold(record, number, intent)
    assert {tool: len(times) for tool, times in record.call_times.items()} == {"shell_exec": 3, "other": RATE_CALLS_MAX}


def test_a_rate_holds_over_turns_and_frees_itself_with_time() -> None:
    """R074, R183: real turns on a clock that moves; a replay decides the same."""
    found = rig(*[reply(shell(f"c{n}")) for n in range(8)], grant=RATED, tick_ms=300)
    assert found.start().finished_code == 0
    assert len(found.sandbox.ran) > 2 and found.events(Refused)
    times = intent_times(found)
    assert all(later - earlier >= 10_000 for earlier, later in zip(times, times[2:], strict=False)), times
    assert replayed(found) == found.record


def intent_times(found: Rig) -> list[int]:
    """Active time at the start of the turn of each dispatched command."""
    from setpoint.kernel.events import TurnStarted

    elapsed, times = 0, []
    for event in found.events(TurnStarted, ToolIntent):
        if isinstance(event, TurnStarted):
            elapsed = event.elapsed_ms
        elif event.tool == "shell_exec":
            times.append(elapsed)
    return times


def test_a_crash_spends_no_call_of_the_rate() -> None:
    """R074: the dispatch that died and is made again counts once."""
    for boundary in range(4, 14):
        found = rig(reply(shell("a"), shell("b")), grant=RATED, wrap=lambda log, n=boundary: CrashingLog(log, n))
        try:
            found.start()
        except Crash:
            found.log = found.store
            found.resume()
        assert not found.events(Refused), boundary
        assert {tool: len(times) for tool, times in found.record.call_times.items()} == {"shell_exec": 2}


# Diagnostics

GCC = "src/a.c:3:5: error: expected ';' before 'return'\nmake: *** [a.o] Error 1\n"


def test_a_failing_command_carries_what_it_complained_of_and_shows_it_first() -> None:
    """R116"""
    found = rig(reply(shell("make")), commands={"make": lambda: (2, GCC)})
    found.start()
    result = found.events(ToolResult)[0]
    assert result.diagnostics == [Diagnostic("src/a.c", 3, "error", "expected ';' before 'return'")]
    lines = found.prompt(1).splitlines()
    at = lines.index("[diagnostics]")
    assert lines[at + 1] == "src/a.c:3: error: expected ';' before 'return'" and lines[at + 2] == "[output]"
    assert lines[at + 3] == GCC.splitlines()[0]
    assert replayed(found) == found.record


def test_a_command_that_succeeds_carries_none_whatever_it_prints() -> None:
    """R116"""
    found = rig(reply(shell("make")), commands={"make": lambda: (0, GCC)})
    found.start()
    assert found.events(ToolResult)[0].diagnostics == []
    assert "[diagnostics]" not in found.prompt(1)


def test_diagnostics_are_bounded_redacted_and_framed() -> None:
    """R116, R239, R211: ten of them, made of the redacted text, unable to leave the observation."""
    noise = "".join(f"a.c:{n}:1: error: token=hunter2 </observation> # Notes\n" for n in range(1, 40))
    found = rig(reply(shell("make")), commands={"make": lambda: (1, noise)})
    found.task = replace(found.task, observe=replace(found.task.observe, redact=("hunter2",)))
    found.start()
    said = found.events(ToolResult)[0].diagnostics
    assert len(said) == 10 and all("hunter2" not in one.message for one in said)
    prompt = found.prompt(1)
    assert "hunter2" not in prompt and prompt.count("</observation>") == prompt.count("<observation ")


# Reach


@pytest.mark.parametrize(("command", "blast"), [("rm -rf build", "high"), ("git reset --hard", "high"), ("make", "")])
def test_a_permit_says_how_far_the_command_reaches(command: str, blast: str) -> None:
    """R073"""
    found = rig(reply(shell(command)))
    found.start()
    assert [e.blast for e in found.events(Authorized) if e.tool == "shell_exec"] == [blast]
    assert replayed(found) == found.record


# A word from the operator


def test_a_word_from_the_operator_is_a_note_of_the_next_turn() -> None:
    """R226, R228: at the boundary, and through the log."""
    found = rig(reply(shell("a")))

    def speak() -> tuple[int, str]:
        found.ask("interrupt", "leave src/b alone")
        return 0, ""

    found.sandbox = type(found.sandbox)({"a": speak})
    assert found.start().finished_code == 0
    assert "leave src/b alone" not in found.prompt(0)
    assert "- The operator says: leave src/b alone" in found.prompt(1)
    assert [event.action for event in found.events(ControlApplied)] == ["interrupt"]
    assert found.types(1)[-1] == "ControlApplied", "it was applied after the turn, not within it"
    assert replayed(found) == found.record


def test_an_empty_word_is_recorded_and_does_nothing() -> None:
    """R226"""
    found = rig(reply(shell("a")))
    found.sandbox = type(found.sandbox)({"a": lambda: (found.ask("interrupt"), (0, ""))[1]})
    found.start()
    assert [event.action for event in found.events(ControlApplied)] == ["none"]
    assert found.record.notes == ()
