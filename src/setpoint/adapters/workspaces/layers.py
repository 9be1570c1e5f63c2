"""The merged tree of base, staged and attempt, read in user space exactly as the kernel's overlay shows it.

Layers are directory descriptors, bottom first; index 0 is the user's directory and is only ever read. A whiteout
hides what lies below it, an opaque directory hides the directory below, a file hides everything. Names are looked
up one component at a time with O_NOFOLLOW, so no link, ``..`` or swapped parent leads out of a layer.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from setpoint.adapters.workspaces import copying, objects
from setpoint.kernel.errors import WorkspaceFault
from setpoint.ports.sandbox import WORKSPACE_AT
from setpoint.ports.workspace import Entry

LINKS_MAX = 40  # what Linux follows before ELOOP
PATH_MAX = 4096
_ROOT_NAME = os.fsencode(WORKSPACE_AT).strip(b"/")


@dataclass(slots=True)
class Visits:
    """How many names were looked up; tests show with it that work follows the change, not the base."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """What the merged view shows at a name: the topmost object, and where to read it.

    ``dir_fd`` is borrowed from the directory that was asked and lives as long as that one is open.
    """

    st: os.stat_result
    layer: int
    dir_fd: int

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.st.st_mode)

    @property
    def ours(self) -> bool:
        return self.layer > 0


@dataclass(frozen=True, slots=True)
class _Part:
    layer: int
    fd: int
    restore_mode: int | None
    st: os.stat_result  # before a lock was lifted for reading


class MergedDir:
    """One directory of the merged view: the layers that contribute to it, topmost first."""

    __slots__ = ("_parts", "_visits")

    def __init__(self, parts: list[_Part], visits: Visits) -> None:
        self._parts = parts
        self._visits = visits

    @classmethod
    def root(cls, layers: Sequence[int], visits: Visits) -> MergedDir:
        """The root over ``layers`` (bottom first); takes its own descriptors of them."""
        parts: list[_Part] = []
        try:
            for layer in range(len(layers) - 1, -1, -1):
                st = os.fstat(layers[layer])
                fd, mode = objects.open_dir(layers[layer], b".", ours=layer > 0)
                parts.append(_Part(layer, fd, mode, st))
        except BaseException:
            cls(parts, visits).close()
            raise
        return cls(parts, visits)

    def __enter__(self) -> MergedDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for part in self._parts:
            objects.close_dir(part.fd, part.restore_mode)
        self._parts = []

    def top(self) -> tuple[int, int]:
        """(layer, descriptor) of the topmost contributor."""
        return self._parts[0].layer, self._parts[0].fd

    def node(self) -> Node:
        """The directory itself, as its topmost contributor has it."""
        part = self._parts[0]
        return Node(part.st, part.layer, part.fd)

    def reaches_below(self, layer: int) -> bool:
        """Whether a layer under ``layer`` shows through here."""
        return any(part.layer < layer for part in self._parts)

    def names_from(self, layer: int) -> set[bytes]:
        """Names that layers from ``layer`` upwards hold here, whiteouts included."""
        found: set[bytes] = set()
        for part in self._parts:
            if part.layer >= layer:
                found.update(objects.names(part.fd))
        return found

    def lookup(self, name: bytes) -> Node | None:
        self._visits.count += 1
        for part in self._parts:
            st = objects.lstat(part.fd, name)
            if st is None:
                continue
            if _hides(part, name, st):
                return None
            return Node(st, part.layer, part.fd)
        return None

    def children(self) -> Iterator[tuple[bytes, Node]]:
        """Every visible name with its object, sorted by bytes."""
        for name in sorted(self.names_from(0)):
            node = self.lookup(name)
            if node is not None:
                yield name, node

    def open(self, name: bytes) -> MergedDir:
        """The merged directory below ``name``. Raises NotADirectoryError when the view shows none."""
        parts: list[_Part] = []
        try:
            for part in self._parts:
                st = objects.lstat(part.fd, name)
                if st is None:
                    continue
                if _hides(part, name, st) or not stat.S_ISDIR(st.st_mode):
                    break
                fd, mode = objects.open_dir(part.fd, name, ours=part.layer > 0)
                parts.append(_Part(part.layer, fd, mode, st))
                if part.layer > 0 and objects.is_opaque(fd):
                    break
        except BaseException:
            MergedDir(parts, self._visits).close()
            raise
        if not parts:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(name))
        return MergedDir(parts, self._visits)


def _hides(part: _Part, name: bytes, st: os.stat_result) -> bool:
    if part.layer == 0:
        return stat.S_ISCHR(st.st_mode) and st.st_rdev == 0
    return objects.is_whiteout(part.fd, name, st)


# Paths.


def components(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def _below_workspace(path: bytes) -> list[bytes] | None:
    """Components of an absolute path relative to the workspace, None when it does not lie under it."""
    parts = components(path)
    if not parts or parts[0] != _ROOT_NAME:
        return None
    return parts[1:]


def resolve(root: MergedDir, path: bytes) -> bytes | None:
    """Where ``path`` leads inside the view, every link and ``..`` followed; None when it leads outside.

    From the first name that does not exist (or is no directory) on, the rest is taken as written.
    """
    if not path or b"\0" in path or len(path) > PATH_MAX:
        return None
    start = _below_workspace(path) if path.startswith(b"/") else components(path)
    if start is None:
        return None
    todo = deque(start)
    done: list[bytes] = []
    opened: list[MergedDir] = []  # the directories of done[:len(opened)]; shorter than done beyond what exists
    links = 0
    try:
        while todo:
            name = todo.popleft()
            if name == b"..":
                if not done:
                    return None
                done.pop()
                if len(opened) > len(done):
                    opened.pop().close()
                continue
            here = opened[-1] if opened else root
            node = here.lookup(name) if len(opened) == len(done) else None
            if node is not None and stat.S_ISLNK(node.st.st_mode):
                links += 1
                target = os.readlink(name, dir_fd=node.dir_fd)
                if links > LINKS_MAX:
                    return None
                parts = components(target)
                if target.startswith(b"/"):
                    below = _below_workspace(target)
                    if below is None:
                        return None
                    parts = below
                    while opened:
                        opened.pop().close()
                    done.clear()
                todo.extendleft(reversed(parts))
                continue
            if node is not None and node.is_dir:
                try:
                    opened.append(here.open(name))
                except PermissionError:  # the user's own unreadable directory: what is in it cannot be followed
                    return None
            done.append(name)
    finally:
        for directory in opened:
            directory.close()
    return b"/".join(done)


def read(root: MergedDir, path: bytes, max_bytes: int) -> bytes | None:
    """Content of the regular file at a resolved ``path``; None when there is none. No link is followed."""
    parent, name = objects.split(path)
    if not name:
        return None
    with ExitStack() as stack:
        here = root
        try:
            for part in components(parent):
                here = stack.enter_context(here.open(part))
        except NotADirectoryError:
            return None
        node = here.lookup(name)
        if node is None or not stat.S_ISREG(node.st.st_mode):
            return None
        with objects.world_faults(f"Reading {objects.show(path)}"):
            file = stack.enter_context(objects.opened_file(node.dir_fd, name, ours=node.ours))
            kept = bytearray()
            while len(kept) < max_bytes and (chunk := os.read(file, min(max_bytes - len(kept), 1 << 20))):
                kept += chunk
            return bytes(kept)


def write(root: MergedDir, upper_fd: int, spare_fd: int, path: bytes, content: bytes, *, mark_new: bool = True) -> None:
    """Create or replace the regular file at a resolved ``path`` in the top layer ``upper_fd``.

    ``root`` is the view with that layer on top. ``spare_fd`` is a directory on the same filesystem where the new
    file is made, so a full disk leaves the old content in place. The mode and attributes of a replaced file and of
    the parents are kept; new ones get 0644 and 0755. ``mark_new``: new directories hide what lies below.
    """
    parent, name = objects.split(path)
    if not name or b".." in components(path):
        raise WorkspaceFault(f"{objects.show(path)} cannot be written: it names no file")
    with ExitStack() as stack, objects.world_faults(f"Writing {objects.show(path)}"):
        here, target_fd = root, stack.enter_context(objects.opened_dir(upper_fd, b".", ours=True))
        for part in components(parent):
            _ensure_dir(here, target_fd, part, path, mark_new=mark_new)
            target_fd = stack.enter_context(objects.opened_dir(target_fd, part, ours=True))
            here = stack.enter_context(here.open(part))
        node = here.lookup(name)
        if node is not None and not stat.S_ISREG(node.st.st_mode):
            raise WorkspaceFault(f"{objects.show(path)} cannot be written: it is no regular file")
        _place(node, target_fd, spare_fd, name, content)


def _ensure_dir(here: MergedDir, target_fd: int, name: bytes, path: bytes, *, mark_new: bool) -> None:
    """Make sure the top layer holds the directory ``name``, looking as the merged view shows it."""
    node = here.lookup(name)
    if node is not None and not node.is_dir:
        raise WorkspaceFault(
            f"{objects.show(path)} cannot be written: {objects.show(name)} in it is no directory",
            hint="Remove the file that stands in the way first.",
        )
    present = objects.lstat(target_fd, name)
    if present is not None and stat.S_ISDIR(present.st_mode):
        return
    attributes: dict[str, bytes] = {}
    if node is not None:
        with here.open(name) as shown:  # before the new directory becomes the top of it
            attributes = objects.user_xattrs(shown.top()[1])
    if present is not None:  # a whiteout of what was removed before
        os.unlink(name, dir_fd=target_fd)
    os.mkdir(name, 0o700, dir_fd=target_fd)
    with objects.opened_dir(target_fd, name, ours=True) as fd:
        if node is None:
            if mark_new:
                objects.set_opaque(fd)
            os.fchmod(fd, 0o755)
        else:
            copying.dress_dir(fd, node.st, attributes)


def _place(node: Node | None, target_fd: int, spare_fd: int, name: bytes, content: bytes) -> None:
    attributes: dict[str, bytes] = {}
    mode = 0o644
    if node is not None:
        mode = stat.S_IMODE(node.st.st_mode)
        attributes = objects.xattrs_of(node.dir_fd, name, node.st, ours=node.ours)
    spare = b"w"
    objects.remove_tree(spare_fd, spare)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(spare, flags, 0o600, dir_fd=spare_fd)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        objects.set_user_xattrs(fd, attributes)
        os.fchmod(fd, mode)
    except BaseException:
        os.unlink(spare, dir_fd=spare_fd)
        raise
    finally:
        os.close(fd)
    os.rename(spare, name, src_dir_fd=spare_fd, dst_dir_fd=target_fd)


def listing(root: MergedDir, max_entries: int) -> tuple[list[Entry], bool]:
    """Breadth first, sorted within each directory; ``.git`` is named but not entered."""
    found: list[Entry] = []
    todo: deque[bytes] = deque([b""])
    while todo:
        path = todo.popleft()
        with ExitStack() as stack:
            here = root
            try:
                for part in components(path):
                    here = stack.enter_context(here.open(part))
            except PermissionError:  # the user's own unreadable directory: named, not entered
                continue
            for name, node in here.children():
                kind = file_type(node.st.st_mode)
                if objects.is_special(node.st.st_mode):
                    continue
                if len(found) >= max_entries:
                    return found, True
                below = objects.join(path, name)
                found.append(Entry(objects.show(below), kind, node.st.st_size if kind != "dir" else 0))
                if kind == "dir" and name != b".git" and below.count(b"/") < objects.DEPTH_MAX:
                    todo.append(below)
    return found, False


def file_type(mode: int) -> Literal["file", "dir", "symlink"]:
    """The port's word for a type; special files, which only a base can hold, count as files."""
    if stat.S_ISDIR(mode):
        return "dir"
    return "symlink" if stat.S_ISLNK(mode) else "file"
