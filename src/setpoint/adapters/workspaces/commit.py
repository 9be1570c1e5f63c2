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

from setpoint.adapters.workspaces import conflict, durable, kernelcalls, moves, objects
from setpoint.adapters.workspaces.moves import CrashPoint, Diverged, Dress, Move, MoveSet
from setpoint.adapters.workspaces.objects import Ident, join
from setpoint.adapters.workspaces.treedigest import Manifest
from setpoint.kernel.errors import ConflictFault, UsageFault, WorkspaceFault
from setpoint.ports.workspace import CommitReceipt

KEPT_COMMITS = 20  # always undoable
KEPT_DAYS = 14  # older ones beyond that number go
KEPT_BYTES = 1 << 30  # pre-images beyond that number may hold this much
_RECORD = b"record.json"
_STATE = b"state.json"
_HOME = b"home"
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
            outside = _outside_home(self._root, self._base_fd, self._fd, building)
            record = Record(commit_id, time.time_ns(), outside, MoveSet())
            durable.write_json(fd, _RECORD, record.to_json())  # so that a crash from here on finds an outside home
            home = stack.enter_context(_made_home(fd, outside))
            new = stack.enter_context(objects.opened_dir(home, b"new", ours=True))
            what = _Plan(self._base_fd, new).of(staged_fd)
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
        _remove_outside(record.outside_home)
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
            found = _changed_since(self._base_fd, record.what)
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
        what = _refreshed(self._base_fd, record.what)
        if record.outside_home:
            with (
                _made_home(fd, record.outside_home) as home,
                self._inside_old(fd) as archive,
                objects.opened_dir(home, b"old", ours=True) as old,
            ):
                what = _copied_back(archive, old, what)
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
        _remove_outside(record.outside_home)
        self._crash("undo: done")
        durable.throw_away(fd, _HOME, self._trash_fd)

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
                _remove_outside(record.outside_home)  # an undo that died before it became durable may leave one
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
            with objects.opened_dir(fd, _HOME, ours=True) as home:
                yield home

    def _archive(self, fd: int, record: Record) -> None:
        """Copy the pre-image from an outside home; repeatable."""
        durable.throw_away(fd, _HOME, self._trash_fd)
        with (
            _made_home(fd, "") as inside,
            self._home(fd, record) as outside,
            objects.opened_dir(outside, b"old", ours=True) as source,
            objects.opened_dir(inside, b"old", ours=True) as target,
        ):
            for slot in objects.names(source):
                objects.copy_tree(source, slot, target, slot, ours=True)
            objects.sync_tree(target)

    @contextmanager
    def _inside_old(self, fd: int) -> Iterator[int]:
        with (
            objects.opened_dir(fd, _HOME, ours=True) as home,
            objects.opened_dir(home, b"old", ours=True) as old,
        ):
            yield old

    def _discard(self, name: bytes) -> None:
        if objects.lstat(self._fd, name) is None:
            return
        with self._opened(name) as fd:
            record = durable.read_json(fd, _RECORD)
        if record is not None:
            _remove_outside(record["outside_home"])
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


# Homes.


def _outside_home(root: str, base_fd: int, commits_fd: int, name: bytes) -> str:
    """Where ``new`` and ``old`` must lie so that renames into the workspace work; "" for the commit's directory."""
    if _same_mount(base_fd, commits_fd):
        return ""
    hidden = ".setpoint-" + name.removeprefix(_BUILDING).decode()[:12]
    parent = os.path.dirname(root)
    parent_fd = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _same_mount(base_fd, parent_fd) and os.access(parent, os.W_OK | os.X_OK):
            return os.path.join(parent, hidden)
    finally:
        os.close(parent_fd)
    return os.path.join(root, hidden)


def _same_mount(a_fd: int, b_fd: int) -> bool:
    """One filesystem seen through one mount: renames cross neither (a bind mount shares the device number)."""
    return os.fstat(a_fd).st_dev == os.fstat(b_fd).st_dev and _mount_id(a_fd) == _mount_id(b_fd)


