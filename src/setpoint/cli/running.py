"""Pursue a task: ``diff``, ``plan``, ``apply``, ``converge``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Coroutine
from typing import Any

from setpoint.app.planning import Plan, read_plan
from setpoint.app.runtime import Observer, Outcome, Runtime
from setpoint.cli import finding, taskfile
from setpoint.cli.account import delta_item, progress_of
from setpoint.cli.live import Progress, Watch, run
from setpoint.cli.terminal import (
    Interrupted,
    printable,
    read_input,
    say,
    say_bytes,
    say_json,
    styled,
    table,
    talk,
    write_output,
)
from setpoint.cli.wording import dollars, open_ticket, paths_said, progress_said, span
from setpoint.engine.journal import timestamp
from setpoint.kernel.contract import Task
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.events import Event, EvidenceRecorded
from setpoint.kernel.record import Record

DIFF_BYTES_MAX = 1 << 20
"""A diff is for people; a larger one is cut with a note."""
Work = Callable[[Runtime, Observer], Coroutine[Any, Any, Outcome]]


def pursue(arguments: Namespace, work: Work, *, existing: str | None = None) -> int:
    """Do ``work`` with its events shown, say what it came to, and return its exit code."""
    watches: list[Watch] = []

    async def body() -> int:
        async with Runtime.open(arguments.store) as runtime:
            watch = Watch(runtime, as_json=arguments.json)
            watches.append(watch)
            if existing is not None:
                watch.start_after(existing)
            outcome = await watch.during(work(runtime, watch.observer))
            if not arguments.json:
                say_outcome(outcome)
            return outcome.exit_code

    try:
        return run(body())
    except Interrupted as end:
        name = watches[0].trajectory_id if watches else ""
        left = f"; {name} stands where its log ends. Go on with: setpoint resume {name}" if name else ""
        raise Interrupted(end.signum, f"interrupted{left}") from None


def say_outcome(outcome: Outcome) -> None:
    """What a pursuit came to, on stdout."""
    record = outcome.record
    word, style = _word(outcome)
    message = record.finished_message or (record.question.question if record.question else _waiting(record))
    say(styled(f"{word}  {record.name}: ", style) + printable(message).replace("\n", "\n  | "))
    rows = [("trajectory", outcome.trajectory_id), ("delta", f"{progress_said(record.progress)}{_open(record)}")]
    if record.committed and not record.undone:
        rows.append(("changed", paths_said(record.paths)))
    if record.certificate is not None:
        rows.append(("certificate", f"{record.certificate.ref} (setpoint certificate show)"))
    spent = record.spent
    used = f"{record.turn} turns, {spent.tokens} tokens, ${dollars(spent.usd_micros)}, {span(spent.elapsed_ms)}"
    rows += [("spent", used), ("exit", str(outcome.exit_code))]
    for name, value in rows:
        say(f"  {name.ljust(11)} {printable(value)}")
    if outcome.exit_code:
        talk(f"setpoint why {outcome.trajectory_id}  says why, and what can be done", "dim")


def _word(outcome: Outcome) -> tuple[str, str]:
    record = outcome.record
    if record.is_terminal:
        return {"COMPLETED": ("converged", "green"), "CANCELLED": ("cancelled", "yellow")}.get(
            record.state, ("failed", "red")
        )
    waits = record.question is not None or record.state == "PAUSED" or open_ticket(record) is not None
    return ("waiting", "yellow") if waits else ("open", "yellow")


def _waiting(record: Record) -> str:
    if (ticketed := open_ticket(record)) is not None:
        until = timestamp(ticketed.expires_at_ms)
        return f"for people's yes to {ticketed.ticket_id} until {until} (setpoint approve {ticketed.ticket_id})"
    return f"paused{f' ({record.pause_reason})' if record.pause_reason else ''}"


def _open(record: Record) -> str:
    return f" (open: {', '.join(item.address for item in record.items)})" if record.items else ""


def converge(arguments: Namespace) -> int:
    if arguments.watch:
        raise UsageFault("`converge --watch` is not in this release", hint="Run `setpoint converge` again instead.")
    task = taskfile.task(arguments)
    models = taskfile.routes(arguments.model)
    where = taskfile.here() if models else None
    return pursue(
        arguments,
        lambda runtime, observer: runtime.converge(
            task, models=models or None, models_directory=where, observer=observer
        ),
    )


def apply(arguments: Namespace) -> int:
    plan = read_plan(read_input(arguments.plan, "the plan"))
    return pursue(arguments, lambda runtime, observer: runtime.apply(plan, observer=observer))


def diff(arguments: Namespace) -> int:
    if arguments.staged:
        return _staged(arguments)
    if arguments.id is not None:
        raise UsageFault("an ID goes with --staged; the delta of a workspace is asked for by its task file, with -f")
    task = taskfile.task(arguments)
    levels: dict[str, str] = {}

    async def body() -> Record:
        async with Runtime.open(arguments.store) as runtime:
            return await runtime.measure(task, observer=_levels_into(levels))

    record = run(body())
    if arguments.json:
        say_json(_diff_document(task, record, levels))
    elif not record.items:
        say(f"no delta: {task.name} is met by the workspace as it is ({len(levels)} checks)")
    else:
        rows = [
            (item.address, str(item.distance), levels.get(item.address, "-"), item.verdict, item.reason)
            for item in record.items
        ]
        for line in table(("ITEM", "DISTANCE", "LEVEL", "VERDICT", "REASON"), rows):
            say(line)
        talk(f"delta {progress_said(record.progress)} (hard violations / unmet criteria / distance)", "dim")
    return _detailed(arguments, bool(record.items))


def _staged(arguments: Namespace) -> int:
    """What a trajectory holds ready: of one that waits or was interrupted, or whose commit met a conflict."""
    with finding.opened(arguments) as runtime:
        name = finding.trajectory(runtime, arguments.id)
        record, _ = runtime.record(name)
        if runtime.is_owned(name):
            raise UsageFault(f"{name} is being worked on; its staged state is not still", hint=f"setpoint pause {name}")
        if record.is_terminal and record.finished_reason != "Conflict":
            raise UsageFault(f"{name} is {record.state}; it holds nothing staged", hint=f"setpoint describe {name}")
        text = _staged_diff(runtime, record)
    if arguments.json:
        document = {"trajectory_id": name, "savepoint": record.savepoint, "changed": list(record.paths), "diff": text}
        say_json(document)
    elif text:
        say(printable(text.rstrip("\n")))
    return _detailed(arguments, bool(record.changed))


def _staged_diff(runtime: Runtime, record: Record) -> str:
    if not record.savepoint:
        return ""
    workspace = runtime.equipment.workspace(runtime.task_of(record), record.trajectory_id)
    try:
        return workspace.diff(DIFF_BYTES_MAX)
    finally:
        workspace.close(keep_staged=True)


def _levels_into(levels: dict[str, str]) -> Observer:
    def observe(turn: int, event: Event, record: Record) -> None:
        if isinstance(event, EvidenceRecorded):
            levels[event.check] = event.level

    return observe


def _diff_document(task: Task, record: Record, levels: dict[str, str]) -> dict[str, Any]:
    return {
        "task": task.name,
        "task_digest": task.digest,
        "workspace": record.workspace or task.environment.workspace,
        "fingerprint": record.measured,
        "progress": progress_of(record),
        "distance": sum(item.distance for item in record.items),
        "items": [delta_item(item) | {"level": levels.get(item.address)} for item in record.items],
    }


def plan(arguments: Namespace) -> int:
    task = taskfile.task(arguments)
    models = taskfile.routes(arguments.model)
    where = taskfile.here() if models else None
    progress = Progress()

    async def body() -> Plan:
        async with Runtime.open(arguments.store) as runtime:
            return await runtime.plan(task, models=models or None, models_directory=where, observer=progress.see)

    try:
        made = run(body())
    finally:
        progress.close()
    if arguments.output == "-":
        say_bytes(made.encode())
        return _detailed(arguments, bool(made.items) or bool(made.changed))
    if arguments.output is not None:
        write_output(arguments.output, made.encode())
        talk(f"plan written: setpoint apply {arguments.output}")
    if arguments.json:
        say_bytes(made.encode())
    else:
        _say_plan(made)
    return _detailed(arguments, bool(made.items) or bool(made.changed))


def _say_plan(made: Plan) -> None:
    before = progress_said(made.progress_before) if made.progress_before else "-"
    say(f"{made.outcome.replace('_', ' ')}  {made.task}: delta {before} -> {progress_said(made.progress_after)}")
    for item in made.items:
        say(printable(f"  open  {item.address}: {item.verdict}, {item.reason or f'distance {item.distance}'}"))
    for note in made.notes:
        say(printable(f"  note  {note}"))
    if made.diff:
        say(printable(made.diff.rstrip("\n")))


def _detailed(arguments: Namespace, has_delta: bool) -> int:
    return 10 if has_delta and arguments.detailed_exitcode else 0
