"""What Setpoint keeps about one workspace, outside it.

Layout below the state directory::

    workspaces/<id>/root            the workspace's path
                    lock            flock: exclusive for commit, undo and recover; shared while the base is read
                    statcache       manifest of the last scan (see treedigest)
                    transactions/   one directory each (see savepoints)
                    commits/        one directory each (see commit)
                    trash/          what is being deleted

The state directory and the workspace never contain each other: an action could reach its own history, or a
commit its own journal.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from setpoint.adapters.workspaces import durable, objects, treedigest
from setpoint.adapters.workspaces.commit import Commits
from setpoint.adapters.workspaces.moves import CrashPoint
from setpoint.adapters.workspaces.treedigest import Manifest
from setpoint.kernel.errors import WorkspaceFault

LOCK_WAIT_MS_MAX = 60_000  # a commit takes milliseconds, a first scan of a large tree some seconds
_LOCK_POLL_S = 0.01
_STATCACHE = b"statcache"


class ManifestPool:
    """Manifests in memory, shared by transactions over the same base as long as one uses them."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[tuple[int, int, int, int], Manifest] = WeakValueDictionary()

    def load(self, dir_fd: int, name: bytes) -> Manifest:
        st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        key = (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns)
        found = self._held.get(key)
        if found is None:
            found = Manifest.load(dir_fd, name)
            self._held[key] = found
        return found


class WorkspaceState:
    """Open descriptors of one workspace and of its state; ``close`` releases them."""

    def __init__(self, state_dir: Path, root: str, pool: ManifestPool, crash: CrashPoint) -> None:
        self.root = _checked_root(root, state_dir)
        self._pool = pool
        self._crash = crash
        self.base_fd = os.open(self.root, objects.OPEN_DIR)
        with objects.world_faults(f"Opening the state directory {state_dir}"):
            self._dir = state_dir / "workspaces" / hashlib.sha256(os.fsencode(self.root)).hexdigest()[:24]
            self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.fd = os.open(self._dir, objects.OPEN_DIR)
            if objects.lstat(self.fd, b"root") is None:
                durable.write_json(self.fd, b"root", self.root)
            self.transactions_fd = durable.open_made(self.fd, b"transactions")
            self._commits_fd = durable.open_made(self.fd, b"commits")
            self.trash_fd = durable.open_made(self.fd, b"trash")
        self.commits = Commits(self.root, self.base_fd, self._commits_fd, self.trash_fd, crash)

    def close(self) -> None:
        for fd in (self.base_fd, self.fd, self.transactions_fd, self._commits_fd, self.trash_fd):
            os.close(fd)

    def path_of(self, *parts: str) -> str:
        return os.path.join(self._dir, *parts)

    @contextmanager
    def locked(self, *, exclusive: bool) -> Iterator[None]:
        """Hold the workspace's lock. WorkspaceFault when others hold it longer than LOCK_WAIT_MS_MAX."""
        fd = os.open(b"lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        try:
            deadline = time.monotonic() + LOCK_WAIT_MS_MAX / 1000
            while True:
                try:
                    fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise
                if time.monotonic() > deadline:
                    raise WorkspaceFault(
                        f"Another commit holds the workspace {self.root} for more than {LOCK_WAIT_MS_MAX} ms",
                        hint="Wait for the other run to finish, then try again.",
                    )
                time.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(fd)

    # The base's manifest.

    def scan(self, into_fd: int, name: bytes) -> Manifest:
        """Take the base's manifest now and keep it under ``name``; hashes only what changed since the last scan."""
        known = self._known()
        manifest = treedigest.scan(self.base_fd, known)
        if known is not None and known.lines == manifest.lines and self._linked(known, into_fd, name):
            return known
        manifest.save(into_fd, name)
        spare = b"statcache." + secrets.token_hex(6).encode()
        os.link(name, spare, src_dir_fd=into_fd, dst_dir_fd=self.fd)
        os.rename(spare, _STATCACHE, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        return manifest

    def _known(self) -> Manifest | None:
        try:
            return self._pool.load(self.fd, _STATCACHE)
        except (FileNotFoundError, ValueError):  # none yet, or of another version: hash everything
            return None

    def _linked(self, known: Manifest, into_fd: int, name: bytes) -> bool:
        """Share the cache's file; False when another scan replaced it in between."""
        os.link(_STATCACHE, name, src_dir_fd=self.fd, dst_dir_fd=into_fd)
        if self._pool.load(into_fd, name) is known:
            return True
        os.unlink(name, dir_fd=into_fd)
        return False

    def manifest(self, dir_fd: int, name: bytes) -> Manifest:
        try:
            return self._pool.load(dir_fd, name)
        except (FileNotFoundError, ValueError) as error:
            raise WorkspaceFault(
                f"The base manifest of a transaction over {self.root} cannot be read: {error}",
                hint="Discard this transaction and start again.",
            ) from error


def _checked_root(root: str, state_dir: Path) -> str:
    real = os.path.realpath(root)
    if not os.path.isdir(real):
        what = "is not a directory" if os.path.lexists(real) else "does not exist"
        raise WorkspaceFault(f"The workspace {root} {what}", hint="Name an existing directory.")
    state = os.path.realpath(state_dir)
    if os.path.commonpath([real, state]) in (real, state):
        raise WorkspaceFault(
            f"The state directory {state} and the workspace {real} contain each other",
            hint="Set SETPOINT_HOME to a directory outside the workspace.",
        )
    return real
