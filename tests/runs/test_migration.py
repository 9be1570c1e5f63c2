"""What a deploy means for runs that are open (R059, N1): pinned, kept, moved, or listed with what breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from setpoint import App, Runtime, capability
from setpoint.app.capability import Capability, Context
from setpoint.app.migration import Verdict, migrate, plan_migration
from setpoint.app.workflow import Workflow, approval_terms
from setpoint.kernel.errors import LeaseLost, UsageFault
from setpoint.testing import AppKit


class Order(BaseModel):
    id: str


class State(BaseModel):
    id: str = ""
    note: str = ""
    items: list[str] = []
    item: str = ""
    out: list[str] = []


class StateOfNext(State):
    colour: str = "red"


class StateOfAnother(BaseModel):
    id: str
    note: int = 0
    items: list[str] = []


WORLD: list[str] = []


@pytest.fixture(autouse=True)
def _world() -> None:
    WORLD.clear()


async def pay(ctx: Context, id: str) -> None:
    WORLD.append(f"paid {id}")


async def repay(ctx: Context, id: str) -> None:
    WORLD.append(f"repaid {id}")


async def look(ctx: Context, id: str) -> None:
    return None


PAY = capability(effect="compensable", name="pay", compensate=repay, probe=look)(pay)
PAY_KEYED = capability(effect="keyed", name="pay")(pay)
PAY_OTHER = capability(effect="compensable", name="pay_other", compensate=repay)(pay)
SEND = capability(effect="keyed", name="send")(pay)


def note(text: str) -> Callable[[Any], dict[str, Any]]:
    return lambda state: {"note": state.note + text}


Build = Callable[[App, Workflow[Any, Any]], Any]


def app_of(*versions: tuple[int, Build], state: Any = State) -> App:
    app = App("shop")
    for version, build in versions:
        build(app, app.workflow("w", input=Order, state=state, version=version))
    return app


def first(app: App, w: Workflow[Any, Any]) -> Any:
    w.step("a", note("a")).capability("pay", PAY).wait_for("go", timeout="1d").step("b", note("b")).step("c", note("c"))


async def begun(build: Build = first) -> tuple[AppKit, str]:
    """A run of version 1 that waits."""
    kit = AppKit(app_of((1, build)), approvers={"anna": ["ops"], "bert": ["boss"]})
    outcome = await kit.run("w", {"id": "A-1"})
    assert outcome.is_waiting and outcome.record.state == "RUNNING", outcome.record.message
    return kit, outcome.run_id


def deploy(kit: AppKit, *versions: tuple[int, Build], state: Any = State) -> Verdict:
    """New code in a new process; the verdict on the one run."""
    kit.app = app_of(*versions, state=state)
    kit.restart()
    [verdict] = plan_migration(kit.log, kit.app)
    return verdict


def test_the_same_code_is_the_newest_version_and_nothing_changes():
    async def story() -> None:
        kit, _ = await begun()
        assert deploy(kit, (1, first)).standing == "same"

    asyncio.run(story())


def test_an_old_run_ends_on_its_own_version_while_that_is_declared_and_new_runs_take_the_newest():
    """R059, N1"""

    def second(app: App, w: Workflow[Any, Any]) -> None:
        w.step("other", note("other"))

    async def story() -> None:
        kit, run_id = await begun()
        verdict = deploy(kit, (1, first), (2, second))
        assert (verdict.standing, verdict.can_move, verdict.newest) == ("kept", False, 2)
        kit.signal(run_id, "go")
        old = await kit.go_on(run_id)
        new = await kit.run("w", {"id": "A-2"})
        assert (old.record.state, old.record.version, old.output["note"]) == ("COMPLETED", 1, "abc")
        assert (new.record.version, new.output["note"]) == (2, "other")

    asyncio.run(story())


def test_a_run_whose_version_is_gone_stays_untouched_and_is_listed():
    """R059, N1"""

    def second(app: App, w: Workflow[Any, Any]) -> None:
        w.step("other", note("other"))

    async def story() -> None:
        kit, run_id = await begun()
        seq = kit.log.head(run_id).seq
        verdict = deploy(kit, (2, second))
        assert (verdict.standing, verdict.node) == ("breaks", "w/a")
        assert verdict.reason == "w/a is done, and version 2 does not have it"
        kit.signal(run_id, "go")
        await kit.runs.work(until_idle=True)
        with pytest.raises(UsageFault, match="pinned to version 1"):
            await kit.go_on(run_id)
        with pytest.raises(UsageFault, match="cannot be moved: w/a is done"):
            await migrate(kit.runs, run_id, by="anna")
        assert kit.log.head(run_id).seq == seq
        deploy(kit, (2, second), (1, first))
        assert (await kit.go_on(run_id)).output["note"] == "abc"

    asyncio.run(story())


def test_a_run_in_a_database_is_listed_moved_and_ended_by_later_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """N1, over the store that applications use."""
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path))
    store = f"sqlite:///{tmp_path}/runs.db"

    async def story() -> None:
        async with Runtime.open(store, app_of((1, first))) as runtime:
            run_id = (await runtime.run(runtime.app.newest("w"), {"id": "A-1"})).run_id
        second = app_of((2, chain("a", "pay", "go", "new")))
        async with Runtime.open(store, second) as runtime:
            [verdict] = plan_migration(runtime.runs.log, second)
            assert (verdict.run_id, verdict.standing) == (run_id, "movable")
            await migrate(runtime.runs, run_id, by="anna")
        async with Runtime.open(store, second) as runtime:
            runtime.runs.tell(run_id, "signal", {"name": "go"}, by="test")
            outcome = await runtime.runs.wait(run_id)
            assert (outcome.output["note"], outcome.record.version) == ("anew", 2)
            assert plan_migration(runtime.runs.log, second) == []

    asyncio.run(story())


def test_a_workflow_that_is_gone_breaks_its_runs():
    async def story() -> None:
        kit, _ = await begun()
        [verdict] = plan_migration(kit.log, App("empty"))
        assert (verdict.standing, verdict.reason) == ("breaks", "the application declares no workflow w")

    asyncio.run(story())


def test_runs_that_are_over_are_nobodys_concern():
    async def story() -> None:
        kit, run_id = await begun()
        kit.signal(run_id, "go")
        await kit.go_on(run_id)
        assert plan_migration(kit.log, App("empty")) == []

    asyncio.run(story())


# What may change


def chain(*nodes: str, pay: Capability = PAY) -> Build:
    """A workflow of the nodes of that name: pay and go mean what they mean in ``first``."""

    def build(app: App, w: Workflow[Any, Any]) -> None:
        for name in nodes:
            match name:
                case "pay":
                    w.capability(name, pay)
                case "go":
                    w.wait_for(name, timeout="1d")
                case _:
                    w.step(name, note(name))

    return build


@pytest.mark.parametrize(
    ("nodes", "result"),
    [
        (("a", "pay", "go", "b", "c", "d"), "abcd"),
        (("a", "pay", "go", "new", "b", "c"), "anewbc"),
        (("a", "pay", "go", "c", "b"), "acb"),
        (("a", "pay", "go", "c"), "ac"),
        (("a", "pay", "go"), "a"),
        (("a", "pay", "go", "b", "renamed"), "abrenamed"),
    ],
)
def test_what_has_not_begun_may_be_added_left_out_renamed_and_reordered(nodes: tuple[str, ...], result: str):
    """R059, N1"""

    async def story() -> None:
        kit, run_id = await begun()
        verdict = deploy(kit, (2, chain(*nodes)))
        assert (verdict.standing, verdict.can_move) == ("movable", True)
        assert "come next" in verdict.changes[0]
        moved = await migrate(kit.runs, run_id, by="anna")
        assert moved == verdict
        assert deploy(kit, (2, chain(*nodes))).standing == "same"
        kit.signal(run_id, "go")
        outcome = await kit.go_on(run_id)
        assert (outcome.record.state, outcome.record.version, outcome.output["note"]) == ("COMPLETED", 2, result)
        assert WORLD == ["paid A-1"]
        [event] = [e for e in kit.events(run_id) if type(e).__name__ == "Migrated"]
        assert (event.by, event.version) == ("anna", 2)  # type: ignore[attr-defined]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("nodes", "node", "reason"),
    [
        (
            ("new", "a", "pay", "go", "b"),
            "w/new",
            "version 2 has w/new before w/a, which is done; it would be left out",
        ),
        (("a", "new", "pay", "go", "b"), "w/new", "version 2 has w/new before w/pay, which is done"),
        (("pay", "go", "b"), "w/a", "w/a is done, and version 2 does not have it"),
        (("pay", "a", "go", "b"), "w/a", "in another order"),
        (("a2", "pay", "go", "b"), "w/a", "w/a is done, and version 2 does not have it"),
        (("a", "pay", "b", "go"), "w/go", "w/go has begun, and version 2 has b there"),
        (("a", "pay"), "w/go", "w/go has begun, and version 2 has nothing more"),
    ],
)
def test_what_is_done_or_has_begun_may_not(nodes: tuple[str, ...], node: str, reason: str):
    """R059, N1"""

    async def story() -> None:
        kit, run_id = await begun()
        verdict = deploy(kit, (2, chain(*nodes)))
        assert (verdict.standing, verdict.node, verdict.can_move) == ("breaks", node, False)
        assert reason in verdict.reason
        with pytest.raises(UsageFault, match="cannot be moved"):
            await migrate(kit.runs, run_id, by="anna")

    asyncio.run(story())


def test_a_node_that_has_begun_keeps_its_kind_and_its_meaning():
    def other_signal(app: App, w: Workflow[Any, Any]) -> None:
        w.step("a", note("a")).capability("pay", PAY).wait_for("go", "gone", timeout="1d")

    def other_kind(app: App, w: Workflow[Any, Any]) -> None:
        w.step("a", note("a")).capability("pay", PAY).sleep("go", "1d")

    async def story() -> None:
        kit, _ = await begun()
        assert "waits for the signal 'go'; in version 2 for 'gone'" in deploy(kit, (2, other_signal)).reason
        assert "has begun as a wait_for, and is a sleep in version 2" in deploy(kit, (2, other_kind)).reason

    asyncio.run(story())


def test_what_may_have_to_be_taken_back_keeps_its_compensator():
    async def story() -> None:
        kit, run_id = await begun()
        for paid, words in ((PAY_KEYED, "declares without a compensator pay"), (PAY_OTHER, "does not declare pay")):
            verdict = deploy(kit, (2, chain("a", "pay", "go", "b", pay=paid)))
            assert (verdict.standing, verdict.node) == ("breaks", "w/pay")
            assert words in verdict.reason
        verdict = deploy(kit, (2, chain("a", "pay", "go", "b")))
        await migrate(kit.runs, run_id, by="anna")
        kit.runs.tell(run_id, "cancel", by="anna")
        assert (await kit.go_on(run_id)).record.state == "CANCELLED"
        assert WORLD == ["paid A-1", "repaid A-1"]

    asyncio.run(story())


def test_the_state_of_the_run_must_fit_the_new_one():
    async def story() -> None:
        kit, run_id = await begun()
        verdict = deploy(kit, (2, first), state=StateOfAnother)
        assert verdict.standing == "breaks"
        assert "the state of the run does not fit version 2: note" in verdict.reason
        verdict = deploy(kit, (2, first), state=StateOfNext)
        assert verdict.standing == "movable"
        assert verdict.changes == ("colour of the state would begin with the default",)
        await migrate(kit.runs, run_id, by="anna")
        kit.signal(run_id, "go")
        assert (await kit.go_on(run_id)).output["colour"] == "red"

    asyncio.run(story())


def test_a_run_that_somebody_works_on_is_not_moved():
    async def story() -> None:
        kit, run_id = await begun()
        deploy(kit, (2, chain("a", "pay", "go", "b")))
        lease = kit.log.claim(run_id, "somebody", 60_000)
        with pytest.raises(LeaseLost):
            await migrate(kit.runs, run_id, by="anna")
        kit.log.release(lease)
        assert (await migrate(kit.runs, run_id, by="anna")).can_move

    asyncio.run(story())


def test_a_step_that_failed_may_be_mended_and_moved_and_goes_on():
    """A paused run is what a new version is most often for."""

    def broken(app: App, w: Workflow[Any, Any]) -> None:
        w.step("a", note("a")).step("b", lambda state: 1 / 0)

    async def story() -> None:
        kit = AppKit(app_of((1, broken)))
        outcome = await kit.run("w", {"id": "A-1"})
        assert outcome.record.state == "PAUSED"
        verdict = deploy(kit, (2, chain("a", "before", "b2")))
        assert verdict.can_move, verdict
        await migrate(kit.runs, outcome.run_id, by="anna")
        kit.runs.tell(outcome.run_id, "resume", by="anna")
        assert (await kit.go_on(outcome.run_id)).output["note"] == "abeforeb2"

    asyncio.run(story())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from("abcd"), unique=True, max_size=3),
    st.lists(st.sampled_from("abcde"), unique=True, max_size=3),
    st.lists(st.sampled_from(["a", "b", "c", "d", "e", "go"]), unique=True, min_size=1),
    st.booleans(),
)
def test_a_run_is_movable_when_the_new_chain_continues_what_it_did_and_then_does_just_that(
    done: list[str], left: list[str], new: list[str], continues: bool
):
    """R059, N1: whatever is inserted, removed, renamed or moved."""
    left = [name for name in left if name not in done]
    if continues:
        new = [*done, "go", *(name for name in new if name not in (*done, "go"))]

    async def story() -> None:
        kit, run_id = await begun(chain(*done, "go", *left))
        verdict = deploy(kit, (2, chain(*new)))
        prefix = [*done, "go"]
        assert verdict.can_move == (new[: len(prefix)] == prefix), verdict
        if not verdict.can_move:
            assert verdict.reason and verdict.node
            return
        await migrate(kit.runs, run_id, by="anna")
        kit.signal(run_id, "go")
        outcome = await kit.go_on(run_id)
        assert outcome.output["note"] == "".join([*done, *new[len(prefix) :]])

    asyncio.run(story())


def test_the_input_of_the_run_must_fit_the_new_one():
    class Other(BaseModel):
        id: int

    async def story() -> None:
        kit, _ = await begun()
        app = App("shop")
        first(app, app.workflow("w", input=Other, state=State, version=2, initial=lambda given: State()))
        [verdict] = plan_migration(kit.log, app)
        assert "the input of the run does not fit version 2: id" in verdict.reason

    asyncio.run(story())


class Waiting(BaseModel):
    id: str = ""
    note: str = ""
    items: list[str] = []
    item: str | None = None
    out: list[str] = []


class WaitingForNumbers(Waiting):
    item: int | None = None  # type: ignore[assignment]


def test_the_state_of_a_round_must_fit_too():
    def each(app: App, w: Workflow[Any, Any]) -> None:
        body = app.fragment("body", state=w.state_type).wait_for("go", timeout="1d")
        w.step("fill", lambda state: {"items": ["p"]}).map("m", lambda state: state.items, body, item="item")

    async def story() -> None:
        kit = AppKit(app_of((1, each), state=Waiting))
        await kit.run("w", {"id": "A-1"})
        verdict = deploy(kit, (2, each), state=WaitingForNumbers)
        assert "the state of the run in w/m/0 does not fit version 2: item" in verdict.reason

    asyncio.run(story())


def test_what_may_have_to_be_taken_back_still_takes_the_arguments_it_was_made_with():
    async def explained(ctx: Context, id: str, why: str) -> None: ...

    async def story() -> None:
        kit, _ = await begun()
        more = capability(effect="compensable", name="pay", compensate=repay)(explained)

        def second(app: App, w: Workflow[Any, Any]) -> None:
            w.step("a", note("a"))
            w.capability("pay", more, args=lambda state: {"id": state.id, "why": "x"}).wait_for("go", timeout="1d")

        verdict = deploy(kit, (2, second))
        assert (verdict.standing, verdict.node) == ("breaks", "w/pay")
        assert 'its arguments do not fit pay of version 2: "why" is a required property' in verdict.reason

    asyncio.run(story())


# Blocks


def mapped(at_most: int = 5, *inner: str, collect: str | None = "note") -> Build:
    def build(app: App, w: Workflow[Any, Any]) -> None:
        body = app.fragment("body", state=State)
        chain(*(inner or ("x", "go", "y")))(app, body)  # type: ignore[arg-type]
        into = "out" if collect else None
        w.step("fill", lambda state: {"items": ["p", "q", "r"]})
        w.map("m", lambda state: state.items, body, item="item", at_most=at_most, collect=collect, into=into)

    return build


def test_rounds_under_way_go_on_in_the_new_version():
    """R059"""

    async def story() -> None:
        kit, run_id = await begun(mapped())
        verdict = deploy(kit, (2, mapped(5, "x", "go", "z", "y")))
        assert verdict.can_move, verdict
        assert [change.split(" come")[0] for change in verdict.changes] == ["in w/m/0", "in w/m/1", "in w/m/2"]
        await migrate(kit.runs, run_id, by="anna")
        for n in range(3):
            kit.signal(run_id, "go", n)
        outcome = await kit.go_on(run_id)
        assert outcome.output["out"] == ["xzy"] * 3

    asyncio.run(story())


@pytest.mark.parametrize(
    ("build", "node", "words"),
    [
        (mapped(2), "w/m", "has 3 items; version 2 allows 2"),
        (mapped(5, collect=None), "w/m", "keeps its items or results in other fields"),
        (mapped(5, "y", "go", "x"), "w/m/0/y", "it would be left out"),
        (mapped(5, "go", "y"), "w/m/0/x", "is done, and version 2 does not have it"),
        (chain("fill", "m"), "w/m", "has begun as a map, and is a step in version 2"),
        (chain("fill"), "w/m", "has begun, and version 2 has nothing more"),
    ],
)
def test_rounds_under_way_keep_what_they_rest_on(build: Build, node: str, words: str):
    async def story() -> None:
        kit, _ = await begun(mapped())
        verdict = deploy(kit, (2, build))
        assert (verdict.standing, verdict.node) == ("breaks", node)
        assert words in verdict.reason

    asyncio.run(story())


def chosen(*labels: str) -> Build:
    def build(app: App, w: Workflow[Any, Any]) -> None:
        cases = {}
        for label in labels:
            body = app.fragment(f"case-{label}", state=State)
            chain("go", "x")(app, body)  # type: ignore[arg-type]
            cases[label] = body
        w.branch("d", lambda state: "A", cases)

    return build


def beside(*labels: str) -> Build:
    def build(app: App, w: Workflow[Any, Any]) -> None:
        branches = {}
        for label in labels:
            body = app.fragment(f"branch-{label}", state=State)
            body.wait_for("go", timeout="1d")
            branches[label] = body
        w.parallel("p", branches)

    return build


def repeated(at_most: int) -> Build:
    def build(app: App, w: Workflow[Any, Any]) -> None:
        body = app.fragment("round", state=State)
        chain("x", "go")(app, body)  # type: ignore[arg-type]
        w.repeat("r", body, until=lambda state: state.note == "xxx", at_most=at_most)

    return build


def test_the_case_the_branches_and_the_round_a_run_is_in_stay():
    async def story() -> None:
        kit, _ = await begun(chosen("A", "B"))
        assert deploy(kit, (2, chosen("A"))).can_move
        assert "its case 'A' is not in version 2" in deploy(kit, (2, chosen("B"))).reason

        kit, _ = await begun(beside("A", "B"))
        assert "its branches are A, B; in version 2: A, B, C" in deploy(kit, (2, beside("A", "B", "C"))).reason

        kit, run_id = await begun(repeated(5))
        kit.signal(run_id, "go")
        await kit.go_on(run_id)
        assert deploy(kit, (2, repeated(2))).can_move
        assert "is in its round 2; version 2 allows 1" in deploy(kit, (2, repeated(1))).reason

    asyncio.run(story())


# Approvals and effects under way


def approved(role: str, *, effect: Any = "irreversible") -> Build:
    send = capability(effect=effect, name="send")(pay) if effect != "keyed" else SEND

    def build(app: App, w: Workflow[Any, Any]) -> None:
        w.approval("ask", of="send", by=[role]).wait_for("go", timeout="1d").capability("send", send)

    return build


def test_a_granted_approval_stays_under_unchanged_rules_and_is_void_under_others():
    """R126, R059"""

    async def story(second: str) -> tuple[list[str], list[str]]:
        WORLD.clear()
        kit, run_id = await begun(approved("ops"))
        kit.approve(run_id, by="anna")
        await kit.go_on(run_id)

        def longer(app: App, w: Workflow[Any, Any]) -> None:
            approved(second)(app, w)
            w.step("z", note("z"))

        verdict = deploy(kit, (2, longer))
        assert verdict.can_move, verdict
        await migrate(kit.runs, run_id, by="anna")
        kit.signal(run_id, "go")
        outcome = await kit.go_on(run_id)
        if outcome.is_waiting:
            assert WORLD == []
            kit.approve(run_id, by="bert")
            outcome = await kit.go_on(run_id)
        assert outcome.output["note"] == "z"
        assert WORLD == ["paid A-1"]
        void = [line for line in kit.trace(run_id) if "outcome=void" in line]
        return [change for change in verdict.changes if "void" in change], void

    assert asyncio.run(story("ops")) == ([], [])
    foreseen, void = asyncio.run(story("boss"))
    assert len(foreseen) == len(void) == 1


def test_an_approval_that_is_open_under_other_rules_is_asked_anew():
    """R126"""

    async def story() -> None:
        kit, run_id = await begun(approved("ops"))
        verdict = deploy(kit, (2, approved("boss")))
        assert verdict.can_move and "is void" in verdict.changes[-1]
        await migrate(kit.runs, run_id, by="anna")
        await kit.runs.work(until_idle=True)  # a worker looks at it at once, though nobody told it anything
        [ticket] = kit.tickets(run_id)
        assert ticket.by == ("boss",)
        kit.approve(run_id, by="bert")
        await kit.go_on(run_id)
        kit.signal(run_id, "go")
        assert (await kit.go_on(run_id)).record.state == "COMPLETED"
        assert WORLD == ["paid A-1"]

    asyncio.run(story())


def asking(effect: str, *, probe: bool = True, name: str = "send") -> Build:
    """A call whose approval is open: it has begun."""
    more = {"probe": look} if probe else {}
    send = capability(effect=effect, name=name, **more)(pay)  # type: ignore[arg-type]

    def build(app: App, w: Workflow[Any, Any]) -> None:
        w.capability("send", send, approval=approval_terms(by=["ops"]))

    return build


def test_a_call_that_has_begun_keeps_its_capability_and_its_class():
    async def story() -> None:
        kit, _ = await begun(asking("irreversible"))
        assert "send is irreversible; in version 2 keyed" in deploy(kit, (2, asking("keyed"))).reason
        assert "calls send; in version 2 other" in deploy(kit, (2, asking("irreversible", name="other"))).reason
        assert deploy(kit, (2, asking("irreversible", probe=False))).can_move

    asyncio.run(story())


def test_an_approval_that_is_open_stays_for_the_same_call():
    def asks(of: str) -> Build:
        def build(app: App, w: Workflow[Any, Any]) -> None:
            w.approval("ask", of=of, by=["ops"]).capability("send", SEND).capability("pay", PAY)

        return build

    async def story() -> None:
        kit, _ = await begun(asks("send"))
        assert "stands for w/send; in version 2 for w/pay" in deploy(kit, (2, asks("pay"))).reason

    asyncio.run(story())


def test_a_call_that_has_begun_keeps_its_arguments():
    async def more(ctx: Context, id: str, note: str) -> None: ...

    async def story() -> None:
        kit, _ = await begun(asking("irreversible"))
        send = capability(effect="irreversible", name="send", probe=look)(more)

        def second(app: App, w: Workflow[Any, Any]) -> None:
            w.capability("send", send, approval=approval_terms(by=["ops"]))

        assert "version 2 calls send with other arguments" in deploy(kit, (2, second)).reason

    asyncio.run(story())


@pytest.mark.parametrize(
    ("was", "still", "words"),
    [
        ({"compensate": repay, "effect": "compensable"}, {"effect": "compensable", "compensate": repay}, ""),
        ({"effect": "reversible", "dedups": True}, {"effect": "reversible"}, "has no memory of keys"),
        ({"effect": "reversible", "compensate": repay}, {"effect": "reversible"}, "has no compensator"),
    ],
)
def test_an_effect_that_nobody_can_tell_of_keeps_its_node_and_what_was_promised_of_it(
    was: dict[str, Any], still: dict[str, Any], words: str
):
    """B3"""

    async def lost(ctx: Context, id: str) -> None:
        raise RuntimeError("the line went dead")

    def calls(promised: dict[str, Any], name: str = "send") -> Build:
        def build(app: App, w: Workflow[Any, Any]) -> None:
            w.capability(name, capability(name="send", **promised)(lost))

        return build

    async def story() -> None:
        kit, run_id = await begun(calls(was))
        assert kit.runs.record(run_id).effects["w/send"].status in ("unknown", "queued", "not_sent")
        verdict = deploy(kit, (2, calls(still)))
        assert words in verdict.reason and verdict.can_move == (not words)
        assert "w/send has begun, and version 2 has sent there" in deploy(kit, (2, calls(was, "sent"))).reason

    asyncio.run(story())


def test_an_effect_in_doubt_keeps_its_probe():
    """B3: what settles a doubt may not be deployed away."""

    async def lost(ctx: Context, id: str) -> None:
        raise RuntimeError("the line went dead")

    async def later(ctx: Context, id: str) -> None:
        from setpoint.kernel.effects import EffectNotSent

        raise EffectNotSent("nobody answers")

    def doubtful(probe: Any) -> Build:
        more = {"probe": probe} if probe else {}
        send = capability(effect="reversible", name="send", **more)(lost)

        def build(app: App, w: Workflow[Any, Any]) -> None:
            w.capability("send", send)

        return build

    async def story() -> None:
        kit = AppKit(app_of((1, doubtful(later))))
        outcome = await kit.run("w", {"id": "A-1"}, patience="1ms")
        assert outcome.record.effects["w/send"].status == "queued"
        verdict = deploy(kit, (2, doubtful(None)))
        assert "its effect is under way; send has no probe in version 2" in verdict.reason

        def longer(app: App, w: Workflow[Any, Any]) -> None:
            doubtful(later)(app, w)
            w.step("z", note("z"))

        assert deploy(kit, (2, longer)).can_move

    asyncio.run(story())


def test_a_pivot_that_was_made_is_a_pivot_in_the_new_version_too():
    """R192: the proof of the new definition holds for the run only then."""

    def sent(effect: str) -> Build:
        send = capability(effect=effect, name="send")(pay)  # type: ignore[arg-type]

        def build(app: App, w: Workflow[Any, Any]) -> None:
            terms = approval_terms(by=["ops"]) if effect == "irreversible" else None
            w.capability("send", send, approval=terms).wait_for("go", timeout="1d")

        return build

    async def story() -> None:
        kit, run_id = await begun(sent("irreversible"))
        kit.approve(run_id, by="anna")
        await kit.go_on(run_id)
        assert kit.runs.record(run_id).pivot == "w/send"
        verdict = deploy(kit, (2, sent("keyed")))
        assert verdict.reason == "w/send was irreversible when it was done, and is not in version 2"

        def another(app: App, w: Workflow[Any, Any]) -> None:
            sent("keyed")(app, w)
            wipe = capability(effect="irreversible", name="wipe")(pay)
            w.capability("wipe", wipe, approval=approval_terms(by=["ops"]))

        assert deploy(kit, (2, another)).node == "w/send"

    asyncio.run(story())


def parent_of(version: int, *inner: str, start: int | None = None) -> Callable[[App], None]:
    def build(app: App) -> None:
        child = app.workflow("child", input=Order, state=State, version=version)
        chain(*inner)(app, child)
        app.workflow("w", input=Order, state=State, version=version).workflow(
            "sub", child, input=lambda state: {"id": state.id}, into=None
        )

    return build


def test_a_run_that_waits_for_another_goes_on_while_that_ones_version_is_declared():
    async def story() -> None:
        one, two = App("shop"), App("shop")
        parent_of(1, "go", "x")(one)
        kit = AppKit(one)
        outcome = await kit.run("w", {"id": "A-1"})
        parent_of(2, "go", "y")(two)
        kit.app = two
        kit.restart()
        assert [verdict.workflow for verdict in plan_migration(kit.log, two)] == ["w", "child"], "the oldest first"
        verdicts = {verdict.workflow: verdict for verdict in plan_migration(kit.log, two)}
        assert verdicts["child"].can_move
        assert "is of a definition that is gone" in verdicts["w"].reason
        three = App("shop")
        other = three.workflow("other", input=Order, state=State)
        chain("x")(three, other)
        three.workflow("w", input=Order, state=State, version=3).workflow(
            "sub", other, input=lambda state: {"id": state.id}, into=None
        )
        assert "has started a run of child; version 3 starts other" in plan_migration(kit.log, three)[0].reason
        [child] = outcome.record.children.values()
        old = two.workflow("child", input=Order, state=State, version=1)
        chain("go", "x")(two, old)
        kit.restart()
        verdicts = {verdict.workflow: verdict for verdict in plan_migration(kit.log, two)}
        assert verdicts["w"].can_move and verdicts["child"].standing == "kept"
        await migrate(kit.runs, outcome.run_id, by="anna")
        kit.signal(child, "go")
        await kit.runs.work(until_idle=True)
        assert kit.runs.record(outcome.run_id).state == "COMPLETED"
        assert kit.runs.record(child).version == 1

    asyncio.run(story())
