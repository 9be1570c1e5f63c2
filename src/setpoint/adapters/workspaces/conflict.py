"""Did the user touch what a commit is about to change?

The manifest taken at ``open`` says what every path was. A path conflicts when it is now something else: other type,
mode or bytes, gone, or there although it was not. Equal bytes under a new identity are no conflict. Below the top-level
``.git``, which the manifest leaves out, the identity recorded when a savepoint first touched the path is compared.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import ExitStack

from setpoint.adapters.workspaces import kernelcalls, objects, treedigest
from setpoint.adapters.workspaces.moves import Dress, Move, MoveSet
from setpoint.adapters.workspaces.objects import Ident
from setpoint.adapters.workspaces.treedigest import Line, Manifest


def find(base_fd: int, manifest: Manifest, touched: dict[bytes, Ident | None], what: MoveSet) -> list[bytes]:
    """Paths of the user's tree that stand against ``what``, sorted."""
    check = _Check(base_fd, manifest, touched)
    found: set[bytes] = set()
    for move in what.moves:
        found.update(check.move(move))
    for dress in what.dresses:
        found.update(check.dress(dress))
    return sorted(found)


class _Check:
    def __init__(self, base_fd: int, manifest: Manifest, touched: dict[bytes, Ident | None]) -> None:
        self.base_fd = base_fd
        self.manifest = manifest
        self.touched = touched
        self.now_ns = time.time_ns()

    def move(self, move: Move) -> list[bytes]:
        parent, name = objects.split(move.path)
        try:
            fd = kernelcalls.open_dir_beneath(self.base_fd, parent)
        except OSError:  # a parent is gone, or no longer a directory of the workspace
            return [move.path]
        try:
            st = objects.lstat(fd, name)
            if treedigest.is_left_out(move.path):
                return [] if self._as_touched(move.path, st) else [move.path]
            return self._against_manifest(fd, name, st, move.path)
        finally:
            os.close(fd)

    def dress(self, dress: Dress) -> list[bytes]:
        line = self.manifest.lines.get(dress.path)
        if line is None or line.kind != "d":  # the root, .git, or a directory the manifest does not know
            return [] if dress.path == b"" or treedigest.is_left_out(dress.path) else [dress.path]
        return [] if line.mode == dress.old_mode else [dress.path]

    def _as_touched(self, path: bytes, st: os.stat_result | None) -> bool:
        if path not in self.touched:
            return st is None
        expected = self.touched[path]
        if expected is None or st is None:
            return expected is None and st is None
        return expected._replace(ctime_ns=0) == Ident.of(st)._replace(ctime_ns=0)  # a commit taken back renames

    def _against_manifest(self, fd: int, name: bytes, st: os.stat_result | None, path: bytes) -> list[bytes]:
        line = self.manifest.lines.get(path)
        if st is None or line is None:
            return [] if st is None and line is None else [path]
        if line.kind == "d" and stat.S_ISDIR(st.st_mode):
            return self._directory(fd, name, st, path, line)
        return [] if self._same_leaf(fd, name, st, line) else [path]

    def _same_leaf(self, fd: int, name: bytes, st: os.stat_result, line: Line) -> bool:
        if line.ident == Ident.of(st) and not line.racy:
            return True
        if line.kind == "s":  # no content to compare: the very inode counts
            return (line.ident.ino, line.ident.mode) == (st.st_ino, st.st_mode)
        now = treedigest.line_of(fd, name, st, self.now_ns)
        return (now.kind, now.mode, now.digest) == (line.kind, line.mode, line.digest)

    def _directory(self, fd: int, name: bytes, st: os.stat_result, path: bytes, line: Line) -> list[bytes]:
        """A directory that will be removed or replaced as a whole: nothing inside may have changed."""
        found = [] if line.mode == stat.S_IMODE(st.st_mode) else [path]
        seen: set[bytes] = set()
        with ExitStack() as stack:
            try:
                top = stack.enter_context(objects.opened_dir(fd, name, ours=False))
                self._inside(top, path, seen, found, 0)
            except PermissionError:
                return [*found, path]
        found.extend(missing for missing in self.manifest.below(path) if missing not in seen)
        return found

    def _inside(self, fd: int, path: bytes, seen: set[bytes], found: list[bytes], depth: int) -> None:
        objects.refuse_depth(path, depth)
        for name in objects.names(fd):
            below = objects.join(path, name)
            seen.add(below)
            st = os.stat(name, dir_fd=fd, follow_symlinks=False)
            line = self.manifest.lines.get(below)
            if line is None:
                found.append(below)
            elif line.kind == "d" and stat.S_ISDIR(st.st_mode):
                if line.mode != stat.S_IMODE(st.st_mode):
                    found.append(below)
                with objects.opened_dir(fd, name, ours=False) as inner:
                    self._inside(inner, below, seen, found, depth + 1)
            elif not self._same_leaf(fd, name, st, line):
                found.append(below)
