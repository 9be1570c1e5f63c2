"""A program of the user's, spoken to in lines: one line out, one line back.

Invariants:

- The program leads a session and process group of its own, and ``end`` kills the whole group and reaps the leader.
  The group is signalled only while the leader is not reaped, so its number cannot have become another group's.
- If Setpoint is killed with no chance to end anything, the kernel kills the leader (Linux). What the leader started
  then sees its pipes close; only ``end`` reaches those who would not care.
- What is kept of its output is bounded: one line of ``LINE_BYTES_MAX``, and the last ``STDERR_BYTES_KEPT`` of stderr.
- A line that arrives when none was asked for would be taken for the next answer; it is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Final, cast

from setpoint.kernel.limits import PROPOSAL_BYTES_MAX

LINE_BYTES_MAX: Final = 2 * PROPOSAL_BYTES_MAX
"""One answer. JSON escapes may double a reply of the largest accepted size."""
STDERR_BYTES_KEPT: Final = 4096
"""Enough for the last lines of a traceback in a message."""
EXIT_GRACE_MS: Final = 200
"""How long a program that closed its output may take to exit, so that its exit code can be told."""
REAP_MS_MAX: Final = 5_000
"""A killed process is gone in microseconds, unless the kernel holds it in uninterruptible I/O."""

_DIES_WITH_ITS_PARENT: Final = """
import ctypes, os, sys
parent, argv = int(sys.argv[1]), sys.argv[2:]
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != parent:
    os._exit(1)
try:
    os.execvp(argv[0], argv)
except OSError as error:
    sys.exit(f"{argv[0]} cannot be run: {error.strerror}")
"""
"""Asks for SIGKILL at the parent's death (PR_SET_PDEATHSIG), then becomes the program. Between fork and exec this would
need ``preexec_fn``, which may deadlock in a process with threads; a fresh interpreter costs 30 ms, once a program."""


class ProgramEnded(Exception):
    """The program closed its output before it answered. The message says how it ended and what it wrote to stderr."""


class ProgramSpokeWrong(Exception):
    """The program wrote a line that is too long, or one that nobody asked for."""


class Program:
    """One running program. Belongs to the event loop that started it; ``end`` releases it."""

    def __init__(self, process: subprocess.Popen[bytes], lines: _Lines, stderr: _Tail) -> None:
        self._process = process
        self._lines = lines
        self._stderr = stderr
        self._stdin: asyncio.WriteTransport | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self.loop = asyncio.get_running_loop()

    @classmethod
    async def start(cls, argv: list[str], cwd: Path) -> Program:
        """Start ``argv`` in ``cwd`` with the user's environment. OSError when there is no such program."""
        _require_program(argv[0], cwd)
        if sys.platform == "linux" and sys.executable:
            argv = [sys.executable, "-I", "-S", "-c", _DIES_WITH_ITS_PARENT, str(os.getpid()), *argv]
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        program = cls(process, _Lines(), _Tail())
        try:
            await program._connect()
        except BaseException:
            await program.end()
            raise
        return program

    async def _connect(self) -> None:
        stdin, _ = await self.loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        self._stdin = stdin
        self._transports.append(stdin)
        stdout, _ = await self.loop.connect_read_pipe(lambda: self._lines, self._process.stdout)
        self._transports.append(stdout)
        stderr, _ = await self.loop.connect_read_pipe(lambda: self._stderr, self._process.stderr)
        self._transports.append(stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, line: bytes) -> bytes:
        """Write ``line``, give the line that answers it. After an exception the program must be ended."""
        assert self._stdin is not None, "start connects the pipes"
        await asyncio.sleep(0)  # read what is already in the pipe, so that it is not taken for the answer
        self._lines.expect()
        if not self._stdin.is_closing():
            self._stdin.write(line + b"\n")
        answer = await self._lines.wait()
        if answer is None:
            raise ProgramEnded(await self._obituary())
        return answer

    def kill(self) -> None:
        """SIGKILL to the whole group. Nothing once the leader was reaped."""
        if self._process.returncode is None:
            # Not every system lets a group be signalled of which only a zombie is left.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill the group, reap the leader, close the pipes. May be called again."""
        self.kill()
        while self._transports:
            transport = self._transports.pop()
            if transport.is_closing():
                continue  # the other end went first
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()  # close() would wait for a program that no longer reads
            else:
                transport.close()
        # The thread reaps even if this task is cancelled meanwhile.
        await asyncio.shield(asyncio.to_thread(self._reap))
        self._close_pipes()

    def abandon(self) -> None:
        """``end`` for a program whose event loop is gone: nothing can be awaited there any more."""
        self.kill()
        self._reap()
        self._close_pipes()

    def _reap(self) -> None:
        # A process that the kernel holds longer is left to init; it has been sent SIGKILL and can do nothing more.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_MS_MAX / 1000)

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    async def _obituary(self) -> str:
        for _ in range(EXIT_GRACE_MS // 10):
            # WNOWAIT leaves it unreaped, so that its group can still be killed by number.
            if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            await asyncio.sleep(0.01)
        await self.end()
        code = self._process.returncode
        if code is None or code == -signal.SIGKILL:
            ended = "closed its output"  # or was killed by someone else; from here it looks the same
        else:
            ended = f"exited with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        said = self._stderr.text()
        return f"{ended} before it answered" + (f"; its last words: {said}" if said else "")


def _require_program(name: str, cwd: Path) -> None:
    """OSError when ``name`` is not an executable file: of ``cwd`` when it has a slash, else on PATH."""
    found = shutil.which(str(cwd / name) if "/" in name else name)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", name)


class _Lines(asyncio.Protocol):
    """Splits stdout into lines. At most one line is asked for at a time."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._lines: deque[bytes] = deque()
        self._ended = False
        self._wrong: str | None = None
        self._arrived = asyncio.Event()
        self._transport: asyncio.ReadTransport | None = None

    def expect(self) -> None:
        """A question is about to be asked: everything said so far was said out of turn."""
        if self._lines or self._partial:
            self._wrong = "it wrote something before it was asked"
        if self._wrong:
            raise ProgramSpokeWrong(self._wrong)

    async def wait(self) -> bytes | None:
        """The next line, None when the output ended."""
        await self._arrived.wait()
        if self._wrong:
            raise ProgramSpokeWrong(self._wrong)
        if self._lines:
            line = self._lines.popleft()
            if not self._ended:
                self._arrived.clear()
            return line
        return None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._partial += data
        *complete, rest = self._partial.split(b"\n")
        self._lines.extend(bytes(line) for line in complete)
        self._partial = bytearray(rest)
        if len(self._lines) > 1:
            self._stop("it wrote more than one line for one question")
        elif len(self._partial) > LINE_BYTES_MAX or any(len(line) > LINE_BYTES_MAX for line in self._lines):
            self._stop(f"it wrote a line of more than {LINE_BYTES_MAX} bytes")
        elif self._lines:
            self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._arrived.set()

    def _stop(self, wrong: str) -> None:
        """Read no more: the rest would only fill memory, and the program is ended anyway."""
        self._wrong = wrong
        self._partial.clear()
        if self._transport is not None:
            self._transport.pause_reading()
        self._arrived.set()


class _Tail(asyncio.Protocol):
    """The last bytes of stderr."""

    def __init__(self) -> None:
        self._kept = b""

    def data_received(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-STDERR_BYTES_KEPT:]

    def text(self) -> str:
        text = self._kept.decode("utf-8", "replace").strip()
        return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
