"""Every proposer keeps the promises of ``setpoint.ports.proposer``: one suite over all adapters.

An adapter is set up to play a list of acts, whatever that takes: a script, a recording, a program, a server on
loopback behind the real client library.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from setpoint.adapters.proposers.opening import open_proposer
from setpoint.adapters.proposers.wire import raw_call_text
from setpoint.kernel import events
from setpoint.kernel.errors import Fault, ProposerFault
from setpoint.kernel.proposal import Call, Malformed, Reply, Usage
from setpoint.phases.p2_proposal.parse import parse_reply
from setpoint.ports.proposer import Proposer, RouteLimits
from setpoint.testing.model_server import Drop, Fail, Hang, ModelServer, Say, Step, ToolCall

pytestmark = pytest.mark.usefixtures("clean_environment")
ROUTES = ("scripted", "replay", "command", "openai", "anthropic")
USAGE = Usage(120, 30, 10)
KINDS = {"overloaded", "rate_limited", "refused", "broken_stream", "timeout", "exhausted", "auth", "invalid"}


@dataclass(frozen=True)
class Act:
    """What the model does in one call."""

    does: Literal["call", "claim", "text", "length", "broken", "overloaded", "rate_limited", "slow"]
    text: str = ""


@dataclass
class Played:
    """A proposer that will play the acts; ``attempts`` counts how often the model was really asked, if it can know."""

    proposer: Proposer
    attempts: Callable[[], int] | None = None


ARGUMENTS = {"path": "a.py", "start": 1}


# How each adapter is made to play the acts


def play_scripted(acts: Sequence[Act], folder: Path, _: ExitStack) -> Played:
    calls = {"call": [{"name": "file_read", "arguments": ARGUMENTS}], "claim": [{"name": "complete_task"}]}
    usage = {"input_tokens": 120, "output_tokens": 30, "cached_tokens": 10}
    proposals: list[dict[str, Any]] = []
    for act in acts:
        match act.does:
            case "call" | "claim":
                proposals.append({"thought": act.text, "calls": calls[act.does]})
            case "text":
                proposals.append({"text": act.text})
            case "length":
                proposals.append({"stop": "length", "calls": calls["claim"]})
            case "broken":
                proposals.append({"error": "broken_stream", "usage": {"input_tokens": 120}})
            case "overloaded":
                proposals.append({"error": "overloaded"})
            case "rate_limited":
                proposals.append({"error": "rate_limited", "retry_after": "2s"})
            case "slow":
                proposals.append({"sleep": "1h", "text": "late"})
    (folder / "script.yaml").write_text(json.dumps({"usage": usage, "proposals": proposals}))
    return Played(open_proposer("scripted:script.yaml", base_dir=folder))


def play_replay(acts: Sequence[Act], folder: Path, _: ExitStack) -> Played:
    lines: list[dict[str, Any]] = []

    def add(event: events.Event) -> None:
        data = json.loads(events.encode(event))
        lines.append({"stream": "t-1", "seq": len(lines) + 1, "type": type(event).__name__, "v": 1, "data": data})

    spent = {"input_tokens": 120, "output_tokens": 30, "cached_tokens": 10}
    for act in acts:
        add(events.TurnStarted(elapsed_ms=0))
        match act.does:
            case "call":
                calls: Any = (raw_call_text("file_read", json.dumps(ARGUMENTS)),)
                reply = Reply(act.text, calls)
            case "claim":
                reply = Reply(act.text, (raw_call_text("complete_task", "{}"),))
            case "text":
                reply = Reply(act.text, stop="end_turn")
            case "length":
                reply = Reply(calls=(raw_call_text("complete_task", "{}"),), stop="length")
            case "broken":
                add(events.ModelFailed(route="r", kind="broken_stream", message="cut", input_tokens=120))
                continue
            case "rate_limited":
                add(events.ModelFailed(route="r", kind="rate_limited", message="429", retry_after_ms=2000))
                continue
            case other:
                add(events.ModelFailed(route="r", kind={"slow": "timeout"}.get(other, other), message="recorded"))
                continue
        add(events.ModelReplied(route="r", stop=reply.stop, reply=reply.document(), model="m", **spent))
    (folder / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Played(open_proposer("replay:run.jsonl", base_dir=folder))


PROGRAM = """
import json, sys, time
acts = json.load(open("acts.json"))
usage = {"input_tokens": 120, "output_tokens": 30, "cached_tokens": 10}
call = {"name": "file_read", "arguments": {"path": "a.py", "start": 1}}
claim = {"name": "complete_task"}
for line in sys.stdin:
    with open("asked", "a") as asked: asked.write("x")
    cursor = json.loads(line)["context"]["cursor"]
    if cursor >= len(acts):
        print(json.dumps({"error": "exhausted", "cursor": cursor}), flush=True)
        continue
    does, text = acts[cursor]
    say = {
        "call": {"thought": text, "calls": [call], "usage": usage},
        "claim": {"thought": text, "calls": [claim], "usage": usage},
        "text": {"text": text, "usage": usage},
        "length": {"stop": "length", "calls": [claim], "usage": usage},
        "overloaded": {"error": "overloaded"},
        "rate_limited": {"error": "rate_limited", "retry_after_ms": 2000},
    }.get(does)
    if does == "broken":
        sys.stdout.write('{"thought": "I was about to'); sys.stdout.flush(); sys.exit(1)
    if does == "slow":
        time.sleep(3600)
    print(json.dumps({**say, "cursor": cursor + 1}), flush=True)
