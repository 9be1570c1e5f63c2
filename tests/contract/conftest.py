"""A folder as INTERFACE section 1 assumes it, and small ways to write manifests into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.app.document import Problem
from setpoint.app.manifest import ManifestFault, load_task
from setpoint.kernel.contract import Task

MINIMAL = """\
apiVersion: setpoint.dev/v1
kind: Task
metadata: {name: t}
spec:
  goal: {text: g}
  environment: {workspace: .}
  actions: [{tool: file_read}]
  observe: {}
  done: [{id: a, run: pytest}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with sources, tests, a vendor folder and sealed files."""
    for name in ("src", "tests", "vendor", "sealed/golden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "sealed/golden/test_golden.py").write_text("def test_it(): pass\n")
    return tmp_path


@pytest.fixture
def load(folder: Path) -> Callable[[str], Task]:
    """Write a manifest into the folder and load it."""

    def write_and_load(text: str) -> Task:
        path = folder / "task.yaml"
        path.write_text(text)
        return load_task(str(path))

    return write_and_load


@pytest.fixture
def problems(load: Callable[[str], Task]) -> Callable[[str], list[Problem]]:
    """The problems of a manifest, which must have some."""

    def refused(text: str) -> list[Problem]:
        with pytest.raises(ManifestFault) as fault:
            load(text)
        return list(fault.value.problems)

    return refused
