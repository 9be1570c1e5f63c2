"""Outside effects over all runs: ``effects list``, ``effects settle``."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs

from setpoint.app.app_loading import runs_without_code
from setpoint.app.runs import KIND
from setpoint.app.runtime import Runtime
from setpoint.cli import finding
from setpoint.cli.run_account import RunAccount, open_runs, quoted, read_account
from setpoint.cli.run_effects import Made, effects_of
from setpoint.cli.runs import again, json_value
from setpoint.cli.terminal import one_line, printable, say, say_json, styled, table, talk
from setpoint.cli.wording import age
from setpoint.engine.runs.journal import read_run
from setpoint.kernel.errors import LogCorrupt, UsageFault
from setpoint.kernel.flow import Call, is_below, read_definition, walk
from setpoint.kernel.run_record import Effect, RunRecord

EXIT_CORRUPT: Final = 19
_STYLES: Final = {"unknown": "red", "queued": "yellow", "pending": "yellow", "not_sent": "yellow", "undone": "dim"}


def effects_list(arguments: Namespace) -> int:
    """Effects of runs that are not over; with --open those that are not settled, with --all those of every run."""
    faults: list[LogCorrupt] = []
    with finding.opened(arguments) as runtime:
        listed = [
            _document(account, made)
            for account in _accounts(runtime, arguments, faults)
            for made in effects_of(account.facts)
            if made.is_open or not arguments.open
        ]
        now = runtime.clock.now_ms()
    if arguments.json:
        say_json({"effects": listed})
    elif listed:
        rows = [
            (
                one["key"],
                one["capability"],
                one["node"],
                one["run_id"],
                one["status"],
                str(one["attempts"]),
                age(one["at"], now),
                one_line(one["message"], 200),
            )
            for one in listed
        ]
        head = ("KEY", "CAPABILITY", "NODE", "RUN", "STATUS", "ATTEMPTS", "AGE", "SAID")
        header, *lines = table(head, rows)
        say(header)
        for one, line in zip(listed, lines, strict=True):
            say(styled(line, _STYLES.get(one["status"], "")))
        _say_unknown(listed)
    else:
        talk("no effect" + (" is open" if arguments.open else " of an open run; --all shows those of every run"), "dim")
    for fault in faults:
        talk(printable(f"left out: {fault.message}"), "red")
    return EXIT_CORRUPT if faults else 0


def _say_unknown(listed: list[dict[str, Any]]) -> None:
    unknown = [one["key"] for one in listed if one["status"] == "unknown"]
    if unknown:
        talk(f"setpoint effects settle {quoted(unknown[0])} --happened --result JSON, or --not-happened", "dim")


def _accounts(runtime: Runtime, arguments: Namespace, faults: list[LogCorrupt]) -> Iterator[RunAccount]:
    if arguments.all:
        names = [info.stream for info in runtime.log.streams(KIND) if info.seq > 0]
    else:
        names = [record.run_id for record in open_runs(runtime, faults)]
    for name in names:
        try:
            yield read_account(runtime, name)
        except LogCorrupt as fault:
            faults.append(fault)


def _document(account: RunAccount, made: Made) -> dict[str, Any]:
    return {
        "key": made.key,
        "capability": made.capability,
        "effect": made.effect or None,
        "node": made.node,
        "run_id": account.run_id,
        "workflow": account.record.workflow,
        "status": made.status,
        "how": made.how or None,
        "attempts": len(made.attempts),
        "at": made.attempts[-1].at if made.attempts else made.at,
        "message": made.message,
        "holder": made.holder or None,
        "compensates": made.compensates or None,
        "arguments": account.value(made.arguments),
        "result": account.value(made.result),
    }


# settle


def settle(arguments: Namespace) -> int:
    """A person says what became of an effect that nobody could tell, or hands in the report that one waits for."""
    result = None if arguments.result is None else json_value(arguments.result, "--result")
    if result is not None and arguments.not_happened:
        raise UsageFault("what did not happen has no result; leave --result out")
    with finding.opened(arguments) as runtime:
        record, effect = _effect(runtime, arguments)
        if arguments.happened:
            _refuse_misfit(runtime, record, effect, result)
        if effect.status == "pending" and not record.is_terminal:
            action, argument = _report(effect, arguments, result)
        else:
            verdict = "happened" if arguments.happened else "not_happened"
            action = "settle"
            argument = {"key": effect.key, "verdict": verdict, "result": result, "message": arguments.reason}
        if record.is_terminal:
            asyncio.run(_settle_ended(runtime, record, effect, arguments, result))
        else:
            runs_without_code(runtime).tell(record.run_id, action, argument, by=finding.me())
        is_owned = runtime.is_owned(record.run_id)
    told = {
        "key": effect.key,
        "run_id": record.run_id,
        "node": effect.node,
        "verdict": "happened" if arguments.happened else "not_happened",
        "next": None if is_owned or record.is_terminal else f"setpoint resume {record.run_id}",
    }
    if arguments.json:
        say_json(told)
        return 0
    word = "happened" if arguments.happened else "did not happen"
    after = "the run goes on" if arguments.happened or effect.compensates else "it may be sent again"
    if record.is_terminal:
        after = "its key stands for it" if arguments.happened else "its key is free again"
    say(printable(f"{effect.key} of {record.run_id} {word}, says {finding.me()}: {after}"))
    if told["next"] and not record.is_terminal:
        talk(f"  nobody works on it now; a worker takes it up, or: {again(arguments, record.run_id)}", "dim")
    return 0


async def _settle_ended(runtime: Runtime, record: RunRecord, effect: Effect, arguments: Namespace, result: Any) -> None:
    verdict = "happened" if arguments.happened else "not_happened"
    runs = runs_without_code(runtime)
    await runs.settle_ended(
        record.run_id, effect.key, verdict, by=finding.me(), result=result, message=arguments.reason or ""
    )


def _report(effect: Effect, arguments: Namespace, result: Any) -> tuple[str, dict[str, Any]]:
    if not arguments.happened:
        raise UsageFault(
            f"{effect.key} was accepted by the other side, which reports later; nothing was settled",
            hint="When its time is up it is looked for. What did happen is settled with --happened --result JSON.",
        )
    return "result", {"key": effect.key, "result": result}


def _effect(runtime: Runtime, arguments: Namespace) -> tuple[RunRecord, Effect]:
    """The one effect of that key that a person can settle. UsageFault names the others, or what there is."""
    open_ones = _open_effects(runtime, arguments)
    found = [
        (record, effect)
        for record, effect in open_ones
        if arguments.key in (effect.key, effect.claim) and _can_settle(record, effect, arguments)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(f"{effect.claim} of {record.run_id}" for record, effect in found)
        raise UsageFault(
            f"{len(found)} effects have the key {arguments.key!r}: {places}; nothing was settled",
            hint="Say which: --run RUN, or its capability too, as CAPABILITY:KEY.",
        )
    same = [
        f"{effect.status} in {record.run_id}"
        for record, effect in open_ones
        if arguments.key in (effect.key, effect.claim)
    ]
    settled = f"; it is {', '.join(same)}" if same else ""
    raise UsageFault(
        f"no effect with the key {arguments.key!r} waits to be settled{settled}",
        hint="`setpoint effects list --open` lists those that do.",
    )


def _can_settle(record: RunRecord, effect: Effect, arguments: Namespace) -> bool:
    """Whether a person has something to say of it: what became of it, or the result that its node could not use."""
    made = effect.status == "happened" and not effect.compensates and not record.is_terminal
    left = record.is_terminal and effect.status == "queued"
    return effect.status in ("unknown", "pending") or left or (made and arguments.happened)


def _open_effects(runtime: Runtime, arguments: Namespace) -> list[tuple[RunRecord, Effect]]:
    if arguments.run is not None:
        records = [read_run(runtime.log, finding.run_id(runtime, arguments.run))[0]]
    else:
        records = list(open_runs(runtime, []))
    return [(record, effect) for record in records for effect in record.effects.values()]


def _refuse_misfit(runtime: Runtime, record: RunRecord, effect: Effect, result: Any) -> None:
    """A result the workflow could not take would only stop it at that node: it is refused here, with what it takes."""
    if effect.compensates:
        return
    assert record.definition is not None
    definition = read_definition(runtime.log.payload(record.definition.ref))
    for static, node in walk(definition.body, record.workflow):
        if isinstance(node, Call) and is_below(static, effect.node):
            schema = node.capability.result
            problem = next(iter(jsonschema_rs.validator_for(schema).iter_errors(result)), None) if schema else None
            if problem is not None:
                given = "no --result was given" if result is None else f"the result {result!r} does not fit"
                raise UsageFault(
                    f"{given}: {effect.capability} {problem.message}; nothing was settled",
                    hint=f"It takes JSON of this schema: {one_line(str(schema), 600)}",
                )
