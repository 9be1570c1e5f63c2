"""Words about a manifest: what a field means, what a tool takes, and a first manifest to start from."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Sequence
from typing import Any, Final

import yaml

from setpoint.app.schema import KINDS, Schema, schema
from setpoint.kernel.errors import UsageFault
from setpoint.ports.proposer import ToolSpec

_WIDTH: Final = 100


def explain(path: str) -> str:
    """Type, default, description and example of a field: ``Task.spec.budget.turns``; of an object, its fields too.

    The kind may be left out, list positions too (``spec.done.parse``). UsageFault names the nearest field.
    """
    parts = [part for part in re.split(r"[./]|\[\d*\]", path) if part]
    kind = parts.pop(0) if parts and parts[0] in KINDS else KINDS[0]
    rules = schema(kind)
    walked = kind
    required = False
    for part in parts:
        rules = _element(rules)
        properties: Schema = rules.get("properties", {})
        if part not in properties:
            raise _no_field(walked, part, list(properties))
        required = part in rules.get("required", ())
        rules = properties[part]
        walked += f".{part}"
    return _described(walked, rules, required)


def explain_tools(tools: Sequence[ToolSpec]) -> str:
    """Each tool with its arguments, as a model is shown it."""
    blocks: list[str] = []
    for tool in tools:
        lines = [tool.name, *_wrapped(tool.description, 2)]
        required = tool.schema.get("required", ())
        for name, rules in tool.schema.get("properties", {}).items():
            mark = ", required" if name in required else ""
            lines.append(f"    {name}: {_type(rules)}{mark}" + _tail(rules))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _no_field(walked: str, part: str, known: list[str]) -> UsageFault:
    if not known:
        return UsageFault(f"{walked} has no fields, so there is no {part!r}", hint=f"see `setpoint explain {walked}`")
    close = difflib.get_close_matches(part, known, n=1, cutoff=0.5)
    hint = f"did you mean {walked}.{close[0]}?" if close else f"fields: {', '.join(known)}"
    return UsageFault(f"{walked} has no field {part!r}", hint=hint)


def _element(rules: Schema) -> Schema:
    """A list is explained by its items."""
    items = rules.get("items")
    return items if isinstance(items, dict) else rules


def _described(walked: str, rules: Schema, required: bool) -> str:
    lines = [f"{walked}: {_type(rules)}" + (" (required)" if required else "")]
    lines += ["", *_wrapped(rules.get("description", ""), 2)]
    if "default" in rules:
        lines += ["", f"  default: {_flow(rules['default'])}"]
    lines += [f"  bound: {bound}" for bound in _bounds(rules)]
    if rules.get("examples"):
        lines += ["", "  example:", *(f"    {line}" for line in _example(walked, rules["examples"][0]))]
    fields: Schema = _element(rules).get("properties", {})
    if fields:
        wanted = _element(rules).get("required", ())
        lines += ["", "  fields:"]
        width = max(len(name) for name in fields)
        for name, inner in fields.items():
            mark = " (required)" if name in wanted else ""
            first = _first_sentence(inner.get("description", ""))
            text = f"{name.ljust(width)}  {_type(inner)}{mark}: {first}"
            lines += textwrap.wrap(
                text, _WIDTH, initial_indent="    ", subsequent_indent=" " * (width + 6), break_on_hyphens=False
            )
    return "\n".join(lines) + "\n"


def _type(rules: Schema) -> str:
    if "const" in rules:
        return repr(rules["const"])
    if "enum" in rules:
        return " | ".join(str(value) for value in rules["enum"])
    if rules.get("format") in ("duration", "size", "usd", "glob", "regex", "route"):
        named = {"usd": "dollars", "glob": "path pattern", "regex": "regular expression"}
        return named.get(rules["format"], str(rules["format"]))
    if str(rules.get("format", "")).startswith("cel"):
        return "CEL expression"
    if "oneOf" in rules and "properties" not in rules:
        return " | ".join(_type(option) for option in rules["oneOf"])
    kind = rules.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(str(name) for name in kind)  # type: ignore[reportUnknownVariableType]
    if kind == "array":
        return f"list of {_type(rules['items'])}" if "items" in rules else "list"
    return "mapping" if kind == "object" else str(kind)


def _bounds(rules: Schema) -> list[str]:
    least, most = rules.get("minimum"), rules.get("maximum")
    if least is not None and most is not None:
        return [f"{least} to {most}"]
    return []


def _tail(rules: Schema) -> str:
    return f": {rules['description']}" if "description" in rules else ""


def _example(walked: str, value: Any) -> list[str]:
    name = walked.rpartition(".")[2]
    return str(yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True, width=_WIDTH)).rstrip().splitlines()


def _flow(value: Any) -> str:
    text = str(yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)).strip()
    return text.removesuffix("...").strip()


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.;])\s", text, maxsplit=1)[0].rstrip(".;")


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)


MODELINE: Final = "# yaml-language-server: $schema=./task.schema.json"
"""Editors that speak to yaml-language-server validate and complete by it once the schema lies there."""

_TEMPLATE: Final = """\
{modeline}
# (write that file with: setpoint schema Task > task.schema.json)
#
# A task declares the state you want. Check it with `setpoint validate -f` and `setpoint lint -f`,
# look fields up with `setpoint explain Task.spec.budget`.
apiVersion: setpoint.dev/v1
kind: Task
metadata:
  name: {name}
