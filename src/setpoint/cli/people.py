"""People and a trajectory: ``answer``, ``pause``, ``cancel``, ``kill``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from setpoint.app.runtime import Runtime
from setpoint.cli import finding
from setpoint.cli.live import run
from setpoint.cli.terminal import printable, say, say_json
from setpoint.cli.wording import status
from setpoint.kernel.errors import UsageFault


def answer(arguments: Namespace) -> int:
    """Leave the answer in the mailbox; whoever owns the trajectory takes it, else ``resume`` does.

    When nothing was asked, the words are the operator's own: a note of the next turn's prompt.
    """
    if len(arguments.words) > 2:
        raise UsageFault("an answer of several words is quoted", hint='setpoint answer [ID] "all of the words"')
    *typed, text = arguments.words
    with finding.opened(arguments) as runtime:
        if typed and finding.is_session(runtime, typed[0]):
            from setpoint.cli import session_account

            said = session_account.answer(runtime, typed[0], text)
            if arguments.json:
                say_json(said)
            else:
                say(printable(f"answered {said['question_id']} of {said['stream']}: {said['question']}"))
                say("  its next turn sees it")
            return 0
        asking = finding.trajectory(
            runtime, typed[0] if typed else None, lambda record: not record.is_terminal, "is finished and asks nothing"
        )
        record, _ = runtime.record(asking)
        question = record.question
        runtime.request(asking, "answer" if question else "interrupt", by=finding.me(), argument=text)
        next_step = "" if runtime.is_owned(asking) else f"setpoint resume {asking}"
        said: dict[str, Any] = {
            "trajectory_id": asking,
            "question_id": question.question_id if question else None,
            "question": question.question if question else None,
            "answer": text,
            "next": next_step or None,
        }
    if arguments.json:
        say_json(said)
    else:
        if question:
            say(printable(f"answered {said['question_id']} of {asking}: {said['question']}"))
        else:
            say(printable(f"{asking} has asked nothing; its next turn is told: {text}"))
        if next_step:
            say(f"  nobody works on it now; go on with: {next_step}")
    return 0


def pause(arguments: Namespace) -> int:
    return _ask(arguments, "pause", "it pauses at its next turn boundary", "it pauses when it is resumed")


def cancel(arguments: Namespace) -> int:
    return _ask(arguments, "cancel", "it ends at its next turn boundary", "")


def kill(arguments: Namespace) -> int:
    return _ask(arguments, "kill", "it ends at once, with every process it started", "")


def _ask(arguments: Namespace, action: str, when_owned: str, when_idle: str) -> int:
    """Request ``action`` of the owner. Where there is none and ``when_idle`` is empty, own it and carry it out here."""
    with finding.opened(arguments) as runtime:
        found = finding.stream(
            runtime, arguments.id, lambda record: not record.is_terminal, f"is finished; {action} does not apply"
        )

    async def body() -> tuple[str, str]:
        if found.is_run:
            from setpoint.cli import telling

            run_record, said = await telling.ask(arguments, found.id, action)
            return run_record.state, said
        async with Runtime.open(arguments.store) as runtime:
            runtime.request(found.id, action, by=finding.me(), argument=arguments.reason)
            if runtime.is_owned(found.id):
                return runtime.record(found.id)[0].state, when_owned
            if when_idle:
                return runtime.record(found.id)[0].state, f"nobody works on it now; {when_idle}"
            outcome = await runtime.resume(found.id)
            return outcome.record.state, f"it is {status(outcome.record, owned=False)}"

    state, said = run(body())
    if arguments.json:
        say_json({f"{found.kind}_id": found.id, "action": action, "state": state, "message": said})
    else:
        say(f"{action} requested of {found.id}: {said}")
    return 0
