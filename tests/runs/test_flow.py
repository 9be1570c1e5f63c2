"""Each kind of node does what it says, leaves what it did in the log, and nothing else."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from tests.runs.flowkit import (
    In,
    Order,
    State,
    add,
    bench,
    done,
    fails,
    load_order,
    mark,
    new_app,
    of_type,
    pay,
    played,
    why,
    world,
)
from typing_extensions import TypedDict

from setpoint import App, Context, Fails, capability
from setpoint.kernel.limits import INLINE_BYTES_MAX
from setpoint.kernel.run_events import BlockEntered, EffectQueued, NodeCompleted, NodeFailed, RunPaused
from setpoint.kernel.run_record import RunRecord
from setpoint.testing import AppKit
from setpoint.testing.effector import Trouble


def flow(app: App, name: str = "w", **options: Any) -> Any:
    return app.workflow(name, input=In, state=State, **options)


async def outcome_of(app: App, given: Any = None, *troubles: Any) -> tuple[AppKit, Any]:
    kit = bench(app, *troubles)
    return kit, await kit.run("w", given or {"order_id": "A"})


# Steps


def mutated(state: State) -> State:
    state.count += 1
    state.items.append(7)
    return state


@pytest.mark.parametrize(
    ("step", "changes"),
    [
        (mutated, {"count": 1, "items": [7]}),
        (lambda s: s.model_copy(update={"note": "x"}), {"note": "x"}),
        (lambda s: {"note": "x", "count": 2}, {"note": "x", "count": 2}),
        (lambda s: {}, {}),
        (lambda s: s, {}),
        (lambda s, given: {"note": given.order_id}, {"note": "A"}),
        (lambda s: {"count": "3"}, {"count": 3}),
        (lambda s: {"order": Order(id="A", cents=1)}, {"order": {"id": "A", "cents": 1}}),
        (lambda s: {"order": {"id": "A", "cents": 1}}, {"order": {"id": "A", "cents": 1}}),
        (lambda s=None: {"note": s.order_id}, {"note": "A"}),
    ],
)
@played
async def test_a_step_records_exactly_the_fields_it_changed(step: Any, changes: dict[str, Any]) -> None:
    """R030"""
    app = new_app()
    flow(app).step("a", step)
    kit, outcome = await outcome_of(app)
    assert outcome.record.state == "COMPLETED"
    [completed] = of_type(kit, outcome.run_id, NodeCompleted)
    assert completed.values == changes
    assert {name: outcome.output[name] for name in changes} == changes


def misassigned(state: State) -> State:
    state.count = "many"  # type: ignore[assignment]
    return state


def misnested(state: State) -> Any:
    order = Order(id="A", cents=1)
    order.cents = "lots"  # type: ignore[assignment]
    return {"order": order}


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda s: None, "it returned nothing; return the state, or a mapping of the fields that change"),
        (lambda s: {"bogus": 1}, "it returned the fields bogus, which the state does not have"),
        (lambda s: {"count": "many"}, "Input should be a valid integer"),
        (misassigned, "Input should be a valid integer"),
        (misnested, "Input should be a valid integer"),
        (lambda s: 5, "it gave 5, which has no fields"),
        (lambda s: {"count": 2**64}, "value.count is 18446744073709551616, beyond 64 bits; keep it as text"),
        (lambda s: {"note": "\udc00"}, "surrogate"),
        (lambda s: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
@played
async def test_a_step_that_returns_what_is_no_state_pauses_the_run_at_that_step(step: Any, words: str) -> None:
    """R030, R055"""
    app = new_app()
    flow(app).step("first", add(1)).step("a", step)
    kit, outcome = await outcome_of(app)
    state, reason, message = why(outcome)
    assert (state, reason, outcome.exit_code) == ("PAUSED", "NodeFailed", 11)
    assert words in message
    assert message.startswith("the step of w/a raised ")
    assert done(kit, outcome.run_id) == ["w/first"]


@played
async def test_a_run_whose_bugs_fail_it_is_taken_back_and_ends() -> None:
    app = new_app()
    flow(app, on_bug="fail").capability("pay", pay).step("a", lambda s: 1 / 0)
    kit, outcome = await outcome_of(app)
    assert why(outcome)[:2] == ("FAILED", "NodeFailed")
    assert (len(world(kit).ledger), world(kit).standing) == (2, {})


@played
async def test_a_run_goes_on_from_the_step_that_raised_and_does_nothing_before_it_again() -> None:
    """R054, R055, A2"""
    app, calls, broken = new_app(), [], [True]

    def last(state: State) -> Any:
        if broken[0]:
            raise RuntimeError("not yet")
        return {"note": "done"}

    @capability(effect="read", name="count")
    async def counted(ctx: Context) -> int:
        calls.append(ctx.node)
        return len(calls)

    w = flow(app)
    for number in range(8):
        w.capability(f"n{number}", counted, into="count")
    w.step("last", last)
    kit, outcome = await outcome_of(app)
    assert outcome.record.state == "PAUSED"
    before = outcome.record.spent
    broken[0] = False
    kit.restart()
    kit.runs.tell(outcome.run_id, "resume", by="anna")
    outcome = await kit.go_on(outcome.run_id)
    assert outcome.record.state == "COMPLETED"
    assert calls == [f"w/n{number}" for number in range(8)]
    assert outcome.output["count"] == 8
    assert outcome.record.spent == before


@played
async def test_an_author_may_end_a_run_with_a_reason_of_his_own() -> None:
    app = new_app()
    flow(app).capability("pay", pay).step("no", fails("NotOurCustomer")).capability("later", mark)
    kit, outcome = await outcome_of(app)
    assert why(outcome) == ("FAILED", "NotOurCustomer", "NotOurCustomer on purpose; taken back: w/pay")
    assert (len(world(kit).ledger), world(kit).standing) == (2, {})


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Inner(BaseModel):
    name: str
    when: datetime.date
    price: decimal.Decimal


@dataclasses.dataclass
class Pair:
    a: int
    b: float


class Rich(BaseModel):
    order_id: str
    share: float = 0.1
    big: str = ""
    text: str = ""
    inner: Inner | None = None
    pairs: dict[str, Pair] = {}
    level: Level = Level.LOW
    at: datetime.datetime | None = None
    span: datetime.timedelta | None = None
    tags: set[str] = set()
    pair: tuple[int, str] = (0, "")
    raw: Any = None
    blob: bytes = b""


class Strict(Rich):
    model_config = ConfigDict(strict=True)


NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=datetime.UTC)


def enriched(state: Rich) -> Rich:
    state.share = state.share + 0.2
    state.big = "€" * (INLINE_BYTES_MAX + 1)
    state.text = 'Zoë 😀 \x00 ​"\\'
    state.inner = Inner(name="n", when=NOON.date(), price=decimal.Decimal("10.10"))
    state.pairs = {"ä/b": Pair(1, 0.5)}
    state.level = Level.HIGH
    state.at, state.span, state.tags = NOON, datetime.timedelta(hours=1), {"a"}
    state.pair = (3, "x")
    state.raw = {"deep": [{"x": 1}], "float": 1.0}
    state.blob = b"plain"
    return state


def checked(state: Rich) -> dict[str, Any]:
    assert state.share == 0.1 + 0.2
    assert state.inner is not None
    assert state.inner.price == decimal.Decimal("10.10")
    assert state.pairs["ä/b"] == Pair(1, 0.5)
    assert (state.level, state.at, state.pair) == (Level.HIGH, NOON, (3, "x"))
    assert (state.tags, state.blob, state.span) == ({"a"}, b"plain", datetime.timedelta(hours=1))
    state.raw["deep"][0]["x"] = 2  # in place, in a value that no type of its own guards
    return {"raw": state.raw, "text": state.text + "!"}


@pytest.mark.parametrize("kind", [Rich, Strict])
@played
async def test_a_state_of_many_types_comes_back_as_it_was_after_every_restart(kind: type[Any]) -> None:
    """R049, A4"""
    app = new_app()
    w = app.workflow("w", input=In, state=kind, initial=lambda given: kind(order_id=given.order_id))
    w.step("fill", enriched).sleep("z", "1h").step("check", checked).step("again", lambda s: {})
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert outcome.is_waiting
    kit.restart()
    await kit.skip("1h")
    record = kit.runs.record(outcome.run_id)
    assert record.state == "COMPLETED", record.message
    output = (await kit.go_on(outcome.run_id)).output
    assert output["raw"] == {"deep": [{"x": 2}], "float": 1.0}
    assert output["big"] == "€" * (INLINE_BYTES_MAX + 1)
    assert output["text"].endswith('"\\!')
    [fill] = [e for e in of_type(kit, outcome.run_id, NodeCompleted) if e.node == "w/fill"]
    assert {"share", "big", "pairs", "raw"} <= set(fill.refs)  # fractions and long texts lie beside the log
    assert "level" in fill.values


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@played
async def test_a_number_that_json_cannot_hold_never_reaches_the_log(number: float) -> None:
    app = new_app()
    app.workflow("w", input=In, state=Rich).step("a", lambda s: {"share": number})
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert f"value.share is {number}, which JSON cannot hold" in outcome.record.message


@played
async def test_one_and_true_are_different_values() -> None:
    class Loose(BaseModel):
        order_id: str
        raw: Any = 1

    app = new_app()
    w = app.workflow("w", input=In, state=Loose)
    w.step("a", lambda s: {"raw": True}).step("b", lambda s: {"raw": 1.0}).step("c", lambda s: {"raw": 1})
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    events = of_type(kit, outcome.run_id, NodeCompleted)
    assert [bool(event.values or event.refs) for event in events] == [True, True, True]
    assert outcome.output["raw"] is not True


@played
async def test_a_state_may_be_a_typed_dict_or_a_dataclass() -> None:
    class Dicted(TypedDict):
        order_id: str
        cents: int

    def more(state: Any) -> Any:
        state["cents"] += 1
        return state

    app = new_app()
    app.workflow("w", input=In, state=Dicted).step("a", more).step("b", more)
    app.workflow("d", input=In, state=Classed).step("a", lambda s: dataclasses.replace(s, cents=5))
    kit = bench(app)
    assert (await kit.run("w", {"order_id": "A"})).output == {"order_id": "A", "cents": 2}
    assert (await kit.run("d", {"order_id": "A"})).output == {"order_id": "A", "cents": 5}


@dataclasses.dataclass
class Classed:
    order_id: str
    cents: int = 0


@played
async def test_the_output_is_what_the_workflow_says_it_is_and_a_run_that_cannot_say_it_is_not_done() -> None:
    app = new_app()
    flow(app, output=lambda s: {"paid": s.cents}).step("a", lambda s: {"cents": 7})
    flow(app, "bad", output=lambda s: s.order.cents).step("a", add(1))
    kit, outcome = await outcome_of(app)
    assert outcome.output == {"paid": 7}
    outcome = await kit.run("bad", {"order_id": "A"})
    assert why(outcome)[:2] == ("PAUSED", "NodeFailed")
    assert "the output of bad raised AttributeError" in outcome.record.message


# Branches


class Choice(enum.Enum):
    YES = "YES"


def chosen(app: App, select: Any) -> Any:
    yes = app.fragment("yes", state=State).capability("pay", pay)
    no = app.fragment("no", state=State).step("refuse", lambda s: {"note": "refused"})
    return flow(app).branch("b", select, {"YES": yes, "NO": no}).step("after", add(1))


@pytest.mark.parametrize(
    ("select", "nodes"),
    [
        (lambda s: "YES", ["w/b/YES/pay", "w/b", "w/after"]),
        (lambda s: "NO", ["w/b/NO/refuse", "w/b", "w/after"]),
        (lambda s: Choice.YES, ["w/b/YES/pay", "w/b", "w/after"]),
    ],
)
@played
async def test_a_branch_does_the_case_it_selected_and_no_other(select: Any, nodes: list[str]) -> None:
    """R031"""
    app = new_app()
    chosen(app, select)
    kit, outcome = await outcome_of(app)
    assert done(kit, outcome.run_id) == nodes
    assert len(world(kit).ledger) == ("w/b/YES/pay" in nodes)


@pytest.mark.parametrize("label", ["MAYBE", "yes", "", None, 1, ["YES"]])
@played
async def test_a_label_that_no_case_has_fails_the_run_without_any_effect(label: Any) -> None:
    """R032"""
    app = new_app()
    chosen(app, lambda s: label)
    kit, outcome = await outcome_of(app)
    assert why(outcome) == (
        "FAILED",
        "UnknownLabel",
        f"the selector of w/b returned {label!r}, which is none of its labels (YES, NO); no case was entered",
    )
    assert of_type(kit, outcome.run_id, BlockEntered, EffectQueued) == []


# Fragments


@played
async def test_a_fragment_that_two_places_use_works_in_each_under_its_own_path() -> None:
    """R033"""
    app = new_app()
    part = app.fragment("part", state=State).step("one", add(1)).capability("mark", mark)
    flow(app).fragment("x", part).fragment("y", part).step("z", add(10))
    flow(app, "other").branch("b", lambda s: "in", {"in": part})
    kit, outcome = await outcome_of(app)
    assert done(kit, outcome.run_id) == ["w/x/one", "w/x/mark", "w/x", "w/y/one", "w/y/mark", "w/y", "w/z"]
    assert outcome.output["count"] == 12
    other = await kit.run("other", {"order_id": "A"})
    assert done(kit, other.run_id) == ["other/b/in/one", "other/b/in/mark", "other/b"]
    assert len(set(world(kit).deliveries)) == 3  # a key of its own for every path


@played
async def test_a_fragment_of_a_narrower_state_changes_only_its_own_fields() -> None:
    class Narrow(BaseModel):
        count: int = 5

    app = new_app()
    part = app.fragment("part", state=Narrow).step("one", lambda s: {"count": s.count + 1})
    flow(app).step("a", lambda s: {"count": 1, "note": "kept"}).fragment("x", part)
    _, outcome = await outcome_of(app)
    assert (outcome.output["count"], outcome.output["note"]) == (2, "kept")


@played
async def test_a_capability_in_a_fragment_may_take_what_only_the_input_has() -> None:
    class Small(BaseModel):
        note: str = ""
        receipt: Any = None

    app, got = new_app(), []

    @capability(effect="read")
    async def see(ctx: Context, cents: int) -> None:
        got.append(cents)

    part = app.fragment("part", state=Small).capability("see", see)
    app.workflow("w", input=In, state=Small).fragment("x", part)
    await outcome_of(app, {"order_id": "A", "cents": 12})
    assert got == [12]


# Parallel


@played
async def test_parallel_branches_work_on_copies_and_their_changes_are_joined() -> None:
    app = new_app()
    left = (
        app.fragment("l", state=State).step("a", lambda s: {"left": "L", "count": 1}).step("b", lambda s: {"count": 0})
    )
    right = app.fragment("r", state=State).step("a", lambda s: {"right": f"saw {s.left!r}"})
    flow(app).parallel("p", {"l": left, "r": right}).step("after", lambda s: {"note": s.left + s.right})
    _, outcome = await outcome_of(app)
    assert outcome.output["note"] == "Lsaw ''"


@played
async def test_two_branches_that_write_a_field_differently_fail_the_run_and_what_they_did_is_taken_back() -> None:
    app = new_app()
    left = app.fragment("l", state=State).capability("pay", pay).step("a", lambda s: {"note": "l"})
    right = app.fragment("r", state=State).step("a", lambda s: {"note": "r"})
    flow(app).parallel("p", {"l": left, "r": right})
    kit, outcome = await outcome_of(app)
    assert why(outcome) == (
        "FAILED",
        "ParallelConflict",
        "w/p/l and w/p/r wrote different values to the field 'note' of the state; taken back: w/p/l/pay",
    )
    assert (len(world(kit).ledger), world(kit).standing) == (2, {})


@played
async def test_two_branches_that_write_the_same_agree() -> None:
    app = new_app()
    same = app.fragment("l", state=State).step("a", lambda s: {"note": "x"})
    flow(app).parallel("p", {"l": same, "r": same})
    _, outcome = await outcome_of(app)
    assert outcome.output["note"] == "x"


@played
async def test_one_branch_waits_while_the_other_goes_on() -> None:
    """R060"""
    app = new_app()
    left = (
        app.fragment("l", state=State)
        .wait_for("s", timeout="1d", into="left")
        .step("l2", lambda s: {"left": s.left + "!"})
    )
    right = app.fragment("r", state=State).capability("pay", pay).step("r2", lambda s: {"right": "R"})
    flow(app).parallel("p", {"l": left, "r": right}).step("after", add(1))
    kit, outcome = await outcome_of(app)
    assert outcome.is_waiting
    assert done(kit, outcome.run_id) == ["w/p/r/pay", "w/p/r/r2"]
    kit.restart()
    kit.signal(outcome.run_id, "s", "L")
    outcome = await kit.go_on(outcome.run_id)
    assert (outcome.output["left"], outcome.output["right"]) == ("L!", "R")
    assert len(world(kit).ledger) == 1


@played
async def test_a_failing_branch_waits_for_what_its_siblings_have_under_way() -> None:
    app, order = new_app(), []

    @capability(effect="compensable", key=lambda a: f"slow:{a.order_id}", compensate=lambda ctx: order.append("undone"))
    async def slow(ctx: Context, order_id: str) -> None:
        import asyncio

        for _ in range(20):
            await asyncio.sleep(0)
        order.append("made")

    left = app.fragment("l", state=State).capability("slow", slow)
    right = app.fragment("r", state=State).step("no", fails("No"))
    flow(app).parallel("p", {"l": left, "r": right})
    _, outcome = await outcome_of(app)
    assert why(outcome)[:2] == ("FAILED", "No")
    assert order == ["made", "undone"]


@played
async def test_a_failure_beside_a_pause_is_not_forgotten() -> None:
    """A declined effect is asked for once, whatever people ask for at the same time."""
    app = new_app()
    left = app.fragment("l", state=State).capability("pay", pay)
    right = app.fragment("r", state=State).step("a", add(1)).step("b", add(1))
    flow(app).parallel("p", {"l": left, "r": right})
    kit = bench(app, "permanent")
    run_id = await kit.start("w", {"order_id": "A"})

    def asked(event: Any, record: RunRecord) -> None:
        if isinstance(event, EffectQueued):
            kit.runs.tell(run_id, "pause", by="anna")

    await kit.runs.go_on(run_id, observer=asked)
    assert why(await kit.go_on(run_id))[:2] == ("FAILED", "Declined")
    assert len(world(kit).deliveries) == 1


# Map


def mapped(app: App, **options: Any) -> Any:
    body = app.fragment("body", state=State).step("double", lambda s: {"count": s.item * 2}).capability("mark", mark)
    given = {"item": "item", "collect": "count", "into": "doubled", **options}
    return flow(app).step("fill", lambda s: {"items": [3, 1, 2]}).map("m", lambda s: s.items, body, **given)


@played
async def test_a_map_gives_what_its_rounds_gave_in_the_order_of_the_items() -> None:
    app = new_app()
    mapped(app).step("after", add(1))
    kit, outcome = await outcome_of(app)
    assert outcome.output["doubled"] == [6, 2, 4]
    assert (outcome.output["count"], outcome.output["item"]) == (1, 0)  # rounds work on copies
    assert [deed.request["item"] for deed in world(kit).ledger] == [3, 1, 2]
    assert {path for path in done(kit, outcome.run_id) if path.startswith("w/m/")} == {
        f"w/m/{number}/{name}" for number in range(3) for name in ("double", "mark")
    }


@pytest.mark.parametrize("at_once", [1, 2, 3, 8])
@played
async def test_no_more_rounds_are_under_way_than_at_once_allows(at_once: int) -> None:
    """L7"""
    import asyncio

    app, under_way, most = new_app(), set(), []

    @capability(effect="read")
    async def busy(ctx: Context, item: int) -> None:
        under_way.add(item)
        most.append(len(under_way))
        for _ in range(10):
            await asyncio.sleep(0)
        under_way.discard(item)

    body = app.fragment("body", state=State).capability("busy", busy)
    flow(app).map("m", lambda s: list(range(7)), body, item="item", at_once=at_once)
    await outcome_of(app)
    assert max(most) == min(at_once, 7)


@played
async def test_a_round_that_waits_keeps_its_place() -> None:
    app = new_app()
    body = app.fragment("body", state=State).sleep("z", "1h").step("a", add(1))
    flow(app).map("m", lambda s: [1, 2, 3, 4, 5], body, item="item", at_once=2)
    kit, outcome = await outcome_of(app)
    seen = []
    for _ in range(3):
        seen.append(len(outcome.record.waits))
        kit.restart()
        await kit.skip("1h")
        outcome = await kit.go_on(outcome.run_id)
    assert seen == [2, 2, 1]
    assert outcome.record.state == "COMPLETED"


@played
async def test_no_new_round_begins_once_one_has_failed() -> None:
    app = new_app()
    body = app.fragment("body", state=State).capability("mark", mark).step("a", lambda s: 1 / 0 if s.item == 1 else {})
    flow(app, on_bug="fail").map("m", lambda s: list(range(50)), body, item="item", at_once=2)
    kit, outcome = await outcome_of(app)
    assert outcome.record.state == "FAILED"
    assert len(world(kit).deliveries) <= 4


@played
async def test_a_map_over_nothing_is_done_at_once() -> None:
    app = new_app()
    body = app.fragment("body", state=State).capability("mark", mark)
    flow(app).map("m", lambda s: [], body, item="item", collect="count", into="doubled")
    kit, outcome = await outcome_of(app)
    assert outcome.record.state == "COMPLETED"
    assert outcome.output["doubled"] == []
    assert world(kit).deliveries == []


@pytest.mark.parametrize(
    ("items", "reason", "words"),
    [
        (list(range(101)), "TooMany", "w/m takes a list of at most 100 items and got 101 items; none was begun"),
        (None, "NotAList", "w/m takes a list of at most 100 items and got None; none was begun"),
        ({"a": 1}, "NotAList", "w/m takes a list of at most 100 items and got {'a': 1}; none was begun"),
        ("abc", "NotAList", "w/m takes a list of at most 100 items and got 'abc'; none was begun"),
    ],
)
@played
async def test_what_is_no_list_or_too_long_is_refused_before_any_round(items: Any, reason: str, words: str) -> None:
    """L7"""
    app = new_app()
    body = app.fragment("body", state=State).capability("mark", mark)
    flow(app).map("m", lambda s: items, body, item="item")
    kit, outcome = await outcome_of(app)
    assert why(outcome) == ("FAILED", reason, words)
    assert world(kit).deliveries == []


class Cart(BaseModel):
    order_id: str
    orders: list[Order] = []
    order: Order | None = None
    sums: list[int] = []
    cents: int = 0


@pytest.mark.parametrize("kind", [list, tuple])
@played
async def test_the_items_of_a_map_may_be_objects_of_the_authors(kind: type[Any]) -> None:
    app = new_app()
    body = app.fragment("body", state=Cart).step("a", lambda s: {"cents": s.order.cents})
    w = app.workflow("w", input=In, state=Cart)
    w.step("fill", lambda s: {"orders": [Order(id="a", cents=1), Order(id="b", cents=2)]})
    w.map("m", lambda s: kind(s.orders), body, item="order", collect="cents", into="sums")
    kit = bench(app)
    assert (await kit.run("w", {"order_id": "A"})).output["sums"] == [1, 2]


@played
async def test_an_item_that_does_not_fit_its_field_pauses_the_run_before_any_round() -> None:
    app = new_app()
    body = app.fragment("body", state=State).capability("mark", mark)
    flow(app).map("m", lambda s: [1, "two"], body, item="item")
    kit, outcome = await outcome_of(app)
    assert why(outcome)[:2] == ("PAUSED", "NodeFailed")
    assert "the list of w/m raised ValidationError" in outcome.record.message
    assert world(kit).deliveries == []


# Repeat


@played
async def test_a_repetition_ends_when_its_condition_holds() -> None:
    app = new_app()
    body = app.fragment("body", state=State).step("a", add(1)).capability("mark", mark)
    flow(app).repeat("r", body, until=lambda s: s.count == 3, at_most=5).step("after", add(10))
    kit, outcome = await outcome_of(app)
    assert outcome.output["count"] == 13
    assert done(kit, outcome.run_id)[:4] == ["w/r/0/a", "w/r/0/mark", "w/r/1/a", "w/r/1/mark"]
    assert len(set(world(kit).deliveries)) == 3
    assert set(outcome.record.blocks) == set()


@played
async def test_a_repetition_that_reaches_its_bound_fails_the_run() -> None:
    """L7"""
    app = new_app()
    body = app.fragment("body", state=State).step("a", add(1))
    flow(app).repeat("r", body, until=lambda s: False, at_most=4)
    _, outcome = await outcome_of(app)
    assert why(outcome) == (
        "FAILED",
        "RepeatExhausted",
        "w/r ran 4 times, its bound, and its condition still does not hold",
    )


@played
async def test_a_reviewer_who_pushes_back_three_times_sees_one_effect_for_each_yes() -> None:
    """B1"""
    app = new_app()
    body = (
        app.fragment("body", state=State)
        .step("draft", lambda s: {"cents": s.cents + 100})
        .approval("ok", by=["ops"], show=lambda s: {"cents": s.cents}, into="answer")
        .branch(
            "said",
            lambda s: s.answer.outcome,
            {
                "granted": app.fragment("g", state=State).capability("pay", pay),
                "denied": app.fragment("d", state=State).step("again", lambda s: {"note": s.note + s.answer.reason}),
            },
        )
    )
    flow(app).repeat("r", body, until=lambda s: s.receipt is not None, at_most=9)
    kit = bench(app, approvers={"anna": ["ops"]})
    outcome = await kit.run("w", {"order_id": "A"})
    for number in range(3):
        kit.deny(outcome.run_id, by="anna", reason=str(number))
        kit.restart()
        outcome = await kit.go_on(outcome.run_id)
        assert world(kit).ledger == []
    kit.approve(outcome.run_id, by="anna")
    outcome = await kit.go_on(outcome.run_id)
    assert outcome.record.state == "COMPLETED"
    assert outcome.output["note"] == "012"
    assert world(kit).effects == {"refund:A:400": 1}
    drafts = [path for path in done(kit, outcome.run_id) if path.endswith("/draft")]
    assert drafts == [f"w/r/{number}/draft" for number in range(4)]


# Calls


@played
async def test_arguments_come_from_the_state_or_else_from_the_input() -> None:
    app, got = new_app(), []

    class Bare(BaseModel):
        order_id: str = "from state"

    @capability(effect="read")
    async def see(ctx: Context, order_id: str, cents: int, colour: str = "red") -> None:
        got.append((order_id, cents, colour))

    w = app.workflow("w", input=In, state=Bare)
    w.step("a", lambda s: {"order_id": "changed"}).capability("see", see)
    w.capability("given", see, args=lambda s, i: {"order_id": i.order_id, "cents": 1, "colour": "blue"})
    await outcome_of(app, {"order_id": "A", "cents": 9})
    assert got == [("changed", 9, "red"), ("A", 1, "blue")]


@pytest.mark.parametrize(
    "args",
    [
        lambda s: {"order_id": "A"},
        lambda s: {"order_id": "A", "cents": "much"},
        lambda s: {"order_id": "A", "cents": 1, "admin": True},
        lambda s: {"order_id": "A", "cents": 2**65},
        lambda s: None,
    ],
)
@played
async def test_arguments_that_do_not_fit_send_nothing(args: Any) -> None:
    app = new_app()
    flow(app).capability("pay", pay, args=args)
    kit, outcome = await outcome_of(app)
    assert why(outcome)[:2] == ("PAUSED", "NodeFailed")
    assert "the arguments of w/pay raised " in outcome.record.message
    assert world(kit).deliveries == []


@pytest.mark.parametrize(
    ("require", "words"),
    [
        (lambda s: False, "the precondition of w/pay does not hold; nothing was sent"),
        (lambda s: "closed", "the precondition of w/pay does not hold: closed; nothing was sent"),
    ],
)
@played
async def test_a_precondition_that_does_not_hold_sends_nothing(require: Any, words: str) -> None:
    """R126"""
    app = new_app()
    flow(app).capability("pay", pay, require=require)
    kit, outcome = await outcome_of(app)
    assert why(outcome) == ("FAILED", "PreconditionUnmet", words)
    assert outcome.exit_code == 12
    assert world(kit).deliveries == []


@played
async def test_a_principal_without_the_scope_is_refused() -> None:
    """R044"""

    @capability(effect="keyed", scopes=["refunds:write"])
    async def guarded(ctx: Context, order_id: str) -> None:
        await ctx.services["world"].perform(ctx.key, {})

    app = new_app()
    flow(app).capability("g", guarded)
    kit = bench(app)
    refused = await kit.run("w", {"order_id": "A"}, principal="customer:17", scopes=("orders:read",))
    assert why(refused)[:2] == ("FAILED", "Forbidden")
    assert "guarded needs refunds:write, which customer:17 does not hold; nothing was sent" in refused.record.message
    [failed] = of_type(kit, refused.run_id, NodeFailed)
    assert failed.kind == "refused"
    assert world(kit).deliveries == []
    allowed = await kit.run("w", {"order_id": "A"}, principal="staff:1", scopes=("refunds:write",))
    assert allowed.record.state == "COMPLETED"


@capability(effect="keyed")
async def pay_marked(ctx: Context, item: int) -> bool:
    return True


@played
async def test_a_result_may_be_dropped_and_one_of_two_fields_may_be_named() -> None:
    app = new_app()
    flow(app).capability("pay", pay, into="").capability("second", pay_marked, into="eligible")
    _, outcome = await outcome_of(app)
    assert outcome.output["receipt"] is None
    assert outcome.output["eligible"] is True


@played
async def test_a_retry_does_the_failed_call_again_and_nothing_before_it() -> None:
    """R055"""
    app, calls = new_app(), []

    @capability(effect="read", name="see")
    async def see(ctx: Context) -> int:
        calls.append(ctx.node)
        return 1

    flow(app).capability("one", see, into="count").capability("two", see, into="count").capability("three", pay)
    kit, outcome = await outcome_of(app, None, Trouble("transient", times=2))
    assert outcome.record.state == "COMPLETED"
    assert calls == ["w/one", "w/two"]
    assert len(world(kit).deliveries) == 3
    assert len(set(world(kit).deliveries)) == 1
    assert len(kit.clock.slept) == 2


@played
async def test_a_finished_run_is_looked_at_without_calling_anything() -> None:
    """R054"""
    app = new_app()
    flow(app).capability("load", load_order).capability("pay", pay)
    kit, outcome = await outcome_of(app)
    kit.restart()
    again = await kit.go_on(outcome.run_id)
    assert again.output == outcome.output
    assert len(world(kit).deliveries) == 1
    assert of_type(kit, outcome.run_id, RunPaused) == []


@played
async def test_an_author_may_fail_the_run_from_a_selector_too() -> None:
    app = new_app()

    def select(state: State) -> str:
        raise Fails("Closed", "the shop is closed")

    flow(app).branch("b", select, {"x": app.fragment("f", state=State).step("a", add(1))})
    _, outcome = await outcome_of(app)
    assert why(outcome) == ("FAILED", "Closed", "the shop is closed")
