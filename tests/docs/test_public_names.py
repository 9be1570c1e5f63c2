"""What is promised can be imported, costs nothing until it is used, and is documented."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import setpoint
from setpoint import testing
from setpoint.kernel import contract, errors
from setpoint.testing import conformance

from .repository import ROOT

PUBLIC = ("setpoint", "setpoint.ports", "setpoint.testing")
HEAVY = ("asyncio", "sqlite3", "yaml", "cryptography", "msgspec", "jsonschema_rs", "cel", "argparse", "http", "ssl")


def loaded_after(statement: str) -> set[str]:
    """The modules a fresh interpreter holds after ``statement``, as a set of names."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("module", PUBLIC)
def test_every_promised_name_is_there(module: str) -> None:
    """R061"""
    public = importlib.import_module(module)
    missing = [name for name in public.__all__ if getattr(public, name, None) is None]
    assert not missing
    assert set(public.__all__) <= set(dir(public))


@pytest.mark.parametrize("module", PUBLIC)
def test_every_promised_class_says_what_it_gives(module: str) -> None:
    public = importlib.import_module(module)
    named = {name: getattr(public, name) for name in public.__all__}
    assert not [name for name, value in named.items() if inspect.isclass(value) and not inspect.getdoc(value)]


def test_import_setpoint_loads_nothing_heavy() -> None:
    loaded = loaded_after("import setpoint")
    assert not loaded & set(HEAVY)
    assert {name for name in loaded if name.startswith("setpoint")} == {"setpoint", "setpoint.version"}


def test_the_test_kit_loads_only_what_is_asked_for() -> None:
    loaded = loaded_after("from setpoint.testing import FakeClock")
    assert not loaded & {*HEAVY, "pytest"}


def test_every_fault_of_the_tree_is_public() -> None:
    faults = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert faults <= set(setpoint.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(setpoint, "Tsak")
    with pytest.raises(ImportError, match="cannot import name 'Tsak'"):
        exec("from setpoint import Tsak")  # noqa: S102


def test_a_loaded_task_is_the_kernels_contract(tmp_path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(
        "apiVersion: setpoint.dev/v1\nkind: Task\nmetadata: {name: one}\nspec:\n"
        "  goal: {text: it works}\n  environment: {workspace: .}\n  actions: [{tool: file_edit}]\n"
        "  observe: {}\n  done: [{id: unit, run: 'true'}]\n"
    )
    from setpoint.app.manifest import load_task

    task = setpoint.Task.load(path)
    plain = load_task(str(path))
    assert isinstance(task, contract.Task)
    assert task.digest == plain.digest
    assert task == plain
    assert plain == task
    assert setpoint.Task.load(path, name="one") == task
    with pytest.raises(setpoint.UsageFault, match="no task 'two'"):
        setpoint.Task.load(path, name="two")


def test_a_wrong_manifest_names_every_problem(tmp_path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text("apiVersion: setpoint.dev/v1\nkind: Task\nmetadata: {name: one}\nspec: {gaol: {text: x}}\n")
    with pytest.raises(setpoint.ManifestFault) as caught:
        setpoint.Task.load(path)
    assert any("goal" in str(problem) for problem in caught.value.problems)


def test_the_version_is_that_of_the_package() -> None:
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert setpoint.__version__ == setpoint.VERSION == project["version"]


def test_the_runtime_without_a_loop_has_the_same_verbs_and_closes_itself(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))
    verbs = {
        name
        for name, value in vars(setpoint.Runtime).items()
        if inspect.iscoroutinefunction(value) and not name.startswith("_")
    }
    assert verbs <= set(dir(setpoint.SyncRuntime))
    with setpoint.open_runtime() as runtime:
        assert isinstance(runtime, setpoint.SyncRuntime)
        assert runtime.trajectories() == []
        assert runtime.recover() == []
    with pytest.raises(setpoint.StoreFault, match="closed"):
        runtime.trajectories()


def test_every_name_of_the_test_kit_is_told_in_the_page_on_the_library() -> None:
    page = (ROOT / "docs" / "how-to" / "use-as-a-library.md").read_text(encoding="utf-8")
    assert not [name for name in testing.__all__ if f"`{name}`" not in page]


def test_every_suite_of_the_test_kit_is_told_in_the_page_on_tests() -> None:
    page = (ROOT / "docs" / "how-to" / "test-an-application.md").read_text(encoding="utf-8")
    assert not [name for name in conformance.__all__ if f"`{name}`" not in page and f"`{name}`s" not in page]
    assert not [name for name in conformance.__all__ if not inspect.getdoc(getattr(conformance, name))]
