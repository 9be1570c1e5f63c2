"""The fake world keeps what the real one keeps: one suite over the fake and the bank behind its HTTP adapter."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("httpx", reason="the extra 'http' is not installed")

from setpoint.adapters.effectors.http import HttpClient, wire_key
from setpoint.kernel.effects import (
    CannotTell,
    Declined,
    DidNotHappen,
    Done,
    EffectNotSent,
    EffectOutcome,
    Happened,
    InDoubt,
    NotSent,
    ProbeAnswer,
    ProbeLater,
    Resend,
    of_the_effect,
    outcome_of,
    settle,
)
from setpoint.testing import Crash, FakeEffector, Trouble
from setpoint.testing.effector import TroubleName

from .servers import bank_module

KEY, UNDO = "refund:A-1001", "undo:refund:A-1001"


class World(Protocol):
    async def perform(self, key: str, cents: int) -> Any: ...
    async def compensate(self, key: str, receipt: Any) -> Any: ...
    async def probe(self, key: str) -> ProbeAnswer: ...
    def effects(self) -> dict[str, int]: ...
    def befall(self, trouble: str) -> None: ...


class Fake:
    def __init__(self, dedups: bool) -> None:
        self.fake = FakeEffector(dedups=dedups)

    async def perform(self, key: str, cents: int) -> Any:
        return await self.fake.perform(key, {"cents": cents})

    async def compensate(self, key: str, receipt: Any) -> Any:
        return await self.fake.compensate(key, receipt)

    async def probe(self, key: str) -> ProbeAnswer:
        return await self.fake.probe(key)

    def effects(self) -> dict[str, int]:
        return self.fake.effects

    def befall(self, trouble: str) -> None:
        self.fake.trouble(trouble)  # type: ignore[arg-type]


class Bank:
    """The same over HTTP, as an author of a capability would write it."""

    MODES: ClassVar = {
        "none": "normal",
        "timeout_after_effect": "commit-then-timeout",
        "drop": "drop",
        "duplicate": "duplicate",
        "rate_limited": "rate-limited:1",
        "permanent": "decline",
        "transient": "outage",
    }

    def __init__(self, bank: Any) -> None:
        self.bank = bank
        self.http = HttpClient(bank.url)

    async def perform(self, key: str, cents: int) -> Any:
        return await self.http.send("POST", "/refunds", key=key, body={"order_id": "A-1001", "cents": cents})

    async def compensate(self, key: str, receipt: Any) -> Any:
        return await self.http.send("POST", f"/refunds/{receipt['refund_id']}/reversal", key=key)

    async def probe(self, key: str) -> ProbeAnswer:
        query = {"key": wire_key(key)}
        refunds = (await self.http.get("/refunds", query=query))["refunds"]
        reversals = (await self.http.get("/reversals", query=query))["reversals"]
        match [*refunds, *reversals]:
            case []:
                return DidNotHappen()
            case [one]:
                return Happened(one)
            case several:
                return CannotTell(f"{len(several)} entries")

    def effects(self) -> dict[str, int]:
        ledger = self.bank.ledger()
        return dict(Counter(row["key"] for row in [*ledger["refunds"], *ledger["reversals"]]))

    def befall(self, trouble: str) -> None:
        self.bank.trouble(self.MODES[trouble])


Play = Callable[[Callable[[World], Any]], Any]


@pytest.fixture(params=["fake", "bank"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def play(kind: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    def run(story: Callable[[World], Any], *, dedups: bool = True) -> Any:
        async def whole() -> Any:
            if kind == "fake":
                return await story(Fake(dedups))
            with bank_module().Bank(tmp_path / "bank.db", dedup=dedups) as bank:
                world = Bank(bank)
                try:
                    return await story(world)
                finally:
                    await world.http.close()

        return asyncio.run(whole())

    yield run


async def outcome(doing: Any) -> Any:
    try:
        await doing
    except Exception as error:  # noqa: BLE001  # what a capability raises is what is asked about
        return outcome_of(error, "compensable")
    return None


TROUBLES = [
    ("none", None, 1),
    ("timeout_after_effect", InDoubt, 1),
    ("drop", InDoubt, 0),
    ("duplicate", None, 1),
    ("rate_limited", NotSent, 0),
    ("transient", NotSent, 0),
    ("permanent", Declined, 0),
]


@pytest.mark.parametrize(("trouble", "kind_of_outcome", "count"), TROUBLES)
def test_a_trouble_has_its_outcome_its_effects_and_its_probe(play, trouble, kind_of_outcome, count) -> None:
    """R137, R197"""

    async def story(world: World) -> None:
        world.befall(trouble)
        got = await outcome(world.perform(KEY, 5))
        assert type(got) is (kind_of_outcome or type(None))
        assert world.effects() == ({KEY: count} if count else {})
        assert type(await world.probe(KEY)) is (Happened if count else DidNotHappen)
        # and all goes well afterwards, once for the key
        assert await outcome(world.perform(KEY, 5)) is None
        assert world.effects() == {KEY: 1}

    play(story)


def test_a_key_is_acted_on_once_and_answered_alike(play) -> None:
    """R138"""

    async def story(world: World) -> None:
        assert await world.perform(KEY, 5) == await world.perform(KEY, 5)
        assert type(await outcome(world.perform(KEY, 6))) is Declined
        assert world.effects() == {KEY: 1}

    play(story)


def test_a_key_that_is_done_is_never_declined(play) -> None:
    """R138"""

    async def story(world: World) -> None:
        first = await world.perform(KEY, 5)
        world.befall("permanent")
        assert await world.perform(KEY, 5) == first

    play(story)


def test_a_naive_side_acts_as_often_as_it_is_told(play) -> None:
    """What the runtime alone has to prevent; a probe that finds two of one key does not pick one."""

    async def story(world: World) -> None:
        await world.perform(KEY, 5)
        await world.perform(KEY, 5)
        world.befall("duplicate")
        await world.perform("refund:A-2", 5)
        assert world.effects() == {KEY: 2, "refund:A-2": 2}
        assert type(await world.probe(KEY)) is CannotTell

    play(story, dedups=False)


@pytest.mark.parametrize("trouble", ["none", "timeout_after_effect", "duplicate"])
def test_a_compensation_has_a_key_of_its_own_and_is_done_once(play, trouble: str) -> None:
    """R190, R191"""

    async def story(world: World) -> None:
        receipt = await world.perform(KEY, 5)
        assert type(await world.probe(UNDO)) is DidNotHappen
        world.befall(trouble)
        await outcome(world.compensate(UNDO, receipt))
        assert type(await world.probe(UNDO)) is Happened
        await world.compensate(UNDO, receipt)
        assert world.effects() == {KEY: 1, UNDO: 1}

    play(story)


# The fake alone: what no real server can play


def test_the_caller_may_die_on_either_side_of_the_effect() -> None:
    """B3"""
    world = FakeEffector("crash_before_effect", "crash_after_effect")
    for left in ({}, {KEY: 1}):
        with pytest.raises(Crash):
            asyncio.run(world.perform(KEY, {}))
        assert world.effects == left


def test_a_bug_behind_the_request_says_nothing_of_the_effect() -> None:
    """R136"""
    world = FakeEffector("bug_after_effect")
    assert type(asyncio.run(outcome(world.perform(KEY, {})))) is InDoubt
    assert world.effects == {KEY: 1}


def test_what_is_late_arrives_when_the_test_says() -> None:
    """R139"""
    world = FakeEffector("late")
    assert type(asyncio.run(outcome(world.perform(KEY, {})))) is InDoubt
    assert asyncio.run(world.probe(KEY)) == DidNotHappen()
    assert world.deliver_late() == 1 and world.deliver_late() == 0
    assert world.effects == {KEY: 1}


def test_a_trouble_may_last() -> None:
    world = FakeEffector(Trouble("transient", times=3), Trouble("rate_limited", retry_after_ms=70))
    outcomes = [asyncio.run(outcome(world.perform(KEY, {}))) for _ in range(5)]
    assert [type(one) for one in outcomes] == [NotSent, NotSent, NotSent, NotSent, type(None)]
    assert [one.retry_after_ms for one in outcomes[2:4]] == [None, 70]
    assert world.deliveries == [KEY] * 5


def test_a_probe_may_fail_too() -> None:
    world = FakeEffector()
    world.trouble_probe(EffectNotSent("down"), CannotTell("half"))
    with pytest.raises(EffectNotSent):
        asyncio.run(world.probe(KEY))
    assert asyncio.run(world.probe(KEY)) == CannotTell("half")
    assert asyncio.run(world.probe(KEY)) == DidNotHappen()
    assert world.probes == [KEY] * 3


def test_the_ledger_keeps_what_was_asked_not_what_became_of_it() -> None:
    world, request = FakeEffector(), {"cents": 5}
    receipt = asyncio.run(world.perform(KEY, request))
    request["cents"] = receipt["request"]["cents"] = 6
    assert world.ledger[0].request == {"cents": 5}
    asyncio.run(world.compensate(UNDO, receipt))
    assert world.standing == {} and world.effects == {KEY: 1, UNDO: 1}


@pytest.mark.parametrize("wrong", [{"name": "droop"}, {"name": "drop", "times": 0}])
def test_a_trouble_that_is_none_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match=r"is no trouble|at least 1"):
        Trouble(**wrong)


@given(
    st.lists(st.sampled_from(get_args(TroubleName)), max_size=12),
    st.booleans(),
    st.booleans(),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
@example(["late", "permanent"], True, True, [False] * 12)  # a no while the first may still arrive
@example(["late", "none"], False, True, [False] * 12)  # a probe that looks too early
@example(["late", "rate_limited", "permanent"], True, False, [False] * 12)
@example(["drop", "late", "permanent"], True, False, [False] * 4 + [True] + [False] * 7)  # it arrives after the no
@example(["timeout_after_effect", "permanent"], True, False, [False] * 12)  # done: its answer is no no
def test_settling_by_the_table_acts_at_most_once_under_any_troubles(troubles, dedups, has_probe, moments) -> None:
    """R135, R137, R197: a caller that knows only outcomes, probes and the table, and what it may say in the end.

    ``moments``: whether the bound has passed when the caller looks. Only a naive side to which the network itself
    delivers twice acts twice.
    """
    world = FakeEffector(*troubles, dedups=dedups)
    moment = iter(moments)

    def is_in_flight() -> bool:
        if next(moment, True):
            world.deliver_late()
            return False
        return True

    async def attempt() -> EffectOutcome:
        try:
            return Done(await world.perform(KEY, {}))
        except Crash:
            return InDoubt("an intent without a result")
        except Exception as error:  # noqa: BLE001  # as the engine does: outcome_of decides
            return outcome_of(error, "compensable")

    async def pursue() -> str:
        doubt = False
        for _ in range(len(troubles) + 1):
            was_in_flight = is_in_flight()
            whole = of_the_effect(await attempt(), is_earlier_in_doubt=doubt, was_in_flight=was_in_flight)
            if isinstance(whole, Done | Declined):
                return type(whole).__name__
            doubt = isinstance(whole, InDoubt)
            while doubt:
                in_flight = is_in_flight()
                answer = await world.probe(KEY) if has_probe else None
                settled = settle("in_doubt", answer, "compensable", dedups=dedups, is_in_flight=in_flight)
                if isinstance(settled, Resend):
                    doubt = in_flight or answer is None
                    break
                if not isinstance(settled, ProbeLater):
                    return type(settled).__name__
        raise AssertionError("it never ends")

    end = asyncio.run(pursue())
    world.deliver_late()
    count = world.effects.get(KEY, 0)
    delivered_twice = "duplicate" in troubles[: len(world.deliveries)] and not dedups
    assert count <= (2 if delivered_twice else 1)
    if end in ("Done", "Reconstructed"):
        assert count >= 1
    if end == "Declined":
        assert count == 0
