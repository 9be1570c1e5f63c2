"""The digest of a whole tree, and the manifest of the base it was taken from.

One line an object, sorted by path bytes: kind, mode in four octal digits, sha256 in hex or a dash, path, separated by
blanks and ended by a NUL. Kind is f, d, l (its digest is of the link's target) or s (special file, no digest). The
digest is the sha256 of these lines. The
root itself, the top-level ``.git`` and times, owners and attributes are not part of it, so the same tree has the
same digest wherever it lies. What the runtime's user may not read has "unreadable" for a digest.

The manifest also keeps every object's identity (ino, size, mtime, ctime, mode), for two uses: the next scan hashes
only what changed, and a commit can tell whether the user touched a path since. An identity younger than the scan is
*racy*, as in git: a write in the same clock tick would not show in it, so it is never trusted without hashing.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from threading import BoundedSemaphore
from typing import NamedTuple

import msgspec

from setpoint.adapters.workspaces import objects
from setpoint.adapters.workspaces.objects import Ident
from setpoint.kernel.errors import WorkspaceFault
from setpoint.kernel.keys import DIGEST_PREFIX
from setpoint.ports.workspace import Change

RACY_NS = 20_000_000  # two ticks of the slowest kernel clock (HZ=100)
UNREADABLE = "unreadable"  # stands for the digest of what the runtime's user may not read
_VERSION = 1
_THREADS = min(4, os.cpu_count() or 1)
_JOBS_MAX = 64  # directories being hashed at once; each holds one descriptor
_TOP_GIT = b".git"


class Line(NamedTuple):
    """One object of the base as the scan found it."""

    kind: str
    mode: int  # permission bits
    digest: str
    ident: Ident
    racy: bool


class _Stored(msgspec.Struct, array_like=True):
    version: int
    lines: list[tuple[bytes, Line]]


class Manifest:
    """The base tree at one moment, by path; immutable."""

    def __init__(self, lines: dict[bytes, Line]) -> None:
        self.lines = lines

    @cached_property
    def _paths(self) -> list[bytes]:
        return sorted(self.lines)

    @cached_property
    def _rendered(self) -> list[tuple[bytes, bytes]]:
        return [(path, render(path, self.lines[path])) for path in self._paths]

    @cached_property
    def digest(self) -> str:
        return _digest_lines(line for _, line in self._rendered)

    def below(self, path: bytes) -> list[bytes]:
        """Every recorded path inside the directory ``path``."""
        start = bisect_left(self._paths, path + b"/")
        end = bisect_left(self._paths, path + b"0")  # "0" follows "/" in ASCII
        return self._paths[start:end]

    def digest_with(self, changes: Iterable[Change]) -> str:
        """Digest of the tree after ``changes``; costs memory work in the base, no file access."""
        patch: dict[bytes, bytes | None] = {}
        for change in changes:
            path = os.fsencode(change.path)
            if change.path == "." or is_left_out(path):
                continue
            patch[path] = None if change.kind == "removed" else _render_change(path, change)
        if not patch:
            return self.digest
        kept = [(path, line) for path, line in self._rendered if path not in patch]
        kept.extend((path, line) for path, line in patch.items() if line is not None)
        kept.sort()
        return _digest_lines(line for _, line in kept)

    def save(self, dir_fd: int, name: bytes) -> None:
        """Write durably under a name that must be free."""
        data = msgspec.msgpack.encode(_Stored(_VERSION, [(path, self.lines[path]) for path in self._paths]))
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)

    @classmethod
    def load(cls, dir_fd: int, name: bytes) -> Manifest:
        """Raises FileNotFoundError, or ValueError when the file is of another version or damaged."""
        with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd), "rb") as file:
            data = file.read()
        try:
            stored = msgspec.msgpack.decode(data, type=_Stored)
        except msgspec.DecodeError as error:
            raise ValueError(f"damaged manifest: {error}") from error
        if stored.version != _VERSION:
            raise ValueError(f"manifest version {stored.version}, not {_VERSION}")
        return cls(dict(stored.lines))


def is_left_out(path: bytes) -> bool:
    return path == _TOP_GIT or path.startswith(_TOP_GIT + b"/")


def render(path: bytes, line: Line) -> bytes:
    return _render(line.kind, line.mode, line.digest, path)


def _render(kind: str, mode: int, digest: str, path: bytes) -> bytes:
    return b"%s %04o %s %s\0" % (kind.encode(), mode, (digest or "-").encode(), path)


def _render_change(path: bytes, change: Change) -> bytes:
    return _render({"file": "f", "dir": "d", "symlink": "l"}[change.file_type], change.mode, change.digest, path)


def _digest_lines(lines: Iterable[bytes]) -> str:
    return DIGEST_PREFIX + hashlib.sha256(b"".join(lines)).hexdigest()


def kind_of(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "f"
    if stat.S_ISDIR(mode):
        return "d"
    return "l" if stat.S_ISLNK(mode) else "s"


def line_of(dir_fd: int, name: bytes, st: os.stat_result, started_ns: int) -> Line:
    """Look at one object of the user's tree, hashing its content."""
    kind = kind_of(st.st_mode)
    try:
        digest = objects.hash_object(dir_fd, name, st, ours=False)
        now = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except PermissionError:
        digest, now = UNREADABLE, st
    youngest = max(now.st_mtime_ns, now.st_ctime_ns)
    racy = youngest >= started_ns - RACY_NS or Ident.of(now) != Ident.of(st)
    return Line(kind, stat.S_IMODE(now.st_mode), digest, Ident.of(now), racy and kind != "d")


