"""The owner of a run dies after each of its events; what comes of the run and the world is as if it had not (R051)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from setpoint.app.capability import Context, Later, capability
from setpoint.app.runs import RunOutcome, Runs
from setpoint.kernel.effects import CannotTell, EffectNotSent
from setpoint.testing import FakeEffector, Trouble

from .harness import Order, Scene, State, effect, every_crash, play, shop


def three(*, fails_at_four: bool = False, **troubles: Any) -> Scene:
    """Read, step, three effects, and perhaps a fourth that the other side refuses."""
    app = shop()
    worlds = {name: FakeEffector(*troubles.get(name, ())) for name in ("one", "two", "three", "four")}
    if fails_at_four:
        worlds["four"].trouble(Trouble("permanent", 1000))
    scene: Any = None

    @capability(effect="read")
    async def look(ctx: Context, order: str) -> str:
        scene.called("look")
        return f"saw {order}"

    def weigh(state: State) -> State:
        scene.called("weigh")
        state.count += 1
        return state

    flow = app.workflow("flow", input=Order, state=State).capability("look", look, into="seen").step("weigh", weigh)
    for name in ("one", "two", "three"):
        flow = flow.capability(name, effect(name, worlds[name]), into=name)
    if fails_at_four:
        flow = flow.capability("four", effect("four", worlds["four"]), into="four")
    scene = Scene(flow, app, worlds)
    return scene


def single(world: FakeEffector, people: Any = None, **declared: Any) -> Scene:
    app = shop()
    flow = app.workflow("flow", input=Order, state=State)
    flow = flow.capability("one", effect("one", world, **declared), into="one")
    scene = Scene(flow, app, {"one": world})
    if people is not None:
        scene.people = people
    return scene


def settles(verdict: str, result: Any = None) -> Any:
    """A person who answers every effect that nobody knows of."""

    async def people(runs: Runs, outcome: RunOutcome) -> bool:
        for unknown in outcome.record.unknown:
            said = {"key": unknown.key, "verdict": verdict, "result": result}
            runs.tell(outcome.run_id, "settle", said, by="ann")
        return bool(outcome.record.unknown)

    return people


def pivoted() -> Scene:
    """A compensable effect, one that nothing takes back, then a no: the run asks a person and takes nothing back."""
    app = shop()
    worlds = {name: FakeEffector() for name in ("one", "two", "three")}
    worlds["three"].trouble(Trouble("permanent", 1000))
    flow = app.workflow("flow", input=Order, state=State)
    flow = flow.capability("one", effect("one", worlds["one"]), into="one")
    flow = flow.capability("two", effect("two", worlds["two"], of="irreversible"), into="two")
    flow = flow.capability("three", effect("three", worlds["three"], of="keyed"), into="three")
    return Scene(flow, app, worlds)


def beside(**troubles: Any) -> Scene:
    """Two branches at once, then a step."""
    app = shop()
    worlds = {name: FakeEffector(*troubles.get(name, ())) for name in ("one", "two")}
    left = app.fragment("left", state=State).capability("one", effect("one", worlds["one"]), into="one")
    right = app.fragment("right", state=State).capability("two", effect("two", worlds["two"]), into="two")
    flow = app.workflow("flow", input=Order, state=State).parallel("both", {"left": left, "right": right})
    return Scene(flow.step("after", lambda state: {"count": state.count + 1}), app, worlds)


def mapped(*troubles: Any) -> Scene:
    app = shop()
    world = FakeEffector(*troubles)
    charge = effect("one", world, key=lambda arguments: f"one:{arguments.order}")
    body = app.fragment("body", state=State).capability("charge", charge, args=_item, into="one")
    flow = app.workflow("flow", input=Order, state=State).step("list", lambda state: {"items": ["a", "b", "c"]})
    flow = flow.map("each", lambda state: state.items, body, item="item", collect="one", into="all", at_once=2)
    return Scene(flow, app, {"one": world})


def _item(state: State) -> dict[str, Any]:
    return {"order": state.item}


def family(*, fails_after: bool = False, child_fails: bool = False) -> Scene:
    """A child makes an effect; the parent has made one before it, and may fail behind it."""
    app = shop()
    worlds = {name: FakeEffector() for name in ("one", "two", "three")}
    if child_fails:
        worlds["three"].trouble(Trouble("permanent", 1000))
    child = app.workflow("child", input=Order, state=State)
    child = child.capability("two", effect("two", worlds["two"]), into="two")
    child = child.capability("three", effect("three", worlds["three"]), into="three")
    flow = app.workflow("flow", input=Order, state=State).capability("one", effect("one", worlds["one"]), into="one")
    flow = flow.workflow("sub", child, input=lambda state: {"order": state.order})
    if fails_after:
        worlds["four"] = FakeEffector(Trouble("permanent", 1000))
        flow = flow.capability("four", effect("four", worlds["four"]), into="four")
    return Scene(flow, app, worlds)


def later(*, reports: bool = True) -> Scene:
    """The other side accepts, and reports by the inbox."""
    app = shop()
    world = FakeEffector()

    async def look(ctx: Context) -> Any:
        return await world.probe(ctx.key)

    @capability(effect="irreversible", key=lambda arguments: f"one:{arguments.order}", probe=look)
    async def ship(ctx: Context, order: str) -> dict[str, Any]:
        await world.perform(ctx.key, {"order": order})
        return Later(60_000)  # type: ignore[return-value]

    async def people(runs: Runs, outcome: RunOutcome) -> bool:
        pending = [e for e in outcome.record.effects.values() if e.status == "pending"]
        for one in pending if reports else ():
            said = {"key": one.key, "result": {"number": 1, "key": one.key, "request": {"order": "A-1"}}}
            runs.tell(outcome.run_id, "result", said, by="carrier", key=f"report:{one.key}")
        return bool(pending) and reports

    return Scene(
        app.workflow("flow", input=Order, state=State).capability("ship", ship, into="one"), app, {"one": world}, people
    )


def world(*troubles: Any, dedups: bool = False) -> FakeEffector:
    return FakeEffector(*troubles, dedups=dedups)


def half_seen() -> FakeEffector:
    side = world("timeout_after_effect")
    side.trouble_probe(CannotTell("a part of it"))
    return side


def blind() -> FakeEffector:
    side = world("timeout_after_effect")
    side.trouble_probe(*[EffectNotSent("the ledger is away")] * 2)
    return side


def broken_undo(verdict: str) -> Scene:
    """The second of three compensators fails for good; a person settles it, and the rest is taken back."""
    scene = three(fails_at_four=True)
    two = scene.worlds["two"]
    two.trouble("none", Trouble("permanent", 1000))
    settle = settles(verdict)

    async def people(runs: Runs, outcome: RunOutcome) -> bool:
        said = await settle(runs, outcome)
        if said:
            two._troubles.clear()  # whoever says that it may be told again has seen to that
        return said

    scene.people = people
    return scene


RECEIPT = {"number": 1, "key": "one:A-1", "request": {"order": "A-1"}}

SCENES: dict[str, Callable[[], Scene]] = {
    "plain": three,
    "lost replies": lambda: three(one=["timeout_after_effect"], three=["timeout_after_effect"]),
    "drops": lambda: three(one=["drop"], two=["drop", "drop"]),
    "no connection": lambda: three(one=["transient"], two=["transient", "transient"]),
    "a rate limit": lambda: three(two=[Trouble("rate_limited", 2, 7_000)]),
    "a bug behind the request": lambda: three(two=["bug_after_effect"]),
    "dies before the effect": lambda: three(two=["crash_before_effect"]),
    "dies after the effect": lambda: three(two=["crash_after_effect"], three=["crash_after_effect"]),
    "one declined": lambda: three(one=[Trouble("permanent", 1000)]),
    "two declined": lambda: three(two=[Trouble("permanent", 1000)]),
    "never reachable": lambda: three(three=[Trouble("transient", 1000)]),
    "always dropped": lambda: three(three=[Trouble("drop", 1000)]),
    "saga": lambda: three(fails_at_four=True),
    "saga, undo not reachable at first": lambda: three(fails_at_four=True, two=["none", "transient", "transient"]),
    "saga, undo reply lost": lambda: three(fails_at_four=True, two=["none", "timeout_after_effect"]),
    "saga, dies while undoing": lambda: three(fails_at_four=True, one=["none", "crash_after_effect"]),
    "saga, undo fails, settled as done": lambda: broken_undo("happened"),
    "saga, undo fails, settled as not done": lambda: broken_undo("not_happened"),
    "no probe, settled as happened": lambda: single(
        world("timeout_after_effect"), settles("happened", RECEIPT), probe=False
    ),
    "no probe, dropped, settled as not happened": lambda: single(world("drop"), settles("not_happened"), probe=False),
    "a half effect, settled": lambda: single(half_seen(), settles("happened", RECEIPT)),
    "a probe that cannot look": lambda: single(blind()),
    "keyed, lost replies": lambda: single(
        world(Trouble("timeout_after_effect", 2), dedups=True), of="keyed", probe=False
    ),
    "keyed, drops": lambda: single(world("drop", "transient", dedups=True), of="keyed", probe=False),
    "dedups, duplicate": lambda: single(world("duplicate", dedups=True), dedups=True),
    "behind a pivot": pivoted,
    "beside": beside,
    "beside, both lost": lambda: beside(one=["timeout_after_effect"], two=["drop"]),
    "beside, one declined, one lost": lambda: beside(one=["timeout_after_effect"], two=[Trouble("permanent", 1000)]),
    "map": mapped,
    "map, some lost": lambda: mapped("timeout_after_effect", "drop", "transient"),
    "child": family,
    "child fails": lambda: family(child_fails=True),
    "parent fails behind its child": lambda: family(fails_after=True),
    "reported later": later,
    "never reported": lambda: later(reports=False),
}

TOLD = {"no probe, dropped, settled as not happened", "no probe, settled as happened", "a half effect, settled"}
"""Where a crash leaves a doubt that the person of the scene settles by rote, rightly or wrongly."""


RACES = {"beside, one declined, one lost"}
"""Where one branch's no may come before or after the other's effect: made and taken back, or never made."""


def check(name: str, n: int, calm: Any, crashed: Any) -> None:
    left_out = ("effects",) if name in RACES else ()
    what = f"dead after {n} events:\n{crashed.ending}\n{calm.ending}\n{crashed.types()}"
    assert crashed.ending.but_for(*left_out) == calm.ending.but_for(*left_out), what
    assert not crashed.scene.repeated, f"dead after {n} events: {crashed.scene.repeated} ran again"
    for world, counts in crashed.ending.effects.items():
        assert all(count == 1 for count in counts.values()), f"dead after {n} events, {world}: {counts}"


@pytest.mark.parametrize("name", [name for name in SCENES if name not in TOLD])
def test_dead_after_any_event_the_run_ends_as_if_it_had_lived(name: str) -> None:
    """R049 R051 R053 R054 R055 R133 R134 R135 R137 R190 R191 A1 B3"""
    for n, calm, crashed in every_crash(SCENES[name], None):
        check(name, n, calm, crashed)


@pytest.mark.parametrize("name", sorted(TOLD))
def test_what_only_a_person_can_tell_is_not_done_again_before_they_have(name: str) -> None:
    """R135 R136 B5"""
    for n, calm, crashed in every_crash(SCENES[name], None):
        assert calm.ending.state == crashed.ending.state == "COMPLETED"
        (sent,) = crashed.scene.worlds.values()
        unknown = crashed.types().index("EffectUnknown") if "EffectUnknown" in crashed.types() else len(crashed.types())
        before = crashed.types()[:unknown].count("EffectQueued")
        assert before <= 1 and len(sent.deliveries) <= 2, f"dead after {n} events: {crashed.types()}"
        assert sum(sent.effects.values()) <= 1


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "lost replies",
        "saga",
        "beside, one declined, one lost",
        "map",
        "parent fails behind its child",
        "reported later",
    ],
)
def test_the_same_over_a_file(name: str, tmp_path: Path) -> None:
    """R049 R050"""
    for n, calm, crashed in every_crash(SCENES[name], tmp_path, step=2):
        check(name, n, calm, crashed)


@pytest.mark.parametrize("name", [name for name in SCENES if name not in TOLD])
def test_who_takes_it_up_may_die_as_well(name: str) -> None:
    """R051 R191"""
    calm = asyncio.run(play(SCENES[name], None))
    for n in range(2, calm.events, 2):
        for more in (1, 2, 3, 5):
            check(name, n, calm, asyncio.run(play(SCENES[name], None, n, more, more + 1)))
