"""What the model saw: the prompt of a past turn, projected again from the log and compared with its digest.

The log holds the parts that came from outside (instructions, goal, map, files) by reference; the rest follows from the
record as it stood. Where a route has a smaller window than the default the projection is bounded by it, so the
windows of the routes are tried as they are configured now.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from setpoint.app.runtime import Runtime
from setpoint.cli.account import Account, record_at
from setpoint.kernel import limits
from setpoint.kernel.errors import Fault, UsageFault
from setpoint.kernel.events import ContextBuilt, Ref, TurnStarted
from setpoint.phases.p1_context.projection import FILE_PART, MAP_PART, part_of, project
from setpoint.phases.p3_gate.gate import legal_tools
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.ports.proposer import Context, Part, RouteLimits


def rebuilt_prompt(runtime: Runtime, account: Account, turn: int) -> tuple[Context, str]:
    """The context of ``turn``, and the digest the log holds of it. They differ when it could not be rebuilt exactly.

    UsageFault when no model was asked in that turn.
    """
    built = next((event for fact, event in account.of_type(ContextBuilt) if fact.turn == turn), None)
    started = next((event for fact, event in account.of_type(TurnStarted) if fact.turn == turn), None)
    if built is None or started is None:
        raise UsageFault(f"no model was asked in turn {turn} of {account.trajectory_id}; there is no prompt to show")
    record = record_at(
        runtime, account.trajectory_id, lambda stored: stored.turn == turn and stored.type == "TurnStarted"
    )
    task = runtime.task_of(record)
    tools = tuple(tool.spec for tool in legal_tools(task, BUILTIN, started.stage))
    around = _surroundings(account, built)
    context: Context | None = None
    for window in _windows(runtime, account):
        context = project(
            task,
            record,
            turn,
            tools,
            around,
            lambda ref: account.load(ref.ref),
            stage=started.stage,
            max_tokens=max(1, min(limits.PROMPT_TOKENS_MAX, window.context_tokens - window.output_tokens)),
        )
        if context.digest == built.digest:
            break
    assert context is not None
    return context, built.digest


def _surroundings(account: Account, built: ContextBuilt) -> list[Part]:
    """The workspace as it was then: its map and files, from the payload store."""
    return [
        part_of("trunk", part.name, account.text(Ref("sha256:" + part.digest, 0)))
        for part in built.parts
        if part.name == MAP_PART or part.name.startswith(FILE_PART)
    ]


def _windows(runtime: Runtime, account: Account) -> Iterator[RouteLimits]:
    yield RouteLimits()
    record = account.record
    for route in record.models:
        try:
            (proposer,) = runtime.equipment.proposers([route], str(Path(record.models_directory)))
        except Fault:  # its file or its extra is gone; then its window is not known
            continue
        if proposer.limits != RouteLimits():
            yield proposer.limits
