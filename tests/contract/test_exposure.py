"""H, S, A of a task, the evidence it needs, and what keeps it from starting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from setpoint.kernel.contract import (
    ApprovalRule,
    Budget,
    Criterion,
    Environment,
    ExprCheck,
    Goal,
    Level,
    Observe,
    Policy,
    RunCheck,
    Task,
    Tier,
    ToolGrant,
)
from setpoint.kernel.errors import ClosureMissing
from setpoint.kernel.exposure import (
    TOOLS,
    Authority,
    Exposure,
    Reach,
    State,
    closure,
    expose,
    reach_of,
    require_closure,
    required_level,
)
from setpoint.kernel.ruling import Effect

VISIBLE = Criterion("unit", RunCheck("pytest"), Level.VISIBLE)
SEALED = Criterion("golden", RunCheck("pytest $SEALED"), Level.SEALED, files="/sealed")
STATIC = Criterion("form", ExprCheck("size(changes) < 3"), Level.STATIC)


def task(*tools: str, turns: int = 30, done: tuple[Criterion, ...] = (VISIBLE,), **parts: Any) -> Task:
    environment = Environment("/w", tier=parts.pop("tier", "namespaces"), network=parts.pop("network", ()))
    return Task(
        name="t",
        goal=Goal("g"),
        environment=environment,
        actions=tuple(ToolGrant(tool) for tool in tools),
        observe=Observe(),
        done=done,
        invariants=(),
        budget=Budget(turns=turns),
        policy=Policy(approve=parts.pop("approve", ())),
        models=(),
        document={},
        digest="",
    )


CODING = ("shell_exec", "file_read", "file_edit", "file_write", "complete_task")


@pytest.mark.parametrize(
    ("given", "tools", "h", "s", "a"),
    [
        # DEFINITIONS 8: four workloads
        (task("ask_operator", turns=4), TOOLS, 4, State.S1, Authority.A0),  # chat copilot
        (
            task("restart_service", turns=20),
            {"restart_service": reach_of("irreversible")},
            20,
            State.S3,
            Authority.A3,
        ),  # cloud remediation
        (task(*CODING, turns=100), TOOLS, 100, State.S2, Authority.A1),  # coding agent
        (
            task("fetch", "store_page", turns=1500),
            {"fetch": reach_of("read"), "store_page": Reach(State.S3, Authority.A0)},
            1500,
            State.S3,
            Authority.A0,
        ),  # crawler
        # and the corners
        (task("file_read", turns=1), TOOLS, 1, State.S1, Authority.A0),
        (task(turns=1), TOOLS, 1, State.S0, Authority.A0),
        (task("shell_exec", network=("pypi.org:443",)), TOOLS, 30, State.S3, Authority.A2),
        (task("file_read", network=("pypi.org:443",)), TOOLS, 30, State.S1, Authority.A0),
        (task("shell_exec", tier="none"), TOOLS, 30, State.S3, Authority.A3),
        (task("never_heard_of"), TOOLS, 30, State.S3, Authority.A3),
    ],
)
def test_workloads_are_placed(given: Task, tools: dict[str, Reach], h: int, s: State, a: Authority) -> None:
    """R241"""
    found = expose(given, tools=tools)
    assert (found.h, found.s, found.a) == (h, s, a)
    assert len(found.why) >= 1 and all(": " in reason for reason in found.why)


@pytest.mark.parametrize(
    ("effect", "authority"),
    [("pure", 0), ("read", 0), ("reversible", 1), ("keyed", 2), ("compensable", 2), ("irreversible", 3)],
)
def test_the_effect_class_gives_the_authority(effect: Effect, authority: int) -> None:
    assert reach_of(effect).authority == authority


@pytest.mark.parametrize("h", [1, 10, 30, 31, 99, 100, 1000])
@pytest.mark.parametrize("s", State)
@pytest.mark.parametrize("a", Authority)
def test_the_required_level_follows_a_table(h: int, s: State, a: Authority) -> None:
    """R151"""
    sealed = h >= 100 or s is State.S3 or a >= Authority.A2
    assert required_level(Exposure(h, s, a, ())) is (Level.SEALED if sealed else Level.VISIBLE)


def test_the_required_level_never_falls_as_exposure_rises() -> None:
    """R151"""
    positions = [Exposure(h, s, a, ()) for h in (1, 30, 100) for s in State for a in Authority]
    for low in positions:
        for high in positions:
            if low.h <= high.h and low.s <= high.s and low.a <= high.a:
                assert required_level(low) <= required_level(high)


ASK = (ApprovalRule("true", ("ops",)),)


@pytest.mark.parametrize(
    ("given", "tier", "gaps"),
    [
        (task(*CODING), "namespaces", set()),
        (task(*CODING, turns=99), "namespaces", set()),
        (task(*CODING, turns=100), "namespaces", {"evidence-below-exposure"}),
        (task(*CODING, turns=100, done=(VISIBLE, SEALED)), "namespaces", set()),
        (task(*CODING, done=(STATIC,)), "namespaces", {"evidence-below-exposure"}),
        (task(*CODING, done=()), "namespaces", {"no-criterion"}),
        (task(*CODING), "none", {"tier-below-contract", "no-containment"}),
        (task(*CODING, tier="container"), "namespaces", {"tier-below-contract"}),
        (task("file_read"), "container", set()),
        (task(*CODING, tier="none"), "namespaces", set()),  # the machine gives more than the task asks for
        (task(*CODING, tier="none"), "none", {"evidence-below-exposure", "no-containment", "no-approval-gate"}),
        (task("file_read", tier="none"), "none", set()),
        (task("shell_exec", network=("a:1",)), "namespaces", {"evidence-below-exposure"}),
        (task("drop_table", done=(SEALED,)), "namespaces", {"no-approval-gate"}),
        (task("drop_table", done=(SEALED,), approve=ASK), "namespaces", set()),
    ],
)
def test_what_the_exposure_demands_and_the_task_lacks_is_a_gap(given: Task, tier: Tier, gaps: set[str]) -> None:
    """R242"""
    assert {gap.code for gap in closure(given, expose(given, tier=tier), tier)} == gaps


def test_a_task_with_a_gap_does_not_start() -> None:
    """R242: exit 12, and every gap is named with its remedy."""
    with pytest.raises(ClosureMissing) as refused:
        require_closure(task(*CODING, done=()), "none")
    assert refused.value.exit_code == 12
    assert "nothing says when the task is done" in str(refused.value)
    assert "nothing holds what an action does" in str(refused.value)
    assert "add a criterion" in str(refused.value)
    assert require_closure(task(*CODING), "namespaces").a is Authority.A1


def test_loaded_tasks_are_placed_alike(load: Callable[[str], Task]) -> None:
    from .conftest import MINIMAL

    loaded = load(MINIMAL)
    assert str(expose(loaded)) == "H=30 S1 A0"
    assert str(expose(replace(loaded, actions=(ToolGrant("shell_exec"),)))) == "H=30 S2 A1"


@pytest.mark.parametrize("bound", [None, float("inf"), -1, True])
@pytest.mark.parametrize("name", ["turns", "tokens", "usd_micros", "wall_ms"])
def test_a_budget_without_a_bound_cannot_be_made(name: str, bound: Any) -> None:
    """R109"""
    with pytest.raises(ValueError, match=f"budget.{name}"):
        Budget(**{name: bound})


def test_a_contract_cannot_be_changed() -> None:
    """R084"""
    given = task(*CODING)
    for part, name in ((given, "goal"), (given.goal, "text"), (given.budget, "turns"), (given.done[0], "level")):
        with pytest.raises(FrozenInstanceError):
            setattr(part, name, None)


def test_evidence_levels_are_ordered() -> None:
    """R149"""
    assert sorted(Level) == [Level.CLAIM, Level.STATIC, Level.VISIBLE, Level.SEALED, Level.PROOF]
    assert [Level.of(level.label) for level in Level] == list(Level)


@pytest.mark.parametrize(
    ("authority", "sandbox", "gate", "starts"),
    [
        (authority, sandbox, gate, (authority < Authority.A1 or sandbox) and (authority < Authority.A3 or gate))
        for authority in Authority
        for sandbox in (True, False)
        for gate in (True, False)
    ],
)
def test_the_blast_radius_decides_what_must_contain_it(
    authority: Authority, sandbox: bool, gate: bool, starts: bool
) -> None:
    """R208: A0 reads freely, A1 and above need a sandbox, A3 a gate as well; without them nothing starts."""
    given = task("file_read", done=(SEALED,), approve=ASK if gate else (), tier="none")
    gaps = closure(given, Exposure(30, State.S2, authority, ()), "namespaces" if sandbox else "none")
    assert (gaps == ()) == starts, gaps
