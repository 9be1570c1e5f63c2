"""The user's directory as a transaction.

The user's directory (the base) is never written while a trajectory runs. Each turn is one *attempt*: a fresh
upper layer over base + staged. ``keep`` merges the attempt into the staged layer as savepoint n (durable when it
returns); ``discard`` throws the attempt away; ``restore`` goes back to an older savepoint; ``commit`` makes the
staged state the user's by a journalled, crash-safe apply; ``undo`` restores the pre-image of a commit.

Promises every adapter keeps (each sentence has a conformance test):

- After ``discard`` or ``restore`` the staged state is byte-identical to what it was: files, modes, links, empty
  directories, ignored files, extended attributes in ``user.*``.
- The cost of begin, changes, keep, discard and restore depends on the change, never on the size of the base.
- A crash during ``commit`` or ``undo`` leaves, after ``recover``, exactly the old tree or exactly the new one.
- A path the user touched since ``open`` is a conflict: ``ConflictFault`` names it, nothing is overwritten, the staged
  version stays available.
- No symlink, ``..`` or swapped parent ever leads a read or a write out of the workspace.
- Setuid and unreadable files, devices, fifos and sockets never reach ``keep``: ``ChangeRejected``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NewType, Protocol

from setpoint.ports.sandbox import View

ResolvedPath = NewType("ResolvedPath", str)
"""A workspace-relative path that has followed every link and ``..``; only a workspace makes one."""

ChangeKind = Literal["added", "modified", "removed", "mode", "renamed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One changed path. ``path`` is workspace-relative; non-UTF-8 bytes are surrogate-escaped."""

    path: str
    kind: ChangeKind
    file_type: Literal["file", "dir", "symlink"]
    mode: int  # permission bits after the change (of the old object when removed)
    size: int
    digest: str  # sha256 hex of content or link target after the change; "" for directories and removals
    lines_added: int = 0
    lines_removed: int = 0
    renamed_from: str = ""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes in path order, and the digest of the state they describe relative to the base."""

    changes: tuple[Change, ...]
    fingerprint: str  # "sha256:..."; equal fingerprints mean byte-identical states over the same base


def change_facts(changes: ChangeSet) -> list[dict[str, Any]]:
    """The change set as expressions and probes see it (their variable ``changes``)."""
    return [
        {
            "path": change.path,
            "kind": change.kind,
            "type": change.file_type,
            "mode": change.mode,
            "size": change.size,
            "lines_added": change.lines_added,
            "lines_removed": change.lines_removed,
            "renamed_from": change.renamed_from,
        }
        for change in changes.changes
    ]


@dataclass(frozen=True, slots=True)
class Survey:
    """Digests of the user's tree as it stands now, and of that tree with what is staged."""

    base: str
    candidate: str


@dataclass(frozen=True, slots=True)
class CommitReceipt:
    commit_id: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the workspace map."""

    path: str
    file_type: Literal["file", "dir", "symlink"]
    size: int


class Workspace(Protocol):
    """One open transaction over one directory. Methods block; the engine calls them in a thread."""

    root: str
    base_digest: str  # digest of the base tree as found at ``open`` (content, modes, links; without top-level .git)

    def savepoint(self) -> int:
        """The newest kept savepoint, 0 for the base; what recovery compares with the log."""
        ...

    # One attempt.
    def begin(self) -> None:
        """Start an attempt over the staged state; an attempt left by a crash is discarded first."""
        ...

    def action_view(self) -> View:
        """The writable view of the present attempt."""
        ...

    def candidate_view(self) -> View:
        """Base + staged + attempt, for checks: whatever a check writes is thrown away."""
        ...

    def base_view(self) -> View:
        """The base alone, for baselines: writes are thrown away."""
        ...

    def attempt_changes(self) -> ChangeSet:
        """What the present attempt changed against the last savepoint. ChangeRejected on forbidden content."""
        ...

    def changes(self) -> ChangeSet:
        """What base + staged + attempt differs from the base by, exactly."""
        ...

    def keep(self, savepoint: int) -> None:
        """Merge the attempt into the staged layer as this savepoint number; durable on return."""
        ...

    def discard(self) -> None: ...

    def restore(self, savepoint: int) -> None:
        """Back to a kept savepoint; later ones are gone. The present attempt is discarded."""
        ...

    # Files, resolved by the workspace and never by a string.
    def resolve(self, path: str) -> ResolvedPath | None:
        """Where ``path`` leads inside base + staged + attempt, None when it leads outside.

        Absolute paths must lie under ``/workspace``. The last component need not exist; its parents may not either.
        """
        ...

    def read(self, path: ResolvedPath, max_bytes: int) -> bytes | None:
        """Content of a regular file, None when there is none. At most ``max_bytes``."""
        ...

    def write(self, path: ResolvedPath, content: bytes) -> None:
        """Create or replace a regular file in the attempt, parents included; the mode of a replaced file is kept."""
        ...

    def listing(self, max_entries: int) -> tuple[list[Entry], bool]:
        """Bounded map of the candidate state, breadth first, sorted; True when entries were left out."""
        ...

    def diff(self, max_bytes: int) -> str:
        """Unified diff of the candidate state against the base, for people; binary files are named only."""
        ...

    def state_digest(self) -> str:
        """Digest of the whole candidate tree, by the same rule as ``base_digest``."""
        ...

    def survey(self) -> Survey:
        """The user's tree as it stands now, by the same rule; costs a stat of every file."""
        ...

    # The end.
    def commit(self, commit_id: str) -> CommitReceipt:
        """Make the staged state the user's. Idempotent by ``commit_id``. ConflictFault leaves the tree as it is."""
        ...

    def close(self, *, keep_staged: bool) -> None:
        """Release scratch and mounts. ``keep_staged`` leaves savepoints on disk for resume; else they are removed."""
        ...


class WorkspaceProvider(Protocol):
    def open(self, root: str, transaction_id: str, disk_bytes: int) -> Workspace:
        """Open or reopen the transaction; finishes or discards what a crash left behind.

        On first open the base digest is taken. Raises WorkspaceFault when ``root`` is missing or not a directory.
        """
        ...

    def undo(self, root: str, commit_id: str) -> CommitReceipt:
        """Restore the exact pre-image of a commit. ConflictFault when the user changed a touched path since."""
        ...

    def recover(self, root: str) -> list[str]:
        """Finish or discard every journalled apply a crash interrupted under ``root``; says what it did."""
        ...
