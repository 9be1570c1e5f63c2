"""C. Loops and runaway cost."""

from __future__ import annotations

import asyncio

import pytest

from setpoint.app.manifest import load_task

from .conftest import MENDED, Case, say, shell, write


def stalls(case: Case) -> list[tuple[str, str]]:
    return [(event.tier, event.reason) for event in case.events("Stalled")]


def test_c1_the_third_identical_failing_action_stops_it_and_the_next_route_is_tried(case: Case) -> None:
    """C1: not at the turn cap."""
    case.script(*[say(shell("cat no-such-file"))] * 15)
    case.script(MENDED, name="second.yaml")
    outcome = case.converge(models=["scripted:script.yaml", "scripted:second.yaml"])
    assert outcome.exit_code == 0
    assert ("backtrack", "RepeatedAction") in stalls(case)
    assert len(case.events("ToolIntent")) == 3, "two identical calls ran, the third was refused, then the other model's"
    assert [event.reason for event in case.events("Refused")] == ["LOOP_DETECTED"]
    assert case.events("Routed")[0].reason == "RepeatedAction"


def test_c1_without_another_route_it_ends_as_stalled_with_the_reason(case: Case) -> None:
    """C1"""
    outcome = case.converge(*[say(shell("cat no-such-file"))] * 15)
    assert outcome.exit_code == 11 and outcome.record.finished_reason == "Stalled"
    assert "RepeatedAction" in outcome.record.finished_message and outcome.record.turn == 3


@pytest.mark.parametrize(
    "attempts",
    [
        [write("src/value", f"4 # try {n}") for n in range(12)],
        [write("src/value", "44" if n % 2 else "4") for n in range(12)],
        [shell(f"true # {n}") for n in range(20)],
        [shell(f"echo {n} > src/value") for n in range(6, 18)],
    ],
    ids=["counter-in-arguments", "a-b-a-b", "empty-results", "another-value-each-time"],
)
def test_c2_cosmetic_counters_and_alternation_stall(case: Case, attempts: list[dict]) -> None:
    """C2: no change in the delta tuple, whatever the arguments; and the tree is as it was."""
    before = case.tree()
    outcome = case.converge(*map(say, attempts), policy={"stall_after": 4})
    assert outcome.exit_code == 11 and outcome.record.finished_reason == "Stalled"
    assert outcome.record.turn <= 16 and "done/unit" in outcome.record.finished_message
    assert case.tree() == before


def test_c2_real_progress_is_no_stall_however_similar_the_calls(case: Case) -> None:
    """C2: a delta that falls with each savepoint is left alone."""
    case.files({"tests/count.sh": 'for i in 1 2 3 4 5 6 7 8; do test -e src/$i || echo "$i"; done\n'})
    check = "n=$(sh tests/count.sh | wc -l); echo 1..8; for i in $(sh tests/count.sh); do echo not ok $i; done"
    ok = "for i in 1 2 3 4 5 6 7 8; do test -e src/$i && echo ok $i; done; test $n = 0"
    done = [{"id": "all", "run": f"{check}; {ok}", "level": "visible", "parse": "tap"}]
    outcome = case.converge(*[say(write(f"src/{n}", "x")) for n in range(1, 9)], done=done, policy={"stall_after": 2})
    assert outcome.exit_code == 0, outcome.record.finished_message
    assert outcome.record.turn == 8 and stalls(case) == []


def test_c5_what_was_spent_survives_a_restart(case: Case) -> None:
    """C5: the counter is a fold of the log; a restart gives no fresh budget."""
    case.script(*[say(write("src/value", str(n))) for n in range(6, 16)])
    budget = {"turns": 20, "tokens": 4000, "usd": 2.0, "wall": "5m"}
    task = case.task(budget=budget, policy={"stall_after": 20})

    async def until_turn_three() -> None:
        async with case.runtime() as runtime:

            def watch(turn: int, event: object, record: object) -> None:
                if turn == 3 and type(event).__name__ == "ModelReplied":
                    raise KeyboardInterrupt

            await runtime.converge(load_task(str(task)), observer=watch)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(until_turn_three())
    outcome = case.resume()
    record = outcome.record
    assert outcome.exit_code == 14 and record.finished_reason == "Budget:tokens"
    assert record.spent.tokens == 1100 * record.spent.model_calls <= 4000
    assert record.spent.model_calls == 3
