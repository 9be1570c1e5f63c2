"""Trajectories (and runs) in time: ``resume``, ``recover``, ``undo``, ``rollback``, ``fork``, ``replay``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Coroutine
from typing import Any

from setpoint.app.runtime import Observer, Outcome, Runtime
from setpoint.cli import finding, runs, taskfile, working
from setpoint.cli.account import exit_code, summary
from setpoint.cli.live import Watch, run
from setpoint.cli.running import pursue, say_outcome
from setpoint.cli.terminal import printable, say, say_json, talk
from setpoint.cli.wording import paths_said
from setpoint.kernel.budget import Raised
from setpoint.kernel.errors import Fault, UsageFault
from setpoint.kernel.units import parse_duration_ms, parse_usd_micros


def resume(arguments: Namespace) -> int:
    with finding.opened(arguments) as runtime:
        found = finding.stream(runtime, arguments.id)
    if found.is_run:
        return runs.resume(arguments, found.id)
    name, more = found.id, _more(arguments)

    def body(runtime: Runtime, observer: Observer) -> Coroutine[Any, Any, Outcome]:
        return runtime.resume(name, observer=observer, more=more, by=finding.me())

    return pursue(arguments, body, existing=name)


def _more(arguments: Namespace) -> Raised | None:
    """What the command line adds to the budget; None when it adds nothing. UsageFault for an amount that is none."""
    typed = (arguments.more_turns, arguments.more_tokens, arguments.more_usd, arguments.more_wall)
    if all(amount is None for amount in typed):
        return None
    turns, tokens, usd, wall = typed
    try:
        micros = None if usd is None else parse_usd_micros(usd)
        wall_ms = None if wall is None else parse_duration_ms(wall)
    except ValueError as fault:
        raise UsageFault(f"that is no amount: {fault}", hint="--more-usd 1.50, --more-wall 10m") from fault
    amounts = (turns, tokens, micros, wall_ms)
    if any(amount is not None and amount <= 0 for amount in amounts):
        raise UsageFault("a budget can only be raised: --more-turns and its like take more than nothing")
    return Raised(*(amount or 0 for amount in amounts))


def recover(arguments: Namespace) -> int:
    """Exit 0 when everything that lost its worker is taken up again, whatever it then came to."""

    async def body() -> tuple[list[Outcome], list[dict[str, Any]]]:
        async with Runtime.open(arguments.store) as runtime:
            watch = Watch(runtime, as_json=False)
            outcomes = await watch.during(runtime.recover(observer=watch.observer, on_fault=faults.__setitem__))
        return outcomes, await working.recover(arguments, faults)

    faults: dict[str, Fault] = {}
    outcomes, of_runs = run(body())
    for name, fault in faults.items():
        talk(printable(f"{name} could not be taken up: {fault.message}"))
    if arguments.json:
        said = [summary(o.record, owned=False) | {"exit_code": o.exit_code} for o in outcomes]
        said_not = [{"trajectory_id": name, "message": fault.message} for name, fault in faults.items()]
        say_json({"recovered": said, "recovered_runs": of_runs, "not_recovered": said_not})
        return _worst(faults)
    for outcome in outcomes:
        say_outcome(outcome)
    for one in of_runs:
        say(f"{one['run_id']}  {one['workflow']}  {one['status']}")
    if not outcomes and not of_runs and not faults:
        say("nothing to recover: no trajectory and no run lost its worker")
    return _worst(faults)


def _worst(faults: dict[str, Fault]) -> int:
    return max((fault.exit_code for fault in faults.values()), default=0)


def undo(arguments: Namespace) -> int:
    async def body() -> int:
        async with Runtime.open(arguments.store) as runtime:
            name = finding.trajectory(
                runtime,
                arguments.id,
                lambda record: bool(record.committed) and not record.undone,
                "has no commit that stands; there is nothing to undo",
            )
            receipt = await runtime.undo(name, by=finding.me())
            if arguments.json:
                say_json({"trajectory_id": name, "commit_id": receipt.commit_id, "paths": list(receipt.paths)})
            else:
                say(f"undone: {name}; {len(receipt.paths)} paths are what they were before its commit")
                for path in receipt.paths:
                    say(f"  {paths_said([path])}")
            return 0

    return run(body())


def rollback(arguments: Namespace) -> int:
    async def body() -> int:
        async with Runtime.open(arguments.store) as runtime:
            name = finding.trajectory(runtime, arguments.id)
            outcome = await runtime.rollback(name, arguments.to, by=finding.me())
            if arguments.json:
                say_json(summary(outcome.record, owned=False) | {"savepoint": outcome.record.savepoint})
            else:
                say(f"{name} stands at savepoint {outcome.record.savepoint}")
                talk(f"go on from there with: setpoint resume {name}", "dim")
            return 0

    return run(body())


def fork(arguments: Namespace) -> int:
    models = taskfile.routes(arguments.model)

    async def body() -> tuple[str, str]:
        async with Runtime.open(arguments.store) as runtime:
            name = finding.trajectory(runtime, arguments.id)
            where = taskfile.here() if models else ""
            return name, await runtime.fork(name, arguments.turn, models=models, models_directory=where)

    parent, forked = run(body())
    if arguments.json and not arguments.resume:
        say_json({"trajectory_id": forked, "parent": parent, "turn": arguments.turn})
    elif not arguments.json:
        say(f"{forked} lives again from the end of turn {arguments.turn} of {parent}")
    if arguments.resume:
        arguments.id = forked
        return resume(arguments)
    if not arguments.json:
        talk(f"go on with: setpoint resume {forked}", "dim")
    return 0


def replay(arguments: Namespace) -> int:
    async def body() -> int:
        async with Runtime.open(arguments.store) as runtime:
            name = finding.trajectory(runtime, arguments.id)
            replayed = await runtime.replay(name)
            if arguments.json:
                say_json(
                    {
                        "trajectory_id": name,
                        "events": replayed.events,
                        "decided_again": replayed.compared,
                        "state": replayed.record.state,
                        "exit_code": exit_code(replayed.record),
                    }
                )
            else:
                say(f"replayed {name}: {replayed.compared} of {replayed.events} events decided again, no difference")
            return 0

    return run(body())
