"""A task in code is the task of the manifest that says the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from setpoint import ManifestFault, Runtime, Task, UsageFault, criterion, invariant

MANIFEST = """
apiVersion: setpoint.dev/v1
kind: Task
metadata: {name: answer}
spec:
  goal: {text: answer.txt holds 42., forbid: ["data/**"]}
  environment: {workspace: project}
  actions: [{tool: shell_exec}, {tool: file_write, paths: ["*.txt"]}, {tool: complete_task}]
  observe: {}
  done: [{id: holds, run: "grep -qx 42 answer.txt"}]
  invariants: [{id: small, expr: "size(changes) < 3"}]
  budget: {turns: 4}
"""


@criterion(level="visible")
def it_is_there(state: dict) -> bool:
    return True


def declared(**other: object) -> Task:
    given: dict = {
        "goal": "answer.txt holds 42.",
        "forbid": ["data/**"],
        "workspace": "project",
        "actions": ["shell_exec", {"tool": "file_write", "paths": ["*.txt"]}, "complete_task"],
        "done": [criterion("holds", run="grep -qx 42 answer.txt")],
        "invariants": [invariant("small", expr="size(changes) < 3")],
        "budget": {"turns": 4},
    }
    return Task.declare("answer", **{**given, **other})


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))


def test_it_is_the_same_contract_with_the_same_digest(tmp_path: Path) -> None:
    """R236"""
    (tmp_path / "task.yaml").write_text(MANIFEST)
    assert declared().digest == Task.load("task.yaml").digest


def test_a_function_becomes_a_probe_and_stays_a_function() -> None:
    assert it_is_there.fields == {"id": "it-is-there", "probe": f"{__name__}:it_is_there", "level": "visible"}
    assert it_is_there({}) is True
    assert declared(done=[it_is_there]).done[0].id == "it-is-there"


def test_what_a_manifest_refuses_is_refused_in_its_words() -> None:
    with pytest.raises(ManifestFault, match="levl") as caught:
        declared(done=[criterion("holds", run="true", levl="visible")])
    assert "levl" in str(caught.value)
    with pytest.raises(UsageFault, match="no id"):
        criterion(run="true")
    with pytest.raises(UsageFault, match="is no criterion"):
        declared(done=[invariant("x", expr="true")])
    with pytest.raises(UsageFault, match="not at the top of a module"):
        criterion(level="visible")(lambda state: True)


def test_a_declared_task_is_pursued() -> None:
    (Path("project") / "answer.txt").write_text("42\n")

    async def story() -> int:
        async with Runtime.open("memory:") as runtime:
            return (await runtime.converge(declared(models=["scripted:none.yaml"]), models=[])).exit_code

    Path("none.yaml").write_text("proposals: [{text: nothing}]\n")
    assert asyncio.run(story()) == 0
