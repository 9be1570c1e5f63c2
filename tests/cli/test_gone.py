"""What an accepted task rested on is gone: the verbs say so, each with its exit code, and cancel needs none of it."""

from __future__ import annotations

import shutil

import pytest

from .conftest import ASK, FIX, TASK, TOUCH, Shell


def parked(shell: Shell, gone: str) -> str:
    """A trajectory that was asked, answered and not yet resumed, with one thing taken away."""
    shell.lay(TASK, ASK, FIX)
    shell.run("converge", code=13)
    name = shell.newest()
    shell.run("answer", "yes")
    path = shell.directory / gone
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return name


@pytest.mark.parametrize("gone", ["script.yaml", "ws", "sealed"])
def test_a_trajectory_is_cancelled_without_what_it_needs(shell: Shell, gone: str):
    name = parked(shell, gone)
    assert "cancelled" in shell.run("cancel", name).stdout
    assert shell.json("get", name)["status"] == "cancelled"


@pytest.mark.parametrize(("gone", "words"), [("ws", "there is no directory"), ("sealed", "sealed files")])
def test_what_was_pinned_and_is_gone_is_drift(shell: Shell, gone: str, words: str):
    name = parked(shell, gone)
    assert words in shell.run("resume", name, code=17).stdout


def test_a_route_that_is_gone_is_told_and_the_trajectory_waits_for_it(shell: Shell):
    name = parked(shell, "script.yaml")
    refused = shell.run("resume", name, code=2)
    assert "script.yaml cannot be read" in refused.stderr
    shell.lay(TASK, ASK, FIX)
    shell.run("resume", name)
    assert "a + b" in shell.read("ws/src/calc.py")


def test_a_model_that_locks_the_workspace_is_rolled_back_and_goes_on(shell: Shell):
    shell.lay(TASK, TOUCH.replace("echo x > src/x.txt", "chmod 500 ."), FIX)
    done = shell.run("converge")
    assert "rolled back: The workspace itself got mode 0500" in done.stderr
