"""reference/manifest.md and reference/tools.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from docs_build.markdown import code, page
from setpoint.app.schema import schema
from setpoint.phases.p3_gate.tools import BUILTIN, READ_ONLY_COMMANDS

Schema = dict[str, Any]


def manifest() -> str:
    rules = schema("Task")
    blocks = [
        (
            "A manifest is strict: an unknown key, a wrong type or a missing part is refused with its line and "
            "column. `setpoint schema Task` prints the JSON Schema this page is written from, `setpoint explain "
            "Task.spec.budget` one field of it. `[]` in a heading stands for each element of a list."
        ),
        *_fields("", rules),
    ]
    return page("The task manifest", "`src/setpoint/app/schema.py`", *blocks)


def _fields(path: str, rules: Schema) -> Iterator[str]:
    required = rules.get("required", ())
    for name, inner in rules.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield _field(here, inner, name in required)
        items = inner.get("items", {})
        if items.get("properties"):
            yield from _fields(f"{here}[]", items)
        else:
            yield from _fields(here, inner)


def _field(path: str, rules: Schema, required: bool) -> str:
    facts = [kind(rules), *(["required"] if required else [])]
    if "default" in rules and rules.get("default") != {}:
        facts.append(f"default {code(json.dumps(rules['default']))}")
    if "minimum" in rules and "maximum" in rules:
        facts.append(f"{rules['minimum']} to {rules['maximum']}")
    lines = [f"### `{path}`", "", rules.get("description", ""), "", f"*{'; '.join(facts)}*"]
    examples = rules.get("examples", ())
    if examples and examples[0] != rules.get("default") and not rules.get("properties"):
        lines += ["", f"Example: {code(json.dumps(examples[0]))}"]
    return "\n".join(lines)


def kind(rules: Schema) -> str:
    """The type of a field in words."""
    if "const" in rules:
        return code(json.dumps(rules["const"]))
    if "enum" in rules:
        return " or ".join(code(str(value)) for value in rules["enum"])
    named = {"usd": "dollars", "glob": "path pattern", "regex": "regular expression"}
    form = str(rules.get("format", ""))
    if form.startswith("cel"):
        return "CEL expression"
    if form in ("duration", "size", "route"):
        return form
    if form in named:
        return named[form]
    if "oneOf" in rules and "properties" not in rules:
        return " or ".join(kind(option) for option in rules["oneOf"])
    of = rules.get("type", "any")
    if isinstance(of, list):
        return " or ".join(of)
    if of == "array":
        return f"list of {kind(rules['items'])}"
    words = {"object": "mapping", "string": "text", "integer": "whole number", "boolean": "true or false"}
    return words.get(of, str(of))


def tools() -> str:
    blocks = [
        (
            "A task's `actions` is an allow-list: a tool that is not on it does not exist for the model. The "
            "effect class belongs to the tool and is never taken from a model."
        ),
    ]
    for tool in BUILTIN.values():
        schema_text = json.dumps(tool.spec.schema, indent=2, sort_keys=True)
        blocks.append(
            f"## `{tool.name}`\n\n{tool.spec.description}\n\nEffect: `{tool.effect}`.\n\n```json\n{schema_text}\n```"
        )
    commands = ", ".join(code(name) for name in sorted(READ_ONLY_COMMANDS))
    blocks.append(
        "## Read-only commands\n\n`shell_exec` with `read_only: true`, and in the last tenth of the budget, takes one "
        "simple command without shell metacharacters, of these programs and without their writing options: "
        f"{commands}. The list is a convenience; the sandbox stages every write whatever the list says."
    )
    return page("Tools", "`src/setpoint/phases/p3_gate/tools.py`", *blocks)
