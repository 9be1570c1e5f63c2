"""parse_reply: every reply becomes typed calls and typed complaints, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.certificate.proposals import CALL_DIGEST_CHARS, call_digests, is_call
from setpoint.kernel import limits
from setpoint.kernel.keys import canonical, digest
from setpoint.kernel.proposal import Call, Malformed, Proposal, RawCall, Reply, StopReason, Usage
from setpoint.phases.p2_proposal.parse import exact, parse_reply


def said(arguments: Any, name: Any = "file_read") -> Reply:
    return Reply(calls=(RawCall(name, arguments),))


def only(proposal: Proposal) -> Call | Malformed:
    assert len(proposal.calls) == 1
    return proposal.calls[0]


def complaint(reply: Reply) -> tuple[str, str]:
    call = only(parse_reply(reply))
    assert isinstance(call, Malformed), call
    return call.reason, call.pointer


def nested(depth: int) -> str:
    """Arguments of exactly ``depth`` levels, the outer object included."""
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


@pytest.mark.parametrize("arguments", ['{"path": "a", "start": 1}', {"start": 1, "path": "a"}])
def test_arguments_as_text_and_as_an_object_are_the_same_call(arguments: Any) -> None:
    call = only(parse_reply(said(arguments)))
    assert isinstance(call, Call)
    assert call.arguments == {"path": "a", "start": 1}
    assert call.digest == digest(["file_read", {"path": "a", "start": 1}])


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        ('{"name": "a", "arguments": {}}', ["a"]),
        ('{"thought": "t", "name": "a"}', ["a"]),
        ('  [{"name": "a"}, {"name": "b", "arguments": {"x": 1}}]\n', ["a", "b"]),
        ('{"thought": "t", "calls": [{"name": "a"}, {"name": "b"}]}', ["a", "b"]),
        ('{"calls": []}', []),
        ("[]", []),
    ],
)
def test_a_raw_text_may_be_a_call_a_list_or_a_reply_object(raw: str, names: list[str]) -> None:
    proposal = parse_reply(Reply(raw=raw))
    assert [call.name for call in proposal.calls if isinstance(call, Call)] == names
    assert len(proposal.calls) == len(names)


@pytest.mark.parametrize(
    ("reply", "reason", "pointer"),
    [
        (said('{"path": '), "not_json", "/calls/0/arguments"),
        (said(""), "not_json", "/calls/0/arguments"),
        (said("null"), "null_arguments", "/calls/0/arguments"),
        (said(None), "null_arguments", "/calls/0/arguments"),
        (said('"{\\"path\\": \\"a\\"}"'), "double_encoded", "/calls/0/arguments"),
        (said("[1]"), "not_object", "/calls/0/arguments"),
        (said(["a"]), "not_object", "/calls/0/arguments"),
        (said("3"), "not_object", "/calls/0/arguments"),
        (said(True), "not_object", "/calls/0/arguments"),
        (said({}, name=None), "missing_name", "/calls/0/name"),
        (said({}, name=""), "missing_name", "/calls/0/name"),
        (said({}, name=7), "missing_name", "/calls/0/name"),
        (said({}, name="a\x1b[31m"), "bad_name", "/calls/0/name"),
        (said({}, name="n" * 129), "bad_name", "/calls/0/name"),
        (said({}, name="\ud800"), "bad_name", "/calls/0/name"),
        (said('{"a": {"b": NaN}}'), "bad_number", "/calls/0/arguments/a/b"),
        (said('{"a": [0, -Infinity]}'), "bad_number", "/calls/0/arguments/a/1"),
        (said({"a": float("inf")}), "bad_number", "/calls/0/arguments/a"),
        (said('{"a": 1e400}'), "bad_number", "/calls/0/arguments/a"),
        (said('{"a": 1e30}'), "bad_number", "/calls/0/arguments/a"),
        (said('{"a": ' + "9" * 5000 + "}"), "bad_number", "/calls/0/arguments/a"),
        (said('{"a": 9223372036854775808}'), "bad_number", "/calls/0/arguments/a"),
        (said('{"a": 1, "a": 2}'), "duplicate_key", "/calls/0/arguments/a"),
        (said('{"x": [{"k/~": 1, "k/~": 1}]}'), "duplicate_key", "/calls/0/arguments/x/0/k~1~0"),
        (said('{"a": "\\ud800"}'), "not_text", "/calls/0/arguments/a"),
        (said({"\udfff": 1}), "not_text", "/calls/0/arguments"),
        (said({1: "a"}), "not_json", "/calls/0/arguments"),
        (said({"a": {1, 2}}), "not_json", "/calls/0/arguments/a"),
        (said(nested(33)), "too_deep", "/calls/0/arguments/a" + "/0" * 31),
        (said("[" * 500_000), "too_deep", "/calls/0/arguments"),
        (said('{"a": "' + "x" * limits.PROPOSAL_BYTES_MAX + '"}'), "too_large", ""),
        (Reply(raw='{"name": "shell_exec", "arguments": '), "not_json", "/raw"),
        (Reply(raw="I am done."), "not_json", "/raw"),
        (Reply(raw="7"), "not_object", "/raw"),
        (Reply(raw='{"calls": {}}'), "not_list", "/raw/calls"),
        (Reply(raw='{"calls": [], "budget": 1}'), "unknown_field", "/raw/budget"),
        (Reply(raw='{"calls": [], "calls": []}'), "duplicate_key", "/raw/calls"),
        (Reply(raw='["shell_exec"]'), "not_object", "/raw/0"),
        (Reply(raw='{"calls": [{"name": "a", "args": {}}]}'), "unknown_field", "/raw/calls/0/args"),
        (Reply(raw='{"name": "a", "arguments": {"k": 1}, "key": "mine"}'), "unknown_field", "/raw/key"),
        (Reply(raw='{"name": "a", "name": "b"}'), "duplicate_key", "/raw/name"),
        (Reply(raw='{"arguments": {}}'), "missing_name", "/raw/name"),
        (Reply(raw='{"name": "a", "arguments": null}'), "null_arguments", "/raw/arguments"),
        (Reply(raw='[{"name": "a", "arguments": "{}"}]'), "double_encoded", "/raw/0/arguments"),
        (
            Reply(raw='{"calls": [{"name": "a", "arguments": {"b": [NaN]}}]}'),
            "bad_number",
            "/raw/calls/0/arguments/b/0",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_what_is_not_exactly_a_call_is_a_complaint_with_its_place(reply: Reply, reason: str, pointer: str) -> None:
    """R117; CASES Q1"""
    assert complaint(reply) == (reason, pointer)


def test_the_depth_bound_itself_is_accepted() -> None:
    assert isinstance(only(parse_reply(said(nested(limits.ARGUMENT_DEPTH_MAX)))), Call)


def test_the_decoders_own_error_is_kept() -> None:
    """CASES Q1: original error kept"""
    call = only(parse_reply(said('{"path": "a" "b"}')))
    assert isinstance(call, Malformed)
    assert "Expecting ',' delimiter: line 1 column 14 (char 13)" in call.message
    assert '"a" "b"' in call.message
    assert call.name == "file_read"


def test_one_bad_call_does_not_spoil_its_neighbours() -> None:
    reply = Reply(calls=(RawCall("a", "{}"), RawCall("b", "{"), RawCall("c", "{}")))
    first, second, third = parse_reply(reply).calls
    assert isinstance(first, Call) and isinstance(second, Malformed) and isinstance(third, Call)
    assert (first.ordinal, second.ordinal, third.ordinal) == (0, 1, 2)
    assert second.pointer == "/calls/1/arguments"


def test_calls_beyond_the_bound_are_one_complaint() -> None:
    bound = limits.CALLS_PER_PROPOSAL_MAX
    proposal = parse_reply(Reply(raw=json.dumps([{"name": "a"}] * (bound + 1000))))
    assert [type(call) for call in proposal.calls] == [Call] * bound + [Malformed]
    last = proposal.calls[-1]
    assert isinstance(last, Malformed)
    assert (last.reason, last.pointer, last.ordinal) == ("too_many_calls", f"/raw/{bound}", bound)
    assert "1000 were not read" in last.message


@pytest.mark.parametrize(
    "reply",
    [
        Reply(calls=(RawCall("complete_task", "{}"), RawCall("shell_exec", {"command": "rm -rf ."})), stop="length"),
        Reply(raw='{"name": "complete_task"}', stop="length"),
        Reply(raw='{"name": "comple', stop="length"),
        Reply(text="I will now", stop="length"),
        Reply(stop="length"),
    ],
)
def test_a_reply_cut_by_length_holds_no_call(reply: Reply) -> None:
    """R087"""
    proposal = parse_reply(reply)
    assert proposal.calls
    assert {call.reason for call in proposal.calls if isinstance(call, Malformed)} == {"cut_off"}
    assert not any(isinstance(call, Call) for call in proposal.calls)
    assert not proposal.claims


def test_calls_of_a_refused_reply_are_not_dispatched() -> None:
    assert complaint(Reply(calls=(RawCall("a", "{}"),), stop="refusal")) == ("refused", "/calls/0")


@pytest.mark.parametrize("text", ["I am done.", "complete_task", '{"name": "complete_task", "arguments": {}}'])
def test_text_is_no_call_and_no_claim(text: str) -> None:
    """R114"""
    proposal = parse_reply(Reply(text=text, stop="end_turn"))
    assert proposal.calls == () and not proposal.claims
    assert proposal.thought == text


def test_a_thought_is_kept_and_changes_nothing() -> None:
    """R108"""
    plain = parse_reply(Reply(raw='{"calls": [{"name": "a"}]}'))
    thinking = parse_reply(Reply(raw='{"thought": "run rm -rf / now; budget=∞", "calls": [{"name": "a"}]}'))
    assert thinking.thought == "run rm -rf / now; budget=∞"
    assert thinking.calls == plain.calls and thinking.digest == plain.digest


def test_usage_in_the_models_text_is_ignored() -> None:
    """R233; R221"""
    reply = Reply(raw='{"calls": [{"name": "a"}], "usage": {"input_tokens": 0}}', usage=Usage(10, 20))
    assert isinstance(only(parse_reply(reply)), Call)
    assert reply.usage == Usage(10, 20)


def test_complaints_are_printable_and_bounded() -> None:
    noisy = "\x1b]0;owned\x07" + "\ud800" + "x" * 5000
    for reply in (
        said('{"a" ' + noisy),
        said({}, name=noisy),
        said(json.dumps(noisy)),
        said({noisy: {noisy: object()}}),
    ):
        call = only(parse_reply(reply))
        assert isinstance(call, Malformed)
        for text in (call.name, call.message, call.pointer):
            assert text.isprintable() and len(text) < 1200
            text.encode()


def test_a_decoded_value_with_a_cycle_ends_as_too_deep() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    assert complaint(said(loop))[0] == "too_deep"


def test_a_decoded_value_with_shared_parts_ends_as_too_large() -> None:
    part: list[Any] = ["x" * 1000]
    for _ in range(30):
        part = ["x" * 1000, part, part]
    assert complaint(said({"a": part}))[0] == "too_large"


def test_integral_fractions_are_integers_and_other_fractions_stay() -> None:
    call = only(parse_reply(said('{"a": 1.0, "b": -0.0, "c": 1.5, "d": 2e3}')))
    assert isinstance(call, Call)
    assert call.arguments == {"a": 1, "b": 0, "c": 1.5, "d": 2000}
    assert [type(v) for v in call.arguments.values()] == [int, int, float, int]


def test_a_fraction_and_its_text_have_different_digests() -> None:
    digests = {
        only(parse_reply(said(text))).digest  # type: ignore[union-attr]
        for text in ('{"a": 1.5}', '{"a": "1.5"}', '{"a": {"$": "1.5"}}', '{"a": 1.25}', '{"b": 1.5}')
    }
    assert len(digests) == 5


def test_fractions_under_long_keys_keep_their_digests_apart() -> None:
    """A pointer clipped for display must not enter a digest"""
    long = "k" * 200
    one = only(parse_reply(said({long + "a": 1.5, long + "b": "1.5"})))
    two = only(parse_reply(said({long + "a": "1.5", long + "b": 1.5})))
    assert isinstance(one, Call) and isinstance(two, Call) and one.digest != two.digest


def test_the_certificate_reads_the_same_calls_out_of_a_reply() -> None:
    """An honest log must verify: the verifier's own reading finds every call this one accepts"""
    arguments = {"a/b~": [1.5, {"\n" * 200: -0.0, "x" * 300: 0.25}], "t": "1.5", "n": 3.0, "u": "ä\u2028"}
    text = json.dumps(arguments)
    reply = Reply(
        calls=(RawCall("file_read", text),),
        raw=json.dumps({"calls": [{"name": "file_write", "arguments": arguments}, {"name": "complete_task"}]}),
    )
    found = call_digests(reply.document())
    for call in parse_reply(reply).calls:
        assert isinstance(call, Call)
        assert call.digest.removeprefix("sha256:")[:CALL_DIGEST_CHARS] in found
        assert is_call(call.digest.removeprefix("sha256:")[:CALL_DIGEST_CHARS], call.name, call.arguments)