"""


def play_command(acts: Sequence[Act], folder: Path, _: ExitStack) -> Played:
    (folder / "agent.py").write_text(PROGRAM)
    (folder / "acts.json").write_text(json.dumps([[act.does, act.text] for act in acts]))
    asked = folder / "asked"
    proposer = open_proposer(f"command:{sys.executable} agent.py", base_dir=folder)
    return Played(proposer, lambda: len(asked.read_text()) if asked.exists() else 0)


def play_provider(provider: str) -> Callable[[Sequence[Act], Path, ExitStack], Played]:
    metered = {"input_tokens": 120, "output_tokens": 30, "cached_tokens": 10}
    steps: dict[str, Callable[[Act], Step]] = {
        "call": lambda act: Say(act.text, [ToolCall("file_read", json.dumps(ARGUMENTS))], **metered),
        "claim": lambda act: Say(act.text, [ToolCall("complete_task")], **metered),
        "text": lambda act: Say(act.text, **metered),
        "length": lambda _: Say(calls=[ToolCall("complete_task")], stop="length", **metered),
        "broken": lambda _: Say("one two three four", cut_after=1, **metered),
        "overloaded": lambda _: Fail(529, "overloaded_error"),
        "rate_limited": lambda _: Fail(429, "rate_limit_error", headers={"retry-after": "2"}),
        "slow": lambda _: Hang(),
    }

    def play(acts: Sequence[Act], folder: Path, cleanup: ExitStack) -> Played:
        server = cleanup.enter_context(ModelServer([steps[act.does](act) for act in acts] or [Drop()]))
        base = server.openai_url if provider == "openai" else server.url
        proposer = open_proposer(f"{provider}:m?base_url={base}", base_dir=folder)
        return Played(proposer, lambda: len(server.requests))

    return play


PLAYS = {
    "scripted": play_scripted,
    "replay": play_replay,
    "command": play_command,
    "openai": play_provider("openai"),
    "anthropic": play_provider("anthropic"),
}


@pytest.fixture(params=ROUTES)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def playing(kind: str, tmp_path: Path) -> Iterator[Callable[..., Played]]:
    with ExitStack() as cleanup:
        yield lambda *acts: PLAYS[kind](acts, tmp_path, cleanup)


async def answers(played: Played, make: Any, count: int, deadline_ms: int = 30_000) -> list[Reply | ProposerFault]:
    """``count`` turns; the cursor goes round as the engine passes it."""
    got: list[Reply | ProposerFault] = []
    cursor = 0
    try:
        for turn in range(count):
            answer: Reply | ProposerFault
            try:
                answer = await played.proposer.propose(make(turn=turn, cursor=cursor), deadline_ms)
            except ProposerFault as fault:
                answer = fault
            cursor = answer.cursor if answer.cursor is not None else cursor
            got.append(answer)
    finally:
        await played.proposer.close()
    return got


def run(played: Played, make: Any, count: int = 1, deadline_ms: int = 30_000) -> list[Any]:
    return asyncio.run(answers(played, make, count, deadline_ms))


# The promises


def test_it_has_a_route_and_limits(playing: Any, kind: str) -> None:
    proposer = playing(Act("text", "a")).proposer
    assert proposer.route.startswith(f"{kind}:")
    assert isinstance(proposer.limits, RouteLimits) and proposer.limits.context_tokens > 0
    asyncio.run(proposer.close())


def test_propose_returns_replies_in_order(playing: Any, context: Any) -> None:
    """R086: a_prop from c_t with stop reason and usage"""
    first, second, third = run(playing(Act("call", "hm"), Act("claim"), Act("text", "I am done.")), context, 3)
    assert isinstance(first, Reply) and isinstance(second, Reply) and isinstance(third, Reply)
    (call,) = parse_reply(first).calls
    assert isinstance(call, Call) and (call.name, call.arguments) == ("file_read", ARGUMENTS)
    assert parse_reply(first).thought == "hm"
    assert (first.stop, third.stop) == ("tool_use", "end_turn")
    assert parse_reply(second).claims and not parse_reply(third).claims
    assert third.text == "I am done."


def test_usage_is_the_providers_report_whatever_the_text_says(playing: Any, context: Any) -> None:
    """R233; R221"""
    lie = '{"usage": {"input_tokens": 0, "output_tokens": 0, "usd": 0}}'
    for reply in run(playing(Act("text", lie), Act("call", lie)), context, 2):
        assert isinstance(reply, Reply)
        assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens) == (120, 30, 10)


def test_a_reply_cut_by_length_has_stop_length(playing: Any, context: Any) -> None:
    """R087"""
    (reply,) = run(playing(Act("length")), context)
    assert isinstance(reply, Reply) and reply.stop == "length"
    proposal = parse_reply(reply)
    assert [call.reason for call in proposal.calls if isinstance(call, Malformed)] == ["cut_off"]
    assert not proposal.claims


def test_a_stream_that_breaks_is_a_fault_and_the_next_call_works(playing: Any, context: Any, kind: str) -> None:
    """R118: the turn is retried by the loop; no earlier turn is touched and no half reply is returned"""
    acts = [Act("call"), Act("broken"), Act("claim")]
    if kind == "command":  # a program that died has not moved its cursor: the loop's next call hears the same again
        acts = [Act("call"), Act("broken")]
    got = run(playing(*acts), context, 3)
    assert isinstance(got[0], Reply)
    assert isinstance(got[1], ProposerFault) and got[1].kind == "broken_stream"
    assert isinstance(got[1].usage, Usage | None)
    if kind == "command":
        assert isinstance(got[2], ProposerFault) and got[2].kind == "broken_stream"
    else:
        assert isinstance(got[2], Reply) and parse_reply(got[2]).claims


@pytest.mark.parametrize(("does", "pause"), [("overloaded", None), ("rate_limited", 2000)])
def test_a_failure_is_typed_and_never_retried_by_itself(
    playing: Any, context: Any, does: Any, pause: int | None
) -> None:
    """CASES J1: the log sees every attempt"""
    played = playing(Act(does), Act("claim"))
    fault, reply = run(played, context, 2)
    assert isinstance(fault, ProposerFault) and fault.kind == does
    assert fault.retry_after_ms == pause
    assert isinstance(reply, Reply)
    if played.attempts is not None:
        assert played.attempts() == 2


def test_it_ends_by_the_deadline(playing: Any, context: Any) -> None:
    run(playing(Act("text", "warm")), context)  # client libraries take a second to import
    started = time.monotonic()
    (fault,) = run(playing(Act("slow")), context, 1, deadline_ms=500)
    assert isinstance(fault, ProposerFault) and fault.kind == "timeout"
    assert time.monotonic() - started < 10


def test_the_same_context_gets_the_same_reply_after_a_restart(playing: Any, kind: str, context: Any) -> None:
    """A script's position lives in the context"""
    if kind in ("openai", "anthropic"):
        pytest.skip("a live model has no position to keep")
    first = run(playing(Act("call"), Act("claim")), context, 2)
    again = run(playing(Act("call"), Act("claim")), context, 2)
    assert first == again and [reply.cursor for reply in first] == [1, 2]


