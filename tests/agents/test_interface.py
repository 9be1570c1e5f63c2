"""The program that the pages on Python show, completed, and agents with the models a user names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import BaseModel

from setpoint import App, Context, Runtime, capability, open_runtime
from setpoint.app.session import Hydrating
from setpoint.app.typed import DefinitionFault
from setpoint.kernel.errors import UsageFault
from setpoint.testing import FakeEffector, ScriptedReplies, call, reply


class RefundInput(BaseModel):
    order_id: str


class Receipt(BaseModel):
    number: int


class RefundState(BaseModel):
    order_id: str
    cents: int = 0
    eligible: bool = False
    receipt: Receipt | None = None
    told: str = ""


def make_app(bank: FakeEffector) -> App:
    async def find_refund(ctx: Context, order_id: str) -> object:
        return await bank.probe(ctx.key)

    async def reverse_refund(ctx: Context, order_id: str, result: Receipt) -> None:
        await bank.compensate(ctx.key, {"request": order_id, "number": result.number})

    @capability(effect="read")
    async def load_order(ctx: Context, order_id: str) -> int:
        return 4_200

    def evaluate_refund_policy(state: RefundState) -> RefundState:
        state.eligible = state.cents < 10_000
        return state

    app = App("support")

    @capability(
        effect="compensable", key=lambda a: f"refund:{a.order_id}", probe=find_refund, compensate=reverse_refund
    )
    async def issue_refund(ctx: Context, order_id: str, cents: int) -> Receipt:
        receipt = await bank.perform(ctx.key, order_id)
        return Receipt(number=receipt["number"])

    issue_refund_fragment = app.fragment("issue", state=RefundState).capability("issue", issue_refund)
    reject_request_fragment = app.fragment("reject", state=RefundState).step("reject", lambda state: {"told": "no"})

    refund = (
        app.workflow("refund", input=RefundInput, state=RefundState)
        .capability("load-order", load_order, into="cents")
        .step("check-policy", evaluate_refund_policy)
        .branch(
            "decision",
            lambda state: "APPROVED" if state.eligible else "REJECTED",
            {"APPROVED": issue_refund_fragment, "REJECTED": reject_request_fragment},
        )
    )

    @app.hydrator(fresh="5m")
    async def account_tier(ctx: Hydrating) -> str:
        return ctx.services["tiers"][ctx.principal]

    app.agent(
        "support-agent",
        instructions="Help customers resolve refund inquiries.",
        workflows=[refund],
        context=lambda session: {"customer_tier": session.context.account_tier},
    )
    return app


SERVICES = {"tiers": {"customer:17": "gold"}}
SCRIPT = """
proposals:
  - when: {note_contains: "refund order A-1001"}
    calls:
      - {name: start_workflow_refund, arguments: {order_id: A-1001}}
  - calls:
      - {name: complete, arguments: {text: "Order A-1001 is refunded."}}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_the_program_of_the_interface_refunds_an_order(tmp_path):
    """R063: with a script from a file, as `models` name it."""
    (tmp_path / "script.yaml").write_text(SCRIPT)
    bank = FakeEffector()
    app = make_app(bank)
    (support,) = app.agents

    async def main():
        store = f"sqlite:///{tmp_path}/refunds.db"
        async with Runtime.open(store, app, services=SERVICES, models=["scripted:script.yaml"]) as runtime:
            session = await runtime.session("customer-17", principal="customer:17")
            return await runtime.turn(support, session, "Please refund order A-1001")

    reply = asyncio.run(main())
    assert (reply.text, reply.status, reply.exit_code) == ("Order A-1001 is refunded.", "completed", 0)
    assert reply.runs[0].output["receipt"] == {"number": 1}
    assert bank.effects == {"refund:A-1001": 1}


def test_the_models_of_the_runtime_take_the_place_of_those_of_the_agent(tmp_path):
    bank = FakeEffector()
    app = make_app(bank)
    said = reply(call("answer_user", text="from the agent's own"))
    agent = app.agent("other", instructions="Hi.", workflows=[], models=[ScriptedReplies([said])])

    async def main(models):
        store = f"sqlite:///{tmp_path}/{'b' if models else 'a'}.db"
        async with Runtime.open(store, app, services=SERVICES, models=models) as runtime:
            session = await runtime.session("customer-17", principal="customer:17")
            return (await runtime.turn(agent, session, "Hello")).text

    assert asyncio.run(main(None)) == "from the agent's own"
    assert asyncio.run(main([ScriptedReplies([reply(call("answer_user", text="replaced"))])])) == "replaced"


def test_code_without_a_loop_has_the_same_verbs(tmp_path):
    app = make_app(FakeEffector())
    script = ScriptedReplies(
        [reply(call("start_workflow_refund", order_id="A-1")), reply(call("complete", text="Ok."))]
    )
    with open_runtime(f"sqlite:///{tmp_path}/r.db", app, services=SERVICES, models=[script]) as runtime:
        session = runtime.session("customer-17", principal="customer:17")
        assert runtime.turn(app.agents[0], session, "Refund A-1").text == "Ok."


def test_a_runtime_without_an_application_has_no_sessions(tmp_path):
    async def main():
        async with Runtime.open(f"sqlite:///{tmp_path}/r.db") as runtime:
            await runtime.session("customer-17", principal="customer:17")

    with pytest.raises(UsageFault, match="knows no agents"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"instructions": " "}, "instructions"),
        ({"workflows": [capability]}, "no workflow"),
        ({"scopes": {"refund": "staff"}}, "write a list"),
        ({"scopes": {"other": ["staff"]}}, "none of its workflows"),
        ({"fill": {"other": lambda session: {}}}, "may not start"),
        ({"budget": {"turns": -1}}, "whole number"),
        ({"budget": {"dollars": 1}}, "budget"),
        ({"recall": 99}, "recall"),
    ],
)
def test_a_wrong_declaration_is_told_at_its_line(declared, words):
    app = make_app(FakeEffector())
    with pytest.raises(DefinitionFault, match=words):
        app.agent("other", **{"instructions": "Hi.", "workflows": list(app.workflows)} | declared)


def test_a_signal_that_no_workflow_waits_for_and_a_hydrator_without_a_type_are_refused():
    app = make_app(FakeEffector())
    with pytest.raises(DefinitionFault, match="what it returns"):
        app.hydrator("tier", lambda ctx: "gold")
    with pytest.raises(DefinitionFault, match="already"):
        app.agent("support-agent", instructions="Hi.", workflows=[])
    app.agent("other", instructions="Hi.", workflows=list(app.workflows), signals=["nothing"])

    async def main():
        async with Runtime.open("memory:", app):
            pass

    with pytest.raises(DefinitionFault, match="no workflow of its waits for"):
        asyncio.run(main())
