"""A workspace in memory: files only, with the same transaction as the real ones.

It leaves out what needs a disk: modes, links, special files, conflicts below a directory. ``reopened`` is what a new
process finds: staged savepoints stay, the attempt is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from setpoint.kernel.errors import ConflictFault, WorkspaceFault
from setpoint.kernel.keys import digest, digest_bytes
from setpoint.ports.sandbox import BindView, View
from setpoint.ports.workspace import Change, ChangeSet, CommitReceipt, Entry, ResolvedPath, Survey

Tree = dict[str, bytes]


class MemoryWorkspace:
    """The Workspace port over a dictionary. ``user`` is the user's own tree; only ``commit`` writes it."""

    root = "/nonexistent"

    def __init__(self, files: Mapping[str, bytes | str]) -> None:
        self.user: Tree = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        self._base: Tree = dict(self.user)
        self._kept: list[tuple[int, Tree]] = [(0, dict(self.user))]
        self._attempt: Tree | None = None
        self._commits: dict[str, CommitReceipt] = {}
        self.base_digest = _digest(self._base)
        self.commits = 0

    def reopened(self) -> MemoryWorkspace:
        self._attempt = None
        return self

    @property
    def base(self) -> Tree:
        return dict(self._base)

    @property
    def candidate(self) -> Tree:
        """Base, staged and attempt together: what checks judge."""
        return dict(self._kept[-1][1] if self._attempt is None else self._attempt)

    def savepoint(self) -> int:
        return self._kept[-1][0]

    def begin(self) -> None:
        self._attempt = dict(self._kept[-1][1])

    def action_view(self) -> View:
        return BindView(self.root)

    def candidate_view(self) -> View:
        return BindView(self.root, readonly=True)

    def base_view(self) -> View:
        return BindView(self.root, readonly=True)

    def attempt_changes(self) -> ChangeSet:
        return _changes(self._kept[-1][1], self.candidate)

    def changes(self) -> ChangeSet:
        return _changes(self._base, self.candidate)

    def keep(self, savepoint: int) -> None:
        if self._attempt is None:
            raise WorkspaceFault("there is no attempt to keep")
        if savepoint <= self.savepoint():
            raise WorkspaceFault(f"savepoint {savepoint} does not follow {self.savepoint()}")
        self._kept.append((savepoint, self._attempt))
        self._attempt = None

    def discard(self) -> None:
        self._attempt = None

    def restore(self, savepoint: int) -> None:
        self._attempt = None
        if savepoint not in [number for number, _ in self._kept]:
            raise WorkspaceFault(f"there is no savepoint {savepoint}")
        while self.savepoint() != savepoint:
            self._kept.pop()

    def resolve(self, path: str) -> ResolvedPath | None:
        if path.startswith("/"):
            if path != "/workspace" and not path.startswith("/workspace/"):
                return None
            path = path.removeprefix("/workspace").lstrip("/")
        done: list[str] = []
        for part in path.split("/"):
            if part == ".." and not done:
                return None
            if part == "..":
                done.pop()
            elif part not in ("", "."):
                done.append(part)
        return ResolvedPath("/".join(done) or ".")

    def read(self, path: ResolvedPath, max_bytes: int) -> bytes | None:
        found = self.candidate.get(path)
        return None if found is None else found[:max_bytes]

    def write(self, path: ResolvedPath, content: bytes) -> None:
        if self._attempt is None:
            raise WorkspaceFault(f"{path} cannot be written: no attempt was begun")
        self._attempt[path] = content

    def remove(self, path: str) -> None:
        """Beside the port: what a command of a test does."""
        assert self._attempt is not None
        self._attempt.pop(path, None)

    def listing(self, max_entries: int) -> tuple[list[Entry], bool]:
        entries = [Entry(path, "file", len(content)) for path, content in sorted(self.candidate.items())]
        return entries[:max_entries], len(entries) > max_entries

    def diff(self, max_bytes: int) -> str:
        return "\n".join(f"{change.kind} {change.path}" for change in self.changes().changes)

    def state_digest(self) -> str:
        return _digest(self._kept[-1][1])

    def survey(self) -> Survey:
        touched = {change.path for change in self.changes().changes}
        staged = self._kept[-1][1]
        candidate = {path: content for path, content in self.user.items() if path not in touched}
        candidate |= {path: staged[path] for path in touched if path in staged}
        return Survey(_digest(self.user), _digest(candidate))

    def commit(self, commit_id: str) -> CommitReceipt:
        if commit_id in self._commits:
            return self._commits[commit_id]
        staged = self._kept[-1][1]
        paths = tuple(change.path for change in _changes(self._base, staged).changes)
        touched = tuple(path for path in paths if self.user.get(path) != self._base.get(path))
        if touched:
            raise ConflictFault("changed elsewhere", touched)
        for path in paths:
            if path in staged:
                self.user[path] = staged[path]
            else:
                self.user.pop(path, None)
        self.commits += 1
        self._commits[commit_id] = CommitReceipt(commit_id, paths)
        return self._commits[commit_id]

    def close(self, *, keep_staged: bool) -> None:
        self._attempt = None


def _digest(tree: Tree) -> str:
    return digest({path: digest_bytes(content) for path, content in tree.items()})


def _changes(base: Tree, now: Tree) -> ChangeSet:
    found: list[Change] = []
    for path in sorted(base.keys() | now.keys()):
        if base.get(path) == now.get(path):
            continue
        kind = "added" if path not in base else "removed" if path not in now else "modified"
        content = now.get(path, b"")
        found.append(Change(path, kind, "file", 0o644, len(content), digest_bytes(content)[7:]))  # type: ignore[arg-type]
    return ChangeSet(tuple(found), digest([[change.path, change.kind, change.digest] for change in found]))
