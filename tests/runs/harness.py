"""Play one workflow undisturbed, and again with its owner dead after exactly n events, for every n.

A ``Scene`` is made anew for every play: its world outlives the owner, as the outside does. ``people`` says what persons
and the outside do when the run waits; it may be asked again after a crash, so its messages carry keys of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from setpoint.adapters.approvers.roster import Roster
from setpoint.adapters.stores import open_log, this_owner
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.application import App
from setpoint.app.capability import Capability, Context, capability
from setpoint.app.runs import RunOutcome, Runs
from setpoint.app.workflow import Workflow
from setpoint.kernel.retry import RetryPolicy
from setpoint.kernel.run_events import decode
from setpoint.ports.log import Log, Stored
from setpoint.testing import Crash, CrashingLog, FakeClock, FakeEffector

RUN = "rn-1"
ROUNDS_MAX = 60
PATIENCE_MS = 10**12
QUICK = RetryPolicy(attempts=4, first_ms=100, max_ms=1_000, jitter=0)


class Order(BaseModel):
    order: str


class State(BaseModel):
    order: str = ""
    one: dict[str, Any] | None = None
    two: dict[str, Any] | None = None
    three: dict[str, Any] | None = None
    four: dict[str, Any] | None = None
    seen: str = ""
    count: int = 0
    items: list[str] = []
    item: str = ""
    all: list[dict[str, Any] | None] = []


People = Callable[[Runs, RunOutcome], Awaitable[bool]]


async def nobody(runs: Runs, outcome: RunOutcome) -> bool:
    return False


@dataclass
class Scene:
    """A workflow in its world. ``worlds`` by capability."""

    workflow: Workflow[Any, Any]
    app: App
    worlds: dict[str, FakeEffector]
    people: People = nobody
    scopes: tuple[str, ...] = ()
    input: dict[str, Any] = field(default_factory=lambda: {"order": "A-1"})
    looks: Counter[str] = field(default_factory=Counter)
    repeated: list[str] = field(default_factory=list)
    log: Log | None = None

    def called(self, node: str) -> None:
        """Code of a node runs: it must not, once the log says that the node is done."""
        self.looks[node] += 1
        assert self.log is not None
        for info in self.log.streams("run"):
            for stored in self.log.read(info.stream):
                if stored.type == "NodeCompleted" and f'/{node}"'.encode() in stored.data:
                    self.repeated.append(node)


@dataclass(frozen=True)
class Ending:
    state: str
    reason: str
    output: Any
    effects: dict[str, dict[str, int]]
    standing: dict[str, dict[str, int]]
    code: int

    def but_for(self, *fields: str) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__ if name not in fields)


@dataclass(frozen=True)
class Played:
    ending: Ending
    scene: Scene
    events: int
    outcome: RunOutcome
    stored: dict[str, list[Stored]]

    def types(self, run_id: str = RUN) -> list[str]:
        return [stored.type for stored in self.stored[run_id]]

    def facts(self, kind: str, run_id: str = RUN) -> list[Any]:
        return [decode(stored.type, stored.data) for stored in self.stored[run_id] if stored.type == kind]


def open_runs(scene: Scene, log: Any, clock: FakeClock) -> Runs:
    # Not ``check``: these scenes are about effects, and an irreversible one would need its approval first.
    return Runs(log, clock, this_owner(), scene.app.programs(), Roster([], clock))


async def finish(scene: Scene, log: Any, clock: FakeClock, run_id: str = RUN) -> RunOutcome:
    """Work on the run with an owner of its own until it ends, or waits for what nobody does."""
    runs = open_runs(scene, log, clock)
    try:
        values, state = scene.workflow.begin(scene.input)
        await runs.start(scene.workflow.program, values, state, run_id=run_id, scopes=scene.scopes)
        for _ in range(ROUNDS_MAX):
            outcome = await runs.wait(run_id, patience_ms=PATIENCE_MS)
            if outcome.record.is_terminal:
                return outcome
            if await scene.people(runs, outcome):
                continue
            waits = [wait.at_ms for wait in outcome.record.waits.values()]
            if outcome.record.state == "PAUSED" or not waits or min(waits) <= clock.now_ms():
                return outcome
            clock.advance(min(waits) - clock.now_ms())
        raise AssertionError(f"{outcome.record.state} after {ROUNDS_MAX} rounds: {outcome.record}")
    finally:
        await runs.close()


def ending(scene: Scene, outcome: RunOutcome) -> Ending:
    record = outcome.record
    return Ending(
        record.state,
        record.reason,
        unnumbered(outcome.output),
        {name: world.effects for name, world in scene.worlds.items()},
        {name: world.standing for name, world in scene.worlds.items()},
        outcome.exit_code,
    )


def unnumbered(output: Any) -> Any:
    """Without the numbers of receipts: in which order branches come to the world is nobody's promise."""
    match output:
        case dict():
            return {name: unnumbered(value) for name, value in output.items() if name != "number"}
        case list():
            return [unnumbered(value) for value in output]
        case _:
            return output


