"""Random workflows come to what a plain interpreter makes of them, wherever their owner dies and however often."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from tests.runs.flowkit import played

from setpoint import App, Context, capability
from setpoint.kernel.effects import Happened
from setpoint.testing import AppKit, Crash, CrashingLog, FakeEffector

SEED = int(os.environ.get("SETPOINT_SEED", "0"))
CASES = 100
CASES_LONG = 2_000


class Start(BaseModel):
    a: int = 0
    b: int = 0


class Numbers(BaseModel):
    a: int = 0
    b: int = 0
    c: int = 0
    item: int = 0
    out: list[int] = []
    text: str = ""


def reply(n: int) -> int:
    return (n * 3 + 1) % 97


async def was_poked(ctx: Context) -> Any:
    match await ctx.services["world"].probe(ctx.key):
        case Happened(result=deed):
            return Happened(reply(deed["request"]["n"]))
        case found:
            return found


@capability(effect="keyed", name="poke", probe=was_poked)
async def poke(ctx: Context, n: int) -> int:
    await ctx.services["world"].perform(ctx.key, {"n": n, "node": ctx.node, "run": ctx.run_id})
    return reply(n)


@capability(effect="read", name="peek")
async def peek(ctx: Context, n: int) -> int:
    return reply(n + 1)


class Conflict(Exception):
    pass


Oracle = Callable[[dict[str, Any], str, Counter[tuple[str, int]]], None]
"""Changes the state in place, under a path, and counts the effects it has on the way."""
FIELDS = ("a", "b", "c")


class Author:
    """Writes a random workflow twice: with the builder, and as a function over a dictionary."""

    def __init__(self, chance: random.Random, app: App) -> None:
        self.chance, self.app, self.made = chance, app, 0

    def fragment(self, depth: int) -> tuple[Any, Oracle]:
        self.made += 1
        chain = self.app.fragment(f"part{self.made}", state=Numbers)
        return chain, self.fill(chain, depth)

    def workflow(self, name: str, depth: int) -> tuple[Any, Oracle]:
        chain = self.app.workflow(name, input=Start, state=Numbers, output=lambda s: s.model_dump())
        return chain, self.fill(chain, depth)

    def fill(self, chain: Any, depth: int) -> Oracle:
        kinds = [self.step, self.step, self.call, self.look, self.sleep, self.wait]
        if depth:
            kinds += [self.branch, self.use, self.parallel, self.map, self.repeat, self.child]
        parts: list[tuple[str, Oracle]] = []
        for number in range(self.chance.randint(1, 4)):
            name = f"n{number}"
            parts.append((name, self.chance.choice(kinds)(chain, name, depth - 1)))

        def run(state: dict[str, Any], at: str, effects: Counter[tuple[str, int]]) -> None:
            for name, part in parts:
                part(state, f"{at}/{name}", effects)

        return run

    def step(self, chain: Any, name: str, depth: int) -> Oracle:
        to, of = self.chance.choice(FIELDS), self.chance.choice((*FIELDS, "item"))
        by, is_long = self.chance.randint(-3, 9), self.chance.random() < 0.1

        def change(values: dict[str, Any]) -> dict[str, Any]:
            changed: dict[str, Any] = {to: (values[to] + values[of] * by + 1) % 97}
            return {**changed, "text": str(changed[to]) * 700} if is_long else changed

        chain.step(name, lambda s: change(s.model_dump()))
        return lambda state, at, effects: state.update(change(state))

    def call(self, chain: Any, name: str, depth: int) -> Oracle:
        of, into = self.chance.choice(FIELDS), self.chance.choice(FIELDS)
        chain.capability(name, poke, args=lambda s: {"n": getattr(s, of)}, into=into)

        def run(state: dict[str, Any], at: str, effects: Counter[tuple[str, int]]) -> None:
            effects[at, state[of]] += 1
            state[into] = reply(state[of])

        return run

    def look(self, chain: Any, name: str, depth: int) -> Oracle:
        of, into = self.chance.choice(FIELDS), self.chance.choice(FIELDS)
        chain.capability(name, peek, args=lambda s: {"n": getattr(s, of)}, into=into)
        return lambda state, at, effects: state.update({into: reply(state[of] + 1)})

    def sleep(self, chain: Any, name: str, depth: int) -> Oracle:
        chain.sleep(name, f"{self.chance.randint(1, 90)}s")
        return lambda state, at, effects: None

    def wait(self, chain: Any, name: str, depth: int) -> Oracle:
        chain.wait_for(name, "never", timeout=f"{self.chance.randint(1, 90)}s", on_timeout="continue")
        return lambda state, at, effects: None

    def branch(self, chain: Any, name: str, depth: int) -> Oracle:
        cases = {"even": self.fragment(depth), "odd": self.fragment(depth)}
        chain.branch(name, lambda s: "odd" if s.a % 2 else "even", {label: case[0] for label, case in cases.items()})

        def run(state: dict[str, Any], at: str, effects: Counter[tuple[str, int]]) -> None:
            label = "odd" if state["a"] % 2 else "even"
            cases[label][1](state, f"{at}/{label}", effects)

        return run

    def use(self, chain: Any, name: str, depth: int) -> Oracle:
        fragment, run = self.fragment(depth)
        chain.fragment(name, fragment)
        return run

    def parallel(self, chain: Any, name: str, depth: int) -> Oracle:
        branches = {f"p{number}": self.fragment(depth) for number in range(self.chance.randint(2, 3))}
        chain.parallel(name, {label: branch[0] for label, branch in branches.items()})

        def run(state: dict[str, Any], at: str, effects: Counter[tuple[str, int]]) -> None:
            found: dict[str, Any] = {}
            is_conflict = False
            for label, (_, inner) in branches.items():
                own = dict(state)
                try:
                    inner(own, f"{at}/{label}", effects)
                except Conflict:  # the others go as far as they come
                    is_conflict = True
                for field, value in own.items():
                    if value != state[field]:
                        is_conflict |= found.setdefault(field, value) != value
            if is_conflict:
                raise Conflict
            state.update(found)

        return run

    def map(self, chain: Any, name: str, depth: int) -> Oracle:
        body, inner = self.fragment(depth)
        collect, many, at_once = self.chance.choice(FIELDS), self.chance.randint(1, 5), self.chance.randint(1, 3)
        chain.map(
            name,
            lambda s: [s.b + number for number in range(s.a % many)],
            body,
            item="item",
            collect=collect,
            into="out",
            at_once=at_once,
        )

        def run(state: dict[str, Any], at: str, effects: Counter[tuple[str, int]]) -> None:
            rounds = []
            is_conflict = False
            for number in range(state["a"] % many):
                own = {**state, "item": state["b"] + number}
                try:
                    inner(own, f"{at}/{number}", effects)
                except Conflict:
                    is_conflict = True
                rounds.append(own[collect])
            if is_conflict:
                raise Conflict
            state["out"] = rounds

        return run

    def repeat(self, chain: Any, name: str, depth: int) -> Oracle:
        body, inner = self.fragment(depth)
        at_most = self.chance.randint(1, 4)
        chain.repeat(name, body, until=lambda s: (s.a + s.c) % 3 == 0, at_most=at_most)

        def run(state: dict[str, Any], at: str, effects: Counter[tuple[str, int]]) -> None:
            for number in range(at_most):
                inner(state, f"{at}/{number}", effects)
                if (state["a"] + state["c"]) % 3 == 0:
                    return
            raise Conflict

        return run

    def child(self, chain: Any, name: str, depth: int) -> Oracle:
        self.made += 1
        called = f"child{self.made}"
        workflow, inner = self.workflow(called, depth)
        into = self.chance.choice(FIELDS)
        taken = self.app.workflow(
            f"{called}-{into}", input=Start, state=Numbers, output=lambda s: s.c
        ).workflow("run", workflow, input=lambda s: {"a": s.a, "b": s.b}, into=None)  # fmt: skip
        taken.step("c", lambda s: {"c": (s.a + s.b) % 97})
        chain.workflow(name, taken, input=lambda s: {"a": s.a, "b": s.c}, into=into)

        def run(state: dict[str, Any], at: str, effects: Counter[tuple[str, int]]) -> None:
            own = {**Numbers(a=state["a"], b=state["c"]).model_dump()}
            inner(own, called, effects)
            state[into] = (state["a"] + state["c"]) % 97

        return run


def seen(world: FakeEffector) -> Counter[tuple[str, int]]:
    return Counter((deed.request["node"], deed.request["n"]) for deed in world.ledger)


async def play(kit: AppKit, chance: random.Random | None) -> Any:
    """The run of ``main`` to its end. With ``chance`` its owner dies again and again at any event."""
    inner = kit.log
    for _ in range(400):
        try:
            if chance is not None:
                kit.restart(CrashingLog(inner, chance.randint(1, 25)))  # type: ignore[arg-type]
            run_id = await kit.start("main", {"a": 3, "b": 5}, run_id="main-1")
            while not (outcome := await kit.go_on(run_id, patience="1h")).record.is_terminal:
                kit.clock.advance(91_000)
                await kit.runs.work(until_idle=True)
            return outcome
        except Crash:
            kit.restart(inner)
    raise AssertionError("it never came to its end")


async def check(seed: int) -> None:
    chance = random.Random(seed)
    app = App("random")
    _, oracle = Author(chance, app).workflow("main", 3)
    state, effects, is_failed = Numbers(a=3, b=5).model_dump(), Counter[tuple[str, int]](), False
    try:
        oracle(state, "main", effects)
    except Conflict:
        is_failed = True
    for crashes in (None, chance):
        kit = AppKit(app, services={"world": FakeEffector(dedups=True)})
        outcome = await play(kit, crashes)
        found = seen(kit.services["world"])
        if is_failed:
            assert outcome.record.state == "FAILED", seed
            assert found <= effects, seed
        else:
            assert outcome.record.state == "COMPLETED", (seed, outcome.record.message)
            assert outcome.output == state, seed
            assert found == effects, seed


@pytest.mark.parametrize("block", range(5))
@played
async def test_random_workflows_come_to_what_a_plain_interpreter_makes_of_them(block: int) -> None:
    """R034, R051, R054, A1"""
    for number in range(CASES // 5):
        await check(SEED + block * 1_000_000 + number)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@played
async def test_many_random_workflows_come_to_what_a_plain_interpreter_makes_of_them() -> None:
    """R034, R051, R054, A1"""
    for number in range(CASES_LONG):
        await check(SEED + 77_000_000 + number)
