"""The published schemas of events and plans describe what is really written, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from setpoint.adapters.stores.export import envelope_line
from setpoint.app.event_schema import EVENT_TYPES
from setpoint.app.planning import Plan, plan_of
from setpoint.app.schema import KINDS, PUBLISHED, schema
from setpoint.kernel.contract import Rate, ToolGrant
from setpoint.kernel.errors import UsageFault
from setpoint.testing import ScriptedReplies, call, claim, reply
from setpoint.testing.tasks import make_task

from .harness import STREAM, Rig

EVENT = jsonschema_rs.Draft202012Validator(schema("Event"))
PLAN = jsonschema_rs.Draft202012Validator(schema("Plan"))


@pytest.fixture(scope="module")
def written() -> list[dict[str, Any]]:
    """Every envelope of a run with a refusal, a failing command, a rejected claim, a commit and a certificate."""
    rig = Rig(
        [
            ScriptedReplies(
                [
                    reply(call("shell_exec", command="rm -rf x"), call("no_such_tool")),
                    reply(call("file_write", path="src/a", content="2"), claim()),
                    reply(call("file_write", path="src/a", content="1"), claim()),
                ]
            )
        ],
        task=make_task(
            actions=(ToolGrant("shell_exec", rate=Rate(1, 1000)), ToolGrant("file_write"), ToolGrant("complete_task"))
        ),
        commands={"rm -rf x": lambda: (1, "src/a.c:3:5: error: no\n")},
    )
    assert rig.start().finished_code == 0
    return [msgspec.json.decode(envelope_line(stored)) for stored in rig.store.read(STREAM)]


def test_every_event_kind_has_its_own_closed_schema_with_a_version() -> None:
    """R171"""
    found = schema("Event")
    assert found["properties"]["type"]["enum"] == list(EVENT_TYPES)
    assert [one["properties"]["type"]["const"] for one in found["oneOf"]] == list(EVENT_TYPES)
    assert all(found["$defs"][name]["additionalProperties"] is False for name in EVENT_TYPES)
    assert all(found["$defs"][name].get("description") for name in EVENT_TYPES if EVENT_TYPES[name].__doc__)
    assert found["properties"]["v"] == {"const": 1, "description": "Version of this format."}


def test_every_event_of_a_run_fits_and_any_misfit_is_found(written: list[dict[str, Any]]) -> None:
    """R171"""
    assert len({event["type"] for event in written}) > 15
    for event in written:
        assert [str(error) for error in EVENT.iter_errors(event)] == [], event
        for change in ({"data": event["data"] | {"extra": 1}}, {"type": "Nothing"}, {"v": 2}, {"seq": 0}, {"extra": 1}):
            assert not EVENT.is_valid(event | change), change
        for name in event:
            short = copy.deepcopy(event)
            del short[name]
            assert not EVENT.is_valid(short), name
    refused = next(event for event in written if event["type"] == "Refused")
    assert not EVENT.is_valid(refused | {"type": "Authorized"}), "the data must be that of the type"


def test_a_plan_fits_its_schema() -> None:
    from setpoint.kernel.record import Record

    plan = msgspec.json.decode(plan_of(Record(trajectory_id="t"), "").encode())
    assert PLAN.is_valid(plan) and not PLAN.is_valid(plan | {"extra": 1}) and set(plan) == set(Plan.__struct_fields__)


def test_what_can_be_published_is_more_than_what_can_be_declared() -> None:
    assert KINDS == ("Task",) and PUBLISHED == ("Task", "Event", "Plan")
    with pytest.raises(UsageFault, match="did you mean 'Event'"):
        schema("Events")