spec:
  goal:
    # What the model is told. Words bind nobody: what must hold is an invariant, or forbidden.
    text: Say here what should be true when the task is done.
    # Negative scope: no kept mutation may touch these.
    forbid: ["tests/**", ".git/**"]

  environment:
    workspace: {workspace}                # relative to this file
    env: {{PYTHONDONTWRITEBYTECODE: "1", PYTEST_ADDOPTS: "-p no:cacheprovider"}}  # leave no caches behind
    sandbox:
      tier: namespaces          # the least isolation accepted; below it the task does not start
      network: none             # or a list of host:port
      limits: {{wall: 60s, cpu: 60s, memory: 1Gi, pids: 128, output: 64Ki, disk: 1Gi}}

  # Permitted actions. What is absent does not exist for the model.
  actions:
    - tool: shell_exec
      paths: ["src/**"]         # judged on what it really changed
    - tool: file_read
    - tool: file_edit
      paths: ["src/**"]
    - tool: file_write
      paths: ["src/**"]
    - tool: ask_operator
    - tool: complete_task

  # What the model may see of results.
  observe:
    max_tokens: 4000
    redact: ["(?i)api[_-]?key\\\\s*[:=]\\\\s*\\\\S+"]

  # Completion criteria. The runtime judges them; nothing the model says counts.
  done:
    - id: unit
      run: python -m pytest -q tests
      parse: pytest
    # A sealed check lies where no action can read or change it. Put its files beside this one:
    # - id: golden
    #   run: python -m pytest -q $SEALED
    #   level: sealed
    #   files: ./sealed
    #   disclose: verdict       # none | verdict | names | full
    #   parse: pytest

  # What must hold at every savepoint, however far the task has come.
  invariants:
    - id: tests-untouched
      expr: "!changes.exists(c, c.path.startsWith('tests/'))"

  budget: {{turns: 30, tokens: 200000, usd: 2.0, wall: 20m, on_exceed: fail}}

  policy:
    commit: converged           # only a state that meets everything becomes yours
    stall_after: 4
    on_stall: [next_model, ask]
    # Calls that wait for people, whose keys stand in approvers.yaml (exit 13 while they decide):
    # approve: [{{when: "call.tool == 'shell_exec' && call.blast == 'high'", by: [ops], expires: 24h}}]

  # Routes to a model, first to last; --model replaces them.
  models: []
"""


def template(name: str = "my-task", workspace: str = ".") -> str:
    """A commented manifest to start from; it loads as it is wherever ``workspace`` exists."""
    return _TEMPLATE.format(modeline=MODELINE, name=name, workspace=str(yaml.safe_dump(workspace)).splitlines()[0])
