"""The published schema is valid, closed, documented, and says what is in force."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import yaml

from setpoint.adapters.proposers.opening import SCHEMES
from setpoint.app.manifest import dump, manifests_of, normalise
from setpoint.app.schema import ROUTE_KINDS, schema
from setpoint.kernel import contract
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.exposure import BUILTIN_TOOLS
from setpoint.kernel.units import parse_duration_ms, parse_size, parse_usd_micros
from setpoint.phases.p3_gate.tools import BUILTIN

from .conftest import MINIMAL

TASK = schema("Task")


def _schemas(rules: dict[str, Any], path: str = "Task") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, rules
    for name, inner in rules.get("properties", {}).items():
        yield from _schemas(inner, f"{path}.{name}")
    if isinstance(rules.get("items"), dict):
        yield from _schemas(rules["items"], f"{path}[]")


ALL = list(_schemas(TASK))


def test_the_schema_is_valid_draft_2020_12() -> None:
    assert TASK["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(TASK)
    jsonschema_rs.Draft202012Validator(TASK)


def test_every_object_is_closed() -> None:
    """R001: an unknown key is refused, so nothing written is silently without effect."""
    objects = [
        path for path, rules in ALL if rules.get("type") == "object" and rules["additionalProperties"] is not False
    ]
    assert objects == []
    assert sum(rules.get("type") == "object" for _, rules in ALL) >= 15


def test_every_field_is_described_and_has_an_example_or_a_default() -> None:
    fields = [(path, rules) for path, rules in ALL if "." in path and not path.endswith("[]")]
    assert [path for path, rules in fields if not rules.get("description", "").endswith(".")] == []
    assert [
        path for path, rules in fields if "examples" not in rules and "default" not in rules and path[5:] != "spec"
    ] == []


def test_every_example_and_default_is_valid_against_its_own_schema() -> None:
    for path, rules in ALL:
        validator = jsonschema_rs.Draft202012Validator(rules)
        for example in rules.get("examples", []):
            assert validator.is_valid(example), (path, example)
        if "default" in rules:
            assert validator.is_valid(rules["default"]), path


def test_schemas_are_fresh_copies_and_unknown_kinds_are_refused() -> None:
    schema("Task")["properties"].clear()
    assert schema("Task")["properties"]
    with pytest.raises(UsageFault, match="there is no kind 'task'"):
        schema("task")


# The default of each schema field, as the contract's dataclass has it.
SPEC = TASK["properties"]["spec"]["properties"]
SAME = [
    (SPEC["budget"], contract.Budget(), {"usd": "usd_micros", "wall": "wall_ms"}),
    (SPEC["policy"], contract.Policy(), {}),
    (SPEC["observe"], contract.Observe(), {}),
    (SPEC["goal"], contract.Goal("g"), {}),
    (SPEC["environment"], contract.Environment("w"), {}),
    (
        SPEC["environment"]["properties"]["sandbox"]["properties"]["limits"],
        contract.Limits(),
        {"wall": "wall_ms", "cpu": "cpu_ms", "memory": "memory_bytes", "output": "output_bytes"}
        | {"output_kill": "output_kill_bytes", "disk": "disk_bytes"},
    ),
    (SPEC["actions"]["items"], contract.ToolGrant("t"), {}),
    (SPEC["policy"]["properties"]["approve"]["items"], contract.ApprovalRule("w", ("b",)), {"expires": "expires_ms"}),
    (SPEC["done"]["items"], contract.RunCheck("c"), {}),
    (SPEC["done"]["items"], contract.Criterion("i", contract.RunCheck("c"), contract.Level.VISIBLE), {}),
    (SPEC["invariants"]["items"], contract.Invariant("i", contract.RunCheck("c")), {}),
]


def test_every_documented_default_is_that_of_the_contract() -> None:
    compared = 0
    for rules, instance, names in SAME:
        for key, inner in rules["properties"].items():
            field = names.get(key, key)
            if "default" not in inner or field not in {f.name for f in dataclasses.fields(instance)}:
                continue
            compared += 1
            assert _as_contract(inner, inner["default"]) == getattr(instance, field), key
    sandbox = SPEC["environment"]["properties"]["sandbox"]["properties"]
    assert sandbox["tier"]["default"] == contract.Environment("w").tier
    assert (sandbox["network"]["default"], contract.Environment("w").network) == ("none", ())
    assert compared >= 30


def _as_contract(rules: dict[str, Any], value: Any) -> Any:
    match rules.get("format"):
        case "duration":
            return parse_duration_ms(value)
        case "size":
            return parse_size(value)
        case "usd":
            return parse_usd_micros(str(value))
        case _:
            return tuple(value) if isinstance(value, (list, dict)) else value


def test_every_field_of_the_contract_can_be_written() -> None:
    """A part of the contract that no manifest can reach would be dead."""
    computed = {
        "id",
        "predicate",
        "level",
        "files",
        "files_digest",
        "tier",
        "network",
        "limits",
        "text",
        "workspace",
        "hidden",
    }
    computed |= {"tool", "paths", "max_calls", "when", "by", "command", "timeout_ms"}
    for rules, instance, names in SAME:
        known = {names.get(key, key) for key in rules["properties"]}
        assert {field.name for field in dataclasses.fields(instance)} - known - computed == set()


def test_the_canonical_document_is_valid_and_its_own_canonical_form(tmp_path: Any) -> None:
    (manifest,) = manifests_of(MINIMAL.encode(), file="t", directory=str(tmp_path))
    document = yaml.safe_load(dump(manifest.task))
    assert jsonschema_rs.Draft202012Validator(TASK).is_valid(document)
    assert normalise(TASK, document) == document == manifest.task.document


def test_tools_and_routes_are_those_that_exist() -> None:
    assert set(BUILTIN_TOOLS) == set(BUILTIN)
    assert ROUTE_KINDS == SCHEMES
