"""The closed union of facts: canonical on the wire, and closed."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.kernel.errors import LogCorrupt
from setpoint.kernel.events import EVENT_TYPES, Event, EventUnion, Finished, decode, encode
from setpoint.kernel.keys import canonical

from . import strategies


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_an_event_is_encoded_as_canonical_json_and_comes_back_equal(kind: type[Event], data: st.DataObject) -> None:
    """R167, R171: also nested texts, lists and structs, whatever characters they hold."""
    event = data.draw(strategies.of(kind))
    encoded = encode(event)
    assert encoded == canonical(json.loads(encoded))
    assert encoded == canonical(msgspec.to_builtins(event))
    assert decode(kind.__name__, encoded) == event


def test_the_union_and_the_table_of_types_name_the_same_events() -> None:
    """R171"""
    assert set(EventUnion.__args__) == set(EVENT_TYPES.values())
    below = {cls for cls in Event.__subclasses__() if cls.__module__ == Event.__module__}
    assert below == set(EVENT_TYPES.values()), "an event class outside the union"


def test_every_event_type_that_the_interface_names_exists() -> None:
    """R171: those of approvals and outside effects belong to a later stage and are named here."""
    named = [
        "TaskAccepted",
        "TurnStarted",
        "ContextBuilt",
        "ModelReplied",
        "ModelFailed",
        "Authorized",
        "Refused",
        "QuestionAsked",
        "QuestionAnswered",
        "ToolIntent",
        "ToolResult",
        "EvidenceRecorded",
        "DeltaMeasured",
        "SavepointKept",
        "RolledBack",
        "ClaimRejected",
        "Routed",
        "Stalled",
        "Committed",
        "Certified",
        "CheckpointWritten",
        "LeaseClaimed",
        "ControlRequested",
        "ControlApplied",
        "DriftFound",
        "Finished",
    ]
    assert set(named) <= set(EVENT_TYPES)


@pytest.mark.parametrize(
    ("type_name", "data"),
    [
        ("Nonsense", b"{}"),
        ("event", b"{}"),
        ("", b"{}"),
        ("Finished", b'{"code":0,"message":"m","reason":"r","state":"FAILED","surplus":1}'),
        ("Finished", b'{"code":0,"message":"m","reason":"r"}'),
        ("Finished", b'{"code":"0","message":"m","reason":"r","state":"FAILED"}'),
        ("Finished", b'{"code":0.5,"message":"m","reason":"r","state":"FAILED"}'),
        ("TurnStarted", b'{"elapsed_ms":1,"stage":"reckless"}'),
        ("TaskAccepted", b'{"task":{"ref":"x","bytes":1,"more":2}}'),
        ("Finished", b"[]"),
        ("Finished", b"null"),
        ("Finished", b'{"code":'),
        ("Finished", b"\xff"),
        ("Finished", b""),
    ],
)
def test_an_unknown_type_or_field_is_a_corrupt_log_and_never_a_guess(type_name: str, data: bytes) -> None:
    """R167, L10"""
    with pytest.raises(LogCorrupt):
        decode(type_name, data)


@given(st.binary(max_size=60), st.sampled_from(sorted(EVENT_TYPES)))
def test_decoding_garbage_raises_nothing_but_a_corrupt_log(data: bytes, type_name: str) -> None:
    """R167"""
    try:
        decode(type_name, data)
    except LogCorrupt as fault:
        assert type_name in str(fault)


def test_a_lone_surrogate_cannot_enter_the_log() -> None:
    """R167: it has no UTF-8, so the chain could not be checked by anyone else."""
    with pytest.raises(ValueError, match="surrogate"):
        encode(Finished(state="FAILED", reason="x", message="\udc80", code=1))
