"""A wrong word or a wrong type in a declaration is told where it is written, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from setpoint import App, Context, capability
from setpoint.app.typed import DefinitionFault
from setpoint.app.workflow import approval_terms
from setpoint.kernel.retry import RatePolicy, RetryPolicy

from .flowkit import In, State, bench, load_order, mark, pay, played


async def act(ctx: Context, order_id: str) -> None: ...


def declared(**options: Any) -> Any:
    return capability(**{"effect": "keyed", **options})(act)


OPTIONS: list[dict[str, Any]] = [
    {"effect": 3},
    {"effect": ["keyed"]},
    {"name": 3},
    {"key": "A"},
    {"probe": "A"},
    {"compensate": 3},
    {"dedups": "yes"},
    {"timeout": 5},
    {"timeout": None},
    {"worst": 5},
    {"retry": 3},
    {"rate": "10/s"},
    {"rate": 3},
    {"dependency": 3},
    {"dependency": None},
    {"scopes": "pay"},
    {"scopes": [3]},
    {"scopes": 3},
    {"statements": "yes"},
    {"retries": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_option_of_a_capability_that_is_not_what_it_must_be_is_refused(options: dict[str, Any]):
    with pytest.raises(DefinitionFault) as found:
        declared(**options)
    assert str(*options) in found.value.message and "act" in found.value.message


def test_a_capability_without_an_effect_is_refused():
    with pytest.raises(DefinitionFault, match="declares no effect"):
        capability(name="x")(act)


def flow() -> Any:
    return App("shop").workflow("flow", input=In, state=State)


def body() -> Any:
    return App("other").fragment("body", state=State).capability("mark", mark)


WRONG: dict[str, Callable[[], Any]] = {
    "approval is a text": lambda: flow().capability("pay", pay, approval="ops"),
    "approval is a list": lambda: flow().capability("pay", pay, approval=["ops"]),
    "into of a call": lambda: flow().capability("pay", pay, into=3),
    "approval_when": lambda: flow().capability("pay", pay, approval=approval_terms(by=["ops"]), approval_when=True),
    "args": lambda: flow().capability("pay", pay, args={"order_id": "A"}),
    "require": lambda: flow().capability("pay", pay, require=True),
    "name of a node": lambda: flow().capability(3, pay),
    "a step that is nothing": lambda: flow().step("s", None),
    "a step that is no function": lambda: flow().step("s", {"note": "x"}),
    "judge instructions": lambda: flow().judge("j", instructions=3, show=lambda s: s.note, into="note"),
    "judge show": lambda: flow().judge("j", instructions="x", show=None, into="note"),
    "judge labels": lambda: flow().judge("j", instructions="x", show=lambda s: s.note, into="note", labels="ab"),
    "judge labels of numbers": lambda: flow().judge(
        "j", instructions="x", show=lambda s: s.note, into="note", labels=[1]
    ),
    "judge attempts": lambda: flow().judge("j", instructions="x", show=lambda s: s.note, into="note", attempts="2"),
    "judge into": lambda: flow().judge("j", instructions="x", show=lambda s: s.note, into=None),
    "branch select": lambda: flow().branch("b", "left", {"left": body()}),
    "branch without select": lambda: flow().branch("b", None, {"left": body()}),
    "branch cases": lambda: flow().branch("b", lambda s: "left", [body()]),
    "parallel": lambda: flow().parallel("p", [body(), body()]),
    "map over": lambda: flow().map("m", [1, 2], body(), item="item"),
    "map over nothing": lambda: flow().map("m", None, body(), item="item"),
    "map item": lambda: flow().map("m", lambda s: s.items, body(), item=3),
    "map at_most": lambda: flow().map("m", lambda s: s.items, body(), item="item", at_most="3"),
    "map at_once": lambda: flow().map("m", lambda s: s.items, body(), item="item", at_once=1.5),
    "map collect": lambda: flow().map("m", lambda s: s.items, body(), item="item", collect=3, into="doubled"),
    "repeat until": lambda: flow().repeat("r", body(), until=True, at_most=3),
    "repeat without until": lambda: flow().repeat("r", body(), until=None, at_most=3),
    "repeat at_most": lambda: flow().repeat("r", body(), until=lambda s: True, at_most="3"),
    "child input": lambda: flow().workflow("w", flow(), input={"order_id": "A"}),
    "child input nothing": lambda: flow().workflow("w", flow(), input=None),
    "child into": lambda: flow().workflow("w", flow(), input=lambda s: {}, into=3),
    "signal": lambda: flow().wait_for("s", 3, timeout="1s"),
    "signal timeout": lambda: flow().wait_for("s", timeout=3),
    "signal into": lambda: flow().wait_for("s", timeout="1s", into=3),
    "on_timeout": lambda: flow().wait_for("s", timeout="1s", on_timeout=["fail"]),
    "sleep": lambda: flow().sleep("s", 3),
    "approval by": lambda: flow().approval("a", by=3, show=lambda s: s.note),
    "approval by text": lambda: flow().approval("a", by="ops", show=lambda s: s.note),
    "approval by numbers": lambda: flow().approval("a", by=[3], show=lambda s: s.note),
    "approval of": lambda: flow().approval("a", by=["ops"], of=3),
    "approval when": lambda: flow().approval("a", by=["ops"], show=lambda s: s.note, when=True),
    "approval show": lambda: flow().approval("a", by=["ops"], show="note"),
    "approval quorum": lambda: flow().approval("a", by=["ops"], show=lambda s: s.note, quorum="2"),
    "approval each_role": lambda: flow().approval("a", by=["ops"], show=lambda s: s.note, each_role="yes"),
    "approval expires": lambda: flow().approval("a", by=["ops"], show=lambda s: s.note, expires=3),
    "approval into": lambda: flow().approval("a", by=["ops"], show=lambda s: s.note, into=3),
    "terms expires": lambda: approval_terms(by=["ops"], expires=None),
    "app name": lambda: App(3),
    "app services": lambda: App("shop", services={"bank": 1}),
    "workflow name": lambda: App("shop").workflow(3, input=In, state=State),
    "workflow input": lambda: App("shop").workflow("w", input=3, state=State),
    "workflow state": lambda: App("shop").workflow("w", input=In, state="State"),
    "workflow version": lambda: App("shop").workflow("w", input=In, state=State, version="2"),
    "workflow boundary": lambda: App("shop").workflow("w", input=In, state=State, boundary=["pay"]),
    "workflow boundary of one": lambda: App("shop").workflow("w", input=In, state=State, boundary=pay),
    "workflow initial": lambda: App("shop").workflow("w", input=In, state=State, initial=State(order_id="A")),
    "workflow output": lambda: App("shop").workflow("w", input=In, state=State, output="note"),
    "workflow on_bug": lambda: App("shop").workflow("w", input=In, state=State, on_bug=["pause"]),
    "fragment state": lambda: App("shop").fragment("f", state=3),
    "fragment name": lambda: App("shop").fragment(3, state=State),
    "approver roles": lambda: App("shop").approver("ann", roles="ops", key="x"),
    "approver key": lambda: App("shop").approver("ann", roles=["ops"], key=3),
}


@pytest.mark.parametrize("declare", WRONG.values(), ids=WRONG)
def test_a_declaration_of_the_wrong_type_is_refused_where_it_is_written(declare: Callable[[], Any]):
    with pytest.raises(DefinitionFault):
        declare()


@pytest.mark.parametrize(
    "policy",
    [lambda: RetryPolicy(attempts="3"), lambda: RetryPolicy(first_ms=0.5), lambda: RatePolicy(10, "1s")],  # type: ignore[arg-type]
)
def test_a_policy_counts_in_whole_numbers(policy: Callable[[], Any]):
    with pytest.raises(ValueError, match="is a whole number, and times are in ms"):
        policy()


class Typed(BaseModel):
    order_id: str = ""
    number: int = 0
    text: str = ""
    texts: list[str] = []
    label: Literal["a", "b"] = "a"
    anything: Any = None
    answer: dict[str, Any] = {}
    maybe: str | None = None


def typed() -> Any:
    return App("shop").workflow("flow", input=In, state=Typed)


def round_() -> Any:
    return App("other").fragment("body", state=Typed).step("s", lambda s: {"text": "x"})


MISFITS: dict[str, tuple[Callable[[], Any], str]] = {
    "an answer of people in a text": (
        lambda: typed().approval("a", by=["ops"], show=lambda s: s.text, into="text"),
        "'outcome': 'granted'.*which is str",
    ),
    "a text of a model in a number": (
        lambda: typed().judge("j", instructions="x", show=lambda s: s.text, into="number"),
        "puts a text into the field 'number', which is int",
    ),
    "a label that is none of the field's": (
        lambda: typed().judge("j", instructions="x", show=lambda s: s.text, into="label", labels=["a", "c"]),
        "puts 'c' into the field 'label'",
    ),
    "a list in a text": (
        lambda: typed().map("m", lambda s: s.texts, round_(), item="text", collect="text", into="text"),
        "puts a list into the field 'text', which is str",
    ),
    "an object in a text": (
        lambda: typed().capability("c", load_order, into="text"),
        "puts a Order into the field 'text', which is str",
    ),
    "a step of nothing": (lambda: typed().step("s", lambda: {"text": "x"}), "takes nothing; it takes the state"),
}


@pytest.mark.parametrize(("declare", "words"), MISFITS.values(), ids=MISFITS)
def test_what_can_never_fit_its_field_is_refused(declare: Callable[[], Any], words: str):
    with pytest.raises(DefinitionFault, match=words):
        declare()


def test_what_may_fit_its_field_is_taken():
    flow = typed()
    for field in ("anything", "answer"):
        flow.approval(f"a-{field}", by=["ops"], show=lambda s: s.text, into=field)
    for field in ("anything", "text", "maybe"):
        flow.judge(f"j-{field}", instructions="x", show=lambda s: s.text, into=field)
    flow.judge("j-label", instructions="x", show=lambda s: s.text, into="label", labels=["a", "b"])
    flow.step("default", lambda s=None: {"text": s.text})
    assert flow.program.definition.digest


@played
async def test_a_field_that_an_input_does_not_have_is_refused():
    app = App("shop")
    inner = app.workflow("inner", input=In, state=State).step("s", lambda s: {"note": "x"})
    app.workflow("flow", input=In, state=State).workflow("child", inner, input=lambda s: {"order": s.order_id})
    kit = bench(app)
    with pytest.raises(DefinitionFault, match="there is no field x; there is cents, order_id"):
        await kit.start("flow", {"order_id": "A", "x": 1})
    outcome = await kit.run("flow", {"order_id": "A"})
    assert outcome.record.state == "PAUSED" and "there is no field order" in outcome.record.message
    assert outcome.record.children == {}  # nothing was started that anybody could look at
