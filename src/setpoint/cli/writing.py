"""Write a task: ``init``, ``schema``, ``validate``, ``lint``, ``explain``."""

from __future__ import annotations

import os
import re
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from setpoint.app.audit import audit, is_closed
from setpoint.app.explain import explain as explain_field
from setpoint.app.explain import explain_tools, template
from setpoint.app.lint import Finding
from setpoint.app.lint import lint as lint_task
from setpoint.app.manifest import Manifest, ManifestFault, open_manifests
from setpoint.app.places import find_places
from setpoint.app.schema import schema as schema_of
from setpoint.cli import taskfile
from setpoint.cli.terminal import printable, say, say_json, table, talk, write_output
from setpoint.kernel.contract import Task, Tier
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.exposure import expose, reached_level, required_level
from setpoint.phases.p3_gate.tools import BUILTIN

if TYPE_CHECKING:
    from setpoint.adapters.approvers.roster import Approver

EXIT_INVALID = 2
EXIT_OPEN = 12


def init(arguments: Namespace) -> int:
    name = arguments.name or _name_of(os.getcwd())
    text = template(name)
    if arguments.output == "-":
        say(text.rstrip("\n"))
        return 0
    write_output(arguments.output, text.encode(), replace=False)
    talk(f"wrote {arguments.output}. Next: edit it, then setpoint validate -f {arguments.output}")
    return 0


def _name_of(directory: str) -> str:
    """A task name from a directory's: only what a name may hold."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(directory)).strip("-._")[:63] or "my-task"


def schema(arguments: Namespace) -> int:
    say_json(schema_of(arguments.kind))
    return 0


def explain(arguments: Namespace) -> int:
    if arguments.path == "workflow":
        from setpoint.cli import workflows

        return workflows.explain(arguments)
    if arguments.name is not None or arguments.mermaid or arguments.svg is not None or arguments.json:
        raise UsageFault("NAME, --json, --mermaid and --svg go with: setpoint explain workflow NAME")
    if arguments.path == "tools":
        say(explain_tools([tool.spec for tool in BUILTIN.values()]).rstrip())
    else:
        say(explain_field(arguments.path).rstrip())
    return 0


def validate(arguments: Namespace) -> int:
    file = taskfile.task_file(arguments)
    try:
        manifests = open_manifests(file)
    except ManifestFault as fault:
        if not arguments.json:
            raise
        say_json({"valid": False, "file": file, "problems": [_problem(problem) for problem in fault.problems]})
        return EXIT_INVALID
    tasks = [_validated(manifest.task, _tier_here(manifest.task)) for manifest in manifests]
    if arguments.json:
        say_json({"valid": True, "file": file, "tasks": tasks})
        return 0
    for task in tasks:
        say(printable(f"{file}: valid: task {task['name']} {task['digest']}"))
        level = f"needs {task['required_level']} evidence, has {task['reached_level']}"
        say(f"  {task['exposure']}: {level}; {task['criteria']} criteria, {task['invariants']} invariants")
    return 0


def _problem(problem: Any) -> dict[str, Any]:
    names = ("file", "line", "column", "path", "message", "suggestion")
    return {name: getattr(problem, name) for name in names}


def _tier_here(task: Task) -> Tier | None:
    """What `converge` would find, asked only where it matters: a task that accepts no isolation gets the best there is.

    For every other task the answer is the same on every machine, and none is probed.
    """
    if task.environment.tier != "none":
        return None
    from setpoint.adapters.sandboxes.probe import probe

    cache = find_places().cache
    return probe(cache if cache.is_dir() else None).report().tier


def _approvers_here(task: Task) -> Sequence[Approver] | None:
    """Whom this installation trusts to approve; not read for a task that asks nobody."""
    if not task.policy.approve:
        return None
    from setpoint.app.asking import approvers_of

    return approvers_of(find_places())


def _validated(task: Task, tier: Tier | None) -> dict[str, Any]:
    exposure = expose(task, tier=tier)
    return {
        "name": task.name,
        "digest": task.digest,
        "exposure": str(exposure),
        "why": list(exposure.why),
        "required_level": required_level(exposure).label,
        "reached_level": reached_level(task).label,
        "criteria": len(task.done),
        "invariants": len(task.invariants),
    }


def lint(arguments: Namespace) -> int:
    """Exit 12 when the task would not start, or with ``--closure`` when a required rule is held by words alone."""
    file = taskfile.task_file(arguments)
    manifests = _named(open_manifests(file), arguments.task)
    found = [
        (
            manifest.task,
            lint_task(
                manifest.task,
                locate=manifest.locate,
                tier=_tier_here(manifest.task),
                approvers=_approvers_here(manifest.task),
                now_ms=time.time_ns() // 1_000_000,
            ),
        )
        for manifest in manifests
    ]
    rules = [rule for manifest in manifests for rule in audit(manifest.task)] if arguments.closure else []
    if arguments.json:
        say_json(
            {
                "file": file,
                "findings": [_finding(task, one) for task, findings in found for one in findings],
                "rules": [
                    {"path": r.path, "rule": r.rule, "mechanism": r.mechanism or None, "required": r.required}
                    for r in rules
                ],
            }
        )
    else:
        for _, findings in found:
            for one in findings:
                say(printable(one.render(file)))
        if rules:
            rows = [(r.path, r.rule, r.mechanism or "nothing but the prompt") for r in rules]
            for line in table(("PLACE", "RULE", "HELD BY"), rows):
                say(line)
        if not any(findings for _, findings in found):
            say(f"{file}: nothing weak was found")
    broken = any(one.severity == "error" for _, findings in found for one in findings)
    return EXIT_OPEN if broken or not is_closed(rules) else 0


def _named(manifests: list[Manifest], name: str | None) -> list[Manifest]:
    chosen = [manifest for manifest in manifests if name in (None, manifest.task.name)]
    if not chosen:
        raise UsageFault(f"the file holds no task {name!r}")
    return chosen


def _finding(task: Task, one: Finding) -> dict[str, Any]:
    names = ("code", "severity", "path", "line", "column", "message", "remedy")
    return {"task": task.name} | {name: getattr(one, name) for name in names}
