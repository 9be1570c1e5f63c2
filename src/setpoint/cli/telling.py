"""What a run is told: ``signal``, and what ``pause``, ``cancel`` and ``kill`` do to it."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final

from setpoint.app.app_loading import app_name, load_app, runs_without_code
from setpoint.app.runtime import Runtime
from setpoint.cli import finding
from setpoint.cli.runs import again, json_value
from setpoint.cli.terminal import printable, say, say_json
from setpoint.engine.runs.journal import read_run
from setpoint.kernel.errors import IllegalTransition, UsageFault
from setpoint.kernel.flow import WaitFor, read_definition, walk
from setpoint.kernel.run_record import RunRecord

if TYPE_CHECKING:
    from setpoint.app.application import App


# signal, and what people ask of a run


def signal(arguments: Namespace) -> int:
    """Leave a signal in the inbox of a run. One its workflow waits for nowhere is refused."""
    payload = None if arguments.payload is None else json_value(arguments.payload, "--payload")
    with finding.opened(arguments) as runtime:
        run_id = finding.run_id(runtime, arguments.run)
        record, _ = read_run(runtime.log, run_id)
        key = f"signal:{arguments.key}" if arguments.key else ""
        came_before = bool(key) and any(one == key for _, one, _ in runtime.log.inbox(run_id))
        if not came_before:  # one that is sent again, as the senders of webhooks do, is no fault, whatever came since
            _refuse_unheard(runtime, record, arguments.name)
        said: dict[str, Any] = {"name": arguments.name}
        if payload is not None:
            said["payload"] = payload
        is_new = not came_before and runs_without_code(runtime).tell(run_id, "signal", said, by=finding.me(), key=key)
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
