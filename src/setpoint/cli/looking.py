"""Look at one trajectory or run: ``describe``, ``why``, ``events``, ``trace``, ``show``.

Changes nothing.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

from setpoint.adapters.stores.export import envelope_line
from setpoint.app.runtime import Runtime
from setpoint.cli import finding
from setpoint.cli.account import Account, read_account, record_at, require_turn
from setpoint.cli.finding import Stream
from setpoint.cli.run_account import read_account as read_run_account
from setpoint.cli.story import graph, tree, turns_of
from setpoint.cli.terminal import exact_line, flush, printable, say, say_bytes, say_json, talk
from setpoint.cli.wording import event_said
from setpoint.engine.runs.journal import read_run
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.events import EVENT_TYPES, Event, decode
from setpoint.kernel.run_events import RUN_EVENT_TYPES
from setpoint.kernel.run_events import decode as decode_run
from setpoint.ports.log import ZERO_HASH, Stored

FOLLOW_INTERVAL_S = 0.2
"""How long a new event may stay unseen by `events -f`; a look costs one indexed read."""
EXIT_CORRUPT = 19
LINE_CHARS_MAX = 400
"""Of one line of a trace; `show` has the whole of it."""


# describe, why


def describe(arguments: Namespace) -> int:
    with finding.opened(arguments) as runtime:
        found = finding.stream(runtime, arguments.id)
        now_ms = runtime.clock.now_ms()
        if found.is_run:
            from setpoint.cli.run_looking import describe_document as of_run
            from setpoint.cli.run_looking import described

            told = of_run(read_run_account(runtime, found.id))
            lines = described(told, now_ms, arguments.store)
        else:
            from setpoint.cli.description import describe_document, layers_document, said

            account = read_account(runtime, found.id)
            told = describe_document(account) | {"layers": layers_document(runtime, account)}
            lines = said(told, now_ms)
    return _say_document(arguments, told, lines)


def _say_document(arguments: Namespace, told: dict[str, Any], lines: Iterable[str]) -> int:
    if arguments.json:
        say_json(told)
    else:
        for line in lines:
            say(printable(line) if "\x1b" not in line else line)
    return 0


def why(arguments: Namespace) -> int:
    with finding.opened(arguments) as runtime:
        found = finding.stream(runtime, arguments.id)
        if found.is_run:
            from setpoint.cli.run_looking import why_document, why_said

            told = why_document(read_run_account(runtime, found.id))
            lines = why_said(told, runtime.clock.now_ms(), arguments.store)
        else:
            from setpoint.cli.why import explain, said

            told = explain(read_account(runtime, found.id))
            lines = said(told)
    return _say_document(arguments, told, lines)


# events


def events(arguments: Namespace) -> int:
    _refuse_unknown_types(arguments.type or ())
    with finding.opened(arguments) as runtime:
        found = finding.stream(runtime, arguments.id, kinds=finding.KINDS)
        read = _decoder(found)
        seq, prev = 0, ZERO_HASH
        while True:
            ended = False
            for stored in runtime.log.read(found.id, seq, prev=prev):
                seq, prev = stored.seq, stored.hash
                ended = stored.type == "Finished"
                _say_event(stored, arguments, read)
            flush()
            if not arguments.follow or ended or _is_over(runtime, found):
                return 0
            time.sleep(FOLLOW_INTERVAL_S)


def _refuse_unknown_types(names: Iterable[str]) -> None:
    from setpoint.kernel.session_events import SESSION_EVENT_TYPES

    known = EVENT_TYPES | RUN_EVENT_TYPES | SESSION_EVENT_TYPES
    for name in names:
        if name not in known:
            raise UsageFault(f"there is no event type {name!r}", hint=f"Types: {', '.join(known)}")


def _decoder(found: Stream) -> Callable[[str, bytes], Event]:
    match found.kind:
        case "run":
            return decode_run
        case "session":
            from setpoint.kernel.session_events import decode as decode_session

            return decode_session
        case _:
            return decode


def _is_over(runtime: Runtime, found: Stream) -> bool:
    if found.kind == "session":  # another turn may come at any time
        return False
    record = read_run(runtime.log, found.id)[0] if found.is_run else runtime.record(found.id)[0]
    return record.is_terminal


def _say_event(stored: Stored, arguments: Namespace, read: Callable[[str, bytes], Event]) -> None:
    if stored.seq <= arguments.after or (arguments.type and stored.type not in arguments.type):
        return
    if arguments.json:
        say_bytes(envelope_line(stored) + b"\n")
        return
    text = exact_line(event_said(read(stored.type, stored.data)), LINE_CHARS_MAX)
    say(f"{stored.seq:>5}  {stored.at[11:23]}  {stored.turn:>3}  {stored.type:<16} {text}".rstrip())


# trace, show


def trace(arguments: Namespace) -> int:
    with finding.opened(arguments) as runtime:
        found = finding.stream(runtime, arguments.id)
        if found.is_run:
            return _trace_run(runtime, found.id, arguments)
        account = read_account(runtime, found.id)
        turns = turns_of(account)
    if arguments.json:
        say_json({"trajectory_id": account.trajectory_id, "task": account.record.name, "turns": turns})
    elif arguments.graph:
        for line in graph(account, turns):
            say(line)
    else:
        say(printable(f"{account.trajectory_id}  {account.record.name}  {account.status}"))
        for line in tree(turns):
            say(printable(line.replace("\n", " "))[:LINE_CHARS_MAX])
    return 0


def _trace_run(runtime: Runtime, run_id: str, arguments: Namespace) -> int:
    from setpoint.cli import run_story

    told = run_story.trace_document(runtime, read_run_account(runtime, run_id))
    if arguments.json:
        say_json(told)
    elif arguments.graph:
        for line in run_story.graph(told):
            say(printable(line))
    else:
        for line in run_story.tree(told):
            say(printable(line)[:LINE_CHARS_MAX])
    return 0


def show(arguments: Namespace) -> int:
    """A turn of a trajectory; of a run the state after that many steps."""
    from setpoint.cli.turn import said, turn_document

    with finding.opened(arguments) as runtime:
        found = finding.stream(runtime, arguments.id)
        if found.is_run:
            from setpoint.cli.run_looking import show_document, shown

            if arguments.prompt:
                raise UsageFault(f"{found.id} is a run of a workflow: its steps have no prompt; leave --prompt out")
            of_run = show_document(read_run_account(runtime, found.id), arguments.turn)
            return _say_document(arguments, of_run, shown(of_run))
        account = read_account(runtime, found.id)
        require_turn(account, arguments.turn)
        if arguments.prompt:
            return _show_prompt(runtime, account, arguments)
        after = record_at(runtime, account.trajectory_id, lambda stored: stored.turn > arguments.turn)
        told = turn_document(account, arguments.turn, after)
    if arguments.json:
        say_json(told)
    else:
        for line in said(told):
            say(printable(line))
    return 0


def _show_prompt(runtime: Runtime, account: Account, arguments: Namespace) -> int:
    from setpoint.cli.prompt import rebuilt_prompt

    context, recorded = rebuilt_prompt(runtime, account, arguments.turn)
    same = context.digest == recorded
    if arguments.json:
        parts = [{"zone": p.zone, "name": p.name, "tokens": p.tokens, "text": p.text} for p in context.parts]
        head = {"trajectory_id": account.trajectory_id, "turn": arguments.turn, "tokens": context.tokens}
        say_json(head | {"digest": context.digest, "recorded_digest": recorded, "verified": same, "parts": parts})
    else:
        say(printable(context.text))
        if same:
            talk(f"the digest is the recorded one: {recorded}", "dim")
    if not same:
        talk(f"setpoint: this is not exactly what the model saw: digest {context.digest}, the log holds {recorded}")
        return EXIT_CORRUPT
    return 0