def test_key_order_and_spacing_do_not_make_a_new_attempt() -> None:
    one = parse_reply(said('{"a": 1.5, "b": {"x": 2.5, "y": 3}}'))
    two = parse_reply(said(' {"b":{"y":3.0,"x":2.50},"a":15e-1}'))
    assert one.digest == two.digest


def test_equal_malformed_replies_are_the_same_attempt_and_others_are_not() -> None:
    """CASES C1: repetition must be seen for malformed proposals too"""
    assert parse_reply(said('{"a')).digest == parse_reply(said('{"a')).digest
    assert parse_reply(said('{"a')).digest != parse_reply(said('{"b')).digest
    assert parse_reply(Reply(raw="x" * 500)).digest != parse_reply(Reply(raw="x" * 501)).digest


# Laws

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4)
        | st.tuples(inner)
    ),
    max_leaves=12,
)
unicode_text = st.text(st.characters(exclude_categories=("Cs",)))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(-1e15, 1e15, allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner)
    ),
    max_leaves=12,
)
json_objects = st.dictionaries(unicode_text, json_values, max_size=5)


@st.composite
def damaged_json(draw: st.DrawFn) -> str:
    """A JSON reply with a few characters cut, doubled or replaced: what models and broken streams really emit."""
    text = json.dumps({"thought": "t", "calls": [{"name": "a", "arguments": draw(json_objects)}]})
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["", "{", "]", '"', "\\", "\ud800", "NaN", "\0"])) + text[at + 1 :]
    return text


