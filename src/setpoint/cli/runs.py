"""Runs of workflows: ``run``, ``worker``, ``signal``, and the part of ``resume`` and ``recover`` that is theirs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from setpoint.app.app_loading import app_name, load_app, runs_without_code
from setpoint.app.runs import RunOutcome
from setpoint.app.runtime import Runtime
from setpoint.cli import finding
from setpoint.cli.live import run as run_loop
from setpoint.cli.run_account import due_ids, quoted, summary, waits_of
from setpoint.cli.run_live import RunWatch, until_said
from setpoint.cli.terminal import Interrupted, one_line, printable, read_input, say, say_json, talk
from setpoint.cli.wording import shown_url
from setpoint.engine.runs.journal import read_run
from setpoint.kernel.errors import ConflictFault, Fault, IllegalTransition, LeaseLost, UsageFault
from setpoint.kernel.flow import WaitFor, read_definition, walk
from setpoint.kernel.keys import digest_bytes
from setpoint.kernel.run_record import RunRecord
from setpoint.kernel.units import parse_duration_ms

if TYPE_CHECKING:
    from setpoint.app.application import App

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
FOLLOW_S: Final = 0.1
"""How long it may take to see that another worker let go of a run; a look costs one indexed read."""
Begin = Callable[[Runtime], Awaitable[str]]
"""Says, and where needed first makes, the run that is worked on."""


# run


def run(arguments: Namespace) -> int:
    """Exit with the code of what the run came to; its output is on stdout."""
    app = load_app(arguments.app)
    workflow = app.newest(arguments.workflow)
    given = json_value(arguments.input, "--input")
    if arguments.id is not None and not _ID.fullmatch(arguments.id):
        raise UsageFault(
            f"{arguments.id!r} is no id for a run: letters, digits, . _ : @ - and at most 128 of them; nothing was done"
        )

    async def begin(runtime: Runtime) -> str:
        principal = arguments.principal if arguments.principal is not None else finding.me()
        run_id = await runtime.start(
            workflow, given, run_id=arguments.id or "", principal=principal, scopes=tuple(arguments.scope or ())
        )
        _refuse_another(runtime, run_id, workflow.name, workflow.begin(given)[0])
        return run_id

    return work_on(arguments, app, begin, is_new=True)


def _refuse_another(runtime: Runtime, run_id: str, workflow: str, given: dict[str, Any]) -> None:
    """ConflictFault when the id of the command line is that of another run: an id again is the same run again."""
    record, _ = read_run(runtime.log, run_id)
    encoded = digest_bytes(msgspec.json.encode(given, order="sorted"))
    if record.workflow != workflow or record.input is None or record.input.ref != encoded:
        raise ConflictFault(
            f"{run_id} is a run of {record.workflow} already"
            + ("" if record.workflow != workflow else ", with another input")
            + "; nothing was started",
            hint=f"Take another --id, or look at that one: setpoint describe {run_id}",
        )


def json_value(text: str, what: str) -> Any:
    """The JSON of an argument: itself, ``@FILE``, or ``-`` for stdin. UsageFault says where it is wrong."""
    source = what
    if text == "-" or text.startswith("@"):
        source = "stdin" if text == "-" else text[1:]
        text = read_input(source if text != "-" else "-", what).decode("utf-8", "replace")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as fault:
        raise UsageFault(
            f"{source} is no JSON: {fault}", hint=f'{what} \'{{"order_id": "A-1"}}\', {what} @file.json, or {what} -'
        ) from fault


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


# Working on one run


def work_on(arguments: Namespace, app: App, begin: Begin, *, is_new: bool = False) -> int:
    """Work on a run with its events shown, say what it came to, and return its exit code."""
    named: list[str] = []

    async def body() -> int:
        async with Runtime.open(arguments.store, app) as runtime:
            watch = RunWatch(runtime, as_json=arguments.json)
            run_id = await begin(runtime)
            named.append(run_id)
            if not is_new or arguments.json:
                _begin_showing(watch, runtime, run_id, is_new)
            record, _ = read_run(runtime.log, run_id)
            talk(f"{run_id}  {record.workflow} version {record.version}  for {printable(record.principal) or 'nobody'}")
            working = _wait_or_follow if is_new else _wait
            outcome = await watch.during(working(runtime, watch, run_id))
            say_outcome(arguments, runtime, outcome)
            return outcome.exit_code

    try:
        return run_loop(body())
    except Interrupted as end:
        left = f"; {named[0]} stands where its log ends. Go on with: {again(arguments, named[0])}" if named else ""
        raise Interrupted(end.signum, f"interrupted{left}") from None


async def _wait(runtime: Runtime, watch: RunWatch, run_id: str) -> RunOutcome:
    return await runtime.runs.wait(run_id, observer=watch.observe_run)


async def _wait_or_follow(runtime: Runtime, watch: RunWatch, run_id: str) -> RunOutcome:
    """As ``_wait``; where a worker on the same store was faster, see what it does until it lets go of the run."""
    while True:
        try:
            return await _wait(runtime, watch, run_id)
        except LeaseLost:
            talk(f"{run_id} is worked on by another process already; this one waits for it", "dim")
            while runtime.is_owned(run_id):
                await asyncio.sleep(FOLLOW_S)
                watch.look()


def _begin_showing(watch: RunWatch, runtime: Runtime, run_id: str, is_new: bool) -> None:
    """A new run is shown from its first event on, one that goes on from where it is now."""
    if is_new:
        watch.start_before_all(run_id)
    else:
        watch.start_after(run_id)


def again(arguments: Namespace, run_id: str) -> str:
    """The command that takes the run up, with what this command line had to be told."""
    return f"setpoint resume {run_id}{context(arguments)}"


def context(arguments: Namespace) -> str:
    """The options that name application and store, where they were typed."""
    app, store = getattr(arguments, "app", None), arguments.store
    return (f" --app {quoted(app)}" if app else "") + (f" --store {quoted(store)}" if store else "")


def say_outcome(arguments: Namespace, runtime: Runtime, outcome: RunOutcome) -> None:
    """The output of a completed run on stdout; on stderr what it came to, what it waits for, and what to type next."""
    record = outcome.record
    if record.state == "COMPLETED" and not arguments.json:
        say_json(outcome.output)
    for line, style in outcome_lines(runtime, record, arguments):
        talk(printable(line), style)
    if not record.is_terminal and record.state != "PAUSED":  # a paused one is resumed, and nothing else goes on
        talk(f"  go on afterwards: {again(arguments, record.run_id)}, or a worker does", "dim")
    elif outcome.exit_code:
        talk(f"  setpoint why {record.run_id}  says more", "dim")


def outcome_lines(runtime: Runtime, record: RunRecord, arguments: Namespace) -> list[tuple[str, str]]:
    head = f"{record.run_id}: {{}} after {counted(record.step, 'node')}, {counted(record.effects_made, 'effect')}"
    if record.is_terminal:
        style = {"COMPLETED": "green", "FAILED": "red"}.get(record.state, "yellow")
        said = record.state.lower()
        lines = [(head.format(said), style)]
        if record.message:
            lines.append((f"  {record.reason}: {one_line(record.message, 1000)}", style))
        return lines
    return [(head.format("it waits"), "yellow"), *((line, "") for line in wait_lines(runtime, record, arguments))]


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def wait_lines(runtime: Runtime, record: RunRecord, arguments: Namespace) -> list[str]:
    """What it waits for, one line each, and below it the commands that end the wait, as they are to be typed here."""
    store = f" --store {quoted(arguments.store)}" if arguments.store else ""
    now = runtime.clock.now_ms()
    lines: list[str] = []
    for one in waits_of(runtime, record):
        until = f" {until_said(one['until_ms'], now)}" if one["until_ms"] else ""
        at = f" at {one['node']}" if one["node"] else ""
        what = "paused" if one["kind"] == "pause" else one["kind"]
        lines.append(f"  {what}{at}: {one_line(one['for'], 500)}{until}; it is up to {one['who']}")
        for command in one["next"] if one["kind"] not in ("timer", "retry") else ():
            lines.append(f"    {command}{context(arguments) if command.startswith('setpoint resume') else store}")
    return lines


# resume, recover


def resume(arguments: Namespace, run_id: str) -> int:
    """Go on with a run where its log ends; a paused one is resumed."""
    refuse_budget(arguments)
    app = load_app(arguments.app)

    async def begin(runtime: Runtime) -> str:
        record, _ = read_run(runtime.log, run_id)
        if record.state == "PAUSED":
            runtime.runs.tell(run_id, "resume", by=finding.me())
        return run_id

    return work_on(arguments, app, begin)


def refuse_budget(arguments: Namespace) -> None:
    for name in ("more_turns", "more_tokens", "more_usd", "more_wall"):
        if getattr(arguments, name, None) is not None:
            raise UsageFault(f"a run has no budget to raise; --{name.replace('_', '-')} is for trajectories")


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


# signal, and what people ask of a run


def signal(arguments: Namespace) -> int:
    """Leave a signal in the inbox of a run. One its workflow waits for nowhere is refused."""
    payload = None if arguments.payload is None else json_value(arguments.payload, "--payload")
    with finding.opened(arguments) as runtime:
        run_id = finding.run_id(runtime, arguments.run)
        record, _ = read_run(runtime.log, run_id)
        _refuse_unheard(runtime, record, arguments.name)
        said: dict[str, Any] = {"name": arguments.name}
        if payload is not None:
            said["payload"] = payload
        key = f"signal:{arguments.key}" if arguments.key else ""
        is_new = runs_without_code(runtime).tell(run_id, "signal", said, by=finding.me(), key=key)
        waits = any(wait.kind == "signal" and wait.name == arguments.name for wait in record.waits.values())
        is_owned = runtime.is_owned(run_id)
    told = {"run_id": run_id, "signal": arguments.name, "delivered": is_new, "awaited": waits}
    if arguments.json:
        say_json(told)
        return 0
    if not is_new:
        say(f"a signal with the key {printable(arguments.key)} came to {run_id} before; nothing was added")
        return 0
    say(f"signal {printable(arguments.name)} delivered to {run_id}" + ("" if waits else "; no node waits for it yet"))
    if not is_owned:
        say(f"  nobody works on it now; a worker takes it up, or: {again(arguments, run_id)}")
    return 0


def _refuse_unheard(runtime: Runtime, record: RunRecord, name: str) -> None:
    if record.is_terminal:
        raise IllegalTransition(f"run {record.run_id} is {record.state} already; a signal does not apply")
    assert record.definition is not None
    definition = read_definition(runtime.log.payload(record.definition.ref))
    heard = sorted({node.signal for _, node in walk(definition.body, "") if isinstance(node, WaitFor)})
    if name not in heard:
        raise UsageFault(
            f"{record.workflow} waits for no signal {name!r}; nothing was sent",
            hint=f"It waits for: {', '.join(heard) or 'none at all'}. A run it has started has signals of its own.",
        )


_WHEN_OWNED: Final = {
    "pause": "it pauses before its next node",
    "cancel": "it stops before its next node, and what it did is taken back",
    "kill": "it ends at once; nothing is taken back",
}


async def ask(arguments: Namespace, run_id: str, action: str) -> tuple[RunRecord, str]:
    """Request pause, cancel or kill of a run, and carry it out here where nobody works on it. The words say which."""
    app = _app_if_named(arguments) if action == "cancel" else None
    async with Runtime.open(arguments.store, app) as runtime:
        record, _ = read_run(runtime.log, run_id)
        if record.is_terminal:
            raise IllegalTransition(f"run {run_id} is {record.state} already; {action} does not apply")
        knows = app is not None and record.definition_digest in runtime.runs.programs
        runs = runtime.runs if knows else runs_without_code(runtime, record)
        runs.tell(run_id, action, arguments.reason, by=finding.me())
        if runtime.is_owned(run_id):
            return record, _WHEN_OWNED[action]
        if not knows and not _can_do_without_code(record, action):
            word = again(arguments, run_id)
            return record, f"nobody works on it now; its application takes it back with: {word}, or a worker does"
        try:
            outcome = await runs.go_on(run_id)
        finally:
            await runs.close()
        if action == "kill":
            await _kill_children(runtime, outcome.record)
        said = f"it is {outcome.record.state.lower()}"
        return outcome.record, said if outcome.record.is_terminal or action == "pause" else f"{said}; it waits"


def _app_if_named(arguments: Namespace) -> App | None:
    return load_app(arguments.app) if app_name(arguments.app) is not None else None


def _can_do_without_code(record: RunRecord, action: str) -> bool:
    """Whether no code of the application is needed: nothing has to be looked for or taken back."""
    if action == "kill":
        return True
    if action == "pause":
        return record.state == "RUNNING"
    return record.state in ("RUNNING", "PAUSED") and not (record.undo or record.effects or record.children)


async def _kill_children(runtime: Runtime, record: RunRecord) -> None:
    """A killed run has asked its children to end; those that nobody works on are ended here."""
    for child in record.children.values():
        with contextlib.suppress(UsageFault):  # one that was never started
            child_record, _ = read_run(runtime.log, child)
            if child_record.is_terminal or runtime.is_owned(child):
                continue
            runs = runs_without_code(runtime, child_record)
            ended = await runs.go_on(child)
            await runs.close()
            await _kill_children(runtime, ended.record)


__all__ = ["ask", "recover", "resume", "run", "signal", "work_on", "worker"]