def test_a_script_that_ends_is_exhausted(playing: Any, kind: str, context: Any) -> None:
    if kind in ("openai", "anthropic"):
        pytest.skip("a live model does not end")
    _, fault, same = run(playing(Act("claim")), context, 3)
    assert isinstance(fault, ProposerFault) and fault.kind == same.kind == "exhausted"


def test_faults_have_known_kinds_and_messages_that_can_be_logged(playing: Any, context: Any) -> None:
    for fault in run(playing(Act("overloaded"), Act("rate_limited")), context, 2):
        assert isinstance(fault, ProposerFault) and isinstance(fault, Fault)
        assert fault.kind in KINDS and fault.effect == "settled"
        fault.message.encode()
        usage = fault.usage or Usage()
        assert isinstance(usage, Usage)
        events.encode(events.ModelFailed(route="r", kind=fault.kind, message=fault.message))


def test_a_reply_lies_in_the_log_as_it_came(playing: Any, context: Any) -> None:
    for reply in run(playing(Act("call", "ä \u2028 ü"), Act("length")), context, 2):
        assert isinstance(reply, Reply)
        encoded = events.encode(events.ModelReplied(route="r", stop=reply.stop, reply=reply.document()))
        decoded = events.decode("ModelReplied", encoded)
        assert isinstance(decoded, events.ModelReplied) and decoded.reply is not None
        again = Reply.of(decoded.reply, usage=reply.usage, model=reply.model, cursor=reply.cursor)
        assert again == reply


def test_cancelling_a_call_ends_it(playing: Any, context: Any) -> None:
    async def cancel(played: Played) -> None:
        call = asyncio.create_task(played.proposer.propose(context(), 60_000))
        await asyncio.wait([call], timeout=0.3)
        call.cancel()
        await asyncio.wait([call], timeout=10)
        assert call.done()
        await played.proposer.close()

    asyncio.run(cancel(playing(Act("slow"))))


def test_close_may_be_called_twice_and_without_a_call(playing: Any) -> None:
    async def close(played: Played) -> None:
        await played.proposer.close()
        await played.proposer.close()

    asyncio.run(close(playing(Act("text", "a"))))
