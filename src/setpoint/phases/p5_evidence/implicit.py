"""Invariants every task has, whether written or not: judged from the observed change set, never from an argument.

- ``@forbid``: no change under the goal's negative scope.
- ``@sensitive``: no change of files that make the host's own tools run code (git configuration and hooks).
- ``@grants``: no change outside the paths granted to the tools that wrote in this trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from setpoint.kernel import limits
from setpoint.kernel.contract import Invariant, Level, ProbeCheck, Task
from setpoint.kernel.evidence import Evidence, Failure
from setpoint.kernel.globs import first_match
from setpoint.kernel.keys import digest
from setpoint.kernel.record import Record
from setpoint.kernel.spelling import one_line
from setpoint.ports.workspace import ChangeSet

WRITING_TOOLS: Final = ("shell_exec", "file_edit", "file_write")
SENSITIVE: Final = (
    "**/.git/config",
    "**/.git/config.worktree",
    "**/.git/hooks/**",
    "**/.git/info/attributes",
    "**/.git/modules/**/config",
    "**/.git/modules/**/hooks/**",
    ".git/config",
    ".git/config.worktree",
    ".git/hooks/**",
    ".git/info/attributes",
    ".git/modules/**",
)
"""Changing one of these made the host's next ordinary git command run planted code in 9 of 10 studied ways."""

IMPLICIT: Final = (
    Invariant("@forbid", ProbeCheck("setpoint:forbid")),
    Invariant("@sensitive", ProbeCheck("setpoint:sensitive")),
    Invariant("@grants", ProbeCheck("setpoint:grants")),
)


def judge_implicit(task: Task, record: Record, changes: ChangeSet) -> tuple[Evidence, ...]:
    """One evidence per implicit invariant, in order. Pure."""
    paths = [change.path for change in changes.changes] + [
        change.renamed_from for change in changes.changes if change.renamed_from
    ]
    granted = _granted(task, record)
    outside: Iterable[str] = () if granted is None else (path for path in paths if _hit(granted, path) is None)
    return (
        _evidence("@forbid", (p for p in paths if _hit(task.goal.forbid, p)), changes, list(task.goal.forbid)),
        _evidence("@sensitive", (p for p in paths if _hit(SENSITIVE, p)), changes, list(SENSITIVE)),
        _evidence("@grants", outside, changes, None if granted is None else list(granted)),
    )


def _hit(globs: tuple[str, ...], path: str) -> str | None:
    """The first glob that covers a changed path; the workspace folder itself, ".", only one that covers everything."""
    if path == ".":
        return next((glob for glob in globs if glob == "**"), None)
    return first_match(globs, path)


def _granted(task: Task, record: Record) -> tuple[str, ...] | None:
    """The union of path grants of the writing tools used so far; None when one of them has no path bound."""
    union: list[str] = []
    for grant in task.actions:
        if grant.tool not in WRITING_TOOLS or not record.calls_by_tool.get(grant.tool):
            continue
        if grant.paths is None:
            return None
        union += grant.paths
    return tuple(union) if union else None


def _evidence(name: str, broken: Iterable[str], changes: ChangeSet, rule: list[str] | None) -> Evidence:
    paths = sorted({one_line(path) for path in broken})
    words = {"@forbid": "the task forbids", "@sensitive": "would make host tools run code", "@grants": "outside grants"}
    return Evidence(
        f"invariants/{name}",
        Level.STATIC,
        "fail" if paths else "pass",
        changes.fingerprint,
        len(paths),
        digest([name, rule]),
        f"{words[name]}: {', '.join(paths[:5])}" if paths else "",
        None,
        tuple(Failure(path, "") for path in paths[: limits.FAILURES_RECORDED_MAX]),
    )
