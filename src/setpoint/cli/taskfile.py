"""From what a person types to the task it names, and to the routes. Loads no runtime."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence

from setpoint.app.manifest import load_task
from setpoint.app.places import find_places
from setpoint.cli.grammar import DEFAULT_FILES
from setpoint.kernel.contract import Task
from setpoint.kernel.errors import UsageFault


def task_file(arguments: Namespace) -> str:
    """The file of ``-f``, or the one in this directory that is named as task files are."""
    if arguments.file is not None:
        return arguments.file
    for name in DEFAULT_FILES:
        if os.path.isfile(name):
            return name
    raise UsageFault(
        f"no task file was named, and there is no {' or '.join(DEFAULT_FILES)} here",
        hint="Name one with -f FILE; `setpoint init` writes one to start from.",
    )


def task(arguments: Namespace) -> Task:
    """The task of the command line. ManifestFault with every problem; UsageFault when Setpoint's own state would lie
    in its workspace, before anything is made there."""
    found = load_task(task_file(arguments), name=arguments.task)
    find_places(getattr(arguments, "store", None)).refuse_inside(found.environment.workspace)
    return found


def routes(models: Sequence[str] | None) -> list[str]:
    """The routes of ``--model``; their files are relative to where the person stands, not to the task."""
    return [_absolute(route) for route in models or ()]


def _absolute(route: str) -> str:
    kind, colon, rest = route.partition(":")
    if kind in ("scripted", "replay") and colon and rest.strip():
        return f"{kind}:{os.path.abspath(os.path.expanduser(rest))}"
    return route


def here() -> str:
    """Where relative files of routes on the command line start."""
    return os.getcwd()
