"""Model calls are shared out fairly: by tokens, without banked credit, with a share kept for people."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.kernel.fair import Bucket, FairQueue


def drain(queue: FairQueue[tuple[str, int]], calls: int) -> dict[str, int]:
    spent: dict[str, int] = {}
    for _ in range(calls):
        found = queue.take()
        assert found is not None
        kind, (flow, tokens) = found
        spent[flow] = spent.get(flow, 0) + tokens
        queue.give_back(kind)
    return spent


def test_flows_of_long_and_short_prompts_get_the_same_tokens():
    """R229"""
    queue: FairQueue[tuple[str, int]] = FairQueue(1, quantum=1000)
    for _ in range(400):
        queue.put(("short", 500), flow="short", tokens=500, kind="batch")
        queue.put(("long", 4000), flow="long", tokens=4000, kind="batch")
    spent = drain(queue, 300)
    assert abs(spent["short"] - spent["long"]) <= 4000 + 1000


def test_a_weight_of_three_gets_three_times_the_tokens():
    """R229"""
    queue: FairQueue[tuple[str, int]] = FairQueue(1, quantum=100)
    for _ in range(1000):
        queue.put(("heavy", 100), flow="heavy", tokens=100, kind="batch", weight=3)
        queue.put(("light", 100), flow="light", tokens=100, kind="batch")
    spent = drain(queue, 800)
    assert 2.9 <= spent["heavy"] / spent["light"] <= 3.1


def test_a_flow_that_was_away_has_saved_nothing():
    """R229: no banked credit."""
    queue: FairQueue[tuple[str, int]] = FairQueue(1, quantum=1000)
    queue.put(("away", 1), flow="away", tokens=1, kind="batch")
    for _ in range(100):
        queue.put(("busy", 1000), flow="busy", tokens=1000, kind="batch")
    drain(queue, 50)
    for _ in range(50):
        queue.put(("away", 1000), flow="away", tokens=1000, kind="batch")
    spent = drain(queue, 40)
    assert abs(spent["away"] - spent["busy"]) <= 2000


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20_000), st.sampled_from(["interactive", "batch"]))))
def test_everything_that_waits_comes_out_once_and_each_flow_in_its_own_order(waiting: list[tuple[str, int, str]]):
    queue: FairQueue[int] = FairQueue(3, 1)
    for number, (flow, tokens, kind) in enumerate(waiting):
        queue.put(number, flow=flow, tokens=tokens, kind=kind)  # type: ignore[arg-type]
    out: list[int] = []
    while (found := queue.take()) is not None:
        out.append(found[1])
        queue.give_back(found[0])
    assert sorted(out) == list(range(len(waiting)))
    for flow in "abc":
        for kind in ("interactive", "batch"):
            own = [n for n in out if waiting[n][0] == flow and waiting[n][2] == kind]
            assert own == sorted(own)


def test_batch_calls_never_take_the_reserved_slots():
    """R229"""
    queue: FairQueue[int] = FairQueue(4, 2)
    for number in range(10):
        queue.put(number, flow=f"b{number}", tokens=10, kind="batch")
    assert [queue.take() for _ in range(2)] == [("batch", 0), ("batch", 1)]
    assert queue.take() is None
    queue.put(99, flow="person", tokens=10, kind="interactive")
    assert queue.take() == ("interactive", 99)
    with pytest.raises(ValueError, match="at least one must be left"):
        FairQueue(2, 2)


def simulate(reserved: int, seed: int) -> list[float]:
    """Waits of interactive calls, in seconds, while 40 batch runs call a model that takes 2 to 6 seconds."""
    chance = random.Random(seed)
    queue: FairQueue[tuple[str, float]] = FairQueue(4, reserved)
    events: list[tuple[float, int, str, str]] = []
    ticket = 0

    def later(at: float, what: str, who: str) -> None:
        nonlocal ticket
        ticket += 1
        heapq.heappush(events, (at, ticket, what, who))

    for number in range(40):
        later(chance.random(), "want", f"batch-{number}")
    for number in range(200):
        later(5 + number * 3 + chance.random(), "want", f"person-{number}")
    waits: list[float] = []
    while events and events[0][0] < 600:
        now, _, what, who = heapq.heappop(events)
        kind = "interactive" if who.startswith("person") else "batch"
        if what == "want":
            queue.put((who, now), flow=who, tokens=6000, kind=kind)  # type: ignore[arg-type]
        else:
            queue.give_back(kind)  # type: ignore[arg-type]
            if kind == "batch":
                later(now + 0.1, "want", who)  # a batch run calls again as soon as its tool is done
        while (found := queue.take()) is not None:
            _, (caller, since) = found
            if caller.startswith("person"):
                waits.append(now - since)
            later(now + 2 + 4 * chance.random(), "end", caller)
    return sorted(waits)


@pytest.mark.parametrize("seed", range(5))
def test_a_person_waits_little_however_many_batch_runs_there_are(seed: int):
    """R229: interactive p95 bounded with 40 batch runs; without the reserve it is not."""
    kept, none = simulate(2, seed), simulate(0, seed)
    assert kept[int(len(kept) * 0.95)] <= 2.0
    assert none[int(len(none) * 0.95)] > kept[int(len(kept) * 0.95)]


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3000)), max_size=40))
def test_a_bucket_never_gives_more_than_its_rate(calls: list[tuple[int, int]]):
    """R229: the local token bucket."""
    bucket, now, given_out = Bucket(6000, 6000, 6000, 0), 0, 0
    for wait, tokens in calls:
        now += wait
        bucket, must_wait = bucket.take(tokens, now)
        if not must_wait:
            given_out += tokens
        else:
            bucket, again = bucket.take(tokens, now + must_wait)
            assert again == 0, "the wait it names is enough"
            now, given_out = now + must_wait, given_out + tokens
        assert given_out <= 6000 + now * 6000 // 60_000 + 1


def test_a_call_larger_than_the_bucket_goes_when_it_is_full():
    bucket, wait = Bucket(100, 100, 50, 0).take(500, 0)
    assert wait == 30_000
    bucket, wait = bucket.take(500, wait)
    assert (bucket.level, wait) == (-400, 0)
