"""The scripted proposer: INTERFACE section 3, played and refused."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from setpoint.adapters.proposers.opening import open_proposer
from setpoint.kernel.errors import ProposerFault, UsageFault
from setpoint.kernel.proposal import Call, Malformed, Reply, Usage
from setpoint.phases.p2_proposal.parse import parse_reply
from setpoint.ports.proposer import Proposer

INTERFACE_SCRIPT = r"""
usage: {input_tokens: 1000, output_tokens: 100, usd: 0.004}
on_end: exhausted
proposals:
  - thought: look around
    calls:
      - {name: shell_exec, arguments: {command: "grep -rn 'parse_timeout' src/"}}
  - calls:
      - {name: file_edit, arguments: {path: tests/test_config.py, old_str: "...", new_str: "assert True"}}
      - {name: complete_task}
  - raw: '{"name": "shell_exec", "arguments": '
  - text: "I am done."
  - {stop: length, calls: [{name: complete_task}]}
  - {error: overloaded}
  - error: rate_limited
    retry_after: 2s
  - {sleep: 3ms, calls: [{name: complete_task}]}
  - when: {note_contains: "golden"}
    calls: [{name: file_read, arguments: {path: a}}]
"""


@pytest.fixture
def opened(tmp_path: Path):
    def make(text: str) -> Proposer:
        (tmp_path / "script.yaml").write_text(text)
        return open_proposer("scripted:script.yaml", base_dir=tmp_path)

    return make


def play(
    proposer: Proposer, make: Any, cursor: int = 0, deadline_ms: int = 5_000, **fields: Any
) -> Reply | ProposerFault:
    try:
        return asyncio.run(proposer.propose(make(cursor=cursor, **fields), deadline_ms))
    except ProposerFault as fault:
        return fault


def test_the_script_of_the_interface_plays_as_written(opened: Any, context: Any) -> None:
    """R086"""
    proposer = opened(INTERFACE_SCRIPT)
    answers = [play(proposer, context, cursor) for cursor in range(8)]
    assert [answer.cursor for answer in answers] == [1, 2, 3, 4, 5, 6, 7, 8]
    look, edit, raw, text, cut, overloaded, limited, slow = answers
    assert isinstance(look, Reply) and look.text == "look around"
    assert look.usage == Usage(1000, 100, 0, 4000)
    assert parse_reply(look).calls[0].arguments == {"command": "grep -rn 'parse_timeout' src/"}  # type: ignore[union-attr]
    assert isinstance(edit, Reply) and [call.name for call in edit.calls] == ["file_edit", "complete_task"]
    assert parse_reply(edit).claims
    assert isinstance(raw, Reply) and raw.raw == '{"name": "shell_exec", "arguments": '
    assert isinstance(text, Reply) and (text.text, text.calls, text.stop) == ("I am done.", (), "end_turn")
    assert isinstance(cut, Reply) and cut.stop == "length" and not parse_reply(cut).claims
    assert isinstance(overloaded, ProposerFault) and overloaded.kind == "overloaded"
    assert overloaded.usage == Usage()
    assert isinstance(limited, ProposerFault) and (limited.kind, limited.retry_after_ms) == ("rate_limited", 2000)
    assert isinstance(slow, Reply)
    assert proposer.limits.output_tokens == 100


def test_a_when_that_does_not_hold_skips_to_the_next(opened: Any, context: Any) -> None:
    proposer = opened(INTERFACE_SCRIPT)
    skipped = play(proposer, context, 8)
    assert isinstance(skipped, ProposerFault) and (skipped.kind, skipped.cursor) == ("exhausted", 9)
    for fields in ({"leaf": "check golden failed"}, {"notes": ("golden: 2 failures",)}):
        reply = play(proposer, context, 8, **fields)
        assert isinstance(reply, Reply) and reply.cursor == 9


def test_skipping_leads_to_the_position_after_the_entry_that_was_said(opened: Any, context: Any) -> None:
    proposer = opened(
        "proposals: [{when: {note_contains: x1}, text: a}, {when: {note_contains: x2}, text: b}, {text: c}, {text: d}]"
    )
    reply = play(proposer, context, 0)
    assert isinstance(reply, Reply) and (reply.text, reply.cursor) == ("c", 3)


def test_the_same_context_gets_the_same_reply_after_a_restart(opened: Any, context: Any) -> None:
    first = play(opened(INTERFACE_SCRIPT), context, 1)
    assert first == play(opened(INTERFACE_SCRIPT), context, 1)


def test_on_end_repeat_says_the_last_one_again(opened: Any, context: Any) -> None:
    proposer = opened("on_end: repeat\nproposals: [{text: a}, {text: b}]")
    for cursor in (2, 3, 9):
        reply = play(proposer, context, cursor)
        assert isinstance(reply, Reply) and (reply.text, reply.cursor) == ("b", 2)


def test_an_empty_script_is_exhausted_even_when_it_repeats(opened: Any, context: Any) -> None:
    fault = play(opened("on_end: repeat\nproposals: []"), context)
    assert isinstance(fault, ProposerFault) and fault.kind == "exhausted"


def test_a_reply_slower_than_the_deadline_is_a_timeout_and_is_passed(opened: Any, context: Any) -> None:
    proposer = opened("proposals: [{sleep: 1h, text: a}, {text: b}]")
    started = time.monotonic()
    fault = play(proposer, context, deadline_ms=20)
    assert time.monotonic() - started < 5
    assert isinstance(fault, ProposerFault) and (fault.kind, fault.cursor) == ("timeout", 1)


def test_usage_says_otherwise_field_by_field(opened: Any, context: Any) -> None:
    proposer = opened(
        "usage: {input_tokens: 10, output_tokens: 5, usd: 0.1}\n"
        "proposals: [{text: a, usage: {usd: 0.000001}}, {error: broken_stream, usage: {output_tokens: 7}}]"
    )
    reply, fault = play(proposer, context, 0), play(proposer, context, 1)
    assert reply.usage == Usage(10, 5, 0, 1)
    assert fault.usage == Usage(0, 7, 0, 0)


def test_a_script_without_usage_costs_nothing(opened: Any, context: Any) -> None:
    assert play(opened("proposals: [{text: a}]"), context).usage == Usage(0, 0, 0, 0)


@pytest.mark.parametrize(("written", "micros"), [("0.1", 100_000), ("0.000003", 3), ("1e-6", 1), ("'2'", 2_000_000)])
def test_money_is_read_from_its_digits(opened: Any, context: Any, written: str, micros: int) -> None:
    """0.1 + 0.2 as floats would not be 300000 micro-dollars"""
    assert play(opened(f"usage: {{usd: {written}}}\nproposals: [{{text: a}}]"), context).usage.usd_micros == micros


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("{name: a, arguments: null}", "null_arguments"),
        ('{name: a, arguments: \'{"command": "ls"}\'}', "double_encoded"),
        ("{name: a, arguments: [1]}", "not_object"),
        ("{arguments: {}}", "missing_name"),
        ("{name: 5}", "missing_name"),
    ],
)
def test_malformed_calls_are_played_and_judged_like_a_models(opened: Any, context: Any, call: str, reason: str) -> None:
    """CASES Q1"""
    reply = play(opened(f"proposals: [{{calls: [{call}]}}]"), context)
    assert isinstance(reply, Reply)
    (read,) = parse_reply(reply).calls
    assert isinstance(read, Malformed) and read.reason == reason


def test_values_reach_the_call_as_json(opened: Any, context: Any) -> None:
    arguments = "{i: -3, f: 1.5, b: true, n: null, s: 'yes', l: [1, {x: y}], u: 'ä\u2028'}"
    reply = play(opened(f"proposals: [{{calls: [{{name: a, arguments: {arguments}}}]}}]"), context)
    assert isinstance(reply, Reply)
    (call,) = parse_reply(reply).calls
    assert isinstance(call, Call)
    assert call.arguments == {
        "i": -3, "f": 1.5, "b": True, "n": None, "s": "yes", "l": [1, {"x": "y"}], "u": "ä\u2028",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("proposals: [{thougt: a}]", "1:14: a proposal has no key 'thougt'; did you mean 'thought'?"),
        ("proposal: []", "1:1: a script has no key 'proposal'; did you mean 'proposals'?"),
        ("usage: {usd: 1}", "1:1: a script needs 'proposals', a list"),
        ("[]", "1:1: a script must be a mapping"),
        ("", "1:1: a script must be a mapping"),
        ("proposals: [{}]", "1:13: a proposal needs one of"),
        ("proposals: [a]", "1:13: a proposal must be a mapping"),
        ("proposals: [{text: a, text: b}]", "1:23: the key 'text' occurs twice"),
        ("proposals: [{text: 5}]", "1:20: 'text' must be a text"),
        ("proposals: [{raw: '', calls: []}]", "remove 'calls' or 'raw'"),
        ("proposals:\n  - stop: lenght\n    text: a", "2:11: 'stop' is 'lenght'; it must be one of"),
        ("proposals: [{error: overload}]", "did you mean 'overloaded'?"),
        ("proposals: [{error: timeout, text: a}]", "1:36: a proposal with 'error' says nothing; remove 'text'"),
        ("proposals: [{text: a, retry_after: 2s}]", "'retry_after' belongs to an 'error'"),
        ("proposals: [{text: a, sleep: 2}]", "'2' is not a duration"),
        ("proposals: [{text: a, sleep: 1.5s}]", "'1.5s' is not a duration"),
        ("proposals: [{text: a, when: {notes: a}}]", "'when' has no key 'notes'"),
        ("proposals: [{text: a, when: {}}]", "'when' needs 'note_contains'"),
        ("proposals: [{calls: {name: a}}]", "'calls' must be a list"),
        ("proposals: [{calls: [{name: a, args: {}}]}]", "1:32: a call has no key 'args'"),
        ("proposals: [{calls: [{name: a, arguments: {b: yes}}]}]", "YAML reads 'yes' as bool; put it in quotes"),
        ("proposals: [{calls: [{name: a, arguments: {b: 0x1f}}]}]", "YAML reads '0x1f' as int"),
        ("proposals: [{calls: [{name: a, arguments: {b: 12:30}}]}]", "YAML reads '12:30' as int"),
        ("proposals: [{calls: [{name: a, arguments: {b: .nan}}]}]", "YAML reads '.nan' as float"),
        ("proposals: [{calls: [{name: a, arguments: {b: 2026-01-01}}]}]", "YAML reads '2026-01-01' as timestamp"),
        ("proposals: [{calls: [{name: a, arguments: {b: 1, b: 2}}]}]", "the key 'b' occurs twice"),
        ("proposals: [{calls: [{name: a, arguments: {? [1] : 2}}]}]", "a key must be a text"),
        ("proposals: [{calls: [{name: a, arguments: &x {b: *x}}]}]", "nested more than 64 levels"),
        ("proposals: [{calls: [{name: a, arguments: !!python/object:os.system {}}]}]", None),
        ("usage: {usd: -1}\nproposals: []", "1:14: '-1' dollars is not between 0 and 1000000"),
        ("usage: {usd: 0.0000001}\nproposals: []", "finer than a micro-dollar"),
        ("usage: {usd: much}\nproposals: []", "'much' is not an amount of dollars"),
        ("usage: {usd: .inf}\nproposals: []", "1:14:"),
        ("usage: {input_tokens: -1}\nproposals: []", "'input_tokens' must be a whole number"),
        ("usage: {input_tokens: 1.5}\nproposals: []", "'input_tokens' must be a whole number"),
        ("proposals: [\n", "not YAML"),
        ("a: b: c", "1:5: not YAML"),
        ("[" * 10_000, "not YAML"),
        ("\x00", "not YAML"),
    ],
)
def test_what_is_not_a_script_is_refused_with_its_place(opened: Any, text: str, problem: str | None) -> None:
    if problem is None:  # a tag asks for nothing: a mapping stays a mapping, no object is made
        opened(text)
        return
    with pytest.raises(UsageFault) as refused:
        opened(text)
    assert problem in str(refused.value)
    assert "script.yaml" in str(refused.value)


def test_all_problems_are_told_at_once(opened: Any) -> None:
    with pytest.raises(UsageFault) as refused:
        opened("on_end: never\nproposals:\n  - {txt: a}\n  - {text: b, sleep: soon}\n")
    lines = str(refused.value).splitlines()
    assert len(lines) == 4 and [line.split(":")[1] for line in lines] == ["1", "3", "3", "4"]


def test_aliases_of_aliases_end_as_a_problem_not_as_an_outage(opened: Any) -> None:
    levels = "\n".join(
        f"  - calls: [{{name: a, arguments: {{v: &a{n} [{f'*a{n - 1}, ' * 9}]}}}}]" for n in range(1, 12)
    )
    with pytest.raises(UsageFault, match="values"):
        opened(f"proposals:\n  - calls: [{{name: a, arguments: {{v: &a0 [x]}}}}]\n{levels}\n")


def test_a_missing_script_is_a_usage_fault(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="cannot be read: No such file"):
        open_proposer("scripted:none.yaml", base_dir=tmp_path)
    with pytest.raises(UsageFault, match="cannot be read: Is a directory"):
        open_proposer("scripted:.", base_dir=tmp_path)
