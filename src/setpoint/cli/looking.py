"""Look at trajectories: ``get``, ``describe``, ``why``, ``events``, ``trace``, ``show``, ``top``. Changes nothing."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from typing import Any

from setpoint.adapters.stores.export import envelope_line
from setpoint.app.runtime import Runtime
from setpoint.cli import finding
from setpoint.cli.account import Account, read_account, record_at, record_document, require_turn, summary
from setpoint.cli.story import graph, tree, turns_of
from setpoint.cli.terminal import exact_line, flush, is_terminal, printable, say, say_bytes, say_json, table, talk
from setpoint.cli.wording import age, event_said, progress_said
from setpoint.kernel.errors import LogCorrupt, UsageFault
from setpoint.kernel.events import EVENT_TYPES, decode
from setpoint.kernel.record import Record
from setpoint.ports.log import ZERO_HASH, Stored

FOLLOW_INTERVAL_S = 0.2
"""How long a new event may stay unseen by `events -f`; a look costs one indexed read."""
EXIT_CORRUPT = 19
LINE_CHARS_MAX = 400
"""Of one line of a trace; `show` has the whole of it."""


# get


def get(arguments: Namespace) -> int:
    with finding.opened(arguments) as runtime:
        if arguments.id is not None:
            account = read_account(runtime, finding.trajectory(runtime, arguments.id))
            if arguments.json:
                say_json(record_document(account))
            else:
                _say_one(account)
            return 0
        return _list(runtime, arguments)


def _list(runtime: Runtime, arguments: Namespace) -> int:
    infos = runtime.trajectories()
    shown = infos[: arguments.limit] if arguments.limit > 0 else infos
    listed = [_summary(runtime, info.stream) for info in shown]
    if arguments.json:
        say_json({"trajectories": listed})
    elif not listed:
        talk("no trajectories yet; `setpoint converge -f task.yaml` starts one")
    else:
        _say_list(listed, runtime.clock.now_ms())
        if len(infos) > len(shown):
            talk(f"{len(infos) - len(shown)} older ones are not shown; -n 0 shows all", "dim")
    return EXIT_CORRUPT if any(one["status"] == "corrupt" for one in listed) else 0


def _summary(runtime: Runtime, trajectory_id: str) -> dict[str, Any]:
    """One line of the list. A log that does not verify is listed as corrupt; the others still are seen."""
    try:
        record, _ = runtime.record(trajectory_id)
    except LogCorrupt as fault:
        blank = summary(Record(trajectory_id=trajectory_id), owned=False)
        return blank | {"status": "corrupt", "reason": fault.message}
    return summary(record, owned=runtime.is_owned(trajectory_id))


def _say_list(listed: list[dict[str, Any]], now_ms: int) -> None:
    rows = [
        (
            one["trajectory_id"],
            one["task"],
            one["status"],
            str(one["turn"]),
            progress_said(tuple(one["progress"])) if one["progress"] else "-",
            age(one["updated_at"], now_ms),
            one["reason"],
        )
        for one in listed
    ]
    for line in table(("TRAJECTORY", "TASK", "STATUS", "TURN", "DELTA", "AGE", "REASON"), rows):
        say(line)


def _say_one(account: Account) -> None:
    told = record_document(account)
    say(printable(f"{account.trajectory_id}  {told['task']}  {told['status']}  turn {told['turn']}"))
    if told["message"]:
        say(printable(f"  {told['message']}"))
    rows = [(c["type"], c["status"], c["reason"], c["message"]) for c in told["conditions"]]
    for line in table(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows):
        say(line)


# describe, why


def describe(arguments: Namespace) -> int:
    from setpoint.cli.description import describe_document, layers_document, said

    with finding.opened(arguments) as runtime:
        account = read_account(runtime, finding.trajectory(runtime, arguments.id))
        told = describe_document(account) | {"layers": layers_document(runtime, account)}
        now_ms = runtime.clock.now_ms()
    if arguments.json:
        say_json(told)
    else:
        for line in said(told, now_ms):
            say(printable(line) if "\x1b" not in line else line)
    return 0


def why(arguments: Namespace) -> int:
    from setpoint.cli.why import explain, said

    with finding.opened(arguments) as runtime:
        told = explain(read_account(runtime, finding.trajectory(runtime, arguments.id)))
    if arguments.json:
        say_json(told)
    else:
        for line in said(told):
            say(line)
    return 0


# events


def events(arguments: Namespace) -> int:
    for name in arguments.type or ():
        if name not in EVENT_TYPES:
            raise UsageFault(f"there is no event type {name!r}", hint=f"Types: {', '.join(EVENT_TYPES)}")
    with finding.opened(arguments) as runtime:
        trajectory_id = finding.trajectory(runtime, arguments.id)
        seq, prev = 0, ZERO_HASH
        while True:
            ended = False
            for stored in runtime.log.read(trajectory_id, seq, prev=prev):
                seq, prev = stored.seq, stored.hash
                ended = stored.type == "Finished"
                _say_event(stored, arguments)
            flush()
            if not arguments.follow or (ended or runtime.record(trajectory_id)[0].is_terminal):
                return 0
            time.sleep(FOLLOW_INTERVAL_S)


def _say_event(stored: Stored, arguments: Namespace) -> None:
    if stored.seq <= arguments.after or (arguments.type and stored.type not in arguments.type):
        return
    if arguments.json:
        say_bytes(envelope_line(stored) + b"\n")
        return
    text = exact_line(event_said(decode(stored.type, stored.data)), LINE_CHARS_MAX)
    say(f"{stored.seq:>5}  {stored.at[11:23]}  {stored.turn:>3}  {stored.type:<16} {text}".rstrip())


# trace, show


def trace(arguments: Namespace) -> int:
    with finding.opened(arguments) as runtime:
        account = read_account(runtime, finding.trajectory(runtime, arguments.id))
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


def show(arguments: Namespace) -> int:
    from setpoint.cli.turn import said, turn_document

    with finding.opened(arguments) as runtime:
        account = read_account(runtime, finding.trajectory(runtime, arguments.id))
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


# top


def top(arguments: Namespace) -> int:
    """Once where nobody can watch; on a terminal again and again until it is interrupted."""
    with finding.opened(arguments) as runtime:
        while True:
            listed = [_summary(runtime, info.stream) for info in runtime.trajectories()]
            live = [one for one in listed if one["exit_code"] is None]
            if arguments.json:
                say_json({"trajectories": live})
                return 0
            if not is_terminal(sys.stdout):
                _say_list(live, runtime.clock.now_ms())
                return 0
            say("\x1b[H\x1b[J" + f"{len(live)} live, {len(listed) - len(live)} finished   (Ctrl-C ends)")
            _say_list(live, runtime.clock.now_ms())
            flush()
            time.sleep(max(0.1, arguments.interval))
