"""Definitions of workflows: ``explain workflow``, ``migrate``."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from setpoint.app.app_loading import load_app
from setpoint.app.runtime import Runtime
from setpoint.cli import finding
from setpoint.cli.runs import again
from setpoint.cli.terminal import printable, say, say_bytes, say_json, styled, table, talk, write_output
from setpoint.kernel.errors import UsageFault

if TYPE_CHECKING:
    from setpoint.app.migration import Verdict

EXIT_BREAKS: Final = 12
_STYLES: Final = {"same": "green", "kept": "green", "movable": "yellow", "breaks": "red"}
_MEANINGS: Final = {
    "same": "runs the newest version",
    "kept": "goes on under its own version, which is still declared",
    "movable": "its version is not declared any more; it can be moved",
    "breaks": "its version is not declared any more, and it cannot be moved",
}


# explain workflow


def explain(arguments: Namespace) -> int:
    """What a workflow may do, as text, as JSON, as a Mermaid graph or as an SVG file. Exit 12 when its proof is broken:
    it would not start."""
    if arguments.name is None:
        known = ", ".join(sorted({one.name for one in load_app(arguments.app).workflows})) or "none"
        raise UsageFault("which workflow?", hint=f"setpoint explain workflow NAME; the application declares: {known}")
    definition = load_app(arguments.app).newest(arguments.name).program.definition
    if arguments.mermaid or arguments.svg is not None:
        from setpoint.app.picture import mermaid, svg

        if arguments.mermaid:
            say(mermaid(definition).rstrip("\n"))
        if arguments.svg == "-":
            say_bytes(svg(definition).encode())
        elif arguments.svg is not None:
            write_output(arguments.svg, svg(definition).encode())
            talk(f"the picture is in {arguments.svg}")
        return 0
    from setpoint.app.workflow_text import explain_workflow, workflow_document

    told = workflow_document(definition)
    if arguments.json:
        say_json(told)
    else:
        say(printable(explain_workflow(definition).rstrip("\n")))
    return 0 if told["proof"]["holds"] else EXIT_BREAKS


# migrate


def migrate(arguments: Namespace) -> int:
    """Move a run; with --dry-run say what the declared versions mean for open runs (exit 12 when one would break).
    Runs of workflows that the application does not declare are listed apart, and break nothing."""
    if arguments.dry_run:
        return _dry_run(arguments)
    if arguments.run is None:
        raise UsageFault("which run is to be moved?", hint="setpoint migrate RUN, or: setpoint migrate --dry-run")
    app = load_app(arguments.app)

    async def body() -> Verdict:
        from setpoint.app.migration import migrate as move

        async with Runtime.open(arguments.store, app) as runtime:
            return await move(runtime.runs, finding.run_id(runtime, arguments.run), by=finding.me())

    verdict = asyncio.run(body())
    if arguments.json:
        say_json(_document(verdict))
        return 0
    say(f"{verdict.run_id} goes on under version {verdict.newest} of {verdict.workflow}")
    for change in verdict.changes:
        say(printable(f"  {change}"))
    talk(f"  a worker takes it up, or: {again(arguments, verdict.run_id)}", "dim")
    return 0


def _dry_run(arguments: Namespace) -> int:
    from setpoint.app.migration import plan_migration

    app = load_app(arguments.app)
    with finding.opened(arguments) as runtime:
        verdicts = plan_migration(runtime.log, app)
        if arguments.run is not None:
            wanted = finding.run_id(runtime, arguments.run)
            verdicts = [one for one in verdicts if one.run_id == wanted]
            if not verdicts:
                raise UsageFault(f"run {wanted} is over; there is nothing to move")
    others = [one for one in verdicts if not one.newest]  # of a workflow that the application does not declare
    verdicts = [one for one in verdicts if one.newest]
    if arguments.json:
        say_json({"runs": [_document(one) for one in verdicts], "others": [_other(one) for one in others]})
    else:
        if verdicts:
            _say(verdicts)
        else:
            talk(f"no run of {app.name} is open", "dim")
        _say_others(others, app.name)
    return EXIT_BREAKS if any(one.standing == "breaks" for one in verdicts) else 0


def _other(verdict: Verdict) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in ("run_id", "workflow", "version", "state")}


def _say_others(others: list[Verdict], app: str) -> None:
    """Runs that this application says nothing of. Each is left to the one that declares it."""
    if not others:
        return
    counts = Counter(one.workflow for one in others)
    named = ", ".join(f"{workflow} ({number})" for workflow, number in sorted(counts.items()))
    talk(
        printable(f"not declared by {app}, so another application's, or of a workflow that was removed: {named}"), "dim"
    )


def _document(verdict: Verdict) -> dict[str, Any]:
    return asdict(verdict) | {"changes": list(verdict.changes), "meaning": _MEANINGS[verdict.standing]}


def _say(verdicts: list[Verdict]) -> None:
    rows = [
        (
            one.run_id,
            one.workflow,
            f"{one.version} -> {one.newest or '-'}",
            one.standing,
            "yes" if one.can_move else "no",
            one.reason or "; ".join(one.changes),
        )
        for one in verdicts
    ]
    header, *lines = table(("RUN", "WORKFLOW", "VERSION", "STANDING", "MOVES", "WHY, OR WHAT CHANGES"), rows)
    say(header)
    for one, line in zip(verdicts, lines, strict=True):
        say(styled(line, _STYLES[one.standing]))
    for standing in dict.fromkeys(one.standing for one in verdicts):
        talk(f"{standing}: {_MEANINGS[standing]}", "dim")
    if any(one.standing == "movable" for one in verdicts):
        talk("setpoint migrate RUN  moves one", "dim")
