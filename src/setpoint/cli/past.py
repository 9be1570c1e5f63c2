"""A trajectory in time: ``resume``, ``recover``, ``undo``, ``rollback``, ``fork``, ``replay``."""

from __future__ import annotations

from argparse import Namespace

from setpoint.app.runtime import Outcome, Runtime
from setpoint.cli import finding, taskfile
from setpoint.cli.account import exit_code, summary
from setpoint.cli.live import Watch, run
from setpoint.cli.running import pursue, say_outcome
from setpoint.cli.terminal import printable, say, say_json, talk


def resume(arguments: Namespace) -> int:
    with finding.opened(arguments) as runtime:
        name = finding.trajectory(runtime, arguments.id)
    return pursue(arguments, lambda runtime, observer: runtime.resume(name, observer=observer), existing=name)


def recover(arguments: Namespace) -> int:
    """Exit 0 when everything that lost its worker is taken up again, whatever it then came to."""

    async def body() -> list[Outcome]:
        async with Runtime.open(arguments.store) as runtime:
            watch = Watch(runtime, as_json=False)
            return await watch.during(runtime.recover(observer=watch.observer))

    outcomes = run(body())
    if arguments.json:
        said = [summary(o.record, owned=False) | {"exit_code": o.exit_code} for o in outcomes]
        say_json({"recovered": said})
        return 0
    for outcome in outcomes:
        say_outcome(outcome)
    if not outcomes:
        say("nothing to recover: no trajectory lost its worker")
    return 0


def undo(arguments: Namespace) -> int:
    async def body() -> int:
        async with Runtime.open(arguments.store) as runtime:
            name = finding.trajectory(runtime, arguments.id, lambda r: bool(r.committed) and not r.undone)
            receipt = await runtime.undo(name, by=finding.me())
            if arguments.json:
                say_json({"trajectory_id": name, "commit_id": receipt.commit_id, "paths": list(receipt.paths)})
            else:
                say(f"undone: {name}; {len(receipt.paths)} paths are what they were before its commit")
                for path in receipt.paths:
                    say(printable(f"  {path}"))
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
