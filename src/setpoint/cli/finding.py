"""From what a person types to what it names: the runtime, a trajectory, a task, its routes."""

from __future__ import annotations

import asyncio
import getpass
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from setpoint.app.manifest import load_task
from setpoint.app.runtime import Runtime, open_runtime
from setpoint.cli.grammar import DEFAULT_FILES
from setpoint.kernel.contract import Task
from setpoint.kernel.errors import UnknownTrajectory, UsageFault
from setpoint.kernel.trajectory import Record

_SHOWN_MAX = 10
"""Candidates named when the start of an id fits several; more would not be read."""


@contextmanager
def opened(arguments: Namespace) -> Iterator[Runtime]:
    """The runtime over the store of the command line, for verbs that wait for nothing."""
    runtime = open_runtime(arguments.store)
    try:
        yield runtime
    finally:
        asyncio.run(runtime.close())


def trajectory(runtime: Runtime, typed: str | None, fits: Callable[[Record], bool] | None = None) -> str:
    """The id that ``typed`` is or uniquely begins, with or without ``tr-``.

    None: the newest; with ``fits`` the newest that fits, or else the newest of all. UnknownTrajectory, UsageFault.
    """
    if typed is None:
        return _newest(runtime, fits)
    ids = [info.stream for info in runtime.trajectories()]
    if typed in ids:
        return typed
    found = [known for known in ids if typed and known.startswith((typed, f"tr-{typed}"))]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownTrajectory(f"there is no trajectory {typed!r} in this store", hint="`setpoint get` lists them.")
    more = f" and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
    raise UsageFault(
        f"{typed!r} is the start of {len(found)} ids: {', '.join(found[:_SHOWN_MAX])}{more}",
        hint="Type one character more.",
    )


def _newest(runtime: Runtime, fits: Callable[[Record], bool] | None) -> str:
    newest = runtime.newest()
    if fits is None:
        return newest
    return next((i.stream for i in runtime.trajectories() if fits(runtime.record(i.stream)[0])), newest)


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
    """The task of the command line. ManifestFault with every problem."""
    return load_task(task_file(arguments), name=arguments.task)


def routes(models: Sequence[str] | None) -> list[str]:
    """The routes of ``--model``; their files are relative to where the person stands, not to the task."""
    return [_absolute(route) for route in models or ()]


def _absolute(route: str) -> str:
    kind, colon, rest = route.partition(":")
    if kind in ("scripted", "replay") and colon and rest.strip():
        return f"{kind}:{os.path.abspath(os.path.expanduser(rest))}"
    return route


def me() -> str:
    """Who asks, for the log: the user's name, else the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return f"uid:{os.getuid()}"


def here() -> str:
    """Where relative files of routes on the command line start."""
    return os.getcwd()
