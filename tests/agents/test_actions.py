"""Which actions there are in which state, and the four checks each one passes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.agents.shop import Shop

from setpoint.kernel import actions
from setpoint.kernel.actions import AgentBudget, AgentTerms, Case, Denied, RunView, Signal, Startable, catalogue, rule
from setpoint.kernel.proposal import Call
from setpoint.kernel.session_record import Acted, Message, OpenRun, SessionRecord
from setpoint.phases.p3_gate.schema import violation
from setpoint.testing import call, reply

GOLDEN = Path(__file__).with_name("offered.json")

TERMS = AgentTerms(
    name="support",
    instructions="Help.",
    workflows=(
        Startable(
            workflow="refund",
            definition="sha256:1",
            schema={
                "type": "object",
                "properties": {"order_id": {"type": "string"}},
                "required": ["order_id"],
                "additionalProperties": False,
            },
        ),
        Startable(
            workflow="adjust", definition="sha256:2", schema={"type": "object", "properties": {}}, scopes=("staff",)
        ),
    ),
    signals=(Signal(workflow="refund", signal="photo", schema={"type": "string"}),),
    budget=AgentBudget(starts=1, tokens=100, usd_micros=100),
)
OPEN = RunView(run_id="rn-1", workflow="refund", state="RUNNING", signals=("photo",))
RECORD = SessionRecord(
    session_id="s",
    principal="customer:17",
    expires_at_ms=1_000,
    version=4,
    runs={"rn-1": OpenRun("refund", "sha256:1")},
    current=Message(turn=1, agent="support", agent_digest="", message="hi", digest=""),
)


def case(record: SessionRecord = RECORD, runs: tuple[RunView, ...] = (OPEN,), now_ms: int = 0, **changes: Any) -> Case:
    now = catalogue(record, runs, TERMS)
    return Case(record, TERMS, now, changes.pop("decided_on", now.version), now_ms, violation, **changes)


def said(name: str, **arguments: Any) -> Call:
    return Call(0, name, arguments, "sha256:0")


def started(record: SessionRecord = RECORD) -> SessionRecord:
    assert record.current is not None
    acted = Acted(0, 0, "start_workflow_refund", "start_workflow", "done")
    return _with(record, current=_with(record.current, acted=(acted,)))


def _with(struct: Any, **changes: Any) -> Any:
    from msgspec.structs import replace

    return replace(struct, **changes)


SPENT = _with(RECORD, spent=_with(RECORD.spent, input_tokens=100))
BAD = {
    "check_schema": [
        (said("no_such_action"), case(), "UNKNOWN_ACTION"),
        (said("start_workflow_refund"), case(), "SCHEMA"),
        (said("start_workflow_refund", order_id=1), case(), "SCHEMA"),
        (said("answer_user", text="", more=1), case(), "SCHEMA"),
        (
            said("start_workflow_refund", order_id="A"),
            case(refusal_of_input=lambda action, said: "no such order"),
            "INPUT",
        ),
    ],
    "check_authority": [
        (said("answer_user", text="hi"), case(now_ms=1_000), "EXPIRED"),
        (said("start_workflow_adjust"), case(), "NOT_PERMITTED"),
    ],
    "check_state": [
        (said("answer_user", text="hi"), case(decided_on="3.00000000"), "STALE_ACTION"),
        (said("complete", text="done"), case(), "NOT_NOW"),
        (said("cancel", run="rn-2"), case(), "NOT_NOW"),
        (said("provide_input_refund_photo", run="rn-2", payload="x"), case(), "NOT_NOW"),
        (said("answer_user", text="hi"), case(has_acted=True), "STALE_ACTION"),
    ],
    "check_budget": [
        (said("start_workflow_refund", order_id="A"), case(started()), "STARTS"),
        (said("start_workflow_refund", order_id="A"), case(SPENT), "TOKENS"),
        (
            said("start_workflow_refund", order_id="A"),
            case(_with(RECORD, spent=_with(RECORD.spent, usd_micros=100))),
            "USD",
        ),
    ],
}


@pytest.mark.parametrize("check", list(BAD))
def test_each_check_refuses_what_no_other_one_does(check):
    """R044 R045: a check that is left out lets through what it is for, so its cases fail without it."""
    others = [one for one in actions.CHECKS if one.__name__ != check]
    for proposed, on, reason in BAD[check]:
        ruled = rule(proposed, on)
        assert isinstance(ruled, Denied), (proposed, reason)
        assert (f"check_{ruled.gate}", ruled.reason) == (check, reason)
        try:
            alone = rule(proposed, on, others)
        except AssertionError:  # an unknown action is none without the schema check either
            alone = None
        assert not isinstance(alone, Denied) or alone.reason != reason


def test_the_checks_stand_in_their_order_and_the_first_no_wins():
    assert [check.__name__ for check in actions.CHECKS] == list(BAD)
    wrong_in_all = case(started(), decided_on="0.0", now_ms=1_000)
    assert rule(said("start_workflow_refund"), wrong_in_all).gate == "schema"
    assert rule(said("start_workflow_refund", order_id="A"), wrong_in_all).gate == "authority"
    assert rule(said("start_workflow_refund", order_id="A"), case(started(), decided_on="0.0")).gate == "state"
    assert rule(said("start_workflow_refund", order_id="A"), case(started())).gate == "budget"


def test_what_passes_every_check_is_the_action():
    for good in (
        said("answer_user", text="hi"),
        said("cancel", run="rn-1"),
        said("start_workflow_refund", order_id="A"),
    ):
        assert rule(good, case()).name == good.name


def test_names_of_actions_are_what_providers_take_and_never_meet():
    names = [actions.action_name("start_workflow", one) for one in ("a.b", "a_b", "x" * 64, "x" * 63 + "y")]
    assert len(set(names)) == 4
    assert all(len(name) <= 64 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for name in names)


def test_the_offer_follows_the_state_as_in_the_golden_file():
    """R042"""
    shop = Shop(
        [
            reply(call("start_workflow_refund", order_id="B-2001")),
            reply(call("answer_user", text="Somebody must approve it.")),
            reply(call("start_workflow_return", order_id="A-1001")),
            reply(call("answer_user", text="Please send a photo.")),
        ]
    )
    found: dict[str, Any] = {}

    async def look(state: str) -> None:
        session = await shop.session()
        found[state] = [action.name for action in shop.sessions.actions(shop.agent, session).actions]

    async def play() -> None:
        await look("nothing is open")
        answer = await shop.say("Refund B-2001")
        await look("a refund waits for its approval")
        shop.kit.approve(answer.runs[0].run_id, by="anna")
        await shop.kit.runs.work(until_idle=True)
        await look("the refund is approved and made")
        answer = await shop.say("I want to return A-1001")
        await look("a return waits for a photo")
        shop.kit.signal(answer.runs[0].run_id, "photo", "p.jpg")
        await shop.kit.runs.work(until_idle=True)
        await look("a return waits for a wish")
        shop.clock.advance(86_400_000)
        await look("the session has expired")

    asyncio.run(play())
    assert found == json.loads(GOLDEN.read_text())


def test_the_version_moves_with_the_session_and_with_its_runs_and_with_nothing_else():
    version = catalogue(RECORD, [OPEN], TERMS).version
    assert catalogue(RECORD, [OPEN], TERMS).version == version
    assert catalogue(_with(RECORD, seq=99, inbox_position=7), [OPEN], TERMS).version == version
    assert catalogue(_with(RECORD, version=5), [OPEN], TERMS).version != version
    assert catalogue(RECORD, [_with(OPEN, signals=())], TERMS).version != version
    assert catalogue(RECORD, [], TERMS).version != version


def test_a_customers_session_cannot_do_what_is_for_staff_whatever_its_model_says():
    """R044"""
    shop = Shop([reply(call("start_workflow_adjust")), reply(call("answer_user", text="No."))] * 2)

    async def play(session_id: str, scopes: list[str]):
        session = await shop.session(session_id, scopes=scopes)
        return (await shop.say("Adjust my account", session)).actions[0]

    refused = asyncio.run(play("customer-17", []))
    assert (refused.status, refused.reason) == ("refused", "NOT_PERMITTED")
    assert [event["gate"] for event in shop.raw() if event["type"] == "Refused"] == ["authority"]
    assert "start_workflow_adjust" not in shop.script.contexts[0].text
    assert shop.kit.run_ids() == []
    done = asyncio.run(play("staff-1", ["staff"]))
    assert done.status == "done"


def test_input_and_choices_reach_the_run_that_waits_for_them_and_only_then():
    shop = Shop(
        [
            reply(call("start_workflow_return", order_id="A-1001")),
            reply(call("answer_user", text="A photo, please.")),
        ]
    )

    async def play():
        session = await shop.session()
        first = await shop.say("I want to return it", session)
        run = first.runs[0].run_id
        shop.then(
            reply(call("choose_return_wish", run=run, choice="voucher")),
            reply(call("provide_input_return_photo", run=run, payload=7)),
            reply(call("provide_input_return_photo", run="rn-else", payload="x.jpg")),
            reply(call("provide_input_return_photo", run=run, payload="x.jpg")),
            reply(call("choose_return_wish", run=run, choice="money")),
            reply(call("choose_return_wish", run=run, choice="voucher")),
            reply(call("complete", text="You get a voucher.")),
        )
        return first, await shop.say("Here: x.jpg. I want a voucher.", session)

    first, second = asyncio.run(play())
    assert first.waiting_for == (f"{first.runs[0].run_id} of return: signal photo",)
    assert [one.reason for one in second.actions] == ["NOT_NOW", "SCHEMA", "NOT_NOW", "", "SCHEMA", "", ""]
    assert second.status == "completed"
    assert second.runs[0].output == {"order_id": "A-1001", "photo": "x.jpg", "due": None, "wish": "voucher"}


def test_a_payload_that_the_state_would_not_take_is_refused_and_pauses_no_run():
    shop = Shop([reply(call("start_workflow_visit", order_id="A-1")), reply(call("answer_user", text="When?"))])

    async def play():
        session = await shop.session()
        run = (await shop.say("Come and see", session)).runs[0].run_id
        shop.then(
            reply(call("provide_input_visit_due", run=run, payload="next Tuesday")),
            reply(call("provide_input_visit_due", run=run, payload="2026-02-03")),
            reply(call("complete", text="See you.")),
        )
        return await shop.say("Next Tuesday", session)

    answer = asyncio.run(play())
    assert [one.reason for one in answer.actions] == ["INPUT", "", ""]
    assert answer.runs[0].output["due"] == "2026-02-03"


def test_a_run_can_be_cancelled_by_the_session_it_belongs_to():
    shop = Shop(
        [
            reply(call("start_workflow_refund", order_id="B-2001")),
            reply(call("answer_user", text="Somebody must approve it.")),
        ]
    )

    async def play():
        session = await shop.session()
        run = (await shop.say("Refund B-2001", session)).runs[0].run_id
        shop.then(reply(call("cancel", run=run)), reply(call("complete", text="Cancelled.")))
        return await shop.say("Forget it", session)

    answer = asyncio.run(play())
    assert (answer.status, answer.runs[0].record.state) == ("completed", "CANCELLED")
    assert shop.bank.effects == {}
