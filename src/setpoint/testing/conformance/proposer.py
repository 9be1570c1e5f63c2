"""The promises of ``setpoint.ports.proposer``.

An adapter is set up to play a list of acts, whatever that takes: a script, a recording, a program, a server on
loopback behind the real client library.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from setpoint.kernel import events
from setpoint.kernel.errors import Fault, ProposerFault
from setpoint.kernel.keys import digest_bytes
from setpoint.kernel.proposal import Call, Malformed, Reply, Usage
from setpoint.phases.p2_proposal.parse import parse_reply
from setpoint.ports.proposer import Context, Part, Proposer, RouteLimits, ToolSpec, Zone

KINDS = {"overloaded", "rate_limited", "refused", "broken_stream", "timeout", "exhausted", "auth", "invalid"}
ARGUMENTS = {"path": "a.py", "start": 1}
TOOLS = (
    ToolSpec("complete_task", "Ask for judgement.", {"type": "object", "properties": {"summary": {"type": "string"}}}),
    ToolSpec(
        "file_read",
        "Read a file.",
        {"type": "object", "required": ["path"], "properties": {"path": {"type": "string"}, "start": {}}},
    ),
)


@dataclass(frozen=True)
class Act:
    """What the model does in one call.

    call: the tool ``file_read`` with ``ARGUMENTS``, and ``text`` as its thought. claim: the tool ``complete_task``,
    likewise. text: nothing but ``text``. length: a claim that the provider cut by length. broken: the stream breaks
    off. overloaded: the provider says so. rate_limited: it says so, and "2 seconds". slow: no answer for an hour.

    Every reply reports 120 input tokens, 30 output tokens and 10 cached ones, whatever the text says.
    """

    does: Literal["call", "claim", "text", "length", "broken", "overloaded", "rate_limited", "slow"]
    text: str = ""


@dataclass
class Played:
    """A proposer that will play the acts; ``attempts`` counts how often the model was really asked, if it can know."""

    proposer: Proposer
    attempts: Callable[[], int] | None = None


Play = Callable[[Sequence[Act]], Played]
ContextMaker = Callable[..., Context]


def part(zone: Zone, text: str) -> Part:
    return Part(zone, zone, text, len(text) // 4, digest_bytes(text.encode()))


def small_context(trunk: str = "GOAL: clamp timeouts", leaf: str = "OBSERVED: nothing yet", **fields: Any) -> Context:
    """A small prompt in three zones; keyword arguments replace fields of the Context."""
    parts = (part("root", "ROOT RULES"), part("trunk", trunk), part("leaf", leaf))
    values: dict[str, Any] = {
        "trajectory_id": "t-1",
        "turn": 3,
        "parts": parts,
        "tools": TOOLS,
        "tokens": sum(p.tokens for p in parts),
        "digest": digest_bytes("".join(p.digest for p in parts).encode()),
    }
    return Context(**(values | fields))


async def _answers(played: Played, count: int, deadline_ms: int) -> list[Reply | ProposerFault]:
    """``count`` turns; the cursor goes round as the engine passes it."""
    got: list[Reply | ProposerFault] = []
    cursor = 0
    try:
        for turn in range(count):
            answer: Reply | ProposerFault
            try:
                answer = await played.proposer.propose(small_context(turn=turn, cursor=cursor), deadline_ms)
            except ProposerFault as fault:
                answer = fault
            cursor = answer.cursor if answer.cursor is not None else cursor
            got.append(answer)
    finally:
        await played.proposer.close()
    return got


def ask(played: Played, count: int = 1, deadline_ms: int = 30_000) -> list[Any]:
    """What ``count`` calls were answered, replies and faults; then the proposer is closed."""
    return asyncio.run(_answers(played, count, deadline_ms))


class ProposerSuite:
    """Every proposer keeps these. Override ``play``.

        class TestMyModel(ProposerSuite):
            @pytest.fixture
            def play(self, tmp_path):
                return lambda acts: Played(MyProposer(server_that_plays(acts).url))

    For a client of a provider, ``setpoint.testing.ModelServer`` plays every act over the provider's wire format.
    """

    has_script: ClassVar[bool] = False
    """Whether it reads a script: it has a position, and it ends."""
    repeats_broken: ClassVar[bool] = False
    """Whether a call after a broken stream is answered with the same broken stream again."""

    @pytest.fixture
    def play(self) -> Play:
        """``play(acts)``: a fresh proposer whose model does these acts, one a call."""
        raise NotImplementedError("Override the fixture play: it returns a function from acts to a Played.")

    def test_it_has_a_route_and_limits(self, play: Play) -> None:
        proposer = play([Act("text", "a")]).proposer
        assert isinstance(proposer.route, str) and proposer.route
        assert isinstance(proposer.limits, RouteLimits) and proposer.limits.context_tokens > 0
        asyncio.run(proposer.close())

    def test_propose_returns_replies_in_order(self, play: Play) -> None:
        """``propose`` returns a Reply. R086: a_prop from c_t with stop reason and usage"""
        first, second, third = ask(play([Act("call", "hm"), Act("claim"), Act("text", "I am done.")]), 3)
        assert isinstance(first, Reply) and isinstance(second, Reply) and isinstance(third, Reply)
        (call,) = parse_reply(first).calls
        assert isinstance(call, Call) and (call.name, call.arguments) == ("file_read", ARGUMENTS)
        assert parse_reply(first).thought == "hm"
        assert (first.stop, third.stop) == ("tool_use", "end_turn")
        assert parse_reply(second).claims and not parse_reply(third).claims
        assert third.text == "I am done."

    def test_usage_is_the_providers_report_whatever_the_text_says(self, play: Play) -> None:
        """Usage is the provider's report; what the model's text says about usage is ignored. R233, R221"""
        lie = '{"usage": {"input_tokens": 0, "output_tokens": 0, "usd": 0}}'
        for reply in ask(play([Act("text", lie), Act("call", lie)]), 2):
            assert isinstance(reply, Reply)
            assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens) == (120, 30, 10)

    def test_a_reply_cut_by_length_has_stop_length(self, play: Play) -> None:
        """A reply that the provider cut by length has stop "length". R087"""
        (reply,) = ask(play([Act("length")]))
        assert isinstance(reply, Reply) and reply.stop == "length"
        proposal = parse_reply(reply)
        assert [call.reason for call in proposal.calls if isinstance(call, Malformed)] == ["cut_off"]
        assert not proposal.claims

    def test_a_stream_that_breaks_is_a_fault_and_the_next_call_works(self, play: Play) -> None:
        """A stream that breaks is ProposerFault(broken_stream); a partial reply is never returned. R118"""
        got = ask(play([Act("call"), Act("broken"), Act("claim")]), 3)
        assert isinstance(got[0], Reply)
        assert isinstance(got[1], ProposerFault) and got[1].kind == "broken_stream"
        assert isinstance(got[1].usage, Usage | None)
        if self.repeats_broken:
            assert isinstance(got[2], ProposerFault) and got[2].kind == "broken_stream"
        else:
            assert isinstance(got[2], Reply) and parse_reply(got[2]).claims

    @pytest.mark.parametrize(("does", "pause"), [("overloaded", None), ("rate_limited", 2000)])
    def test_a_failure_is_typed_and_never_retried_by_itself(self, play: Play, does: Any, pause: int | None) -> None:
        """It raises ProposerFault with a kind and never retries by itself: the log sees every attempt J1"""
        played = play([Act(does), Act("claim")])
        fault, reply = ask(played, 2)
        assert isinstance(fault, ProposerFault) and fault.kind == does
        assert fault.retry_after_ms == pause
        assert isinstance(reply, Reply)
        if played.attempts is not None:
            assert played.attempts() == 2

    def test_it_ends_by_the_deadline(self, play: Play) -> None:
        """It ends within ``deadline_ms`` (kind "timeout"), counted in real milliseconds from the call."""
        ask(play([Act("text", "warm")]))  # client libraries take a second to import
        started = time.monotonic()
        (fault,) = ask(play([Act("slow")]), 1, deadline_ms=500)
        assert isinstance(fault, ProposerFault) and fault.kind == "timeout"
        assert time.monotonic() - started < 10

    def test_the_same_context_gets_the_same_reply_after_a_restart(self, play: Play) -> None:
        """A script's position lives in ``Context.cursor`` and ``Reply.cursor``, never in the adapter."""
        if not self.has_script:
            pytest.skip("a live model has no position to keep")
        first = ask(play([Act("call"), Act("claim")]), 2)
        again = ask(play([Act("call"), Act("claim")]), 2)
        assert first == again and [reply.cursor for reply in first] == [1, 2]

    def test_a_position_is_the_contexts_and_not_the_adapters(self, play: Play) -> None:
        """The same context gets the same reply, from the same adapter too."""
        if not self.has_script:
            pytest.skip("a live model has no position to keep")

        async def ask_back_and_forth(played: Played) -> list[Reply]:
            try:
                return [await played.proposer.propose(small_context(cursor=n), 30_000) for n in (1, 0, 1)]
            finally:
                await played.proposer.close()

        second, first, again = asyncio.run(ask_back_and_forth(play([Act("call"), Act("claim")])))
        assert second == again != first
        assert not parse_reply(first).claims and parse_reply(second).claims

    def test_a_script_that_ends_is_exhausted(self, play: Play) -> None:
        if not self.has_script:
            pytest.skip("a live model does not end")
        _, fault, same = ask(play([Act("claim")]), 3)
        assert isinstance(fault, ProposerFault) and fault.kind == same.kind == "exhausted"

    def test_faults_have_known_kinds_and_messages_that_can_be_logged(self, play: Play) -> None:
        for fault in ask(play([Act("overloaded"), Act("rate_limited")]), 2):
            assert isinstance(fault, ProposerFault) and isinstance(fault, Fault)
            assert fault.kind in KINDS and fault.effect == "settled"
            fault.message.encode()
            usage = fault.usage or Usage()
            assert isinstance(usage, Usage)
            events.encode(events.ModelFailed(route="r", kind=fault.kind, message=fault.message))

    def test_a_reply_lies_in_the_log_as_it_came(self, play: Play) -> None:
        for reply in ask(play([Act("call", "ä \u2028 ü"), Act("length")]), 2):
            assert isinstance(reply, Reply)
            encoded = events.encode(events.ModelReplied(route="r", stop=reply.stop, reply=reply.document()))
            decoded = events.decode("ModelReplied", encoded)
            assert isinstance(decoded, events.ModelReplied) and decoded.reply is not None
            again = Reply.of(decoded.reply, usage=reply.usage, model=reply.model, cursor=reply.cursor)
            assert again == reply

    def test_cancelling_a_call_ends_it(self, play: Play) -> None:
        async def cancel(played: Played) -> None:
            call = asyncio.create_task(played.proposer.propose(small_context(), 60_000))
            await asyncio.wait([call], timeout=0.3)
            call.cancel()
            await asyncio.wait([call], timeout=10)
            assert call.done()
            await played.proposer.close()

        asyncio.run(cancel(play([Act("slow")])))

    def test_close_may_be_called_twice_and_without_a_call(self, play: Play) -> None:
        async def close(played: Played) -> None:
            await played.proposer.close()
            await played.proposer.close()

        asyncio.run(close(play([Act("text", "a")])))