def _mount_id(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
        return next((line.split()[1] for line in info if line.startswith("mnt_id:")), "")


@contextmanager
def _made_home(fd: int, outside: str) -> Iterator[int]:
    if outside:
        _remove_outside(outside)
        os.mkdir(outside, 0o700)
        home = os.open(outside, objects.OPEN_DIR)
    else:
        os.mkdir(_HOME, 0o700, dir_fd=fd)
        home = os.open(_HOME, objects.OPEN_DIR, dir_fd=fd)
    try:
        moves.make_home(home)
        yield home
    finally:
        os.close(home)


def _remove_outside(outside: str) -> None:
    if not outside:
        return
    parent_fd = os.open(os.path.dirname(outside), objects.OPEN_DIR)
    try:
        objects.remove_tree(parent_fd, os.fsencode(os.path.basename(outside)))
    finally:
        os.close(parent_fd)


# Planning.


class _Plan:
    """The moves that turn the base into base + staged; new objects are copied under ``new/<slot>``."""

    def __init__(self, base_fd: int, new_fd: int) -> None:
        self._base_fd = base_fd
        self._new_fd = new_fd
        self._moves: list[Move] = []
        self._dresses: list[Dress] = []

    def of(self, staged_fd: int) -> MoveSet:
        with objects.opened_dir(staged_fd, b".", ours=True) as staged:
            base = os.dup(self._base_fd)
            try:
                self._dress(b"", staged, os.fstat(staged_fd), base, os.fstat(base), locked=False)
                self._walk(staged, base, b"", 0)
            finally:
                os.close(base)
        return MoveSet(tuple(self._moves), tuple(self._dresses))

    def _walk(self, staged: int, base: int, path: bytes, depth: int) -> None:
        objects.refuse_depth(path, depth)
        for name in objects.names(staged):
            below = join(path, name)
            new = os.stat(name, dir_fd=staged, follow_symlinks=False)
            old = objects.lstat(base, name)
            if objects.is_whiteout(staged, name, new):
                if old is not None:
                    self._moves.append(Move(below, len(self._moves), Ident.of(old), None))
            elif stat.S_ISDIR(new.st_mode):
                self._directory(staged, base, name, below, new, old, depth)
            elif old is None or not _equal(staged, base, name, new, old):
                self._put(staged, name, below, new, old, os.fstat(base))

    def _directory(
        self,
        staged: int,
        base: int,
        name: bytes,
        below: bytes,
        new: os.stat_result,
        old: os.stat_result | None,
        depth: int,
    ) -> None:
        if old is None or not stat.S_ISDIR(old.st_mode):
            self._put(staged, name, below, new, old, os.fstat(base))
            return
        with objects.opened_dir(staged, name, ours=True) as source:
            whole = objects.is_opaque(source)
        if whole:  # closed again, since its true mode shows only then
            if not _equal_trees(staged, base, name):
                self._put(staged, name, below, new, old, os.fstat(base))
            return
        with (
            objects.opened_dir(staged, name, ours=True) as source,
            objects.opened_dir(base, name, ours=False) as target,
        ):
            if not _same_mount(base, target):
                raise WorkspaceFault(
                    f"{objects.show(below)} is a mount of its own; a commit cannot be atomic across mounts",
                    hint="Make the mounted directory the workspace, or leave it unchanged.",
                )
            before = len(self._moves)
            self._walk(source, target, below, depth + 1)
            locked = len(self._moves) > before and moves.locks_us_out(old.st_mode)
            self._dress(below, source, new, target, old, locked=locked)

    def _dress(
        self, path: bytes, source: int, new: os.stat_result, target: int, old: os.stat_result, *, locked: bool
    ) -> None:
        modes = stat.S_IMODE(old.st_mode), stat.S_IMODE(new.st_mode)
        packed = (
            moves.pack_attributes(objects.user_xattrs(target)),
            moves.pack_attributes(objects.user_xattrs(source)),
        )
        if locked or modes[0] != modes[1] or packed[0] != packed[1]:
            self._dresses.append(Dress(path, *modes, *packed))

    def _put(
        self,
        staged: int,
        name: bytes,
        path: bytes,
        new: os.stat_result,
        old: os.stat_result | None,
        parent: os.stat_result,
    ) -> None:
        slot = b"%d" % len(self._moves)
        objects.copy_tree(staged, name, self._new_fd, slot, ours=True)
        owner = old or parent
        if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (new.st_uid, new.st_gid):
            _give(self._new_fd, slot, owner.st_uid, owner.st_gid)
        content = objects.digest_tree(self._new_fd, slot, ours=True)
        if moves.locks_us_out(new.st_mode) and stat.S_ISDIR(new.st_mode):
            objects.chmod_nofollow(self._new_fd, slot, new.st_mode | 0o700)  # it will be renamed
        made = os.stat(slot, dir_fd=self._new_fd, follow_symlinks=False)
        ident = Ident.of(made)._replace(mode=new.st_mode)
        self._moves.append(Move(path, len(self._moves), None if old is None else Ident.of(old), ident, content))


def _give(dir_fd: int, name: bytes, uid: int, gid: int) -> None:
    """As root: what is made for a user's tree belongs to that user."""
    st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    os.chown(name, uid, gid, dir_fd=dir_fd, follow_symlinks=False)
    if stat.S_ISDIR(st.st_mode):
        with objects.opened_dir(dir_fd, name, ours=True) as fd:
            for child in objects.names(fd):
                _give(fd, child, uid, gid)


def _equal(staged: int, base: int, name: bytes, new: os.stat_result, old: os.stat_result) -> bool:
    if new.st_mode != old.st_mode:
        return False
    try:
        return objects.same_content(staged, name, new, base, name, old, ours=(True, False)) and (
            objects.xattrs_of(staged, name, new, ours=True) == objects.xattrs_of(base, name, old, ours=False)
        )
    except PermissionError:  # the user's own unreadable file
        return False


def _equal_trees(staged: int, base: int, name: bytes) -> bool:
    try:
        return objects.digest_tree(staged, name, ours=True) == objects.digest_tree(base, name, ours=False)
    except PermissionError:
        return False


# The way back.


def _changed_since(base_fd: int, what: MoveSet) -> list[bytes]:
    """Paths that are no longer as the commit left them."""
    found: list[bytes] = []
    for move in what.moves:
        with _parent(base_fd, move.path) as (fd, name):
            if fd is None or not _is_as_left(fd, name, move):
                found.append(move.path)
    for dress in what.dresses:
        with _parent(base_fd, dress.path) as (fd, name):
            present = None if fd is None else objects.lstat(fd, name)
            if present is None or stat.S_IMODE(present.st_mode) != dress.new_mode:
                found.append(dress.path)
    return sorted(set(found))


def _is_as_left(fd: int, name: bytes, move: Move) -> bool:
    if objects.lstat(fd, name) is None or move.new is None:
        return objects.lstat(fd, name) is None and move.new is None
    try:
        return objects.digest_tree(fd, name, ours=True) == move.content  # ours: the commit made this object
    except PermissionError:
        return False


def _refreshed(base_fd: int, what: MoveSet) -> MoveSet:
    """The same moves with the inode numbers that hold the commit's content now (an editor may have rewritten them)."""

    def fresh(move: Move) -> Move:
        with _parent(base_fd, move.path) as (fd, name):
            present = None if fd is None else objects.lstat(fd, name)
            return move if present is None else replace(move, new=Ident.of(present))

    return replace(what, moves=tuple(fresh(move) if move.new is not None else move for move in what.moves))


@contextmanager
def _parent(base_fd: int, path: bytes) -> Iterator[tuple[int | None, bytes]]:
    directory, name = objects.split(path)
    try:
        fd = kernelcalls.open_dir_beneath(base_fd, directory)
    except OSError:
        yield None, name
        return
    try:
        yield fd, name
    finally:
        os.close(fd)


def _copied_back(archive: int, old: int, what: MoveSet) -> MoveSet:
    """Copy pre-images to the workspace's mount; their inode numbers change with that."""
    fresh: list[Move] = []
    for move in what.moves:
        if move.old is None:
            fresh.append(move)
            continue
        slot = b"%d" % move.slot
        objects.copy_tree(archive, slot, old, slot, ours=True)
        made = os.stat(slot, dir_fd=old, follow_symlinks=False)
        fresh.append(replace(move, old=Ident.of(made)._replace(mode=move.old.mode)))
    return replace(what, moves=tuple(fresh))
