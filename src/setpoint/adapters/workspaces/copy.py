"""The workspace transaction on a working copy, for machines that cannot mount overlays.

``tree/`` is a real copy of base + staged that actions write in place. What an attempt changed is found by comparing
every object's identity with the one recorded when the tree was last in step, and is written into an upper directory
of the overlay's format; from there on everything is the same as with overlays: savepoints, restore, commit, undo.

Weaker than overlays, by nature: opening copies the workspace once (blocks are shared where the filesystem can),
each look at an attempt stats every file, no quota bounds the copy, and a check sees the candidate read-only.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from setpoint.adapters.workspaces import copying, durable, layers, objects, treedigest
from setpoint.adapters.workspaces.layers import MergedDir, Node, components
from setpoint.adapters.workspaces.moves import CrashPoint, no_crash
from setpoint.adapters.workspaces.objects import Ident, join
from setpoint.adapters.workspaces.overlay import LayeredProvider, ScratchMaker
from setpoint.adapters.workspaces.transaction import LayeredWorkspace, TransactionFiles
from setpoint.kernel.errors import ChangeRejected, WorkspaceFault
from setpoint.ports.sandbox import BindView
from setpoint.ports.workspace import ResolvedPath

_TREE = b"tree"
_IN_STEP = b"tree.json"  # identities of a tree that equals base + staged; absent while that is not certain


class CopyWorkspace(LayeredWorkspace):
    """See ``ports.workspace.Workspace``."""

    def __init__(self, files: TransactionFiles, crash: CrashPoint) -> None:
        place_fd = durable.open_made(files.fd, b"attempts")
        durable.empty(place_fd)
        self._exposed = False  # an action may have written the tree since it was in step
        super().__init__(files, place_fd, crash)
        self._known: dict[bytes, Ident] = {}
        with objects.world_faults("Making the working copy"):
            known = self._remembered()
            if known is None:
                self._rebuild()
            else:
                self._known = known
                self._bring_back(self._changed()[0])

    # Views.

    def begin(self) -> None:
        super().begin()
        self._exposed = True

    def action_view(self) -> BindView:
        self._require_root()
        if self._attempt_fd is None:
            raise WorkspaceFault("There is no attempt an action could write to; begin one first")
        return BindView(self._files.path_of("tree"))

    def candidate_view(self) -> BindView:
        self._require_root()
        return BindView(self._files.path_of("tree"), readonly=True)

    def base_view(self) -> BindView:
        self._require_root()
        return BindView(self.root, readonly=True)

    # The working copy follows the transaction.

    def discard(self) -> None:
        if self._attempt_fd is None:
            return
        super().discard()
        with objects.world_faults("Taking the working copy back"):
            self._bring_back(self._changed()[0])
        self._exposed = False

    def keep(self, savepoint: int) -> None:
        self._derive()
        self._forget()
        super().keep(savepoint)  # should it fail, the tree still goes back to what is known, or is made anew
        self._exposed = False
        self._remember(self._stat_tree()[0])

    def restore(self, savepoint: int) -> None:
        self.discard()
        before = self._paths_changed()
        self._forget()
        super().restore(savepoint)  # should it fail, the next open makes the tree anew
        with objects.world_faults("Taking the working copy back"):
            self._bring_back(before | self._paths_changed())

    def _paths_changed(self) -> set[bytes]:
        found = (os.fsencode(item.change.path) for item in self._differences(1))
        return {b"" if path == b"." else path for path in found}

    def write(self, path: ResolvedPath, content: bytes) -> None:
        if self._attempt_fd is None:
            raise WorkspaceFault(f"{path} cannot be written: no attempt was begun")
        with (
            self._tree() as tree,
            MergedDir.root([tree], self.visits) as shown,
            objects.opened_dir(self._attempt_fd, b"tmp", ours=True) as spare,
        ):
            layers.write(shown, tree, spare, os.fsencode(path), content, mark_new=False)

    @contextmanager
    def _view(self, count: int) -> Iterator[MergedDir]:
        if count == 3:
            self._derive()
        with super()._view(count) as shown:
            yield shown

    @contextmanager
    def _tree(self) -> Iterator[int]:
        with objects.opened_dir(self._files.fd, _TREE, ours=True) as fd:
            yield fd

    # Which identities the tree had when it was in step.

    def _remembered(self) -> dict[bytes, Ident] | None:
        try:
            found = durable.read_json(self._files.fd, _IN_STEP)
        except ValueError:  # written in part: the tree is rebuilt
            return None
        return None if found is None else {os.fsencode(path): Ident(*ident) for path, ident in found}

    def _remember(self, known: dict[bytes, Ident]) -> None:
        self._known = known
        data = [[os.fsdecode(path), ident] for path, ident in known.items()]
        durable.write_json(self._files.fd, _IN_STEP, data)

    def _forget(self) -> None:
        if objects.lstat(self._files.fd, _IN_STEP) is not None:
            os.unlink(_IN_STEP, dir_fd=self._files.fd)
            os.fsync(self._files.fd)

    def _stat_tree(self) -> tuple[dict[bytes, Ident], bool]:
        """Every identity in the tree, and whether it is too deep. An object as young as the look matches nothing."""
        young_ns = time.time_ns() - treedigest.RACY_NS
        found: dict[bytes, Ident] = {}
        too_deep = False
        found[b""] = Ident.of(os.stat(_TREE, dir_fd=self._files.fd, follow_symlinks=False))
        with self._tree() as tree:
            for _, path, entries in treedigest.walk(tree, whole=True, ours=True):
                if path.count(b"/") >= objects.DEPTH_MAX:
                    too_deep = True
                for name, st in entries:
                    ident = Ident.of(st)
                    racy = max(st.st_ctime_ns, st.st_mtime_ns) >= young_ns and not stat.S_ISDIR(st.st_mode)
                    found[join(path, name)] = ident._replace(ino=-1) if racy else ident
        return found, too_deep

    def _changed(self) -> tuple[set[bytes], bool]:
        """Paths that are not as they were when the tree was in step, and whether the tree is too deep."""
        now, too_deep = self._stat_tree()
        changed = {path for path, ident in now.items() if self._known.get(path) != ident or ident.ino == -1}
        return changed | (self._known.keys() - now.keys()), too_deep

    # Tree -> attempt.

    def _derive(self) -> None:
        """Write what the tree lacks or has more than base + staged into the attempt's upper directory."""
        if not self._exposed or self._attempt_fd is None:
            return
        changed, too_deep = self._changed()
        if too_deep:
            raise ChangeRejected(f"The attempt made directories deeper than {objects.DEPTH_MAX}")
        wanted = set(changed)
        for path in changed:
            while path:
                path = objects.split(path)[0]
                wanted.add(path)
        objects.remove_tree(self._attempt_fd, b"up")
        os.mkdir(b"up", 0o700, dir_fd=self._attempt_fd)
        st = os.stat(_TREE, dir_fd=self._files.fd, follow_symlinks=False)
        with (
            super()._view(2) as shown,
            self._tree() as tree,
            objects.opened_dir(self._attempt_fd, b"up", ours=True) as up,
        ):
            self._derive_dir(shown, tree, up, b"", wanted)
            copying.dress_dir(up, st, objects.user_xattrs(tree))

    def _derive_dir(
        self,
        shown: MergedDir | None,
        tree: int,
        up: int,
        path: bytes,
        wanted: set[bytes],
    ) -> None:
        present = set(objects.names(tree))
        for name in sorted(present | (shown.names_from(0) if shown else set())):
            below = join(path, name)
            if below not in wanted:
                continue
            lower = shown.lookup(name) if shown else None
            if name not in present:
                if lower is not None:
                    objects.make_whiteout(up, name)
                continue
            st = os.stat(name, dir_fd=tree, follow_symlinks=False)
            if lower is not None and objects.is_special(st.st_mode) and lower.st.st_mode == st.st_mode:
                continue  # the user's own fifo or socket, only young
            objects.refuse_forbidden(below, st)
            if not stat.S_ISDIR(st.st_mode):
                copying.copy_leaf(tree, name, up, name, st, ours=True)
                continue
            os.mkdir(name, 0o700, dir_fd=up)
            with ExitStack() as stack:
                inner_tree = stack.enter_context(objects.opened_dir(tree, name, ours=True))
                inner_up = stack.enter_context(objects.opened_dir(up, name, ours=True))
                inner: MergedDir | None = None
                if shown is not None and lower is not None and lower.is_dir:
                    inner = stack.enter_context(shown.open(name))
                else:
                    objects.set_opaque(inner_up)
                self._derive_dir(inner, inner_tree, inner_up, below, wanted)
                copying.dress_dir(inner_up, st, objects.user_xattrs(inner_tree))

    # Base + staged -> tree.

    def _rebuild(self) -> None:
        durable.throw_away(self._files.fd, _TREE, self._state.trash_fd)
        os.mkdir(_TREE, 0o700, dir_fd=self._files.fd)
        with super()._view(2) as shown, self._tree() as tree:
            self._copy_dir(shown, shown.node().st, tree)
        self._remember(self._stat_tree()[0])

    def _copy_dir(self, shown: MergedDir, st: os.stat_result, target: int) -> None:
        for name, node in shown.children():
            self._copy(shown, name, node, target)
        copying.dress_dir(target, st, objects.user_xattrs(shown.top()[1]))

    def _copy(self, shown: MergedDir, name: bytes, node: Node, target: int) -> None:
        if objects.is_special(node.st.st_mode):
            with suppress(PermissionError):  # a device of the user's is not shown where it cannot be made
                copying.copy_leaf(node.dir_fd, name, target, name, node.st, ours=node.ours)
            return
        if not node.is_dir:
            copying.copy_leaf(node.dir_fd, name, target, name, node.st, ours=node.ours)
            return
        os.mkdir(name, 0o700, dir_fd=target)
        with shown.open(name) as inner, objects.opened_dir(target, name, ours=True) as fd:
            self._copy_dir(inner, node.st, fd)

    def _bring_back(self, paths: Iterable[bytes]) -> None:
        """Make the tree equal base + staged again at these paths."""
        self._forget()
        objects.chmod_nofollow(self._files.fd, _TREE, 0o700)
        with super()._view(2) as shown, self._tree() as tree:
            for path in [*sorted({*paths} - {b""}), b""]:  # the root last: its mode may forbid what is done below it
                self._bring_back_one(shown, tree, path)
        self._remember(self._stat_tree()[0])

    def _bring_back_one(self, root: MergedDir, tree: int, path: bytes) -> None:
        parent, name = objects.split(path)
        with ExitStack() as stack:
            shown, target = root, tree
            for part in components(parent):
                try:
                    shown = stack.enter_context(shown.open(part))
                    target = stack.enter_context(objects.opened_dir(target, part, ours=True))
                except (NotADirectoryError, FileNotFoundError):
                    return  # gone with its parent, or made again with it
            if not name:
                copying.dress_dir(target, shown.node().st, objects.user_xattrs(shown.top()[1]))
                return
            node, present = shown.lookup(name), objects.lstat(target, name)
            if node is not None and node.is_dir and present is not None and stat.S_ISDIR(present.st_mode):
                inner = stack.enter_context(shown.open(name))
                inner_target = stack.enter_context(objects.opened_dir(target, name, ours=True))
                copying.dress_dir(inner_target, node.st, objects.user_xattrs(inner.top()[1]))
                return
            objects.remove_tree(target, name)
            if node is not None:
                self._copy(shown, name, node, target)


class CopyWorkspaceProvider(LayeredProvider):
    """See ``ports.workspace.WorkspaceProvider``. Needs nothing of the sandbox."""

    def __init__(
        self, state_dir: Path, sandbox: ScratchMaker | None = None, *, crash_point: CrashPoint = no_crash
    ) -> None:
        super().__init__(state_dir, crash_point)
        del sandbox

    def open(self, root: str, transaction_id: str, disk_bytes: int) -> CopyWorkspace:
        del disk_bytes  # no quota can bound a plain directory
        state = self._open_state(root)
        try:
            files = TransactionFiles(state, transaction_id)
            try:
                return CopyWorkspace(files, self._crash)
            except BaseException:
                os.close(files.fd)
                raise
        except BaseException:
            state.close()
            raise
