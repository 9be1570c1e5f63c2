"""Words about a manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.app.explain import MODELINE, explain, explain_tools, template
from setpoint.app.manifest import manifests_of
from setpoint.app.schema import schema
from setpoint.kernel.contract import Task
from setpoint.kernel.errors import UsageFault
from setpoint.phases.p3_gate.tools import BUILTIN


def test_a_field_is_explained_with_type_default_bound_and_example() -> None:
    assert explain("Task.spec.budget.turns") == (
        "Task.spec.budget.turns: integer\n\n"
        "  Turns, refused ones included.\n\n"
        "  default: 30\n"
        "  bound: 1 to 1000000\n\n"
        "  example:\n"
        "    turns: 30\n"
    )


@pytest.mark.parametrize("path", ["spec.done.parse", "Task.spec.done[].parse", "Task.spec.done[0].parse"])
def test_list_positions_and_the_kind_may_be_left_out(path: str) -> None:
    text = explain(path)
    assert text.startswith("Task.spec.done.parse: pytest | junit | exit | tap | json\n")
    assert "default: exit" in text


def test_an_object_lists_its_fields() -> None:
    text = explain("Task.spec")
    for field in ("goal", "environment", "actions", "observe", "done", "invariants", "budget", "policy", "models"):
        assert f"    {field}" in text
    assert "goal         mapping (required): The desired end state in words" in text


def test_every_field_of_the_schema_can_be_explained() -> None:
    def walk(rules: dict[str, object], path: str) -> int:
        seen = 1
        assert explain(path).startswith(path + ": ")
        element = rules.get("items", rules)
        for name, inner in element.get("properties", {}).items():  # type: ignore[union-attr]
            seen += walk(inner, f"{path}.{name}")
        return seen

    assert walk(schema("Task"), "Task") > 60


def test_an_unknown_field_is_told_the_nearest() -> None:
    with pytest.raises(UsageFault) as fault:
        explain("Task.spec.budget.turn")
    assert str(fault.value) == "Task.spec.budget has no field 'turn'\n  did you mean Task.spec.budget.turns?"
    with pytest.raises(UsageFault, match=r"Task\.spec\.budget\.turns has no fields"):
        explain("Task.spec.budget.turns.x")


def test_tools_are_listed_with_their_arguments() -> None:
    text = explain_tools([tool.spec for tool in BUILTIN.values()])
    for name, tool in BUILTIN.items():
        assert f"{name}\n  " in text
        for argument in tool.spec.schema["properties"]:
            assert f"    {argument}: " in text
    assert "    path: string, required: path inside the workspace" in text


def test_the_template_loads_as_it_is(load: Callable[[str], Task]) -> None:
    text = template("demo")
    assert text.startswith(MODELINE + "\n")
    task = load(text)
    assert task.name == "demo"
    assert task.observe.redact == ("(?i)api[_-]?key\\s*[:=]\\s*\\S+",)


def test_the_templates_commented_sealed_check_loads_once_uncommented(folder: Path) -> None:
    lines = template().splitlines()
    start = lines.index("    # - id: golden")
    for index in range(start, start + 6):
        lines[index] = lines[index].replace("# ", "", 1)
    (manifest,) = manifests_of("\n".join(lines).encode(), file="t", directory=str(folder))
    assert manifest.task.done[1].disclose == "verdict"


def test_a_workspace_with_odd_characters_survives_the_template(folder: Path) -> None:
    (folder / "a: #b").mkdir()
    (manifest,) = manifests_of(template(workspace="a: #b").encode(), file="t", directory=str(folder))
    assert manifest.task.environment.workspace == str(folder.resolve() / "a: #b")