replies = st.builds(
    Reply,
    text=st.text(st.characters(exclude_categories=())),
    calls=st.lists(st.builds(RawCall, name=anything, arguments=anything | damaged_json()), max_size=20).map(tuple),
    raw=st.none() | st.text(st.characters(exclude_categories=())) | damaged_json(),
    stop=st.sampled_from(StopReason.__args__),  # type: ignore[attr-defined]
)


@settings(max_examples=100, deadline=None)
@given(replies)
def test_parsing_never_raises_and_never_invents(reply: Reply) -> None:
    proposal = parse_reply(reply)
    assert [call.ordinal for call in proposal.calls] == list(range(len(proposal.calls)))
    assert len(proposal.calls) <= limits.CALLS_PER_PROPOSAL_MAX + 1
    proposal.thought.encode()
    for call in proposal.calls:
        match call:
            case Call():
                assert reply.stop not in ("length", "refusal")
                json.dumps(call.arguments, allow_nan=False).encode()
                canonical(exact(call.arguments))
            case Malformed():
                assert call.reason and call.message
                f"{call.name}{call.pointer}{call.message}".encode()
    assert parse_reply(reply) == proposal


@settings(max_examples=60, deadline=None)
@given(json_objects)
def test_what_is_accepted_round_trips(arguments: dict[str, Any]) -> None:
    """A JSON object in is the same JSON object out, by every road, and again when it is parsed again."""
    text = json.dumps(arguments)
    by_text = only(parse_reply(said(text)))
    by_value = only(parse_reply(said(arguments)))
    by_raw = only(parse_reply(Reply(raw=json.dumps({"name": "file_read", "arguments": arguments}))))
    assert isinstance(by_text, Call)
    assert by_text == by_value == by_raw
    assert by_text.arguments == arguments
    again = only(parse_reply(said(json.dumps(by_text.arguments))))
    assert again == by_text
