"""What every rung shares: threads that watch actions, kernel limits, and answers for what cannot start."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import hashlib
import os
import resource
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor

from setpoint.adapters.sandboxes.capture import Capture
from setpoint.adapters.sandboxes.scratch import remove_tree
from setpoint.kernel.errors import SandboxFault
from setpoint.ports.sandbox import Action, Captured, Finished, Limits

ACTIONS_AT_ONCE = 64
"""Threads that watch running actions; each sleeps in a selector. More actions wait for a free one."""
NOFILE = 1024
"""Open files per process, the usual soft limit; bounds what one process can pin in the kernel."""
_DATA_SLACK = 256 << 20  # RLIMIT_DATA also counts reserved thread stacks, so it stands behind the sampled limit

_EMPTY = Captured(b"", 0, hashlib.sha256().hexdigest(), truncated=False)


class ActionThreads(ABC):
    """Runs blocking supervision in a bounded pool, so the event loop stays responsive."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(ACTIONS_AT_ONCE, thread_name_prefix="setpoint-sandbox")
        self._own_directory = ""

    @abstractmethod
    def _run(self, action: Action, cancel: int) -> Finished:
        """Supervise ``action`` until its last process is dead; ``cancel`` becomes readable to end it early."""

    async def run(self, action: Action) -> Finished:
        """See the port. Cancellation returns only after the action's last process is dead."""
        cancel = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        started = self._pool.submit(self._run, action, cancel)
        try:
            return await asyncio.shield(asyncio.wrap_future(started))
        except asyncio.CancelledError:
            if not started.cancel():
                os.eventfd_write(cancel, 1)
                await _until_done(started)
            raise
        finally:
            if not started.done():  # the event loop itself is going away; there is nobody left to wait politely
                os.eventfd_write(cancel, 1)
                concurrent.futures.wait([started])
            os.close(cancel)

    def run_blocking(self, action: Action) -> Finished:
        """``run`` for a caller without an event loop, such as the probe; it cannot be cancelled."""
        cancel = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            return self._run(action, cancel)
        finally:
            os.close(cancel)

    async def close(self) -> None:
        """Waits for running actions; cancel them first to be quick."""
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        self._pool.shutdown()
        if self._own_directory:
            remove_tree(self._own_directory)

    def remove_when_closed(self, directory: str) -> None:
        """``directory`` was made for this sandbox alone."""
        self._own_directory = directory


def set_limits(pid: int, limits: Limits, *, processes: bool, data: bool) -> None:
    """Kernel limits of one process and its future children. ProcessLookupError when it is already gone.

    Set from outside on the waiting init, which saves starting a program inside just for this.
    """
    cpu_s = -(-limits.cpu_ms // 1000)
    ceiling = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    nofile = NOFILE if ceiling == resource.RLIM_INFINITY else min(NOFILE, ceiling)
    bounds = {
        resource.RLIMIT_NOFILE: (nofile, nofile),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_FSIZE: (limits.disk_bytes, limits.disk_bytes),
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
    }
    if processes:  # counts within one user namespace; the sandbox's own init is not the action's
        bounds[resource.RLIMIT_NPROC] = (limits.pids + 1, limits.pids + 1)
    if data:
        most = limits.memory_bytes + _DATA_SLACK
        bounds[resource.RLIMIT_DATA] = (most, most)
    for what, bound in bounds.items():
        with contextlib.suppress(PermissionError, ValueError):  # a lower hard limit already holds
            resource.prlimit(pid, what, bound)


async def _until_done(started: Future[Finished]) -> None:
    """However often the waiting task is cancelled again."""
    waiter = asyncio.wrap_future(started)
    while not waiter.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([waiter])
    if not waiter.cancelled():
        waiter.exception()  # retrieved: the cancellation is what the caller hears of


def memory_file(content: bytes) -> int:
    fd = os.memfd_create("setpoint", os.MFD_CLOEXEC)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def unstartable(action: Action) -> str:
    """Why no kernel could start this argument list; empty when one might. A proposal may say anything."""
    if not action.argv or not action.argv[0]:
        return "no program was named"
    for word in (*action.argv, action.cwd):
        if "\0" in word:
            return f"{word!r} contains a NUL byte"
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            return f"{word!r} is not encodable"
    return ""


def start_refused(action: Action, error: OSError) -> Finished:
    """The kernel would not start the sandbox: for its arguments (an outcome), or for want of something (a fault)."""
    if error.errno == errno.E2BIG:
        return not_started(f"{action.argv[0]}: {error.strerror}")
    raise SandboxFault(f"the sandbox for {action.argv[0]!r} could not be started: {error}") from error


def not_started(why: str) -> Finished:
    capture = Capture(4096)
    capture.add((why + "\n").encode(errors="backslashreplace"))
    return Finished(None, None, "start", _EMPTY, capture.captured(), 0)
