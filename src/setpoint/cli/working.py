"""Work on whatever is due: ``worker``, and the part of ``recover`` that is the runs'."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any

from setpoint.app.app_loading import load_app
from setpoint.app.runs import RunOutcome
from setpoint.app.runtime import Runtime
from setpoint.cli.live import run as run_loop
from setpoint.cli.run_account import due_ids, summary
from setpoint.cli.run_live import RunWatch
from setpoint.cli.terminal import Interrupted, one_line, talk
from setpoint.cli.wording import shown_url
from setpoint.kernel.errors import Fault, UsageFault
from setpoint.kernel.units import parse_duration_ms


async def recover(arguments: Namespace, faults: dict[str, Fault]) -> list[dict[str, Any]]:
    """Take up every run that is due and has no worker; what each came to. One that cannot be is in ``faults``."""
    async with Runtime.open(arguments.store) as runtime:
        left = _left(runtime)
    if not left:
        return []
    try:
        app = load_app(arguments.app)
    except Fault as fault:
        faults.update(dict.fromkeys(left, fault))
        return []
    async with Runtime.open(arguments.store, app) as runtime:
        known = [run_id for run_id in left if _knows(runtime, run_id, faults)]
        watch = RunWatch(runtime, as_json=False, is_named=True, is_brief=True)
        await watch.during(runtime.runs.work(until_idle=True, on_fault=_say_fault, observer=watch.observe_run))
        due = due_ids(runtime)
        return [
            summary(runtime, (record := runtime.runs.record(run_id)), due)
            | {"exit_code": RunOutcome(run_id, record).exit_code}
            for run_id in known
        ]


def _left(runtime: Runtime) -> list[str]:
    return [run_id for run_id in sorted(due_ids(runtime)) if runtime.log.holder(run_id) is None]


def _knows(runtime: Runtime, run_id: str, faults: dict[str, Fault]) -> bool:
    try:
        runtime.runs.program_of(runtime.runs.record(run_id))
    except Fault as fault:
        faults[run_id] = fault
        return False
    return True


# worker


def worker(arguments: Namespace) -> int:
    """Work on due runs until a signal, or until nothing is due. A signal lets what is under way come to rest first."""
    app = load_app(arguments.app)
    grace_ms = _grace_ms(arguments.grace)
    if arguments.at_once < 1:
        raise UsageFault(f"--at-once is {arguments.at_once}; it is at least 1")

    async def body() -> int:
        async with Runtime.open(arguments.store, app) as runtime:
            watch = RunWatch(runtime, as_json=arguments.json, is_named=True, is_brief=not arguments.verbose)
            store = shown_url(runtime.places.store_url)
            names = ", ".join(f"{one.name} v{one.version}" for one in app.workflows) or "no workflow"
            talk(f"worker {runtime.runs.owner} of {app.name}: {names}; the store is {store}", "dim")
            work = runtime.runs.work(
                at_once=arguments.at_once,
                until_idle=arguments.until_idle,
                on_fault=_say_fault,
                observer=watch.observe_run,
            )
            try:
                await watch.during(work)
            except asyncio.CancelledError:
                await _come_to_rest(runtime, grace_ms)
                raise
            talk("nothing is due", "dim")
            return 0

    try:
        return run_loop(body())
    except Interrupted as end:
        raise Interrupted(end.signum, "stopped; what was under way stands in the log, for whoever comes next") from None


def _say_fault(run_id: str, fault: Exception) -> None:
    """One that ran into a fault is left alone for a while; it keeps nobody else waiting."""
    talk(one_line(f"{run_id} is left alone for a while: {type(fault).__name__}: {fault}", 1000), "red")


def _grace_ms(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as fault:
        raise UsageFault(f"--grace {text!r} is no time: {fault}", hint="--grace 10s") from fault


async def _come_to_rest(runtime: Runtime, grace_ms: int) -> None:
    talk("stopping: no new run is taken, those under way have their grace (a second signal ends at once)", "dim")
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    if not await runtime.runs.rest(grace_ms):
        talk("the grace is over; the rest is cut off, and settled by whoever takes it up", "yellow")
