"""Make the staged layer the user's tree, and take that back, crash-safe either way.

A commit is one directory below ``commits/``: ``record.json`` (the move set), ``state.json`` and a home with ``new/``
and ``old/``. Renaming that directory to its final name is the commit point; from then on ``recover`` completes it. The
home must lie on the workspace's own mount, since renames do not cross mounts:

1. inside the commit's directory, when the state directory is on the same mount;
2. else in a hidden directory beside the workspace;
3. else in a hidden directory inside the workspace, there only while the commit runs.

In cases 2 and 3 the pre-image is copied into the commit's directory before the commit counts as applied.

states: applying -> [archiving ->] applied -> undoing -> undone; applying -> aborting (the user wrote in the very
moment; their version is put back and the commit never was).
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from setpoint.adapters.workspaces import conflict, copying, durable, homes, moves, objects, wayback
from setpoint.adapters.workspaces.commit_plan import CommitPlan
from setpoint.adapters.workspaces.homes import HOME
from setpoint.adapters.workspaces.moves import CrashPoint, Diverged, MoveSet
from setpoint.adapters.workspaces.objects import Ident
from setpoint.adapters.workspaces.treedigest import Manifest
from setpoint.kernel.errors import ConflictFault, UsageFault, WorkspaceFault
from setpoint.ports.workspace import CommitReceipt

KEPT_COMMITS = 20  # always undoable
KEPT_DAYS = 14  # older ones beyond that number go
KEPT_BYTES = 1 << 30  # pre-images beyond that number may hold this much
_RECORD = b"record.json"
_STATE = b"state.json"
_BUILDING = b".building-"


@dataclass(frozen=True, slots=True)
class Record:
    """What one commit did and where its moved objects are."""

    commit_id: str
    at_ns: int
    outside_home: str  # "" when the home lies inside the commit's directory
    what: MoveSet

    def to_json(self) -> dict[str, Any]:
        return {
            "commit_id": self.commit_id,
            "at_ns": self.at_ns,
            "outside_home": self.outside_home,
            **self.what.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        return cls(data["commit_id"], data["at_ns"], data["outside_home"], MoveSet.from_json(data))

    @property
    def receipt(self) -> CommitReceipt:
        return CommitReceipt(self.commit_id, tuple(objects.show(path) for path in self.what.paths))


class TakenBack(WorkspaceFault):
    """The commit could not be applied; every step of it was reversed."""


class Commits:
    """Every commit of one workspace. The caller holds the workspace's lock."""

    def __init__(self, root: str, base_fd: int, commits_fd: int, trash_fd: int, crash: CrashPoint) -> None:
        self._root = root
        self._base_fd = base_fd
        self._fd = commits_fd
        self._trash_fd = trash_fd
        self._crash = crash

    # Commit.

    def find(self, commit_id: str) -> Record | None:
        """What an earlier call with this id did, None when there was none. Raises UsageFault when it was undone."""
        name = _name_of(commit_id)
        if objects.lstat(self._fd, name) is None:
            return None
        with self._opened(name) as fd:
            if self._state(fd) == "undone":
                raise UsageFault(f"Commit {commit_id} was undone; commit under a new id")
            return self._record(fd)

    def commit(self, commit_id: str, staged_fd: int, manifest: Manifest, touched: dict[bytes, Ident | None]) -> Record:
        """Apply the staged layer. ConflictFault leaves the tree as it is; the id must be a fresh one."""
        name = _name_of(commit_id)
        building = _BUILDING + name
        self._discard(building)
        os.mkdir(building, 0o700, dir_fd=self._fd)
        try:
            self._prepare(building, commit_id, staged_fd, manifest, touched)
        except BaseException:
            self._discard(building)
            raise
        self._crash("commit: prepared")
        durable.rename(self._fd, building, self._fd, name)
        self._crash("commit: durable")
        with self._opened(name) as fd:
            record = self._record(fd)
            try:
                diverged = self._apply(fd, record)
            except TakenBack:
                self._discard(name)
                raise
        if diverged is not None:
            self._discard(name)
            raise _conflict([diverged.path])
        self._prune()
        return record

    def _prepare(
        self,
        building: bytes,
        commit_id: str,
        staged_fd: int,
        manifest: Manifest,
        touched: dict[bytes, Ident | None],
    ) -> None:
        with ExitStack() as stack:
            fd = stack.enter_context(self._opened(building))
            outside = homes.outside_home(self._root, self._base_fd, self._fd, building[-12:].decode())
            record = Record(commit_id, time.time_ns(), outside, MoveSet())
            durable.write_json(fd, _RECORD, record.to_json())  # so that a crash from here on finds an outside home
            home = stack.enter_context(homes.made_home(fd, outside))
            new = stack.enter_context(objects.opened_dir(home, b"new", ours=True))
            what = CommitPlan(self._base_fd, new).of(staged_fd)
            found = conflict.find(self._base_fd, manifest, touched, what)
            if found:
                raise _conflict(found)
            self._crash("commit: staged")
            objects.sync_tree(new)
            os.fsync(home)
            durable.write_json(fd, _STATE, {"state": "applying"})
            durable.write_json(fd, _RECORD, replace(record, what=what).to_json())

    def _apply(self, fd: int, record: Record) -> Diverged | None:
        """Complete a commit, or take it back when the user wrote meanwhile; then says where."""
        with self._home(fd, record) as home:
            try:
                moves.roll_forward(self._base_fd, home, record.what, self._crash)
            except Diverged as diverged:
                self._set_state(fd, "aborting")
                self._abort(fd, record)
                return diverged
            except OSError as error:  # an immutable file, a failing disk: better the old tree than half of the new
                self._set_state(fd, "aborting")
                self._abort(fd, record)
                raise TakenBack(
                    f"Commit {record.commit_id} was taken back: {error.strerror} ({error.filename!r})",
                    hint="The workspace is as it was and the staged version is kept.",
                ) from error
        self._settle(fd, record)
        return None

    def _settle(self, fd: int, record: Record) -> None:
        if record.outside_home:
            self._set_state(fd, "archiving")
            self._archive(fd, record)
        self._set_state(fd, "applied")
        homes.remove_outside(record.outside_home)
        self._crash("commit: done")

    def _abort(self, fd: int, record: Record) -> None:
        with self._home(fd, record) as home:
            try:
                moves.roll_back(self._base_fd, home, record.what, self._crash)
            except Diverged as diverged:
                raise _stuck("commit", record, diverged) from diverged

    # Undo.

    def undo(self, commit_id: str) -> CommitReceipt:
        name = _name_of(commit_id)
        if objects.lstat(self._fd, name) is None:
            raise UsageFault(
                f"No commit {commit_id} is known for {self._root}",
                hint=f"The last {KEPT_COMMITS} commits of a workspace can be undone; older ones may be pruned.",
            )
        with self._opened(name) as fd:
            record = self._record(fd)
            if self._state(fd) == "undone":
                return record.receipt
            found = wayback.changed_since(self._base_fd, record.what)
            if found:
                raise _conflict(found)
            record = self._ready_to_undo(fd, record)
            self._crash("undo: prepared")
            self._set_state(fd, "undoing")
            self._crash("undo: durable")
            self._take_back(fd, record)
        return record.receipt

    def _ready_to_undo(self, fd: int, record: Record) -> Record:
        """The record with present inode numbers, its old objects on the workspace's mount."""
        what = wayback.refreshed(self._base_fd, record.what)
        if record.outside_home:
            with (
                homes.made_home(fd, record.outside_home) as home,
                self._inside_old(fd) as archive,
                objects.opened_dir(home, b"old", ours=True) as old,
            ):
                what = wayback.copied_back(archive, old, what)
                objects.sync_tree(old)
        record = replace(record, what=what)
        durable.write_json(fd, _RECORD, record.to_json())
        return record

    def _take_back(self, fd: int, record: Record) -> None:
        with self._home(fd, record) as home:
            try:
                moves.roll_back(self._base_fd, home, record.what, self._crash)
            except Diverged as diverged:
                raise _stuck("undo", record, diverged) from diverged
        self._set_state(fd, "undone")
        homes.remove_outside(record.outside_home)
        self._crash("undo: done")
        durable.throw_away(fd, HOME, self._trash_fd)

    # Recovery.

    def pending(self) -> bool:
        """Whether a commit or undo is unfinished: interrupted, or running right now under the lock."""
        for name in objects.names(self._fd):
            if name.startswith(_BUILDING):
                return True
            try:
                with self._opened(name) as fd:
                    if self._state(fd) not in ("applied", "undone"):
                        return True
            except FileNotFoundError:  # pruned by somebody else meanwhile
                continue
        return False

    def recover(self) -> list[str]:
        said: list[str] = []
        for name in objects.names(self._fd):
            if name.startswith(_BUILDING):
                self._discard(name)
                said.append("discarded a commit that was only being prepared")
                continue
            with self._opened(name) as fd:
                line = self._recover_one(fd)
            if line is not None:
                said.append(line)
                if "taken back" in line:
                    self._discard(name)
        return said

    def _recover_one(self, fd: int) -> str | None:
        record = self._record(fd)
        match self._state(fd):
            case "applying":
                try:
                    diverged = self._apply(fd, record)
                except TakenBack as fault:
                    return f"commit {record.commit_id}: taken back, {fault.message}"
                if diverged is None:
                    return f"commit {record.commit_id}: completed"
                return f"commit {record.commit_id}: taken back, {diverged} was changed meanwhile"
            case "archiving":
                self._settle(fd, record)
                return f"commit {record.commit_id}: completed"
            case "aborting":
                self._abort(fd, record)
                return f"commit {record.commit_id}: taken back"
            case "undoing":
                self._take_back(fd, record)
                return f"undo of {record.commit_id}: completed"
            case "applied" | "undone":
                homes.remove_outside(record.outside_home)  # an undo that died before it became durable may leave one
                return None
            case other:
                raise WorkspaceFault(f"Commit {record.commit_id} is in an unknown state {other!r}")

    # Storage.

    @contextmanager
    def _opened(self, name: bytes) -> Iterator[int]:
        with objects.opened_dir(self._fd, name, ours=True) as fd:
            yield fd

    def _record(self, fd: int) -> Record:
        return Record.from_json(durable.require_json(fd, _RECORD))

    def _state(self, fd: int) -> str:
        found = durable.read_json(fd, _STATE)
        return found["state"] if found else "missing"

    def _set_state(self, fd: int, state: str) -> None:
        durable.write_json(fd, _STATE, {"state": state})
        self._crash(f"state: {state}")

    @contextmanager
    def _home(self, fd: int, record: Record) -> Iterator[int]:
        if record.outside_home:
            home = os.open(record.outside_home, objects.OPEN_DIR)
            try:
                yield home
            finally:
                os.close(home)
        else:
            with objects.opened_dir(fd, HOME, ours=True) as home:
                yield home

    def _archive(self, fd: int, record: Record) -> None:
        """Copy the pre-image from an outside home; repeatable."""
        durable.throw_away(fd, HOME, self._trash_fd)
        with (
            homes.made_home(fd, "") as inside,
            self._home(fd, record) as outside,
            objects.opened_dir(outside, b"old", ours=True) as source,
            objects.opened_dir(inside, b"old", ours=True) as target,
        ):
            for slot in objects.names(source):
                copying.copy_tree(source, slot, target, slot, ours=True)
            objects.sync_tree(target)

    @contextmanager
    def _inside_old(self, fd: int) -> Iterator[int]:
        with (
            objects.opened_dir(fd, HOME, ours=True) as home,
            objects.opened_dir(home, b"old", ours=True) as old,
        ):
            yield old

    def _discard(self, name: bytes) -> None:
        if objects.lstat(self._fd, name) is None:
            return
        with self._opened(name) as fd:
            record = durable.read_json(fd, _RECORD)
        if record is not None:
            homes.remove_outside(record["outside_home"])
        durable.throw_away(self._fd, name, self._trash_fd)

    def _prune(self) -> None:
        """Drop pre-images beyond the newest KEPT_COMMITS once they are old or large."""
        dated: list[tuple[int, bytes]] = []
        for name in objects.names(self._fd):
            with self._opened(name) as fd:
                dated.append((self._record(fd).at_ns, name))
        dated.sort(reverse=True)
        held = 0
        oldest_ns = time.time_ns() - KEPT_DAYS * 86_400 * 10**9
        for at_ns, name in dated[KEPT_COMMITS:]:
            held += _bytes_below(self._fd, name)
            if at_ns < oldest_ns or held > KEPT_BYTES:
                self._discard(name)


def _name_of(commit_id: str) -> bytes:
    return hashlib.sha256(commit_id.encode("utf-8", "surrogatepass")).hexdigest()[:32].encode()


def _bytes_below(dir_fd: int, name: bytes) -> int:
    st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if not stat.S_ISDIR(st.st_mode):
        return st.st_size
    with objects.opened_dir(dir_fd, name, ours=True) as fd:
        return sum(_bytes_below(fd, child) for child in objects.names(fd))


def _conflict(paths: list[bytes]) -> ConflictFault:
    shown = [objects.show(path) for path in paths]
    listed = ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
    return ConflictFault(
        f"The workspace changed under the transaction: {listed}",
        tuple(shown),
        hint="Nothing was overwritten and the staged version is kept; start again over the present tree.",
    )


def _stuck(what: str, record: Record, diverged: Diverged) -> WorkspaceFault:
    return WorkspaceFault(
        f"The {what} {record.commit_id} was interrupted and {diverged} was changed before it could be finished",
        effect="in_doubt",
        hint="Move your version of that path aside and run `setpoint recover`; both versions are still there.",
    )
