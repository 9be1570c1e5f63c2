"""From what a person types to what it names in the store: the runtime, a trajectory, and who asks."""

from __future__ import annotations

import asyncio
import getpass
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from setpoint.app.runtime import Runtime, open_runtime
from setpoint.kernel.errors import UnknownTrajectory, UsageFault
from setpoint.kernel.record import Record

PLANNED = "Planned"
"""How a plan's own trajectory ends; it is never meant by "the newest"."""
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


def trajectory(
    runtime: Runtime, typed: str | None, fits: Callable[[Record], bool] | None = None, needs: str = ""
) -> str:
    """The id that ``typed`` is or uniquely begins, with or without ``tr-``.

    None: the newest that is no plan. One that does not ``fits`` is refused with what the verb ``needs``: acting on an
    older one, perhaps of another workspace, would be a guess. UnknownTrajectory, UsageFault.
    """
    if typed is None:
        return _newest(runtime, fits, needs)
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


def _newest(runtime: Runtime, fits: Callable[[Record], bool] | None, needs: str) -> str:
    newest = runtime.newest()
    for info in runtime.trajectories():
        record, _ = runtime.record(info.stream)
        if record.finished_reason == PLANNED:
            continue
        if fits is None or fits(record):
            return info.stream
        others = [i.stream for i in runtime.trajectories() if fits(runtime.record(i.stream)[0])][:_SHOWN_MAX]
        hint = f"Name the one you mean: {', '.join(others)}" if others else "`setpoint get` lists them."
        raise UsageFault(f"the newest trajectory, {info.stream} ({record.name}), {needs}", hint=hint)
    return newest


def me() -> str:
    """Who asks, for the log: the user's name, else the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return f"uid:{os.getuid()}"
