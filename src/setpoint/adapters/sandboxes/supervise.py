"""Watch one bwrap from birth to proven death.

Invariants:

- No action code runs before ``born`` returned: bwrap's init waits at a gate (``--block-fd``) that is opened last.
  Limits and the cgroup are therefore in place, and the init's pidfd is held, before the first instruction.
- ``supervise`` returns only when the sandbox *init* is dead. The kernel reaps a pid namespace's init after every
  member, so nothing of the action is left; the death of the outer bwrap would not say that.
- Nothing here blocks without a bound, and nothing is buffered beyond the two captures.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from setpoint.adapters.sandboxes.capture import Capture
from setpoint.adapters.sandboxes.guardian import Guardian
from setpoint.adapters.sandboxes.meter import TICK_S, Meter
from setpoint.kernel.errors import SandboxFault
from setpoint.ports.sandbox import Captured, Limits

SETUP_S = 15.0
"""bwrap takes milliseconds; hung network file systems have kept it for ever, so setting up is bounded too."""
DEATH_S = 10.0
"""After SIGKILL of an init only the kernel works; longer means a process stuck in uninterruptible sleep."""
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Command:
    """What to start. ``fds`` are handed to the child and closed here, whatever happens."""

    argv: Sequence[str | bytes]
    fds: tuple[int, ...]
    status: int  # our end of --json-status-fd; closed by ``supervise``
    gate: int  # our end of --block-fd; closed by ``supervise`` at the end
    guardian: Guardian | None = None  # None for a keeper, which watches its gate itself
    softly: bool = False  # the init is a keeper that must kill others first: SIGTERM it, SIGKILL only when it hangs


@dataclass(frozen=True, slots=True)
class Ended:
    """``exit_code`` is None when bwrap reported none: the program never started, or its init was killed."""

    exit_code: int | None
    signal: int | None  # only keepers know it; bwrap reports 128 + n as the exit code
    start_error: str  # only keepers report it here; bwrap says so on stderr
    outer_code: int  # exit code of the outer bwrap, negative for a signal
    born: bool
    reason: str
    stdout: Captured
    stderr: Captured
    duration_ms: int


Born = Callable[[int, int], Meter]
"""Called with (pid of the sandbox init, pid of the outer process) while the action waits at the gate."""


def supervise(command: Command, limits: Limits, stdin: bytes | None, cancel: int, born: Born) -> Ended:
    """Run ``command`` to its end or to a limit. Blocks; a readable ``cancel`` ends it with reason "cancelled".

    SandboxFault: it could not be started, did not come up within ``SETUP_S`` or did not die within ``DEATH_S``.
    OSError of the kernel for an argument list that is too long passes through.
    """
    try:
        outer = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=command.fds,
            process_group=0 if command.guardian is None else command.guardian.group(),
            env={},
            cwd="/",
            bufsize=0,
        )
    except BaseException:
        os.close(command.status)
        os.close(command.gate)
        raise
    finally:
        for fd in command.fds:
            os.close(fd)
    watch = _Watch(outer, command, limits, stdin, born)
    try:
        return watch.until_dead(cancel)
    finally:
        watch.close()


class _Watch:
    """The selector loop of one action; one thread, one use."""

    def __init__(
        self,
        outer: subprocess.Popen[bytes],
        command: Command,
        limits: Limits,
        stdin: bytes | None,
        born: Born,
    ) -> None:
        self._outer, self._limits, self._born = outer, limits, born
        self._status, self._gate = command.status, command.gate
        self._gate_open = False
        self._init = -1  # pidfd of the sandbox init
        self._init_dead = False
        self._exit_code: int | None = None
        self._signal: int | None = None
        self._start_error = ""
        self._guardian = command.guardian
        self._announced = -1
        self._kill_with = signal.SIGTERM if command.softly else signal.SIGKILL
        self._pending_status = b""
        self._meter: Meter | None = None
        self._reason = ""
        self._started = time.monotonic()
        self._deadline = self._started + SETUP_S
        self._next_sample = 0.0
        self._selector = selectors.DefaultSelector()
        assert outer.stdout is not None and outer.stderr is not None
        self._captures = {
            outer.stdout.fileno(): Capture(limits.output_bytes),
            outer.stderr.fileno(): Capture(limits.output_bytes),
        }
        for fd in (*self._captures, self._status):
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)
        self._input = memoryview(stdin or b"")
        if outer.stdin is not None:
            if self._input:
                os.set_blocking(outer.stdin.fileno(), False)
                self._selector.register(outer.stdin.fileno(), selectors.EVENT_WRITE)
            else:
                outer.stdin.close()

    def until_dead(self, cancel: int) -> Ended:
        self._selector.register(cancel, selectors.EVENT_READ)
        while not self._is_over():
            now = time.monotonic()
            if now >= self._deadline:
                self._deadline_passed(now)
            timeout = max(0.0, min(self._deadline - now, TICK_S if self._metered() else SETUP_S))
            for key, _ in self._selector.select(timeout):
                if key.fd == cancel:
                    self._selector.unregister(cancel)
                    self._end("cancelled")
                else:
                    self._serve(key.fd)
            if self._metered():
                self._check_limits()
        for fd in self._captures:  # someone outside may still hold the write end; take what is there
            while fd in self._selector.get_map() and self._read(fd):
                pass
        try:
            outer_code = self._outer.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            raise SandboxFault(f"bwrap (pid {self._outer.pid}) did not exit after its sandbox was dead") from None
        if not self._reason and self._meter is not None:
            self._reason = self._meter.afterwards()
        stdout, stderr = self._captures.values()
        return Ended(
            exit_code=self._exit_code,
            signal=self._signal,
            start_error=self._start_error,
            outer_code=outer_code,
            born=self._gate_open,
            reason=self._reason,
            stdout=stdout.captured(),
            stderr=stderr.captured(),
            duration_ms=round((time.monotonic() - self._started) * 1000),
        )

    def close(self) -> None:
        """Whatever went wrong above, the sandbox is dead and every descriptor closed afterwards."""
        if not self._init_dead and self._init >= 0:
            _send(self._init, signal.SIGKILL)
        if self._outer.returncode is None:
            self._outer.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._outer.wait(DEATH_S)
        self._selector.close()
        for stream in (self._outer.stdin, self._outer.stdout, self._outer.stderr):
            if stream is not None:
                stream.close()
        for fd in (self._status, self._gate, self._init):
            if fd >= 0:
                os.close(fd)

    def _is_over(self) -> bool:
        outer_gone = self._status not in self._selector.get_map()
        return outer_gone and (self._init < 0 or self._init_dead)

    def _metered(self) -> bool:
        return self._gate_open and not self._reason and not self._init_dead

    def _serve(self, fd: int) -> None:
        if fd == self._init:
            self._selector.unregister(fd)
            self._init_dead = True
            if self._guardian is not None and self._announced >= 0:
                self._guardian.forget(self._announced)
        elif fd == self._status:
            self._read_status()
        elif fd in self._captures:
            self._read(fd)
        else:
            self._write_input()

    def _read(self, fd: int) -> bool:
        """Take one chunk; False when there is none for now or the stream has ended."""
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(fd)
            return False
        self._captures[fd].add(chunk)
        return True

    def _write_input(self) -> None:
        assert self._outer.stdin is not None
        try:
            self._input = self._input[os.write(self._outer.stdin.fileno(), self._input[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the action does not read its input; that is its business
            self._input = self._input[:0]
        if not self._input:
            self._selector.unregister(self._outer.stdin.fileno())
            self._outer.stdin.close()

    def _read_status(self) -> None:
        """bwrap writes one JSON document when its init exists and one when the program has ended."""
        try:
            chunk = os.read(self._status, _CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self._selector.unregister(self._status)
            if self._init >= 0:  # the outer bwrap is gone; an init it left behind would never be told to end
                _send(self._init, self._kill_with)
            return
        self._pending_status += chunk
        while b"}" in self._pending_status:
            text, _, self._pending_status = self._pending_status.partition(b"}")
            document = json.loads(text + b"}")
            if "child-pid" in document and self._init < 0:
                self._admit(document["child-pid"])
            self._exit_code = document.get("exit-code", self._exit_code)
            self._signal = document.get("signal", self._signal)
            self._start_error = document.get("start-error", self._start_error)

    def _admit(self, init: int) -> None:
        try:
            self._init = os.pidfd_open(init)
        except ProcessLookupError:  # setting up failed after the fork; bwrap says why on stderr
            return
        self._selector.register(self._init, selectors.EVENT_READ)
        if self._reason:  # it was ended while being set up: the gate stays shut, there is nobody else to kill
            _send(self._init, signal.SIGKILL)
            return
        if self._guardian is not None:
            self._announced = init
            self._guardian.announce(init)
        try:
            self._meter = self._born(init, self._outer.pid)
        except ProcessLookupError:
            return
        now = time.monotonic()
        self._deadline = now + self._limits.wall_ms / 1000
        self._next_sample = now + TICK_S
        self._gate_open = True
        with contextlib.suppress(BrokenPipeError):
            os.write(self._gate, b"1")

    def _check_limits(self) -> None:
        if sum(capture.total for capture in self._captures.values()) > self._limits.output_kill_bytes:
            self._end("output")
        elif (now := time.monotonic()) >= self._next_sample and self._meter is not None:
            self._next_sample = now + TICK_S
            if reason := self._meter.over(self._limits):
                self._end(reason)

    def _deadline_passed(self, now: float) -> None:
        if self._reason:
            raise SandboxFault(
                f"the sandbox was still alive {DEATH_S:.0f} s after SIGKILL ({self._reason})",
                effect="in_doubt",
                hint="a process is stuck in the kernel, often on a dead network file system: `ps axo stat,wchan`",
            )
        if not self._gate_open:
            raise SandboxFault(
                f"bwrap did not set up a sandbox within {SETUP_S:.0f} s",
                hint="a mount source may lie on a hung network or automounted file system",
            )
        self._end("wall", now)

    def _end(self, reason: str, now: float | None = None) -> None:
        if self._reason:
            return
        self._reason = reason
        self._deadline = (now or time.monotonic()) + DEATH_S
        if self._init >= 0:
            _send(self._init, self._kill_with)
        # else: it is killed as soon as bwrap names it; killing the outer bwrap now could orphan it


def _send(pidfd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)
