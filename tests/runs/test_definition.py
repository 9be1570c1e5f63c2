"""What can be declared, in which words anything else is refused, and what the digest of a definition is of."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.runs.flowkit import In, Order, State, add, bench, load_order, mark, new_app, pay, played, send_letter
from typing_extensions import TypedDict

from setpoint import App, Context, capability
from setpoint.app.typed import DefinitionFault
from setpoint.app.workflow import InputFault, approval_terms
from setpoint.kernel.flow import read_definition, walk


def flow(app: App | None = None, name: str = "refund", **options: Any) -> Any:
    return (app or new_app()).workflow(name, input=In, state=State, **options)


def part(app: App | None = None, name: str = "part") -> Any:
    return (app or new_app()).fragment(name, state=State)


# The code of INTERFACE section 6


class RefundInput(BaseModel):
    order_id: str


class Receipt(BaseModel):
    id: str


class RefundState(BaseModel):
    order_id: str
    cents: int = 0
    order: Order | None = None
    eligible: bool = False
    receipt: Receipt | None = None


async def find_refund(ctx: Context, order_id: str) -> Receipt | None:
    return None


async def reverse_refund(ctx: Context, order_id: str, result: Receipt) -> None:
    return None


@capability(effect="compensable", key=lambda a: f"refund:{a.order_id}", probe=find_refund, compensate=reverse_refund)
async def issue_refund(ctx: Context, order_id: str, cents: int) -> Receipt:
    return Receipt(id=ctx.key)


def evaluate_refund_policy(state: RefundState) -> RefundState:
    assert state.order is not None
    state.eligible, state.cents = state.order.cents < 1000, state.order.cents
    return state


@played
async def test_the_refund_workflow_of_the_interface_page_builds_as_it_is_written() -> None:
    """R027, R026"""
    app = App("support")
    issue_refund_fragment = app.fragment("issue", state=RefundState).capability("issue", issue_refund)
    reject_request_fragment = app.fragment("reject", state=RefundState).step("reject", lambda state: {"cents": 0})

    refund = (app.workflow("refund", input=RefundInput, state=RefundState)
        .capability("load-order", load_order)
        .step("check-policy", evaluate_refund_policy)
        .branch("decision", lambda state: "APPROVED" if state.eligible else "REJECTED",
                {"APPROVED": issue_refund_fragment, "REJECTED": reject_request_fragment}))  # fmt: skip

    paths = [path for path, _ in walk(refund.program.definition.body, "refund")]
    assert paths == [
        "refund/load-order",
        "refund/check-policy",
        "refund/decision",
        "refund/decision/APPROVED/issue",
        "refund/decision/REJECTED/reject",
    ]
    assert refund.program.definition.boundary == ("issue_refund", "load_order")
    outcome = await bench(app).run("refund", {"order_id": "A-1001"})
    assert outcome.output["receipt"] == {"id": "refund:A-1001"}


# Names


def again(app: App) -> Any:
    flow(app)
    return flow(app)


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (again, "shop has a workflow 'refund' of version 1 already"),
        (lambda app: (part(app), part(app)), "shop has a fragment named 'part' already; names are unique"),
        (lambda app: (flow(app, "part"), part(app)), "shop has a workflow named 'part' already; names are unique"),
        (
            lambda app: flow(app, "1st"),
            "'1st' is no name: a letter, then letters, digits, - _ . and at most 64 of them",
        ),
        (lambda app: flow(app, version=0), "the version of refund is 0; it is at least 1"),
        (lambda app: flow(app, on_bug="retry"), "on_bug of refund is 'retry'; it is pause or fail"),
        (
            lambda app: app.workflow("w", input=In, state=Needy),
            "the state of w needs missing to begin with, and the input has no such field",
        ),
        (
            lambda app: app.workflow("w", input=int, state=State),
            "the input of w is <class 'int'>, which has no named fields",
        ),
        (lambda app: app.workflow("w", input=In, state=Opaque), "the state of w cannot be kept as JSON"),
        (lambda app: app.workflow("w", input=In, state=Aliased), "the field 'order_id' of the state of w has an alias"),
        (lambda app: app.workflow("w", input=In, state=Hidden), "the field 'secret' of the state of w is excluded"),
        (lambda app: app.workflow("w", input=In, state=Open), "the state of w allows fields that it does not declare"),
        (lambda app: App("no name"), "'no name' is no name for an app"),
    ],
)
def test_a_name_or_a_type_that_cannot_stand_is_refused(declare: Callable[[App], Any], words: str) -> None:
    """R026"""
    with pytest.raises(DefinitionFault) as refused:
        declare(new_app())
    assert words in refused.value.message


class Needy(BaseModel):
    order_id: str
    missing: int


class Thing:
    pass


class Opaque(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    order_id: str
    thing: Thing | None = None


class Aliased(BaseModel):
    order_id: str = Field(alias="orderId")


class Hidden(BaseModel):
    order_id: str
    secret: str = Field("", exclude=True)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    order_id: str


# Nodes


async def slow(state: State) -> State:
    return state


def loop(w: Any) -> Any:
    inner = part()
    inner.fragment("self", inner)
    return inner


def roundabout(w: Any) -> Any:
    one, two = part(name="one"), part(name="two")
    one.fragment("b", two)
    return two.fragment("a", one)


def of_unknown(w: Any) -> Any:
    return w.approval("ok", by=["ops"], of="pay").program


def of_earlier(w: Any) -> Any:
    return w.capability("pay", pay).approval("ok", by=["ops"], of="pay").program


def of_rounds(w: Any) -> Any:
    body = part().capability("mark", mark)
    return w.approval("ok", by=["ops"], of="all/*/mark").map("all", lambda s: s.items, body, item="item").program


def of_guarded(w: Any) -> Any:
    terms = approval_terms(by=["ops"])
    return w.approval("ok", by=["ops"], of="pay").capability("pay", pay, approval=terms).program


def of_twice(w: Any) -> Any:
    first = w.approval("one", by=["ops"], of="pay").approval("two", by=["cfo"], of="pay")
    return first.capability("pay", pay).program


def grown_child(w: Any) -> Any:
    app = new_app()
    child = flow(app, "child").step("a", add(1))
    parent = flow(app, "parent").workflow("run", child, input=lambda s: {"order_id": "x"})
    child.step("b", add(1))
    return parent.program


class Other(BaseModel):
    strange: int = 0


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda w: w.step("a", add(1)).step("a", add(1)), "refund has two nodes named 'a'; every run would confuse them"),
    (lambda w: w.step("a b", add(1)), "'a b' in refund is no name for a node: letters, digits, - _ ."),
    (lambda w: w.step("a", slow), "the step refund/a is async; a step waits for nothing: use a capability"),
    (lambda w: w.step("a", 7), "function= of step a is 7; it is a function of the state"),
    (lambda w: w.step("a", lambda s, i, x: s), "a function at refund/a takes 3 arguments; it may take the state, and"),
    (lambda w: w.branch("b", slow, {"x": part()}), "at refund/b is async; a plain function of the state is needed"),
    (lambda w: w.capability("pay", add(1)), "which is no capability"),
    (
        lambda w: w.capability("pay", pay, into="nope"),
        "refund/pay names the field 'nope'; the state has answer, cents,",
    ),
    (lambda w: w.capability("pay", pay, approval_when=lambda s: True), "refund/pay says when an approval is needed"),
    (lambda w: w.capability("pay", pay, preview=lambda s: ""), "or what it shows, and not who gives it"),
    (lambda w: w.capability("x", two_texts), "two_texts at refund/x gives a str, and the state has 4 fields"),
    (lambda w: w.capability("x", gives_decimal), "gives_decimal at refund/x gives a Other, and the state has no field"),
    (
        lambda w: w.capability("x", wants_more),
        "wants_more at refund/x takes 'colour', which is no field of state or input",
    ),
    (
        lambda w: w.fragment("f", part().capability("x", wants_more)).program,
        "wants_more at part/x takes 'colour', which is no field of state or input",
    ),
    (lambda w: w.capability("a", pay).capability("b", other_pay()), "two capabilities are named 'pay'; their keys"),
    (lambda w: w.branch("b", lambda s: "x", {}), "the branch refund/b has no cases"),
    (
        lambda w: w.branch("b", lambda s: "x", {"x": None}),
        "the case 'x' of refund/b leads to None, which is no fragment",
    ),
    (
        lambda w: w.branch("b", lambda s: "x", {"x": flow()}),
        "the case 'x' of refund/b leads to <setpoint.app.workflow.Work",
    ),
    (lambda w: w.branch("b", lambda s: "x", {"a/b": part()}), "'a/b' of refund/b is no label: a text of at most 64"),
    (lambda w: w.branch("b", lambda s: "x", {"": part()}), "'' of refund/b is no label"),
    (lambda w: w.branch("b", lambda s: True, {True: part()}), "True of refund/b is no label"),
    (
        lambda w: w.fragment("f", new_app().fragment("odd", state=Other)),
        "the content of refund/f is the fragment odd, whose state has strange; the state of refund has no such field",
    ),
    (loop, "the content of part/self leads back to part; a definition has no cycles"),
    (roundabout, "the content of two/a leads back to two; a definition has no cycles"),
    (lambda w: w.parallel("p", {"a": part()}), "refund/p is parallel to nothing: it has 1 branch"),
    (lambda w: w.map("m", lambda s: [], part(), item="nope"), "refund/m names the field 'nope'"),
    (
        lambda w: w.map("m", lambda s: [], part(), item="item", into="doubled"),
        "needs both collect= and into=, or neither",
    ),
    (
        lambda w: w.map("m", lambda s: [], part(), item="item", at_most=1001),
        "at_most of refund/m is 1001; it is 1 to 1000",
    ),
    (lambda w: w.map("m", lambda s: [], part(), item="item", at_once=0), "at_once of refund/m is 0; it is at least 1"),
    (lambda w: w.repeat("r", part(), until=lambda s: True, at_most=0), "at_most of refund/r is 0; it is at least 1"),
    (lambda w: w.workflow("c", part(), input=lambda s: {}), "which is no workflow"),
    (grown_child, "parent/run starts child, which was built further after that"),
    (lambda w: w.wait_for("s", timeout="soon"), "the timeout of refund/s: 'soon' is not a duration such as 500ms"),
    (lambda w: w.wait_for("s", timeout="1h", on_timeout="retry"), "on_timeout of refund/s is 'retry'; it is fail or"),
    (lambda w: w.wait_for("s", timeout="1h", into="nope"), "refund/s names the field 'nope'"),
    (lambda w: w.sleep("s", "0s"), "the duration of refund/s: '0s' is not a duration"),
    (
        lambda w: w.approval("ok", by=["ops"]),
        "refund/ok approves a call (of=) or what it shows (show=), one of the two",
    ),
    (
        lambda w: w.approval("ok", by=[], show=lambda s: {}),
        "by=[] names no roles, or one twice; somebody has to be able",
    ),
    (lambda w: w.approval("ok", by="ops", show=lambda s: {}), "by= of approval ok is 'ops'; it is a list of texts"),
    (lambda w: w.approval("ok", by=["a", "a"], show=lambda s: {}), "by=['a', 'a'] names no roles, or one twice"),
    (lambda w: w.approval("ok", by=["a"], quorum=0, show=lambda s: {}), "quorum is 0; it is 1 to 100"),
    (
        lambda w: w.approval("ok", by=["a"], quorum=True, show=lambda s: {}),
        "quorum= of approval ok is True; it is a whole number",
    ),
    (lambda w: w.approval("ok", by=["a"], expires="99999d", show=lambda s: {}), "an approval that expires after"),
    (of_unknown, "refund/ok approves the call of refund/pay, and there is no such call beside it"),
    (of_earlier, "refund/ok approves the call of refund/pay, which comes before it"),
    (of_rounds, "refund/ok approves the call of refund/all/*/mark, which is made in every round"),
    (of_guarded, "refund/ok approves the call of refund/pay, which is approved already (it has terms of its own)"),
    (of_twice, "refund/two approves the call of refund/pay, which is approved already (refund/one)"),
]


@pytest.mark.parametrize(("declare", "words"), REFUSED)
def test_a_node_that_cannot_stand_is_refused_at_its_line(declare: Callable[[Any], Any], words: str) -> None:
    """R027, R029"""
    with pytest.raises(DefinitionFault) as refused:
        declare(flow())
    assert words in refused.value.message


@capability(effect="read")
async def two_texts(ctx: Context) -> str:
    return ""


@capability(effect="read")
async def gives_decimal(ctx: Context) -> Other:
    return Other()


@capability(effect="keyed")
async def wants_more(ctx: Context, colour: str) -> None:
    return None


def other_pay() -> Any:
    @capability(effect="keyed", name="pay")
    async def another(ctx: Context, order_id: str) -> None:
        return None

    return another


# Capabilities


async def ok(ctx: Context, order_id: str) -> None:
    return None


async def takes_other(ctx: Context, nonsense: str) -> None:
    return None


async def akey(a: Any) -> str:
    return ""


async def untyped(ctx: Context, order_id) -> None:  # type: ignore[no-untyped-def]
    return None


async def no_context(order_id: str) -> None:
    return None


async def rest(ctx: Context, *orders: str) -> None:
    return None


async def opaque(ctx: Context, thing: Thing) -> None:
    return None


async def opaque_result(ctx: Context) -> Thing:
    return Thing()


@pytest.mark.parametrize(
    ("function", "declared", "words"),
    [
        (ok, {"effect": "harmless"}, "'harmless' is no effect class; capability ok is one of pure, read,"),
        (ok, {"effect": "read", "name": "a b"}, "'a b' is no name for a capability"),
        (ok, {"effect": "read", "key": str}, "capability ok is read: it changes nothing, so it has no key, probe or"),
        (ok, {"effect": "pure", "probe": ok}, "capability ok is pure: it changes nothing"),
        (ok, {"effect": "compensable"}, "capability ok is compensable but names no compensator (compensate=...)"),
        (ok, {"effect": "irreversible", "compensate": ok}, "capability ok is irreversible and yet names a compensator"),
        (
            ok,
            {"effect": "keyed", "probe": takes_other},
            "the probe of capability ok takes 'nonsense', which is none of",
        ),
        (ok, {"effect": "compensable", "compensate": takes_other}, "the compensate of capability ok takes 'nonsense'"),
        (
            ok,
            {"effect": "keyed", "key": akey},
            "the key of capability ok is async; a key is computed from the arguments",
        ),
        (ok, {"effect": "keyed", "key": "order_id"}, "key= of capability ok is 'order_id'; it is a function, or None"),
        (ok, {"effect": "keyed", "timeout": "long"}, "timeout of capability ok: 'long' is not a duration"),
        (untyped, {"effect": "keyed"}, "the parameter order_id of capability untyped has no type"),
        (no_context, {"effect": "keyed"}, "the first parameter of capability no_context must be ctx"),
        (rest, {"effect": "keyed"}, "*orders: 'str' of capability rest has no name to pass it by"),
        (opaque, {"effect": "keyed"}, "a parameter of capability opaque cannot be kept as JSON"),
        (opaque_result, {"effect": "keyed"}, "the result of capability opaque_result is"),
        ("ok", {"effect": "keyed", "name": "x"}, "function= of capability ok is 'ok'; it is a function"),
    ],
)
def test_a_capability_that_contradicts_itself_is_refused(function: Any, declared: Any, words: str) -> None:
    """R029"""
    with pytest.raises(DefinitionFault) as refused:
        capability(**declared)(function)
    assert words in refused.value.message


def test_a_capability_without_an_effect_class_is_refused() -> None:
    with pytest.raises(DefinitionFault, match="capability 'ok' declares no effect"):
        capability(ok)


# Inputs


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "the input of refund does not fit: order_id: Field required"),
        ({"order_id": 5}, "order_id: Input should be a valid string"),
        ({"order_id": "A", "cents": "many"}, "cents: Input should be a valid integer"),
        (None, "the input of refund does not fit: input: "),
        ({"order_id": "A", "cents": 2**70}, "value.cents is 1180591620717411303424, beyond 64 bits; keep it as text"),
        ({"order_id": "\ud800"}, "surrogate"),
    ],
)
@played
async def test_an_input_that_does_not_fit_starts_nothing(given: Any, words: str) -> None:
    """R028"""
    app = new_app()
    flow(app).step("a", add(1))
    kit = bench(app)
    with pytest.raises(InputFault) as refused:
        await kit.run("refund", given)
    assert words in refused.value.message
    assert kit.run_ids() == []


# Digests


def build(**changed: Any) -> Any:
    """A workflow with one of everything; each change is one of its structure."""
    app = new_app()
    c = {
        "state": State, "input": In, "version": 1, "name": "refund", "step": "a", "fragment": "inner",
        "cases": ("X", "Y"),
        "signal": "paid", "timeout": "1h", "on_timeout": "fail", "sleep": "1h", "at_most": 5, "at_once": 2, "rounds": 3,
        "by": ("ops",), "quorum": 1, "expires": "1h", "item": "item", "into": "doubled", "effect": pay, "order": False,
        "boundary": None, "when": False,
    }  # fmt: skip
    c.update(changed)
    inner = app.fragment(c["fragment"], state=State).step("x", add(1))
    other = app.fragment("other", state=State).step("y", add(2))
    w = app.workflow(c["name"], input=c["input"], state=c["state"], version=c["version"], boundary=c["boundary"])
    nodes = [lambda: w.step(c["step"], add(1)), lambda: w.capability("pay", c["effect"], into="receipt")]
    for node in reversed(nodes) if c["order"] else nodes:
        node()
    w.branch("b", lambda s: "X", dict(zip(c["cases"], (inner, other), strict=True)))
    w.fragment("f", inner).parallel("p", {"l": inner, "r": other})
    w.map("m", lambda s: s.items, inner, item=c["item"], collect="count", into=c["into"],
          at_most=c["at_most"], at_once=c["at_once"])  # fmt: skip
    w.repeat("r", inner, until=lambda s: True, at_most=c["rounds"])
    w.wait_for("w", c["signal"], timeout=c["timeout"], on_timeout=c["on_timeout"]).sleep("z", c["sleep"])
    when = (lambda s: True) if c["when"] else None
    w.approval("ok", by=c["by"], quorum=c["quorum"], expires=c["expires"], show=lambda s: {}, when=when)
    return w.program.definition


class WiderState(State):
    more: int = 0


class WiderIn(In):
    more: int = 0


@capability(effect="keyed", name="pay")
async def keyed_pay(ctx: Context, order_id: str, cents: int) -> Receipt:
    return Receipt(id="x")


CHANGES: list[dict[str, Any]] = [
    {"state": WiderState}, {"input": WiderIn}, {"version": 2}, {"name": "refund2"}, {"step": "aa"}, {"fragment": "i2"},
    {"cases": ("X", "Z")}, {"signal": "sent"}, {"timeout": "2h"}, {"on_timeout": "continue"}, {"sleep": "2h"},
    {"at_most": 6}, {"at_once": 3}, {"rounds": 4}, {"by": ("cfo",)}, {"quorum": 2}, {"expires": "2h"},
    {"item": "cents"}, {"into": "items"}, {"effect": keyed_pay}, {"order": True},
    {"boundary": (pay, mark)}, {"when": True},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_every_change_of_the_structure_changes_the_digest(change: dict[str, Any]) -> None:
    """R059, N1"""
    assert build(**change).digest != build().digest


def test_the_code_of_steps_and_the_words_of_types_are_no_part_of_the_digest() -> None:
    """R059"""

    class Worded(State):
        """Another docstring."""

        note: str = Field("", description="What somebody wrote", title="Note")

    def one(state: type[Any], step: Any) -> str:
        return new_app().workflow("w", input=In, state=state).step("a", step).program.definition.digest

    assert one(State, add(1)) == one(State, lambda s: {"note": "another"}) == one(Worded, add(3))


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class SetState(TypedDict):
    order_id: str
    cents: int


class Sets(BaseModel):
    order_id: str
    tags: set[str] = {"a", "b", "c", "d", "e", "f"}
    colour: Colour = Colour.RED
    share: float = 0.5


def digests() -> str:
    """What the subprocess prints."""
    sets = new_app().workflow("w", input=In, state=Sets).step("a", lambda s: {}).program.definition
    return f"{build().digest} {sets.digest}"


def test_the_digest_is_the_same_in_every_process_and_for_every_hash_seed() -> None:
    """R059, N1"""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    script = "from tests.runs.test_definition import digests; print(digests())"
    for seed in ("0", "1", "77"):
        found = subprocess.run(
            [sys.executable, "-c", script],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == digests()


def test_a_frozen_document_reads_back_to_the_same_definition() -> None:
    import msgspec

    definition = build()
    assert read_definition(msgspec.json.encode(definition.document)) == definition
    assert read_definition(msgspec.json.encode(definition.document)).digest == definition.digest


def test_a_fragment_has_other_paths_in_every_place_that_uses_it() -> None:
    """R033"""
    app = new_app()
    inner = part(app).capability("letter", send_letter, into="letter")
    one = flow(app, "one").fragment("here", inner).program.definition
    two = flow(app, "two").branch("there", lambda s: "x", {"x": inner}).program.definition
    assert [path for path, _ in walk(one.body, "one")] == ["one/here", "one/here/letter"]
    assert [path for path, _ in walk(two.body, "two")] == ["two/there", "two/there/x/letter"]


def test_a_state_may_be_a_typed_dict_a_dataclass_or_a_model() -> None:
    app = new_app()
    app.workflow("d", input=In, state=SetState).step("a", lambda s: {"cents": 1})
    assert app.newest("d").begin({"order_id": "A"}) == (
        {"order_id": "A", "cents": 0},
        {"order_id": "A", "cents": 0},
    )
