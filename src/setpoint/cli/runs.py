"""One run of a workflow: ``run``, and the part of ``resume`` that is its. What it came to, and what to type next."""

from __future__ import annotations

import asyncio
import json
import re
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from setpoint.app.app_loading import load_app
from setpoint.app.asking import approvers_of, unanswerable
from setpoint.app.runs import RunOutcome
from setpoint.app.runtime import Runtime
from setpoint.cli import finding
from setpoint.cli.live import run as run_loop
from setpoint.cli.run_account import quoted, waits_of
from setpoint.cli.run_live import RunWatch, until_said
from setpoint.cli.terminal import Interrupted, one_line, printable, read_input, say_json, talk
from setpoint.cli.wording import counted
from setpoint.engine.runs.journal import read_run
from setpoint.engine.runs.program import ChildCode, Program
from setpoint.kernel.contract import ApprovalRule
from setpoint.kernel.errors import ConflictFault, LeaseLost, UsageFault
from setpoint.kernel.flow import Approval, ApprovalTerms, Call, walk
from setpoint.kernel.keys import digest_bytes
from setpoint.kernel.run_record import RunRecord

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
        warn_of_nobody(runtime, app, workflow.program, principal)
        run_id = await runtime.start(
            workflow, given, run_id=arguments.id or "", principal=principal, scopes=tuple(arguments.scope or ())
        )
        _refuse_another(runtime, run_id, workflow.name, workflow.begin(given)[0])
        return run_id

    return work_on(arguments, app, begin, is_new=True)


def warn_of_nobody(runtime: Runtime, app: App, program: Program, principal: str) -> None:
    """Say beforehand which approvals nobody in the roster could give. The run starts all the same: it may never come
    there, and people can be added while it waits."""
    now = runtime.clock.now_ms()
    everybody = approvers_of(runtime.places, app.approvers)
    said: set[tuple[str, ...]] = set()
    for path, terms in _asking(program):
        people = [one for one in everybody if one.name != principal]  # who asks never approves
        rule = ApprovalRule("", terms.by, terms.quorum, terms.expires_ms, terms.each_role)
        why = unanswerable(rule, people, now)
        if why and terms.by not in said:
            said.add(terms.by)
            beside = f" beside {principal}, who asks" if len(people) < len(everybody) else ""
            talk(printable(f"{path} may ask people, and {why}{beside}. Name them before its time is over:"), "yellow")
            add = f"setpoint approvers add NAME --role {quoted(terms.by[0])} --key PUB"
            talk(f"  {add}", "yellow")


def _asking(program: Program) -> Iterator[tuple[str, ApprovalTerms]]:
    """Every node that asks people, those of the workflows it starts included."""
    for path, node in walk(program.definition.body, program.definition.name):
        if isinstance(node, Approval):
            yield path, node.terms
        elif isinstance(node, Call) and node.approval is not None:
            yield path, node.approval
    for code in program.code.values():
        if isinstance(code, ChildCode):
            yield from _asking(code.program)


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


# resume


def resume(arguments: Namespace, run_id: str) -> int:
    """Go on with a run where its log ends; a paused one is resumed."""
    refuse_budget(arguments)
    app = load_app(arguments.app)

    async def begin(runtime: Runtime) -> str:
        runtime.runs.resume(run_id, by=finding.me())
        return run_id

    return work_on(arguments, app, begin)


def refuse_budget(arguments: Namespace) -> None:
    for name in ("more_turns", "more_tokens", "more_usd", "more_wall"):
        if getattr(arguments, name, None) is not None:
            raise UsageFault(f"a run has no budget to raise; --{name.replace('_', '-')} is for trajectories")


__all__ = ["again", "context", "json_value", "refuse_budget", "resume", "run", "work_on"]