def scan(root_fd: int, known: Manifest | None = None) -> Manifest:
    """Walk the user's tree once; what ``known`` holds under the same identity is not read again."""
    started_ns = time.time_ns()
    before = known.lines if known else {}
    lines: dict[bytes, Line] = {}
    slots = BoundedSemaphore(_JOBS_MAX)
    jobs: list[Future[list[tuple[bytes, Line]]]] = []

    def hash_all(fd: int, work: list[tuple[bytes, bytes, os.stat_result]]) -> list[tuple[bytes, Line]]:
        try:
            return [(path, line_of(fd, name, st, started_ns)) for path, name, st in work]
        finally:
            os.close(fd)
            slots.release()

    with ThreadPoolExecutor(_THREADS, "hash") as pool:
        for fd, path, entries in walk(root_fd):
            unknown: list[tuple[bytes, bytes, os.stat_result]] = []
            for name, st in entries:
                below = objects.join(path, name)
                line = before.get(below)
                ident = Ident.of(st)
                if line is not None and not line.racy and line.ident == ident:
                    lines[below] = line
                elif stat.S_ISDIR(st.st_mode):
                    lines[below] = Line("d", stat.S_IMODE(st.st_mode), "", ident, False)
                else:
                    unknown.append((below, name, st))
            if unknown:
                slots.acquire()
                jobs.append(pool.submit(hash_all, os.dup(fd), unknown))
        for job in jobs:
            lines.update(_hashed(job))
    return Manifest(lines)


def _hashed(job: Future[list[tuple[bytes, Line]]]) -> list[tuple[bytes, Line]]:
    try:
        return job.result()
    except FileNotFoundError as error:
        raise WorkspaceFault(
            f"The workspace changed while its digest was taken: {error.filename!r} vanished",
            hint="Wait until nothing writes to the workspace, then start again.",
        ) from error


def walk(
    root_fd: int, *, whole: bool = False, ours: bool = False
) -> Iterator[tuple[int, bytes, list[tuple[bytes, os.stat_result]]]]:
    """(descriptor, path, entries) of every directory below ``root_fd``; the descriptor is lent until the next step.

    ``whole``: the top-level ``.git`` too. ``ours``: modes that lock us out are lifted meanwhile, and what is deeper
    than DEPTH_MAX is not entered; in the user's tree the first is left alone and the second is a fault.
    """
    todo: list[tuple[int, int | None, bytes, int]] = [(os.dup(root_fd), None, b"", 0)]
    try:
        while todo:
            fd, mode, path, depth = todo.pop()
            try:
                entries = _entries(fd, leave_out_git=not whole and not path)
                yield fd, path, entries
                for name, st in entries:
                    if not stat.S_ISDIR(st.st_mode) or (ours and depth > objects.DEPTH_MAX):
                        continue
                    below = objects.join(path, name)
                    objects.refuse_depth(below, 0 if ours else depth + 1)
                    try:
                        todo.append((*objects.open_dir(fd, name, ours=ours), below, depth + 1))
                    except PermissionError:
                        continue  # listed by itself; what is inside cannot be known
            finally:
                objects.close_dir(fd, mode)
    finally:
        for fd, mode, _, _ in todo:
            objects.close_dir(fd, mode)


def _entries(fd: int, *, leave_out_git: bool) -> list[tuple[bytes, os.stat_result]]:
    found: list[tuple[bytes, os.stat_result]] = []
    with os.scandir(fd) as listed:
        for entry in listed:
            name = os.fsencode(entry.name)
            if leave_out_git and name == _TOP_GIT:
                continue
            try:
                found.append((name, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue
    return found
