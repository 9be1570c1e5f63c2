"""The openai and anthropic routes, through the real client libraries, against the loopback model server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from setpoint.adapters.proposers.failures import (
    CODE_KINDS,
    STATUS_KINDS,
    TYPE_KINDS,
    kind_of_failure,
    kind_of_transport_failure,
    retry_after_ms,
    told,
)
from setpoint.adapters.proposers.opening import open_proposer
from setpoint.adapters.proposers.provider_route import ProviderRoute
from setpoint.kernel.errors import ProposerFault, UsageFault
from setpoint.kernel.limits import PROPOSAL_BYTES_MAX
from setpoint.kernel.proposal import Call, Malformed, RawCall, Reply, Usage
from setpoint.phases.p2_proposal.parse import parse_reply
from setpoint.ports.proposer import ToolSpec
from setpoint.testing.model_server import Bytes, Drop, Fail, Hang, ModelServer, Say, Step, ToolCall

pytestmark = pytest.mark.usefixtures("clean_environment")
PROVIDERS = ("openai", "anthropic")
READ = ToolCall("file_read", '{"path": "src/config.py"}')


def route(provider: str, server: ModelServer, options: str = "") -> str:
    base = server.openai_url if provider == "openai" else server.url
    return f"{provider}:test-model?base_url={base}{options}"


async def propose(route: str, context: Any, deadline_ms: int = 30_000, times: int = 1) -> list[Any]:
    proposer = open_proposer(route, base_dir=Path("/"))
    answers: list[Any] = []
    try:
        for _ in range(times):
            try:
                answers.append(await proposer.propose(context, deadline_ms))
            except ProposerFault as fault:
                answers.append(fault)
    finally:
        await proposer.close()
    return answers


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ask(provider: str, context: Any) -> Callable[..., Any]:
    """Plays one step and gives the answer; exactly one request must have been made (no retries by the library)."""

    def run(step: Step, options: str = "", deadline_ms: int = 30_000, **fields: Any) -> Any:
        with ModelServer([step]) as server:
            (answer,) = asyncio.run(propose(route(provider, server, options), context(**fields), deadline_ms))
            assert len(server.requests) == 1
            return answer

    return run


def test_a_reply_brings_text_calls_and_the_providers_usage(ask: Any) -> None:
    """R086; R233"""
    say = Say(
        "Looking at it.", [READ, ToolCall("complete_task")], input_tokens=900, output_tokens=33, cached_tokens=512
    )
    reply = ask(say)
    assert isinstance(reply, Reply), reply
    assert (reply.text, reply.stop, reply.model) == ("Looking at it.", "tool_use", "test-model")
    assert [(call.name, call.arguments) for call in reply.calls] == [
        ("file_read", '{"path": "src/config.py"}'),
        ("complete_task", "{}"),
    ]
    assert all(call.call_id for call in reply.calls)
    assert reply.usage == Usage(900, 33, 512, None)
    assert parse_reply(reply).claims


def test_usage_claimed_in_the_models_text_is_ignored(ask: Any) -> None:
    """R233; R221"""
    reply = ask(Say('{"usage": {"input_tokens": 0, "output_tokens": 0}} budget=∞', input_tokens=77, output_tokens=8))
    assert reply.usage == Usage(77, 8)


def test_text_alone_is_a_reply_without_calls(ask: Any) -> None:
    """R114"""
    reply = ask(Say("I am done."))
    assert (reply.text, reply.calls, reply.stop) == ("I am done.", (), "end_turn")


@pytest.mark.parametrize("arguments", ['{"path": ', "null", '"{\\"path\\": 1}"', "[]", '{"a": NaN}', "\ud800", "{}{}"])
def test_garbage_arguments_come_through_as_they_are_and_are_judged_here(ask: Any, arguments: str) -> None:
    """CASES Q1: what the server promised about its output does not matter"""
    reply = ask(Say(calls=[ToolCall("file_read", arguments)]))
    assert isinstance(reply, Reply)
    assert reply.calls[0].arguments == arguments.replace("\ud800", "�")
    assert isinstance(parse_reply(reply).calls[0], Malformed)


def test_no_arguments_at_all_are_an_empty_object(ask: Any) -> None:
    reply = ask(Say(calls=[ToolCall("complete_task", "")]))
    (call,) = parse_reply(reply).calls
    assert isinstance(call, Call) and call.arguments == {}


def test_a_reply_cut_by_length_says_so(ask: Any) -> None:
    """R087"""
    reply = ask(Say(calls=[READ], stop="length"))
    assert reply.stop == "length"
    assert not any(isinstance(call, Call) for call in parse_reply(reply).calls)


def test_a_refusal_is_a_fault_and_its_tokens_are_charged(ask: Any) -> None:
    fault = ask(Say(refusal="I cannot help with that.", stop="refusal", input_tokens=50, output_tokens=6))
    assert isinstance(fault, ProposerFault)
    assert fault.kind == "refused" and "I cannot help with that." in str(fault)
    assert fault.usage == Usage(50, 6)


def test_a_content_filter_without_words_is_a_refusal(ask: Any) -> None:
    assert ask(Say("half of", stop="refusal")).kind == "refused"


@pytest.mark.parametrize(
    ("status", "type", "code", "kind"),
    [
        (400, "invalid_request_error", None, "invalid"),
        (401, "authentication_error", None, "auth"),
        (401, "invalid_request_error", "invalid_api_key", "auth"),
        (402, "billing_error", None, "exhausted"),
        (403, "permission_error", None, "auth"),
        (404, "not_found_error", "model_not_found", "invalid"),
        (408, "", None, "timeout"),
        (409, "", None, "invalid"),
        (413, "request_too_large", None, "invalid"),
        (422, "", None, "invalid"),
        (429, "rate_limit_error", "rate_limit_exceeded", "rate_limited"),
        (500, "server_error", None, "overloaded"),
        (502, "", None, "overloaded"),
        (503, "", None, "overloaded"),
        (504, "timeout_error", None, "timeout"),
        (529, "overloaded_error", None, "overloaded"),
    ],
)
def test_an_http_error_has_its_kind_and_is_not_retried(
    ask: Any, status: int, type: str, code: str | None, kind: str
) -> None:
    """CASES J1"""
    fault = ask(Fail(status, type, code, "scripted failure"))
    assert isinstance(fault, ProposerFault)
    assert fault.kind == kind
    assert "scripted failure" in str(fault) and "test-model" in str(fault)
    assert fault.usage == Usage()


def test_an_empty_account_is_not_a_rate_limit(context: Any) -> None:
    with ModelServer([Fail(429, "insufficient_quota", "insufficient_quota")]) as server:
        (fault,) = asyncio.run(propose(route("openai", server), context()))
    assert fault.kind == "exhausted"


def test_the_pause_a_provider_asks_for_is_kept(ask: Any) -> None:
    """CASES J1"""
    fault = ask(Fail(429, "rate_limit_error", headers={"retry-after": "2"}))
    assert (fault.kind, fault.retry_after_ms) == ("rate_limited", 2000)
    fault = ask(Fail(503, headers={"Retry-After-Ms": "1500", "retry-after": "9"}))
    assert (fault.kind, fault.retry_after_ms) == ("overloaded", 1500)


@pytest.mark.parametrize("cut", ["reset", "end"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_stream_that_breaks_is_a_fault_and_never_half_a_reply(ask: Any, provider: str, cut: Any, after: int) -> None:
    """R118"""
    fault = ask(Say("one two three four five six", [READ], cut_after=after, cut=cut, input_tokens=300))
    assert isinstance(fault, ProposerFault), fault
    assert fault.kind == "broken_stream"
    # One provider says at the start what it read, the other only at the end.
    known = Usage(300, 1) if provider == "anthropic" else Usage()
    assert fault.usage == known


def test_an_error_event_in_the_middle_of_a_stream_has_its_kind(ask: Any) -> None:
    """CASES J1: HTTP 200, then overloaded"""
    assert ask(Say("one two three", error_after=1)).kind == "overloaded"
    assert ask(Say("one two three", error_after=1, error_type="rate_limit_error")).kind == "rate_limited"
    assert ask(Say("one two three", error_after=1, error_type="invalid_request_error")).kind == "invalid"
    assert ask(Say("one two three", error_after=1, error_type="who_knows")).kind == "overloaded"


def test_a_connection_dropped_before_any_answer_is_a_broken_stream(ask: Any) -> None:
    assert ask(Drop()).kind == "broken_stream"


def test_an_endpoint_that_is_not_there_is_overloaded(provider: str, context: Any) -> None:
    with ModelServer([]) as server:
        gone = route(provider, server)
    (fault,) = asyncio.run(propose(gone, context()))
    assert fault.kind == "overloaded"


@pytest.mark.parametrize("step", [Hang(), Say("one two three four", hold_after=2), Say("x" * 4000, piece_ms=100)])
def test_a_slow_reply_ends_at_the_deadline(ask: Any, step: Step) -> None:
    ask(Say("warm: the library is imported"))
    started = time.monotonic()
    fault = ask(step, deadline_ms=400)
    assert isinstance(fault, ProposerFault) and fault.kind == "timeout"
    assert time.monotonic() - started < 5


def test_a_deadline_that_has_passed_is_a_timeout(provider: str, context: Any) -> None:
    with ModelServer([Say("a")]) as server:
        (fault,) = asyncio.run(propose(route(provider, server), context(), 0))
        assert fault.kind == "timeout" and server.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b"data: {not json\n\n",
        b"event: message_start\ndata: {not json\n\n",
        b"event: message_start\ndata: {}\n\ndata: {}\n\n",
        b'event: message_start\ndata: {"type": "message_start", "message": 7, "choices": 5, "usage": "free"}\n\n',
        b'event: content_block_start\ndata: {"type": "content_block_start", "choices": [[]], "usage": null}\n\n',
        b"<html>502 Bad Gateway</html>",
        b"\xff\xfe\x00",
        b"data: [DONE]\n\n",
        b"",
    ],
)
def test_another_format_is_a_fault_and_no_crash(ask: Any, body: bytes) -> None:
    fault = ask(Bytes(body))
    assert isinstance(fault, ProposerFault), fault
    assert fault.kind in ("invalid", "broken_stream")


@pytest.mark.parametrize("content_type", ["text/html", "application/json"])
def test_an_answer_that_is_no_stream_is_a_fault(ask: Any, content_type: str) -> None:
    fault = ask(Bytes(b'{"object": "chat.completion"}', content_type))
    assert isinstance(fault, ProposerFault) and fault.kind in ("invalid", "broken_stream")


def test_a_reply_without_end_is_stopped_at_the_bound(ask: Any) -> None:
    """L7"""
    big = ToolCall("file_write", "x" * (PROPOSAL_BYTES_MAX + 100))
    fault = ask(Say(calls=[big], input_tokens=5, piece_chars=1 << 16))
    assert isinstance(fault, ProposerFault) and fault.kind == "invalid"
    assert str(PROPOSAL_BYTES_MAX) in str(fault)


def test_cancelling_a_proposal_closes_the_connection(provider: str, context: Any) -> None:
    """R118; CASES R1"""

    async def run(server: ModelServer) -> None:
        proposer = open_proposer(route(provider, server), base_dir=Path("/"))
        call = asyncio.create_task(proposer.propose(context(), 60_000))
        while not server.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.to_thread(server.wait_for_client_gone), "before close"
        await proposer.close()

    with ModelServer([Say("one two three four", hold_after=1)]) as server:
        asyncio.run(run(server))
        assert len(server.requests) == 1


def test_one_client_serves_many_proposals_at_once(provider: str, context: Any) -> None:
    async def run(server: ModelServer) -> list[Reply]:
        proposer = open_proposer(route(provider, server), base_dir=Path("/"))
        try:
            return await asyncio.gather(*(proposer.propose(context(turn=n), 30_000) for n in range(8)))
        finally:
            await proposer.close()

    with ModelServer([Say("ok", piece_ms=20)], repeat_last=True) as server:
        assert [reply.text for reply in asyncio.run(run(server))] == ["ok"] * 8
        assert len(server.requests) == 8


def test_a_route_works_in_one_event_loop_after_the_other(provider: str, context: Any) -> None:
    with ModelServer([Say("ok")], repeat_last=True) as server:
        proposer = open_proposer(route(provider, server), base_dir=Path("/"))
        for _ in range(2):
            assert asyncio.run(proposer.propose(context(), 30_000)).text == "ok"
        asyncio.run(proposer.close())


# What is sent


def sent(provider: str, context: Any, options: str = "") -> dict[str, Any]:
    with ModelServer([Say("ok")]) as server:
        asyncio.run(propose(route(provider, server, options), context))
        return server.requests[0].body


def test_the_root_zone_is_the_system_prompt_and_the_rest_one_user_message(context: Any) -> None:
    """R085"""
    user = "GOAL: clamp timeouts\n\nOBSERVED: nothing yet"
    body = sent("openai", context())
    assert body["messages"] == [{"role": "system", "content": "ROOT RULES"}, {"role": "user", "content": user}]
    assert body["max_tokens"] == 4096 and body["stream"] is True and body["stream_options"] == {"include_usage": True}
    assert [tool["function"]["name"] for tool in body["tools"]] == ["complete_task", "file_read"]
    body = sent("anthropic", context())
    assert body["system"] == [{"type": "text", "text": "ROOT RULES", "cache_control": {"type": "ephemeral"}}]
    assert body["messages"] == [{"role": "user", "content": user}]
    assert [tool["name"] for tool in body["tools"]] == ["complete_task", "file_read"]
    assert body["max_tokens"] == 4096


def test_the_prefix_is_byte_identical_while_the_legal_set_stands(provider: str, context: Any) -> None:
    """CASES F2: another key order in a schema, another turn, another observation"""
    schema = {"type": "object", "properties": {"b": {"type": "string", "minLength": 1}, "a": {}}, "required": ["b"]}
    turned = {"required": ["b"], "properties": {"a": {}, "b": {"minLength": 1, "type": "string"}}, "type": "object"}
    with ModelServer([Say("ok")], repeat_last=True) as server:
        for turn, shown in enumerate((schema, turned)):
            prompt = context(turn=turn, leaf=f"OBSERVED {turn}", tools=(ToolSpec("t", "d", shown),))
            asyncio.run(propose(route(provider, server), prompt))
        first, second = (request.raw.decode() for request in server.requests)
    assert first != second
    for part in ("tools", "system", "messages"):
        one, two = (json.loads(raw).get(part) for raw in (first, second))
        if part == "messages":
            one, two = one[:-1], two[:-1]
        assert json.dumps(one) == json.dumps(two)


def test_options_reach_the_request_and_the_limits(provider: str, context: Any) -> None:
    options = "&context=32000&output=512&in=3.00&out=15.00&temperature=0.2"
    body = sent(provider, context(), options)
    assert body["max_tokens"] == 512 and body["temperature"] == 0.2 and body["model"] == "test-model"
    limits = open_proposer(f"{provider}:m?{options[1:]}", base_dir=Path("/")).limits
    assert (limits.context_tokens, limits.output_tokens) == (32_000, 512)
    assert (limits.usd_micros_per_mtok_in, limits.usd_micros_per_mtok_out) == (3_000_000, 15_000_000)


def test_without_tools_no_tools_are_sent(provider: str, context: Any) -> None:
    assert "tools" not in sent(provider, context(tools=()))


def test_the_key_is_sent_and_never_told(provider: str, context: Any, clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("MY_KEY", "sk-very-secret-123")
    with ModelServer([Fail(401, "authentication_error", None, "wrong key sk-very-secret-123")]) as server:
        (fault,) = asyncio.run(propose(route(provider, server, "&key_env=MY_KEY"), context()))
        headers = server.requests[0].headers
    assert "sk-very-secret-123" in headers.get("x-api-key", "") + headers.get("authorization", "")
    assert fault.kind == "auth" and "sk-very-secret-123" not in str(fault)


def test_a_missing_key_is_an_auth_fault_that_names_the_variable(provider: str, context: Any) -> None:
    (fault,) = asyncio.run(propose(f"{provider}:m", context()))
    assert fault.kind == "auth" and f"{provider.upper()}_API_KEY" in str(fault)
    (fault,) = asyncio.run(propose(f"{provider}:m?base_url=https://models.example/v1&key_env=K", context()))
    assert fault.kind == "auth" and "variable K" in str(fault)


def test_the_endpoint_may_come_from_the_environment(
    provider: str, context: Any, clean_environment: pytest.MonkeyPatch
) -> None:
    with ModelServer([Say("ok")]) as server:
        url = server.openai_url if provider == "openai" else server.url
        clean_environment.setenv(f"{provider.upper()}_BASE_URL", url)
        (reply,) = asyncio.run(propose(f"{provider}:m", context()))
    assert reply.text == "ok"


# Routes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("openai", "is not a model route"),
        ("openai:", "is not a model route"),
        ("opnai:gpt", "Did you mean openai:gpt?"),
        ("gpt-5:x", "The kinds are scripted, replay, command, openai, anthropic"),
        ("openai:m?base_ulr=http://x", "Did you mean 'base_url'?"),
        ("openai:m?api_key=sk-1", "A key has no place in a route"),
        ("openai:m?base_url=ftp://x", "not an http or https URL"),
        ("openai:m?base_url=127.0.0.1:80", "not an http or https URL"),
        ("openai:m?in=three", "not an amount of dollars"),
        ("openai:m?output=0", "not a number of tokens"),
        ("openai:m?output=5&output=6", "twice"),
        ("openai:m?temperature=9", "from 0 to 2"),
        ("openai:m?junk", "cannot be read"),
    ],
)
def test_a_route_that_is_none_is_refused_with_a_hint(text: str, problem: str) -> None:
    with pytest.raises(UsageFault) as refused:
        open_proposer(text, base_dir=Path("/"))
    assert problem in str(refused.value)


def test_a_models_name_may_hold_colons_and_slashes() -> None:
    read = ProviderRoute.read("r", "org/qwen2.5:7b-instruct?base_url=http://127.0.0.1:1/v1", key_env="K")
    assert (read.model, read.base_url) == ("org/qwen2.5:7b-instruct", "http://127.0.0.1:1/v1")


def test_a_missing_extra_names_what_to_install(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageFault, match=rf"pip install 'setpoint\[{provider}\]'"):
        open_proposer(f"{provider}:m", base_dir=Path("/"))


def test_opening_imports_no_client_library_and_no_yaml() -> None:
    """The import graph, not a time"""
    program = (
        "import sys\n"
        "from setpoint.adapters.proposers import opening\n"
        "seen = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(seen & {'openai', 'anthropic', 'yaml', 'httpx', 'httpx2', 'pydantic'}))\n"
        "from pathlib import Path\n"
        "[opening.open_proposer(f'{kind}:m', base_dir=Path('/')) for kind in ('openai', 'anthropic')]\n"
        "seen = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(seen & {'openai', 'anthropic', 'yaml', 'httpx', 'httpx2', 'pydantic'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["[]", "[]"]


# Tables


@pytest.mark.parametrize("status", [None, *range(400, 600)])
def test_every_status_has_a_kind(status: int | None) -> None:
    kinds = {"overloaded", "rate_limited", "refused", "timeout", "exhausted", "auth", "invalid"}
    bodies: list[Any] = [None, "text", [], {}, {"error": None}, {"error": {"type": 5}}, {"type": "new"}]
    assert {kind_of_failure(status, body) for body in bodies} <= kinds
    if status is not None and status >= 500:
        assert kind_of_failure(status, None) in ("overloaded", "timeout")
    elif status is not None:
        assert kind_of_failure(status, None) == STATUS_KINDS.get(status, "invalid")


def test_a_code_says_more_than_its_status_and_a_type_less() -> None:
    for code, kind in CODE_KINDS.items():
        assert kind_of_failure(400, {"code": code}) == kind_of_failure(None, {"error": {"type": code}}) == kind
    for type_, kind in TYPE_KINDS.items():
        assert kind_of_failure(503, {"type": type_}) == "overloaded"
        assert kind_of_failure(200, {"error": {"type": type_}}) == kind


@pytest.mark.parametrize(
    ("headers", "ms"),
    [
        ({}, None),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1.5"}, 1500),
        ({"retry-after": "999999999"}, 24 * 3_600_000),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 5000}, None),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:10 GMT"}, 10_000),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0),
        ({"retry-after-ms": "20"}, 20),
        ({"retry-after-ms": "x", "retry-after": "3"}, 3000),
    ],
)
def test_retry_after_is_read_in_each_of_its_forms(headers: dict[str, str], ms: int | None) -> None:
    assert retry_after_ms(headers, datetime(2026, 1, 1, tzinfo=UTC)) == ms


def test_a_connection_that_never_stood_differs_from_one_that_broke() -> None:
    class TimeoutException(Exception): ...

    class ConnectTimeout(TimeoutException): ...

    class ReadTimeout(TimeoutException): ...

    class ConnectError(Exception): ...

    assert kind_of_transport_failure(ConnectError()) == "overloaded"
    assert kind_of_transport_failure(ConnectTimeout()) == "overloaded"
    assert kind_of_transport_failure(ReadTimeout()) == "timeout"
    assert kind_of_transport_failure(None) == "broken_stream"


def test_a_providers_words_are_bounded_and_printable() -> None:
    words = told("\x1b[31mred\n\ud800" + "x" * 9000, "")
    assert words.isprintable() and len(words) <= 600
    words.encode()


def test_the_reply_survives_the_log(ask: Any) -> None:
    """ModelReplied.reply holds it verbatim"""
    reply = ask(Say("t", [READ]))
    again = Reply.of(json.loads(json.dumps(reply.document())), usage=reply.usage, model=reply.model)
    assert again == reply and isinstance(again.calls[0], RawCall)
