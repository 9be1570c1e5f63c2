"""The bounds the benchmarks must hold, and whether they do. Pure: measurements in, gates out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Rounds = Sequence[Mapping[str, Any]]
"""What the child processes of one job printed, one mapping a round."""
Results = Mapping[str, Rounds]


@dataclass(frozen=True, slots=True)
class Gate:
    """One bound. ``at_least`` tells which side of ``bound`` is good; ``value`` has the unit of ``bound``."""

    part: str
    what: str
    value: float
    bound: float
    unit: str
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    @property
    def margin(self) -> float:
        """How many times better than the bound; below 1 it does not hold."""
        better, worse = (self.value, self.bound) if self.at_least else (self.bound, self.value)
        return better / worse if worse > 0 else float("inf")


def least(rounds: Rounds, key: str) -> float:
    """The best of a cost. Another program on the machine only ever adds to it: the least is nearest to the truth."""
    return min(float(found[key]) for found in rounds)


def most(rounds: Rounds, key: str) -> float:
    """The best of a rate, for the same reason."""
    return max(float(found[key]) for found in rounds)


def middle(rounds: Rounds, key: str) -> float:
    return median(float(found[key]) for found in rounds)


PEERS = {"langgraph": "LangGraph", "dbos": "DBOS"}


def gates(results: Results) -> list[Gate]:
    """Every gate whose measurement could be made here."""
    return [*_turn(results), *_growth(results), *_concurrent(results), *_rest(results), *_workflows(results)]


def _turn(results: Results) -> list[Gate]:
    ours = results["ours"]
    found = [
        gate
        for key, name in PEERS.items()
        for gate in (
            Gate(
                "a", f"CPU a turn, {name} / ours", least(results[key], "cpu_ms") / least(ours, "cpu_ms"), 4, "x", True
            ),
            Gate(
                "a",
                f"turns a second, ours / {name}",
                most(ours, "turns_per_s") / most(results[key], "turns_per_s"),
                3,
                "x",
                True,
            ),
        )
    ]
    counted = [item for item in results.get("syncs", ()) if item["job"] == "ours"]
    syncs = float(counted[0]["syncs"]) if counted else _most(ours, "syncs")
    return [
        *found,
        Gate("a", "syncs a turn, checkpoints of record and log included", syncs, 2, "syncs"),
        Gate("a", "waits for the disk between reply and effect", _most(ours, "waits"), 1, "waits"),
        Gate("a", "bytes a turn", _most(ours, "bytes"), 2_500, "bytes"),
    ]


def _growth(results: Results) -> list[Gate]:
    windows = results["windows"]
    early, late = (
        min(value for found in windows for value in found["cpu_ms"][turn]) for turn in (str(EARLY), str(LATE))
    )
    grown = [float(found["bytes"][str(LATE)]) / float(found["bytes"][str(EARLY)]) for found in windows]
    return [
        Gate("a", f"CPU at turn {LATE:,} / turn {EARLY}", late / early, 1.15, "x"),
        Gate("a", f"bytes a turn at turn {LATE:,} / turn {EARLY}", max(grown), 1.15, "x"),
    ]


EARLY, LATE = 100, 10_000


def _concurrent(results: Results) -> list[Gate]:
    peer = max(most(results[key], "turns_per_s") for key in ("langgraph 100 threads", "langgraph 100 coroutines"))
    ours = most(results["ours 100"], "turns_per_s")
    return [Gate("a", "100 at once: turns a second, ours / LangGraph", ours / peer, 6, "x", True)]


def _rest(results: Results) -> list[Gate]:
    found: list[Gate] = []
    transaction = results["transaction"][0]
    if "unavailable" not in transaction:
        more = float(transaction["cpu_ms_small"]) - float(transaction["cpu_ms_plain"])
        flat = float(transaction["least_cpu_ms_large"]) / float(transaction["least_cpu_ms_small"])
        found += [
            Gate("b", "CPU of a sandboxed transaction above plain subprocess", more, 10, "ms"),
            Gate("b", "CPU of it in 100,000 files / in 100", flat, 1.3, "x"),
        ]
    parked = results["parked"]
    return [
        *found,
        Gate("c", "CPU to resume 1,000 turns", middle(results["resume"], "cpu_ms"), 100, "ms"),
        Gate("d", "resident memory of a parked trajectory", _most(parked, "resident_bytes_each"), 4096, "bytes"),
        Gate("d", "threads of 1,000 parked trajectories", _most(parked, "threads"), 0, "threads"),
    ]


def _most(rounds: Rounds, key: str) -> float:
    return max(float(found[key]) for found in rounds)


# Workflows


def rate(rounds: Rounds) -> float:
    """Steps a second at best; what a peer's program calls a turn is one step here."""
    return max(float(found["steps_per_s"] if "steps_per_s" in found else found["turns_per_s"]) for found in rounds)


def step_syncs(results: Results, job: str) -> float | None:
    """Syncs a step as the kernel saw them, checkpoints of a log included; None where system calls may not be traced."""
    return next((float(item["syncs"]) for item in results.get("step syncs", ()) if item["job"] == job), None)


def _workflows(results: Results) -> list[Gate]:
    ours, runs = results["steps ours"], results["runs ours"]
    windows = results["step windows"]
    early, late = (
        min(value for found in windows for value in found["cpu_ms"][step]) for step in (str(EARLY), str(LATE))
    )
    grown = [float(found["bytes"][str(LATE)]) / float(found["bytes"][str(EARLY)]) for found in windows]
    peer = max(rate(results[key]) for key in ("runs dbos threads", "runs dbos coroutines"))
    waiting, traced = results["waiting"], step_syncs(results, "steps ours")
    return [
        *(
            Gate(
                "e",
                f"CPU a step, {name} / ours",
                least(results[f"steps {key}"], "cpu_ms") / least(ours, "cpu_ms"),
                4,
                "x",
                True,
            )
            for key, name in PEERS.items()
        ),
        Gate(
            "e",
            "syncs a step, checkpoints of the log included",
            _most(ours, "waits") if traced is None else traced,
            2,
            "syncs",
        ),
        Gate("e", "waits for the disk, a call under a key", _most(results["calls ours"], "waits"), 2, "waits"),
        Gate("e", f"CPU at step {LATE:,} / step {EARLY}", late / early, 1.15, "x"),
        Gate("e", f"bytes a step at step {LATE:,} / step {EARLY}", max(grown), 1.15, "x"),
        Gate("e", "1,000 runs at once: steps a second, ours / DBOS", rate(runs) / peer, 6, "x", True),
        Gate("e", "CPU to take up 1,000 steps", middle(results["steps resume"], "cpu_ms"), 100, "ms"),
        Gate("e", "resident memory of a waiting run", _most(waiting, "resident_bytes_each"), 4096, "bytes"),
        Gate("e", "threads of 10,000 waiting runs", _most(waiting, "threads"), 0, "threads"),
    ]
