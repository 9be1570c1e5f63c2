"""What the store holds, in one table: ``get`` and ``top``. Changes nothing."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections import Counter
from typing import Any

from setpoint.app.runtime import Runtime
from setpoint.cli import finding
from setpoint.cli.account import Account, read_account, record_document, summary
from setpoint.cli.run_account import corrupt_summary, due_ids, open_runs, run_document
from setpoint.cli.run_account import read_account as read_run_account
from setpoint.cli.run_account import summary as run_summary
from setpoint.cli.run_live import until_said
from setpoint.cli.terminal import flush, is_terminal, printable, say, say_json, table, talk
from setpoint.cli.wording import age, progress_said
from setpoint.engine.runs.journal import read_run
from setpoint.kernel.errors import LogCorrupt
from setpoint.kernel.record import Record
from setpoint.ports.log import StreamInfo

EXIT_CORRUPT = 19
TOP_ROWS_MAX = 100
"""Of `top` on a terminal: more do not fit one."""


# get


def get(arguments: Namespace) -> int:
    with finding.opened(arguments) as runtime:
        if arguments.id is None:
            return _list(runtime, arguments)
        found = finding.stream(runtime, arguments.id, kinds=finding.KINDS)
        if found.kind == "session":
            return _get_session(runtime, found.id, arguments)
        if found.is_run:
            told = run_document(read_run_account(runtime, found.id))
            now = runtime.clock.now_ms()
        else:
            account = read_account(runtime, found.id)
            if arguments.json:
                say_json(record_document(account))
            else:
                _say_one(account)
            return 0
    if arguments.json:
        say_json(told)
    else:
        _say_one_run(told, now)
    return 0


def _list(runtime: Runtime, arguments: Namespace) -> int:
    infos = [info for info in runtime.log.streams() if info.seq > 0 and info.kind in finding.KINDS]
    shown = infos[: arguments.limit] if arguments.limit > 0 else infos
    due = due_ids(runtime)
    listed = [(info.kind, _summary_of(runtime, info, due)) for info in shown]
    if arguments.json:
        say_json({f"{kind}s" if kind != "trajectory" else "trajectories": [
            one for of_kind, one in listed if of_kind == kind
        ] for kind in finding.KINDS})  # fmt: skip
    elif not listed:
        talk("no trajectories and no runs yet; `setpoint converge -f task.yaml` starts a trajectory, "
             "`setpoint run WORKFLOW` a run")  # fmt: skip
    else:
        _say_list(listed, runtime.clock.now_ms())
        if len(infos) > len(shown):
            talk(f"{len(infos) - len(shown)} older ones are not shown; -n 0 shows all", "dim")
    return EXIT_CORRUPT if any(one["status"] == "corrupt" for _, one in listed) else 0


def _summary_of(runtime: Runtime, info: StreamInfo, due: frozenset[str]) -> dict[str, Any]:
    match info.kind:
        case "trajectory":
            return _summary(runtime, info.stream)
        case "run":
            return _run_summary(runtime, info.stream, due)
        case _:
            from setpoint.cli.session_account import summary as session_summary

            return session_summary(runtime, info.stream)


def _get_session(runtime: Runtime, stream: str, arguments: Namespace) -> int:
    from setpoint.cli.session_account import summary as session_summary

    told = session_summary(runtime, stream)
    if arguments.json:
        say_json(told)
    else:
        say(printable(f"{told['session_id']}  {told['app']}  {told['status']}  turn {told['turn']}"))
        say(printable(f"  for {told['principal']}, until {told['expires_at']}"))
        for run_id in told["runs"]:
            say(printable(f"  open run {run_id}"))
    return 0


def _summary(runtime: Runtime, trajectory_id: str) -> dict[str, Any]:
    """One line of the list. A log that does not verify is listed as corrupt; the others still are seen."""
    try:
        record, _ = runtime.record(trajectory_id)
    except LogCorrupt as fault:
        blank = summary(Record(trajectory_id=trajectory_id), owned=False)
        return blank | {"status": "corrupt", "reason": fault.message}
    return summary(record, owned=runtime.is_owned(trajectory_id))


def _run_summary(runtime: Runtime, run_id: str, due: frozenset[str]) -> dict[str, Any]:
    try:
        record, _ = read_run(runtime.log, run_id)
    except LogCorrupt as fault:
        return corrupt_summary(run_id, fault)
    return run_summary(runtime, record, due)


def _say_list(listed: list[tuple[str, dict[str, Any]]], now_ms: int) -> None:
    rows = [_row(kind, one, now_ms) for kind, one in listed]
    for line in table(("ID", "KIND", "NAME", "STATUS", "AT", "DELTA", "AGE", "REASON"), rows):
        say(line)


def _row(kind: str, one: dict[str, Any], now_ms: int) -> tuple[str, ...]:
    since = age(one["updated_at"], now_ms)
    if kind == "trajectory":
        delta = progress_said(tuple(one["progress"])) if one["progress"] else "-"
        name, number, why = one["task"], f"turn {one['turn']}", one["reason"]
        return one["trajectory_id"], kind, name, one["status"], number, delta, since, why
    if kind == "session":
        number, left = f"turn {one['turn']}", f"until {one['expires_at']}"
        return one["stream"], kind, one["app"], one["status"], number, "-", since, one["reason"] or left
    return one["run_id"], kind, one["workflow"], one["status"], f"step {one['step']}", "-", since, _waiting(one, now_ms)


def _waiting(one: dict[str, Any], now_ms: int) -> str:
    """What a run waits for and until when, else why it is where it is."""
    waits = [
        f"{wait['kind']}: {wait['for']}" + (f" {until_said(wait['until_ms'], now_ms)}" if wait["until_ms"] else "")
        for wait in one["waits"]
    ]
    more = f" and {len(waits) - 1} more" if len(waits) > 1 else ""
    return waits[0] + more if waits else one["reason"]


def _say_one(account: Account) -> None:
    told = record_document(account)
    say(printable(f"{account.trajectory_id}  {told['task']}  {told['status']}  turn {told['turn']}"))
    if told["message"]:
        say(printable(f"  {told['message']}"))
    rows = [(c["type"], c["status"], c["reason"], c["message"]) for c in told["conditions"]]
    for line in table(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows):
        say(line)


def _say_one_run(told: dict[str, Any], now_ms: int) -> None:
    head = f"{told['run_id']}  {told['workflow']} version {told['version']}  {told['status']}  step {told['step']}"
    say(printable(head))
    if told["message"]:
        say(printable(f"  {told['reason']}: {told['message']}"))
    for one in told["waits"]:
        until = f" {until_said(one['until_ms'], now_ms)}" if one["until_ms"] else ""
        say(printable(f"  waits for {one['kind']}: {one['for']}{until}"))
    rows = [(name, json.dumps(value, ensure_ascii=False)) for name, value in told["values"].items()]
    for line in table(("FIELD", "VALUE"), rows):
        say(line)


# top


def top(arguments: Namespace) -> int:
    """Once where nobody can watch; on a terminal again and again until it is interrupted."""
    with finding.opened(arguments) as runtime:
        while True:
            listed, over = _live(runtime)
            if arguments.json:
                say_json({
                    "trajectories": [one for kind, one in listed if kind == "trajectory"],
                    "runs": [one for kind, one in listed if kind == "run"],
                    "finished": over,
                })  # fmt: skip
                return 0
            if not is_terminal(sys.stdout):
                _say_list(listed, runtime.clock.now_ms())
                return 0
            say("\x1b[H\x1b[J" + f"{_counts(listed)}, {over} finished   (Ctrl-C ends)")
            _say_list(listed[:TOP_ROWS_MAX], runtime.clock.now_ms())
            flush()
            time.sleep(max(0.1, arguments.interval))


def _live(runtime: Runtime) -> tuple[list[tuple[str, dict[str, Any]]], int]:
    """What is not over, newest first, and how many are. Of runs only the open ones are read."""
    due = due_ids(runtime)
    open_ids = {record.run_id: record for record in open_runs(runtime, [])}
    live: list[tuple[str, dict[str, Any]]] = []
    over = 0
    for info in runtime.log.streams():
        if info.seq == 0 or info.kind not in ("trajectory", "run"):
            continue
        if info.kind == "run":
            one = run_summary(runtime, open_ids[info.stream], due) if info.stream in open_ids else None
        else:
            one = _summary(runtime, info.stream)
        if one is not None and one["exit_code"] is None:
            live.append((info.kind, one))
        else:
            over += 1
    return live, over


def _counts(listed: list[tuple[str, dict[str, Any]]]) -> str:
    """``3 live trajectories; 12 live runs: 10 waiting, 2 running``."""
    runs = Counter(one["status"] for kind, one in listed if kind == "run")
    trajectories = sum(kind == "trajectory" for kind, _ in listed)
    said = ", ".join(f"{number} {word}" for word, number in runs.most_common())
    return f"{trajectories} live trajectories; {sum(runs.values())} live runs" + (f": {said}" if said else "")
