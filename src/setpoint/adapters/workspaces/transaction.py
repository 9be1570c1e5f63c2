"""One open transaction, whatever shows it to actions: base, staged layer, attempt.

The attempt is a directory in the overlay's upper format. The overlay adapter lets the kernel write it, the copy
adapter derives it from a working copy; everything else is the same and lives here.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from setpoint.adapters.workspaces import changeset, copying, durable, kernelcalls, layers, objects, treedigest
from setpoint.adapters.workspaces.changeset import Difference
from setpoint.adapters.workspaces.commit import Record
from setpoint.adapters.workspaces.layers import MergedDir, Visits
from setpoint.adapters.workspaces.moves import CrashPoint
from setpoint.adapters.workspaces.savepoints import StagedLayer
from setpoint.adapters.workspaces.state import WorkspaceState
from setpoint.adapters.workspaces.treedigest import Line, Manifest
from setpoint.kernel.errors import WorkspaceFault
from setpoint.ports.workspace import ChangeSet, CommitReceipt, Entry, ResolvedPath, Survey

_BUILDING = b".building-"
_META = b"transaction.json"
_MANIFEST = b"base.manifest"
_COMMITTING = b"committing.json"  # a commit was asked for; says which, should we die in it
_COMMITTED = b"committed.json"  # the savepoint that is the user's tree now


def name_of(transaction_id: str) -> bytes:
    return hashlib.sha256(transaction_id.encode("utf-8", "surrogatepass")).hexdigest()[:32].encode()


class TransactionFiles:
    """The transaction's directory: made on first open, found again later."""

    def __init__(self, state: WorkspaceState, transaction_id: str) -> None:
        self.state = state
        self.name = name_of(transaction_id)
        if state.commits.pending():
            with state.locked(exclusive=True):
                state.commits.recover()
        if objects.lstat(state.transactions_fd, self.name) is None:
            with state.locked(exclusive=False):
                self._make(transaction_id)
        self.fd = os.open(self.name, objects.OPEN_DIR, dir_fd=state.transactions_fd)
        fcntl.flock(self.fd, fcntl.LOCK_SH)  # held as long as it is open: whoever sweeps sees that somebody lives here
        meta = durable.require_json(self.fd, _META)
        self.base_digest: str = meta["base_digest"]

    def _make(self, transaction_id: str) -> None:
        building = _BUILDING + self.name
        durable.throw_away(self.state.transactions_fd, building, self.state.trash_fd)
        os.mkdir(building, 0o700, dir_fd=self.state.transactions_fd)
        with objects.opened_dir(self.state.transactions_fd, building, ours=True) as fd:
            os.mkdir(b"staged", 0o700, dir_fd=fd)
            base = self.state.base_fd
            with objects.opened_dir(fd, b"staged", ours=True) as staged:
                copying.dress_dir(staged, os.fstat(base), objects.user_xattrs(base))
                os.fsync(staged)
            manifest = self.state.scan(fd, _MANIFEST)
            meta = {"root": self.state.root, "transaction_id": transaction_id, "base_digest": manifest.digest}
            durable.write_json(fd, _META, meta)
        durable.rename(self.state.transactions_fd, building, self.state.transactions_fd, self.name)

    def manifest(self) -> Manifest:
        return self.state.manifest(self.fd, _MANIFEST)

    @staticmethod
    def sweep(state: WorkspaceState, is_over: Callable[[str], bool]) -> list[str]:
        """Remove the transactions that are over and in nobody's hands; their ids."""
        removed: list[str] = []
        for name in objects.names(state.transactions_fd):
            if name.startswith(_BUILDING):  # nobody builds while the workspace is locked
                durable.throw_away(state.transactions_fd, name, state.trash_fd)
                continue
            fd = os.open(name, objects.OPEN_DIR, dir_fd=state.transactions_fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                transaction_id = durable.require_json(fd, _META)["transaction_id"]
                if is_over(transaction_id):
                    durable.throw_away(state.transactions_fd, name, state.trash_fd)
                    removed.append(transaction_id)
            except BlockingIOError:
                pass  # somebody works in it
            finally:
                os.close(fd)
        return removed

    def replace_manifest(self, manifest: Manifest) -> None:
        spare = _MANIFEST + b".tmp"
        objects.remove_tree(self.fd, spare)
        manifest.save(self.fd, spare)
        durable.rename(self.fd, spare, self.fd, _MANIFEST)

    def path_of(self, part: str) -> str:
        return self.state.path_of("transactions", self.name.decode(), part)

    def remove(self) -> None:
        durable.throw_away(self.state.transactions_fd, self.name, self.state.trash_fd)


class LayeredWorkspace:
    """Everything of the Workspace port but the views and the place where attempts are made."""

    def __init__(self, files: TransactionFiles, place_fd: int, crash: CrashPoint) -> None:
        self.root = files.state.root
        self.base_digest = files.base_digest
        self.visits = Visits()
        self._files = files
        self._state = files.state
        self._place_fd = place_fd
        self._crash = crash
        self._serial = 0
        self._attempt_fd: int | None = None  # holds up/, wk/ and tmp/
        self._since_ns = 0
        self._closed = False
        self._staged = StagedLayer(files.fd, files.state.trash_fd, crash)
        self._manifest = files.manifest()
        self._finish_commit()

    # Savepoints.

    def savepoint(self) -> int:
        return self._staged.head

    def begin(self) -> None:
        self._require_root()
        self.discard()
        self._serial += 1
        with objects.world_faults("Starting an attempt"):
            name = self._attempt_name()
            os.mkdir(name, 0o700, dir_fd=self._place_fd)
            self._attempt_fd = os.open(name, objects.OPEN_DIR, dir_fd=self._place_fd)
            for part in (b"up", b"wk"):
                os.mkdir(part, 0o700, dir_fd=self._attempt_fd)
            with self._view(2) as shown, objects.opened_dir(self._attempt_fd, b"up", ours=True) as upper:
                node = shown.node()
                copying.dress_dir(upper, node.st, objects.user_xattrs(node.dir_fd))
            os.mkdir(b"tmp", 0o700, dir_fd=self._attempt_fd)
            # A fresh inode's time is the clock that other inodes are stamped by; no userspace clock agrees with it.
            self._since_ns = os.stat(b"tmp", dir_fd=self._attempt_fd).st_ctime_ns

    def _require_root(self) -> None:
        """The user's directory is still at its path: views mount it by its name, everything else holds it open.

        WorkspaceFault when it was moved or removed. Nothing is lost: the staged layer lies elsewhere.
        """
        try:
            there = os.stat(self.root)
        except OSError:
            there = None
        if there is None or not os.path.samestat(there, os.fstat(self._state.base_fd)):
            found = "is gone" if there is None else "is another directory now"
            raise WorkspaceFault(
                f"The workspace {self.root} {found}: it was moved or removed while a task ran on it",
                hint="Nothing was written to it. Put it back, then resume; what is staged is kept.",
            )

    def _attempt_name(self) -> bytes:
        return b"a%d" % self._serial

    def discard(self) -> None:
        if self._attempt_fd is None:
            return
        os.close(self._attempt_fd)
        self._attempt_fd = None
        with objects.world_faults("Discarding an attempt"):
            objects.remove_tree(self._place_fd, self._attempt_name())

    def keep(self, savepoint: int) -> None:
        if self._attempt_fd is None:
            raise WorkspaceFault(f"Savepoint {savepoint} cannot be kept: no attempt was begun")
        with objects.world_faults(f"Keeping savepoint {savepoint}"), self._upper() as upper:
            self._staged.keep(savepoint, upper, self._state.base_fd, self._since_ns)
        self.discard()

    def restore(self, savepoint: int) -> None:
        committed = self._committed_savepoint()
        if savepoint < committed:
            raise WorkspaceFault(
                f"Savepoint {savepoint} lies before the commit of savepoint {committed} and cannot be restored",
                hint="Undo the commit instead.",
            )
        self.discard()
        with objects.world_faults(f"Restoring savepoint {savepoint}"):
            self._staged.restore(savepoint)

    @contextmanager
    def _upper(self) -> Iterator[int]:
        assert self._attempt_fd is not None
        fd = os.open(b"up", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._attempt_fd)
        try:
            yield fd
        finally:
            os.close(fd)

    # Looking.

    @contextmanager
    def _view(self, count: int) -> Iterator[MergedDir]:
        """The lowest ``count`` of base, staged and attempt; fewer when there is no attempt."""
        fds = [self._state.base_fd, self._staged.fd][:count]
        if count == 3 and self._attempt_fd is not None:
            with self._upper() as upper, MergedDir.root([*fds, upper], self.visits) as shown:
                yield shown
        else:
            with MergedDir.root(fds, self.visits) as shown:
                yield shown

    def _differences(self, count: int) -> list[Difference]:
        """What the lowest ``count`` layers lack of the whole."""
        with objects.world_faults("Comparing the workspace"), self._view(count) as old, self._view(3) as new:
            return changeset.compare(old, new, count)

    def attempt_changes(self) -> ChangeSet:
        return changeset.seal(self._differences(2) if self._attempt_fd is not None else [])

    def changes(self) -> ChangeSet:
        return changeset.seal(self._differences(1))

    def state_digest(self) -> str:
        return self._manifest.digest_with(item.change for item in self._differences(1))

    def survey(self) -> Survey:
        with objects.world_faults("Reading the workspace"):
            found = treedigest.scan(self._state.base_fd, self._manifest)
            return Survey(found.digest, found.digest_with(item.change for item in self._differences(1)))

    def diff(self, max_bytes: int) -> str:
        found = self._differences(1)
        with self._view(1) as old, self._view(3) as new:
            return changeset.unified(old, new, found, max_bytes)

    def listing(self, max_entries: int) -> tuple[list[Entry], bool]:
        with self._view(3) as shown:
            return layers.listing(shown, max_entries)

    # Files.

    def resolve(self, path: str) -> ResolvedPath | None:
        try:
            raw = os.fsencode(path)
        except UnicodeEncodeError:  # a lone surrogate that stands for no byte
            return None
        with self._view(3) as shown:
            found = layers.resolve(shown, raw)
        return None if found is None else ResolvedPath(objects.show(found))

    def read(self, path: ResolvedPath, max_bytes: int) -> bytes | None:
        with self._view(3) as shown:
            return layers.read(shown, os.fsencode(path), max_bytes)

    def write(self, path: ResolvedPath, content: bytes) -> None:
        if self._attempt_fd is None:
            raise WorkspaceFault(f"{path} cannot be written: no attempt was begun")
        with (
            self._view(3) as shown,
            self._upper() as upper,
            objects.opened_dir(self._attempt_fd, b"tmp", ours=True) as spare,
        ):
            layers.write(shown, upper, spare, os.fsencode(path), content)

    # The end.

    def commit(self, commit_id: str) -> CommitReceipt:
        with self._state.locked(exclusive=True), objects.world_faults(f"Commit {commit_id}"):
            self._state.commits.recover()
            record = self._state.commits.find(commit_id)
            if record is None:
                self._require_root()
                durable.write_json(self._files.fd, _COMMITTING, {"commit_id": commit_id})
                touched = self._staged.touched(self._committed_savepoint())
                record = self._state.commits.commit(commit_id, self._staged.fd, self._manifest, touched)
            self._finish_commit()
        return record.receipt

    def _committed_savepoint(self) -> int:
        found = durable.read_json(self._files.fd, _COMMITTED)
        return 0 if found is None else found["savepoint"]

    def _finish_commit(self) -> None:
        """After a commit the manifest describes the user's new tree, so that work can go on over it."""
        asked = durable.read_json(self._files.fd, _COMMITTING)
        if asked is None:
            return
        record = self._state.commits.find(asked["commit_id"])
        if record is not None:
            self._manifest = _advanced(self._manifest, record, self._state.base_fd)
            self._files.replace_manifest(self._manifest)
            durable.write_json(self._files.fd, _COMMITTED, {"savepoint": self.savepoint(), **asked})
        os.unlink(_COMMITTING, dir_fd=self._files.fd)
        os.fsync(self._files.fd)

    def close(self, *, keep_staged: bool) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self.discard()
        finally:
            self._release()
            self._staged.close()
            os.close(self._place_fd)
            os.close(self._files.fd)
            if not keep_staged:
                self._files.remove()
            self._state.close()

    def _release(self) -> None:
        """Give back what the adapter holds for attempts."""


def _advanced(manifest: Manifest, record: Record, base_fd: int) -> Manifest:
    """The manifest after a commit: only what it touched is looked at again."""
    lines = dict(manifest.lines)
    now_ns = time.time_ns()
    for move in record.what.moves:
        if treedigest.is_left_out(move.path):
            continue
        for path in manifest.below(move.path):
            lines.pop(path, None)
        lines.pop(move.path, None)
        if move.new is not None:
            lines.update(_lines_at(base_fd, move.path, now_ns))
    for dress in record.what.dresses:
        if dress.path in lines:
            lines[dress.path] = lines[dress.path]._replace(mode=dress.new_mode)
    return Manifest(lines)


def _lines_at(base_fd: int, path: bytes, now_ns: int) -> dict[bytes, Line]:
    parent, name = objects.split(path)
    found: dict[bytes, Line] = {}
    try:
        fd = kernelcalls.open_dir_beneath(base_fd, parent)
    except OSError:  # moved away by somebody since: the next commit will call it a conflict
        return found
    try:
        _collect(fd, name, path, now_ns, found)
    finally:
        os.close(fd)
    return found


def _collect(fd: int, name: bytes, path: bytes, now_ns: int, found: dict[bytes, Line]) -> None:
    st = objects.lstat(fd, name)
    if st is None:
        return
    found[path] = treedigest.line_of(fd, name, st, now_ns)
    if found[path].kind == "d":
        if os.geteuid() != 0 and st.st_mode & 0o500 != 0o500:
            return  # like the scan: listed by itself, not entered
        with objects.opened_dir(fd, name, ours=False) as inner:
            for child in objects.names(inner):
                _collect(inner, child, objects.join(path, child), now_ns, found)