async def play(make: Callable[[], Scene], store: Path | None, *crashes: int) -> Played:
    """Play it, with an owner that dies after so many events of its own for each of ``crashes``, then one that lives."""
    clock = FakeClock()
    log: Any = MemoryLog(clock.now_ms) if store is None else open_log(f"sqlite:///{store}", clock.now_ms)
    scene = make()
    scene.log = log
    try:
        for events in crashes:
            try:
                await finish(scene, CrashingLog(log, events), clock)
                break
            except Crash:
                pass
        for _ in range(ROUNDS_MAX):
            try:
                outcome = await finish(scene, log, clock)
                break
            except Crash:  # the world killed the owner
                pass
        else:
            raise AssertionError("the world kills every owner")
        stored = {info.stream: list(log.read(info.stream)) for info in log.streams("run")}
        return Played(ending(scene, outcome), scene, sum(map(len, stored.values())), outcome, stored)
    finally:
        await log.close()


def every_crash(make: Callable[[], Scene], folder: Path | None, step: int = 1) -> Iterator[tuple[int, Played, Played]]:
    """(n, undisturbed, with the owner dead after n events) for every n."""
    calm = asyncio.run(play(make, None))
    for n in range(0, calm.events, step):
        store = None if folder is None else folder / f"{n}.db"
        yield n, calm, asyncio.run(play(make, store, n))


# Parts


def shop() -> App:
    return App("shop")


def effect(
    name: str,
    world: FakeEffector,
    *,
    of: str = "compensable",
    probe: bool = True,
    key: Any = "own",
    troubled_undo: bool = False,
    **declared: Any,
) -> Capability:
    """An effect in that world under the key ``NAME:ORDER``; its way back is told twice without harm, as promised."""

    async def act(ctx: Context, order: str) -> dict[str, Any]:
        return await world.perform(ctx.key, {"order": order})

    async def look(ctx: Context) -> Any:
        return await world.probe(ctx.key)

    async def back(ctx: Context, result: dict[str, Any]) -> Any:
        if ctx.key in world.effects:
            return None
        return await world.compensate(ctx.key, result)

    declared.setdefault("retry", QUICK)
    declared.setdefault("timeout", "1s")
    if key == "own":
        key = _by_order(name)
    return capability(
        effect=of,
        name=name,
        key=key,
        probe=look if probe else None,
        compensate=back if of == "compensable" else None,
        **declared,
    )(act)


def _by_order(name: str) -> Any:
    return lambda arguments: f"{name}:{arguments.order}"


class Stage:
    """Runs of some workflows over one store in memory, by hand."""

    def __init__(
        self, *workflows: Workflow[Any, Any], app: App, log: Any = None, clock: FakeClock | None = None
    ) -> None:
        self.clock = clock or FakeClock()
        self.log = log or MemoryLog(self.clock.now_ms)
        self.workflows = {flow.name: flow for flow in workflows}
        self.app = app
        self.runs = self.reopened()

    def reopened(self) -> Runs:
        """Another process, as far as its memory goes: breakers, rates and all else are new."""
        self.runs = Runs(self.log, self.clock, this_owner(), self.app.programs(), Roster([], self.clock))
        return self.runs

    async def start(self, name: str = "flow", order: str = "A-1", *, run_id: str = RUN, **more: Any) -> str:
        flow = self.workflows[name]
        values, state = flow.begin({"order": order})
        return await self.runs.start(flow.program, values, state, run_id=run_id, **more)

    async def go(self, run_id: str = RUN, patience_ms: int = PATIENCE_MS) -> RunOutcome:
        return await self.runs.wait(run_id, patience_ms=patience_ms)

    async def run(self, name: str = "flow", order: str = "A-1", *, run_id: str = RUN, **more: Any) -> RunOutcome:
        return await self.go(await self.start(name, order, run_id=run_id, **more))

    async def told(self, action: str, argument: Any = "", *, run_id: str = RUN) -> RunOutcome:
        self.runs.tell(run_id, action, argument, by="ann")
        return await self.go(run_id)

    def types(self, run_id: str = RUN) -> list[str]:
        return [stored.type for stored in self.log.read(run_id)]

    def facts(self, kind: str, run_id: str = RUN) -> list[Any]:
        return [decode(stored.type, stored.data) for stored in self.log.read(run_id) if stored.type == kind]


def stage_of(scene: Scene, log: Any = None, clock: FakeClock | None = None) -> Stage:
    return Stage(scene.workflow, app=scene.app, log=log, clock=clock)


def chain(*calls: tuple[str, Capability], name: str = "flow", app: App | None = None) -> tuple[App, Any]:
    """A workflow that calls one capability after the other, each result in the field of the node's name."""
    app = app or shop()
    flow = app.workflow(name, input=Order, state=State)
    for node, called in calls:
        flow = flow.capability(node, called, into=node)
    return app, flow
