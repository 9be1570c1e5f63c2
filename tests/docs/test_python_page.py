"""The page on Python lists what a user calls: every node, every option, what an attribute leads to."""

from __future__ import annotations

import inspect
import re

import pytest
from tests.docs.repository import DOCS

from setpoint import App, SyncRuntime
from setpoint.app.capability import _declared  # pyright: ignore[reportPrivateUsage]
from setpoint.app.workflow import Chain

PAGE = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.split(f"### {heading}\n", 1)[1].split("\n### ", 1)[0]


NODES = [name for name, value in vars(Chain).items() if getattr(value, "__annotations__", {}).get("return") == "Self"]


def test_there_are_nodes() -> None:
    assert {"capability", "step", "branch", "judge", "approval", "wait_for"} <= set(NODES)


@pytest.mark.parametrize("node", [name for name in NODES if not name.startswith("_")])
def test_every_node_is_listed_with_its_parameters_and_what_it_does(node: str) -> None:
    said = section("setpoint.Workflow").split(f"- `{node}(", 1)[1]
    parameters = list(inspect.signature(getattr(Chain, node)).parameters)[1:]
    assert all(f"{name}: " in said.split("`", 1)[0] for name in parameters)
    assert re.match(r"\n\n  \w", said.split("`", 1)[1]), f"{node} says nothing of itself"


def test_every_option_of_a_capability_is_listed_and_explained() -> None:
    said = section("setpoint.capability")
    options = list(inspect.signature(_declared).parameters)[1:]
    assert not [name for name in options if f"{name}: " not in said or f"`{name}`" not in said]


@pytest.mark.parametrize("heading", ["setpoint.App", "setpoint.testing.AppKit", "setpoint.testing.FakeEffector"])
def test_what_a_user_makes_says_how(heading: str) -> None:
    assert f"- `{heading.rpartition('.')[2]}(" in section(heading)


def test_the_options_of_an_agent_and_a_workflow_are_listed() -> None:
    said = section("setpoint.App")
    for verb in (App.agent, App.workflow):
        assert all(f"{name}: " in said for name in list(inspect.signature(verb).parameters)[1:])


@pytest.mark.parametrize("verb", ["wait", "go_on", "work", "tell", "retry", "record", "outcome"])
def test_what_runtime_runs_can_do_is_listed(verb: str) -> None:
    assert f"{verb}(" in section("runtime.runs")


def test_the_verbs_without_a_loop_are_listed() -> None:
    said = section("setpoint.SyncRuntime")
    assert all(f"`{name}(" in said for name in vars(SyncRuntime) if not name.startswith("_"))
