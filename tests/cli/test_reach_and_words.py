"""How far a command reaches is shown by trace; words for a trajectory that asked nothing reach its next turn."""

from __future__ import annotations

import json

import pytest

from .conftest import ASK, FIX, TASK, Shell

REMOVE = """\
  - calls: [{name: shell_exec, arguments: {command: "rm -rf build"}}]
"""
ONE_TURN = TASK.replace("turns: 10", "turns: 1").replace("wall: 5m", "wall: 5m, on_exceed: pause")


def test_trace_says_how_far_a_command_reaches_and_answer_tells_one_that_asked_nothing(shell: Shell):
    """R073, R226"""
    shell.lay(ONE_TURN, REMOVE)
    shell.run("converge", code=14)
    paused = shell.newest()
    assert "high blast radius" in shell.run("trace", paused).stdout
    told = shell.json("answer", paused, "the build folder is gone on purpose")
    assert told["question_id"] is None and told["answer"].startswith("the build folder")
    assert "has asked nothing; its next turn is told: now go on" in shell.run("answer", paused, "now go on").stdout
    shell.run("resume", code=14)
    applied = [
        json.loads(line)["data"]
        for line in shell.inside("events", paused, "--json", "--type", "ControlRequested").splitlines()
    ]
    assert [one["argument"] for one in applied if one["action"] == "interrupt"] == [
        "the build folder is gone on purpose",
        "now go on",
    ]
    assert "- The operator says: now go on" in shell.run("describe", paused).stdout


@pytest.mark.parametrize(
    "amount", ["--more-turns=0", "--more-turns=-3", "--more-tokens=0", "--more-usd=0", "--more-wall=0s", "--more-usd=x"]
)
def test_an_amount_that_adds_nothing_is_refused_before_anything_happens(shell: Shell, amount: str):
    shell.lay(ONE_TURN, REMOVE, FIX)
    shell.run("converge", code=14)
    events = shell.inside("events")
    shell.run("resume", amount, code=2)
    assert shell.inside("events") == events
    shell.run("resume", "--more-turns", "2")


def test_the_budget_of_one_that_ended_cannot_be_raised_and_of_one_that_waits_it_can(shell: Shell):
    shell.lay(ONE_TURN.replace(", on_exceed: pause", ""), REMOVE)
    shell.run("converge", code=14)
    assert "its budget cannot be raised any more" in shell.run("resume", "--more-turns", "5", code=2).stderr
    shell.lay(ONE_TURN, ASK, FIX)
    shell.run("converge", code=13)
    shell.run("resume", "--more-turns", "5", code=13)
    shell.run("answer", "yes")
    shell.run("resume")
    assert shell.json("get", shell.newest())["budget"]["turns"] == 6
