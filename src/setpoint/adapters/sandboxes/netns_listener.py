"""Makes a listening socket inside a sandbox's network namespace and hands it out; a script, standard library only.

A socket belongs to the namespace it was made in, so the supervisor can accept from the sandbox without being in it and
without any program of ours inside. Joining a user namespace needs a process with one thread, hence this script.

Arguments: a pidfd of the sandbox init, a unix socket to send the listener over, the port.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys

_NEWUSER, _NEWNET = 0x10000000, 0x40000000


def main(pidfd: int, answer: int, port: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # Both at once: the right to enter the network comes from outside, the right to act there from the user namespace.
    if libc.setns(pidfd, _NEWUSER | _NEWNET) != 0:
        error = ctypes.get_errno()
        sys.exit(f"setns: {os.strerror(error)}")
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    with socket.socket(fileno=answer) as channel:
        socket.send_fds(channel, [b"1"], [listener.fileno()])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
