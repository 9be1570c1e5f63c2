"""Ends everything a supervisor started, however the supervisor ended.

``bwrap --die-with-parent`` leaves gaps: its init takes the parent's death as a signal only once it is running, so an
outer bwrap that dies while the sandbox is being set up, or waits at its gate, leaves an orphan behind. The guardian
is one small shell per sandbox that reads a pipe only the supervisor writes to. When that pipe ends, by ``close`` or by
SIGKILL of the supervisor, it kills

- its own process group, which every bwrap joins before it is executed and leaves only past its gate, and
- every init whose pid was announced, which happens before its gate is opened.

Together these leave no moment in which a sandbox process is neither.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading

from setpoint.adapters.sandboxes.scratch import TOOLS

_SCRIPT = """
trap '' INT TERM HUP QUIT
live=' '
while read -r what pid; do
    case $what in
    +) live="$live$pid " ;;
    -) live="${live%% $pid *} ${live#* $pid }" ;;
    esac
done
kill -9 $live 0
"""


class Guardian:
    """Started at first use and again should somebody kill it; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shell: subprocess.Popen[bytes] | None = None

    def group(self) -> int:
        """The process group that new sandboxes must join."""
        with self._lock:
            if self._shell is None or self._shell.poll() is not None:
                self._shell = subprocess.Popen(
                    ["/bin/sh", "-c", _SCRIPT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    process_group=0,
                    env={"PATH": TOOLS},
                    cwd="/",
                    bufsize=0,
                )
            return self._shell.pid

    def announce(self, init: int) -> None:
        self._tell(f"+ {init}\n")

    def forget(self, init: int) -> None:
        """``init`` is dead; its number may soon mean another process."""
        self._tell(f"- {init}\n")

    def close(self) -> None:
        """Ends what is still running, and the guardian with it."""
        with self._lock:
            if self._shell is not None and self._shell.stdin is not None:
                self._shell.stdin.close()
                self._shell.wait()
                self._shell = None

    def _tell(self, line: str) -> None:
        shell = self._shell
        assert shell is not None and shell.stdin is not None, "a sandbox joins the group before it is announced"
        with contextlib.suppress(BrokenPipeError):  # killed by somebody; the next sandbox gets a new one
            os.write(shell.stdin.fileno(), line.encode())
