"""The workspace transaction on kernel overlays: base and staged below, the attempt's upper directory on top.

An attempt lives in the transaction's scratch (a quota-bound tmpfs where the sandbox can make one), so throwing it
away costs nothing on disk. There are never more than three lower layers, however many turns there are.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from setpoint.adapters.workspaces import durable, objects
from setpoint.adapters.workspaces.moves import CrashPoint, no_crash
from setpoint.adapters.workspaces.state import ManifestPool, WorkspaceState
from setpoint.adapters.workspaces.transaction import LayeredWorkspace, TransactionFiles
from setpoint.kernel.errors import WorkspaceFault
from setpoint.ports.sandbox import OverlayView, Scratch
from setpoint.ports.workspace import CommitReceipt


class ScratchMaker(Protocol):
    """The part of the Sandbox port a workspace needs."""

    def open_scratch(self, disk_bytes: int) -> Scratch: ...


class OverlayWorkspace(LayeredWorkspace):
    """See ``ports.workspace.Workspace``."""

    def __init__(self, files: TransactionFiles, scratch: Scratch, crash: CrashPoint) -> None:
        self._scratch = scratch
        place_fd = os.open(scratch.outside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        super().__init__(files, place_fd, crash)

    def _staged_path(self) -> str:
        return self._files.path_of("staged")

    def action_view(self) -> OverlayView:
        self._require_root()
        if self._attempt_fd is None:
            raise WorkspaceFault("There is no attempt an action could write to; begin one first")
        name = self._attempt_name().decode()
        lowers = (self.root, self._staged_path())
        return OverlayView(lowers, upper=f"{name}/up", work=f"{name}/wk", scratch=self._scratch)

    def candidate_view(self) -> OverlayView:
        self._require_root()
        lowers = (self.root, self._staged_path())
        if self._attempt_fd is None:
            return OverlayView(lowers)
        upper = os.path.join(self._scratch.inside, self._attempt_name().decode(), "up")
        return OverlayView((*lowers, upper), scratch=self._scratch)

    def base_view(self) -> OverlayView:
        self._require_root()
        return OverlayView((self.root,))

    def _release(self) -> None:
        self._scratch.close()


class LayeredProvider:
    """undo and recover, which need no view."""

    def __init__(self, state_dir: Path, crash_point: CrashPoint) -> None:
        self._state_dir = state_dir
        self._crash = crash_point
        self._pool = ManifestPool()

    def _open_state(self, root: str) -> WorkspaceState:
        return WorkspaceState(self._state_dir, root, self._pool, self._crash)

    def undo(self, root: str, commit_id: str) -> CommitReceipt:
        state = self._open_state(root)
        try:
            with state.locked(exclusive=True), objects.world_faults(f"Undoing {commit_id}"):
                state.commits.recover()
                return state.commits.undo(commit_id)
        finally:
            state.close()

    def sweep(self, root: str, is_over: Callable[[str], bool]) -> list[str]:
        """Remove the transactions over ``root`` of which ``is_over`` says so by their id and which nobody has open:
        what a crash left before a task was accepted or after it had ended. Returns their ids."""
        if not os.path.isdir(root):
            return []  # the workspace is gone; what is kept for it may still be wanted
        state = self._open_state(root)
        try:
            with state.locked(exclusive=True), objects.world_faults(f"Sweeping the transactions of {root}"):
                swept = TransactionFiles.sweep(state, is_over)
                durable.empty(state.trash_fd)
                return swept
        finally:
            state.close()

    def recover(self, root: str) -> list[str]:
        state = self._open_state(root)
        try:
            with state.locked(exclusive=True), objects.world_faults(f"Recovering {root}"):
                said = state.commits.recover()
                durable.empty(state.trash_fd)
                return said
        finally:
            state.close()


class OverlayWorkspaceProvider(LayeredProvider):
    """See ``ports.workspace.WorkspaceProvider``. ``crash_point`` is for tests that kill the process in it."""

    def __init__(self, state_dir: Path, sandbox: ScratchMaker, *, crash_point: CrashPoint = no_crash) -> None:
        super().__init__(state_dir, crash_point)
        self._sandbox = sandbox

    def open(self, root: str, transaction_id: str, disk_bytes: int) -> OverlayWorkspace:
        state = self._open_state(root)
        try:
            _require_whiteouts(state)
            files = TransactionFiles(state, transaction_id)
            try:
                scratch = self._sandbox.open_scratch(disk_bytes)
                try:
                    return OverlayWorkspace(files, scratch, self._crash)
                except BaseException:
                    scratch.close()
                    raise
            except BaseException:
                os.close(files.fd)
                raise
        except BaseException:
            state.close()
            raise


def _require_whiteouts(state: WorkspaceState) -> None:
    """An overlay marks removals by device nodes; a kernel before 5.8 or a seccomp profile may refuse them."""
    name = b"probe-" + secrets.token_hex(6).encode()
    try:
        os.mknod(name, 0o020000, os.makedev(0, 0), dir_fd=state.trash_fd)
        os.unlink(name, dir_fd=state.trash_fd)
    except OSError as error:
        raise WorkspaceFault(
            f"The state directory cannot hold overlay whiteouts: {error.strerror}",
            hint="Use the copying workspace provider on this machine, or a state directory on another filesystem.",
        ) from error
