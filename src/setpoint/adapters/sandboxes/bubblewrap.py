"""Rungs ``overlay`` and ``copy``: one fresh bubblewrap sandbox per action.

Own user, process, mount, network, IPC, host name and cgroup namespaces, a system-call filter, a read-only world and
bounded places to write. Starting costs a few milliseconds; nothing is kept from one action to the next.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from setpoint.adapters.sandboxes import bwrap, seccomp, toolchain
from setpoint.adapters.sandboxes.cgroup import ActionCgroup, CgroupHome
from setpoint.adapters.sandboxes.guardian import Guardian
from setpoint.adapters.sandboxes.meter import Meter, TreeMeter
from setpoint.adapters.sandboxes.netproxy import ENVIRONMENT, AllowProxy, allow_list
from setpoint.adapters.sandboxes.running import (
    ActionThreads,
    memory_file,
    not_started,
    set_limits,
    start_refused,
    unstartable,
)
from setpoint.adapters.sandboxes.scratch import Namespaces, PlainScratch, hold, plain, remove_tree
from setpoint.adapters.sandboxes.supervise import Command, Ended, supervise
from setpoint.kernel.errors import SandboxFault
from setpoint.ports.sandbox import (
    WORKSPACE_AT,
    Action,
    BindView,
    Finished,
    Mount,
    OverlayView,
    SandboxReport,
    Scratch,
    View,
)

OUT_FILES_MAX = 64
OUT_BYTES_MAX = 8 << 20
_out_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Machine:
    """What the probe found: which program to run and what to help it with."""

    bwrap: str
    namespaces: Namespaces | None  # None: no private tmpfs; scratch lies on disk
    cgroups: CgroupHome | None
    scratch_parent: str | None = None  # where plain scratch directories go; None is the system's temporary directory


class BubblewrapSandbox(ActionThreads):
    """``Sandbox`` over bwrap >= 0.11 (``overlay``) or any bwrap with views copied by the caller (``copy``)."""

    def __init__(self, machine: Machine, report: SandboxReport) -> None:
        super().__init__()
        self.report = report
        self._machine = machine
        self._filter = seccomp.program()
        self._guardian = Guardian()

    def open_scratch(self, disk_bytes: int) -> Scratch:
        """A tmpfs of ``disk_bytes``, or where the report says ``disk`` is not enforced a plain directory."""
        if self._machine.namespaces is None:
            return plain(self._machine.scratch_parent)
        return hold(self._machine.namespaces, disk_bytes)

    def close_blocking(self) -> None:
        super().close_blocking()
        self._guardian.close()

    def _run(self, action: Action, cancel: int) -> Finished:
        if isinstance(action.view, OverlayView) and self.report.rung != "overlay":
            raise SandboxFault(f"rung {self.report.rung!r} has no overlays; use a BindView of a copy")
        if problem := unstartable(action):
            return not_started(problem)
        with _Staging(self._machine, action) as staging:
            command = self._command(action, staging)
            try:
                ended = supervise(command, action.limits, action.stdin, cancel, staging.born)
            except OSError as error:
                return start_refused(action, error)
            return _finished(action, ended, staging.out_files())

    def _command(self, action: Action, staging: _Staging) -> Command:
        fds: list[int] = []
        ours: list[int] = []
        try:
            data = [memory_file(content) for content in bwrap.synthetic_files()]
            fds += data
            fds.append(filter_fd := memory_file(self._filter))
            status_read, status_write = os.pipe()
            ours.append(status_read)
            fds.append(status_write)
            gate_read, gate_write = os.pipe()
            ours.append(gate_write)
            fds.append(gate_read)
            fds.append(gate_kept := os.dup(gate_write))
            options = bwrap.arguments(staging.world(), data, filter_fd, status_write, (gate_read, gate_kept))
            fds.append(options_fd := memory_file(b"".join(os.fsencode(option) + b"\0" for option in options)))
        except BaseException:
            for fd in (*fds, *ours):
                os.close(fd)
            raise
        argv = [*staging.prefix, self._machine.bwrap, "--args", str(options_fd), "--", *action.argv]
        return Command([os.fsencode(word) for word in argv], tuple(fds), status_read, gate_write, self._guardian)


@dataclass(slots=True)
class _Staging:
    """Host-side places of one action: where its upper layer and its output directory lie, and its cgroup."""

    machine: Machine
    action: Action
    prefix: tuple[str, ...] = ()
    _own: PlainScratch | None = None
    _out_inside: str = ""  # as bwrap will see it
    _out_outside: str = ""  # as we reach it; "" until the throw-away namespace exists
    _out_fd: int = -1
    _overlay: bwrap.Overlay | None = None
    _cgroup: ActionCgroup | None = None
    _proxy: AllowProxy | None = None
    _tmpfs_bytes: int = field(default=0)

    def __enter__(self) -> _Staging:
        action, view = self.action, self.action.view
        scratch = view.scratch if isinstance(view, OverlayView) else None
        if isinstance(view, OverlayView) and view.upper is not None:
            self._kept_layer(view)
        if scratch is not None:
            self.prefix = scratch.enter
            self._tmpfs_bytes = action.limits.disk_bytes
            if action.out_at is not None:
                name = f".out-{next(_out_serial)}"
                self._out_inside = os.path.join(scratch.inside, name)
                self._out_outside = os.path.join(scratch.outside, name)
                os.mkdir(self._out_outside, 0o755)
        needs_place = action.out_at is not None and not self._out_inside
        if (isinstance(view, OverlayView) and view.upper is None) or needs_place:
            self._throw_away_place(view, scratch)
        return self

    def _kept_layer(self, view: OverlayView) -> None:
        if view.scratch is None or view.work is None or view.upper is None:
            raise SandboxFault("a view that keeps its upper layer needs a scratch and a work directory")
        inside = view.scratch.inside
        self._overlay = bwrap.Overlay(view.lowers, os.path.join(inside, view.upper), os.path.join(inside, view.work))

    def _throw_away_place(self, view: object, scratch: Scratch | None) -> None:
        """A fresh tmpfs (or directory) for writes nobody keeps and for ``out_at``."""
        namespaces, disk = self.machine.namespaces, self.action.limits.disk_bytes
        if scratch is not None:
            # Lowers may lie inside the scratch, so its namespaces are needed; its quota bounds this layer as well.
            name = f".throw-{next(_out_serial)}"
            for part in ("", "/upper", "/work"):
                os.mkdir(os.path.join(scratch.outside, name + part), 0o755)
            self._own = PlainScratch(os.path.join(scratch.outside, name), os.path.join(scratch.inside, name))
            place, parts = self._own.inside, ("upper", "work")
        elif namespaces is not None:
            self.prefix = namespaces.throw_away(disk)
            self._tmpfs_bytes = disk
            place, parts = namespaces.mount_point, (".upper", ".work")
        else:
            self._own = plain(self.machine.scratch_parent)
            place, parts = self._own.inside, (".upper", ".work")
        if isinstance(view, OverlayView) and view.upper is None:
            self._overlay = bwrap.Overlay(view.lowers, os.path.join(place, parts[0]), os.path.join(place, parts[1]))
        if self.action.out_at is not None and not self._out_inside:
            self._out_inside = os.path.join(place, ".out")
            self._out_outside = "" if self._own is None else os.path.join(self._own.outside, ".out")

    def world(self) -> bwrap.World:
        """What the action will see. SandboxFault for a host path that is missing or a place that is not allowed."""
        action, view = self.action, self.action.view
        allow_list(action.network)
        tools = toolchain.resolve(action.toolchain)
        shown = [Mount(path, path) for path in tools.paths]
        for mount in action.mounts:
            bwrap.check_place(mount.at)
            if os.path.realpath(mount.host) == "/":
                raise SandboxFault("the whole host (/) is never shown inside a sandbox")
            shown.append(mount)
        if action.out_at is not None:
            bwrap.check_place(action.out_at)
        workspace: bwrap.Overlay | Mount | None = self._overlay
        if isinstance(view, BindView):
            if os.path.realpath(view.root) == "/":
                raise SandboxFault("the whole host (/) cannot be a workspace")
            workspace = Mount(view.root, WORKSPACE_AT)
            toolchain.readable(view.root)
        for mount in shown:
            toolchain.readable(mount.host)
        for name, value in action.env:
            if not name or "=" in name or "\0" in name + value:
                raise SandboxFault(f"the environment variable {name!r} cannot be set: bad name or a NUL byte in it")
        return bwrap.World(
            workspace=workspace,
            workspace_readonly=isinstance(view, BindView) and view.readonly,
            readonly=tuple(shown),
            out=Mount(self._out_inside, action.out_at) if action.out_at is not None else None,
            env=(*(ENVIRONMENT if action.network else ()), *action.env),
            search=tools.search,
            cwd=action.cwd if view is not None or action.cwd != WORKSPACE_AT else "/tmp",
            tmp_bytes=self._tmp_bytes(),
            drop_capabilities=os.geteuid() == 0 or bool(self.prefix),
            hidden=(hidden := _existing(action.hidden, view)),
            pinned=_pinned(hidden, view),
        )

    def born(self, init: int, outer: int) -> Meter:
        """Called while the action waits: bound it before it runs."""
        limits = self.action.limits
        if self._out_inside and not self._out_outside:
            self._out_fd = os.open(f"/proc/{outer}/root{self._out_inside}", os.O_RDONLY | os.O_DIRECTORY)
        if self.machine.cgroups is not None:
            memory_files = self._tmpfs_bytes + self._tmp_bytes() + bwrap.SHM_BYTES
            self._cgroup = self.machine.cgroups.admit(init, limits, memory_files)
        if self.action.network:
            self._proxy = AllowProxy.inside(init, allow_list(self.action.network))
        set_limits(init, limits, processes=True, data=self._cgroup is None)
        return self._cgroup or TreeMeter(init)

    def out_files(self) -> dict[str, bytes]:
        """The regular files at the top of ``out_at``; everything else, and what is over the bounds, is left out."""
        if not self._out_inside:
            return {}
        if self._out_outside:
            self._out_fd = os.open(self._out_outside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        return read_small_files(self._out_fd) if self._out_fd >= 0 else {}

    def __exit__(self, *_: object) -> None:
        if self._proxy is not None:
            self._proxy.close()
        if self._out_fd >= 0:
            os.close(self._out_fd)
        if self._own is not None:
            self._own.close()
        elif self._out_outside:
            remove_tree(self._out_outside)
        if self._cgroup is not None:
            self._cgroup.close()

    def _tmp_bytes(self) -> int:
        return min(self.action.limits.disk_bytes, bwrap.TMP_BYTES_MAX)


def _existing(hidden: Sequence[str], view: View | None) -> tuple[tuple[str, bool], ...]:
    """The hidden paths that are there to be covered, in the base: no action ever sees them, so none can make them.

    Over a bound directory their parents are mounted onto themselves first (see ``_pinned``).
    """
    root = view.lowers[0] if isinstance(view, OverlayView) else view.root if isinstance(view, BindView) else ""
    found: list[tuple[str, bool]] = []
    for given in hidden if root else ():
        path = os.path.normpath(given)
        if path in (".", "..") or path.startswith(("/", "../")):
            raise SandboxFault(f"{given!r} cannot be hidden: it is not a path below the workspace")
        with contextlib.suppress(OSError):
            info = os.lstat(os.path.join(root, path))
            found.append((os.path.join(WORKSPACE_AT, path), stat.S_ISDIR(info.st_mode)))
    return tuple(found)


def _pinned(hidden: Sequence[tuple[str, bool]], view: View | None) -> tuple[Mount, ...]:
    """Parents of hidden paths in a bound directory, to be mounted onto themselves.

    A real directory can be renamed, and what was covered would lie bare in the next action; a mount point cannot. In
    an overlay the base's directories cannot be renamed at all (EXDEV), so nothing need be pinned there.
    """
    if not isinstance(view, BindView) or view.readonly:
        return ()
    parents: list[str] = []
    for at, _ in hidden:
        path = os.path.dirname(at)
        while path != WORKSPACE_AT:
            parents.append(path)
            path = os.path.dirname(path)
    ordered = sorted(dict.fromkeys(parents), key=len)
    return tuple(Mount(view.root + path.removeprefix(WORKSPACE_AT), path) for path in ordered)


def read_small_files(directory: int) -> dict[str, bytes]:
    """Regular files directly in ``directory``, never through a link, at most OUT_FILES_MAX and OUT_BYTES_MAX."""
    files: dict[str, bytes] = {}
    left = OUT_BYTES_MAX
    for name in sorted(os.listdir(directory))[: 4 * OUT_FILES_MAX]:
        if len(files) == OUT_FILES_MAX:
            break
        try:
            # NONBLOCK: a planted fifo must not hold us; what it is gets checked on the open descriptor
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except OSError:
            continue
        try:
            info = os.fstat(fd)
            if stat.S_ISREG(info.st_mode) and info.st_size <= left:
                with open(fd, "rb", closefd=False) as file:
                    files[name] = file.read(info.st_size)
                left -= len(files[name])
        finally:
            os.close(fd)
    return files


def _finished(action: Action, ended: Ended, files: dict[str, bytes]) -> Finished:
    code, number, reason = ended.exit_code, None, ended.reason
    if not reason and code is None:
        reason = _why_no_exit_code(action, ended)
    if code is not None and code > 128 and code - 128 <= 64:
        # bwrap, like a shell, reports death by signal n as 128 + n; a program that exits so on purpose looks the same
        number, code = code - 128, None
        if number == signal.SIGXCPU and not reason:
            reason = "cpu"
    if reason:
        code = None
    return Finished(code, number, reason, ended.stdout, ended.stderr, ended.duration_ms, files)


def _why_no_exit_code(action: Action, ended: Ended) -> str:
    """bwrap reports an exit code only for a program that started. Nobody but bwrap wrote to stderr then."""
    said = ended.stderr.kept.decode(errors="replace").strip()
    if ended.born and said.startswith(("bwrap: execvp", "bwrap: Can't chdir")):
        return "start"
    if ended.born and ended.outer_code in (137, -9):
        return "killed"
    raise SandboxFault(
        f"the sandbox for {action.argv[0]!r} could not be set up: {said[-1000:] or f'exit code {ended.outer_code}'}",
        hint="run `setpoint doctor` to see what this machine allows",
    )
