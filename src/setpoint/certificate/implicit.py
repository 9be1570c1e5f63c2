"""The invariants every task has, judged again from the change set the log recorded.

They need no expression language: paths against patterns. So their verdicts are not believed but recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from .contract import Contract
from .globs import matches

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
"""Files that make the host's own tools run code."""


def changed_paths(changes: Iterable[Any]) -> list[str] | None:
    """Every path a change set touches, old names of renames included; None when it is no change set."""
    paths: list[str] = []
    for change in changes:
        match change:
            case {"path": str(path)} if isinstance(before := change.get("renamed_from", ""), str):
                paths += [path, before] if before else [path]
            case _:
                return None
    return paths


def distances(contract: Contract, calls: Mapping[str, int], paths: list[str]) -> dict[str, int]:
    """Address -> number of paths that break the invariant; 0 when it holds. ``calls``: dispatched so far, by tool."""
    granted = _granted(contract, calls)
    outside = [] if granted is None else [path for path in paths if not _any(granted, path)]
    return {
        "invariants/@forbid": len({path for path in paths if _any(contract.forbid, path)}),
        "invariants/@sensitive": len({path for path in paths if _any(SENSITIVE, path)}),
        "invariants/@grants": len(set(outside)),
    }


def _granted(contract: Contract, calls: Mapping[str, int]) -> list[str] | None:
    """The union of path grants of the writing tools used so far; None when one of them has no path bound."""
    union: list[str] = []
    for action in contract.actions.values():
        if action.tool in WRITING_TOOLS and calls.get(action.tool):
            if action.paths is None:
                return None
            union += action.paths
    return union or None


def _any(patterns: Iterable[str], path: str) -> bool:
    return any(matches(pattern, path) for pattern in patterns)
