"""Rungs ``landlock`` and ``none``: an ordinary process with limits and a keeper; tier "none" for both.

There is no ``/workspace`` here: the program runs in the real directory, so only ``BindView`` and mounts at their own
path work, and ``/workspace`` in ``cwd`` is translated. ``landlock`` confines files and refuses internet sockets;
``none`` confines nothing. Neither can take a path out of a directory, so ``hidden`` is among what the report calls
unenforced. Both hold time, output, memory (sampled) and the death of the whole tree.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile

from setpoint.adapters.sandboxes import bwrap, seccomp, toolchain
from setpoint.adapters.sandboxes.meter import Meter, TreeMeter
from setpoint.adapters.sandboxes.running import (
    ActionThreads,
    memory_file,
    not_started,
    set_limits,
    start_refused,
    unstartable,
)
from setpoint.adapters.sandboxes.scratch import plain, remove_tree
from setpoint.adapters.sandboxes.supervise import Command, Ended, supervise
from setpoint.kernel.errors import SandboxFault
from setpoint.ports.sandbox import WORKSPACE_AT, Action, BindView, Finished, SandboxReport, Scratch

_KEEPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ssl", "/etc/alternatives", "/proc")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class ProcessSandbox(ActionThreads):
    """``Sandbox`` without namespaces; ``report.rung`` says whether Landlock confines it."""

    def __init__(self, report: SandboxReport, scratch_parent: str | None = None) -> None:
        super().__init__()
        assert report.rung in ("landlock", "none")
        self.report = report
        self._scratch_parent = scratch_parent
        self._confined = report.rung == "landlock"
        self._filter = seccomp.program(internet=False).hex() if self._confined else ""

    def open_scratch(self, disk_bytes: int) -> Scratch:
        """A plain directory; its size is not bounded, as ``report.unenforced`` says."""
        return plain(self._scratch_parent)

    def _run(self, action: Action, cancel: int) -> Finished:
        if problem := unstartable(action):
            return not_started(problem)
        self._check(action)
        home = tempfile.mkdtemp(prefix="action-", dir=self._scratch_parent)
        try:
            command = self._command(action, home)

            def born(keeper: int, _outer: int) -> Meter:
                # RLIMIT_NPROC would count every process of this user here; the sampled tree bounds pids instead
                set_limits(keeper, action.limits, processes=False, data=True)
                return TreeMeter(keeper)

            try:
                ended = supervise(command, action.limits, action.stdin, cancel, born)
            except OSError as error:
                return start_refused(action, error)
            return _finished(action, ended)
        finally:
            remove_tree(home)

    def _command(self, action: Action, home: str) -> Command:
        specification = {
            "argv": action.argv,
            "env": self._environment(action, home),
            "cwd": self._cwd(action, home),
            "landlock": self._rules(action, home) if self._confined else None,
            "seccomp": self._filter,
        }
        text = memory_file(json.dumps(specification).encode())
        status_read, status_write = os.pipe()
        gate_read, gate_write = os.pipe()
        # -I -S: nothing of the caller's environment or site packages decides what the keeper is
        argv = (sys.executable, "-I", "-S", _KEEPER, str(text), str(status_write), str(gate_read))
        return Command(argv, (text, status_write, gate_read), status_read, gate_write, softly=True)

    def _environment(self, action: Action, home: str) -> list[tuple[str, str]]:
        tools = toolchain.resolve(action.toolchain)
        fixed = {**dict(bwrap.FIXED_ENV), "HOME": home, "TMPDIR": home}
        return list({"PATH": ":".join((*tools.search, bwrap.SEARCH)), **fixed, **dict(action.env)}.items())

    def _cwd(self, action: Action, home: str) -> str:
        if not isinstance(action.view, BindView):
            if action.view is not None:
                raise SandboxFault(f"rung {self.report.rung!r} has no overlays; use a BindView of a copy")
            return home if action.cwd in (WORKSPACE_AT, "/tmp") else action.cwd
        toolchain.readable(action.view.root)
        if action.cwd == WORKSPACE_AT or action.cwd.startswith(WORKSPACE_AT + "/"):
            return action.view.root + action.cwd.removeprefix(WORKSPACE_AT)
        return home if action.cwd == "/tmp" else action.cwd

    def _rules(self, action: Action, home: str) -> tuple[list[str], list[str], list[str]]:
        """(writable, readable, devices) for Landlock."""
        writable = [home]
        readable = [*_SYSTEM, *toolchain.resolve(action.toolchain).paths]
        if isinstance(action.view, BindView):
            (readable if action.view.readonly else writable).append(action.view.root)
        readable += [mount.host for mount in action.mounts]
        return writable, readable, list(_DEVICES)

    def _check(self, action: Action) -> None:
        """SandboxFault for what needs a mount namespace."""
        if action.network:
            raise SandboxFault(f"rung {self.report.rung!r} has no network of its own, so no allow-list can hold")
        moved = [mount.at for mount in action.mounts if mount.at != mount.host]
        if moved or action.out_at is not None:
            raise SandboxFault(
                f"rung {self.report.rung!r} cannot show a host path elsewhere ({moved[0] if moved else action.out_at})",
                hint="; ".join(self.report.hints) or "run `setpoint doctor` for how to get namespaces here",
            )
        for mount in action.mounts:
            toolchain.readable(mount.host)


def _finished(action: Action, ended: Ended) -> Finished:
    if ended.start_error:
        return not_started(ended.start_error)
    code, number, reason = ended.exit_code, ended.signal, ended.reason
    if not reason and code is None and number is None:
        if ended.outer_code != -signal.SIGKILL:
            said = ended.stderr.kept.decode(errors="replace").strip()
            raise SandboxFault(f"the keeper of {action.argv[0]!r} failed: {said[-1000:]}")
        reason = "killed"  # somebody killed the keeper; on these rungs nothing prevents that
    if number == signal.SIGXCPU and not reason:
        reason = "cpu"
    return Finished(None if reason else code, number, reason, ended.stdout, ended.stderr, ended.duration_ms)
