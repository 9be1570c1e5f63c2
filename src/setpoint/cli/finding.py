"""From what a person types to what it names in the store: the runtime, a trajectory or a run, and who asks."""

from __future__ import annotations

import asyncio
import getpass
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from setpoint.app.runtime import Runtime, open_runtime
from setpoint.engine.runs.journal import read_run
from setpoint.kernel.errors import UnknownTrajectory, UsageFault
from setpoint.kernel.record import Record
from setpoint.kernel.run_record import RunRecord
from setpoint.ports.log import StreamInfo

TRAJECTORY, RUN, SESSION = KINDS = ("trajectory", "run", "session")
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
    found = _named(typed, runtime.log.streams())
    if found.kind != TRAJECTORY:
        raise UsageFault(f"{found.stream} is a {found.kind}; this verb is for trajectories", hint=_LIST)
    return found.stream


_LIST = "`setpoint get` lists what there is."


@dataclass(frozen=True, slots=True)
class Stream:
    """What a person means: a trajectory, a run, or for some verbs a session."""

    id: str
    kind: str

    @property
    def is_run(self) -> bool:
        return self.kind == RUN


def stream(
    runtime: Runtime,
    typed: str | None,
    fits: Callable[[Record | RunRecord], bool] | None = None,
    needs: str = "",
    *,
    kinds: tuple[str, ...] = (TRAJECTORY, RUN),
) -> Stream:
    """The trajectory or run that ``typed`` is or uniquely begins; None: the newest that is no plan and no child.

    ``fits`` and ``needs`` as for ``trajectory``. A session is only ever meant by its name.
    """
    if typed is not None:
        found = _named(typed, runtime.log.streams())
        if found.kind not in kinds:
            hint = f"setpoint get {found.stream}, setpoint events {found.stream}" if found.kind == SESSION else _LIST
            raise UsageFault(f"{found.stream} is a {found.kind}; this verb is for trajectories and runs", hint=hint)
        return Stream(found.stream, found.kind)
    fitting: list[str] = []
    newest: Stream | None = None
    for info in runtime.log.streams():
        record = _record_of(runtime, info)
        if record is None:
            continue
        if fits is None or fits(record):
            if newest is None:
                return Stream(info.stream, info.kind)
            fitting.append(info.stream)
            if len(fitting) == _SHOWN_MAX:
                break
        newest = newest or Stream(info.stream, info.kind)
    if newest is None:
        raise UnknownTrajectory(
            "this store holds no trajectory yet, and no run",
            hint="`setpoint converge -f task.yaml` starts a trajectory, `setpoint run WORKFLOW` a run.",
        )
    hint = f"Name the one you mean: {', '.join(fitting)}" if fitting else _LIST
    raise UsageFault(f"the newest {newest.kind}, {newest.id}, {needs}", hint=hint)


def is_session(runtime: Runtime, typed: str) -> bool:
    """Whether a session of that id is meant, with or without the prefix of its stream."""
    return any(
        info.kind == SESSION and info.stream in (typed, f"{SESSION}:{typed}") for info in runtime.log.streams(SESSION)
    )


def run_id(runtime: Runtime, typed: str) -> str:
    """The run that ``typed`` is or uniquely begins."""
    found = _named(typed, runtime.log.streams())
    if found.kind != RUN:
        raise UsageFault(f"{found.stream} is a {found.kind}; this verb is for runs of workflows", hint=_LIST)
    return found.stream


def _record_of(runtime: Runtime, info: StreamInfo) -> Record | RunRecord | None:
    """The record of what could be meant by "the newest", None of anything else."""
    if info.seq == 0:
        return None
    if info.kind == TRAJECTORY:
        record, _ = runtime.record(info.stream)
        return None if record.finished_reason == PLANNED else record
    if info.kind == RUN:
        run, _ = read_run(runtime.log, info.stream)
        return None if run.parent_node else run
    return None


_PREFIXES = ("tr-", "rn-", f"{SESSION}:")


def _named(typed: str, streams: list[StreamInfo]) -> StreamInfo:
    """The stream of that id, or the only one whose id begins so, with or without ``tr-`` and its like."""
    known = {info.stream: info for info in streams if info.seq > 0}
    if typed in known:
        return known[typed]
    found = [
        info for name, info in known.items() if typed and name.startswith((typed, *(f"{p}{typed}" for p in _PREFIXES)))
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownTrajectory(f"there is no trajectory {typed!r} in this store, and no run of that id", hint=_LIST)
    shown = ", ".join(info.stream for info in found[:_SHOWN_MAX])
    more = f" and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
    raise UsageFault(
        f"{typed!r} is the start of {len(found)} ids: {shown}{more}",
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
