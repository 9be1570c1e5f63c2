"""The replay proposer: recorded answers, read strictly."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from setpoint.adapters.proposers.opening import open_proposer
from setpoint.adapters.proposers.replay import ReplayProposer
from setpoint.certificate.bundle import API_VERSION, KIND
from setpoint.certificate.canonical import to_base64
from setpoint.kernel import events
from setpoint.kernel.errors import ProposerFault, UsageFault
from setpoint.kernel.keys import canonical, digest_bytes
from setpoint.kernel.proposal import RawCall, Reply, Usage


def line(event: events.Event, stream: str = "t-1", **more: Any) -> str:
    data = json.loads(events.encode(event))
    envelope = {"stream": stream, "seq": 1, "turn": 0, "type": type(event).__name__, "v": 1, "at": "", "data": data}
    return json.dumps(envelope | more) + "\n"


LONG = Reply("t" * 5000, (RawCall("file_read", '{"path": "a"}', "c1"),))
DOCUMENT = canonical(LONG.document())
REF = events.Ref(digest_bytes(DOCUMENT), len(DOCUMENT))


def test_a_long_reply_is_read_from_its_payload(tmp_path: Path, context: Any) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(line(events.ModelReplied(route="r", stop="tool_use", reply_ref=REF, input_tokens=5, model="m")))
    proposer = ReplayProposer("replay:run.jsonl", path, {REF.ref: DOCUMENT}.__getitem__)
    reply = asyncio.run(proposer.propose(context(), 1000))
    assert (reply.text, reply.calls, reply.usage, reply.cursor) == (LONG.text, LONG.calls, Usage(5, usd_micros=0), 1)


def test_a_payload_that_was_altered_or_is_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(line(events.ModelReplied(route="r", stop="tool_use", reply_ref=REF)))
    with pytest.raises(UsageFault, match="was altered"):
        ReplayProposer("replay:run.jsonl", path, lambda _: DOCUMENT + b" ")
    with pytest.raises(UsageFault, match=r"run.jsonl:1: the reply of 5\d\d\d bytes lies in the payload sha256:"):
        ReplayProposer("replay:run.jsonl", path)


def test_a_certificate_is_a_recording_with_its_payloads(tmp_path: Path, context: Any) -> None:
    """CASES P1: yesterday's run in CI, no key, no network"""
    said = [
        events.ModelReplied(route="r", stop="tool_use", reply_ref=REF, model="m"),
        events.ModelReplied(route="r", stop="end_turn", reply=Reply("done", stop="end_turn").document()),
    ]
    document = {"apiVersion": API_VERSION, "kind": KIND, "envelope": {}, "task": {}}
    document |= {"events": [json.loads(line(event)) for event in said], "payloads": {REF.ref: to_base64(DOCUMENT)}}
    sealed = canonical(document) + b"\n"
    (tmp_path / "cert.json").write_bytes(sealed)
    proposer = open_proposer("replay:cert.json", base_dir=tmp_path)
    texts = [asyncio.run(proposer.propose(context(cursor=n), 1000)).text for n in range(2)]
    assert texts == [LONG.text, "done"]
    (tmp_path / "cert.json").write_bytes(sealed[:-40])
    with pytest.raises(UsageFault, match="not a certificate"):
        open_proposer("replay:cert.json", base_dir=tmp_path)
    (tmp_path / "cert.json").write_bytes(sealed.replace(b'"payloads":{"sha256:', b'"payloads":{"sha256:0'))
    with pytest.raises(UsageFault, match=r"cert.json event 1: the certificate does not hold the payload"):
        open_proposer("replay:cert.json", base_dir=tmp_path)


def test_a_recorded_failure_is_raised_anew_each_time(tmp_path: Path, context: Any) -> None:
    failed = events.ModelFailed(route="r", kind="overloaded", message="busy", output_tokens=3, retry_after_ms=10)
    (tmp_path / "run.jsonl").write_text(line(failed))
    proposer = open_proposer("replay:run.jsonl", base_dir=tmp_path)
    faults: list[ProposerFault] = []
    for _ in range(2):
        with pytest.raises(ProposerFault) as raised:
            asyncio.run(proposer.propose(context(), 1000))
        faults.append(raised.value)
    assert faults[0] is not faults[1]
    assert {(f.kind, f.retry_after_ms, f.cursor, f.usage) for f in faults} == {
        ("overloaded", 10, 1, Usage(0, 3, usd_micros=0))
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no event"),
        ("{\n", "run.jsonl:1: not an event envelope"),
        ("[]\n", "run.jsonl:1: not an event envelope"),
        ('{"stream": "a", "type": "ModelReplied"}\n', "run.jsonl:1: not an event envelope"),
        (
            line(events.TurnStarted(elapsed_ms=0)) + line(events.TurnStarted(elapsed_ms=0), "t-2"),
            "holds 2 trajectories",
        ),
        (line(events.ModelReplied(route="r", stop="x", reply={"text": "no stop"})), "does not hold a reply"),
        (line(events.ModelReplied(route="r", stop="x", reply={"stop": "x", "calls": [5]})), "does not hold a reply"),
        (line(events.ModelReplied(route="r", stop="x")), "neither in the event nor in a payload"),
        (line(events.TurnStarted(elapsed_ms=0), type="ModelReplied"), "does not hold a reply"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "run.jsonl").write_text(text)
    with pytest.raises(UsageFault) as refused:
        open_proposer("replay:run.jsonl", base_dir=tmp_path)
    assert problem in str(refused.value)


def test_events_of_no_interest_and_unknown_types_are_passed_over(tmp_path: Path, context: Any) -> None:
    said = line(events.ModelReplied(route="r", stop="end_turn", reply=Reply("hi", stop="end_turn").document()))
    odd = json.dumps({"stream": "t-1", "seq": 2, "type": "NewerThanThis", "data": {"x": [1]}}) + "\n\n"
    (tmp_path / "run.jsonl").write_text(line(events.TurnStarted(elapsed_ms=0)) + odd + said)
    proposer = open_proposer("replay:run.jsonl", base_dir=tmp_path)
    assert asyncio.run(proposer.propose(context(), 1000)).text == "hi"


def test_a_missing_recording_is_a_usage_fault(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="cannot be read: No such file"):
        open_proposer("replay:none.jsonl", base_dir=tmp_path)
