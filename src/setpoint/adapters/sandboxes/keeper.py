"""Runs one action on the rungs without namespaces; started as a script, standard library only.

It speaks bwrap's status protocol, so one supervisor watches both: it names its own pid as the init, waits at the gate,
and exits only when the last descendant is dead. As child subreaper it inherits whatever daemonises. SIGTERM, or the
gate's other end closing (the supervisor died), ends the whole tree: stop everything, so nothing can fork past the
sweep, then kill.

Descriptors arrive as arguments: specification (JSON), status, gate.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import select
import signal
import sys
import time
from typing import Any

_SUBREAPER, _NO_NEW_PRIVS, _SECCOMP, _FILTER = 36, 38, 22, 2
_SWEEPS_MAX = 200  # a chain of processes that fork and exit is caught within a few rounds

_libc = ctypes.CDLL(None, use_errno=True)


def main(specification_fd: int, status: int, gate: int) -> None:
    with os.fdopen(specification_fd, "rb") as file:
        specification: dict[str, Any] = json.load(file)
    for fd in (status, gate):
        os.set_inheritable(fd, False)
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _say(status, {"child-pid": os.getpid()})
    if os.read(gate, 1) != b"1":
        return
    program = os.fork()
    if program == 0:
        _become(specification, status)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    for stream in (1, 2):  # the program's output ends with the program's processes, not with us
        os.dup2(0, stream)
    outcome = _wait(program, wake, gate)
    _sweep()
    _say(status, outcome)


def _wait(program: int, wake: int, gate: int) -> dict[str, int]:
    """Until the program ends, SIGTERM arrives or the supervisor is gone."""
    while True:
        ready, _, _ = select.select([wake, gate], [], [])
        if gate in ready:
            return {"signal": signal.SIGKILL}
        if signal.SIGTERM in os.read(wake, 64):
            return {"signal": signal.SIGKILL}
        while True:
            try:
                pid, state = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return {"signal": signal.SIGKILL}
            if pid == program:
                code = os.waitstatus_to_exitcode(state)
                return {"exit-code": code} if code >= 0 else {"signal": -code}
            if pid == 0:
                break


def _become(specification: dict[str, Any], status: int) -> None:
    """In the child: confine, then turn into the program; never returns."""
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # ours, or Python's; the program starts with none of them
        arguments = [os.fsencode(word) for word in specification["argv"]]
        environment = {os.fsencode(name): os.fsencode(value) for name, value in specification["env"]}
        os.chdir(specification["cwd"])
        if specification["landlock"]:
            _landlock().restrict(*specification["landlock"])
        if specification["seccomp"]:
            _filter(bytes.fromhex(specification["seccomp"]))
        os.execvpe(arguments[0], arguments, environment)
    except BaseException as error:  # noqa: BLE001 - whatever it is, this child must not go on as a second keeper
        _say(status, {"start-error": f"{specification['argv'][0]}: {error}".replace("}", ")")})
    os._exit(127)


def _filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

    instructions = ctypes.create_string_buffer(program, len(program))
    header = Program(len(program) // 8, ctypes.addressof(instructions))
    if _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or _libc.prctl(_SECCOMP, _FILTER, ctypes.byref(header), 0, 0):
        raise OSError(ctypes.get_errno(), "the system-call filter was refused")


def _sweep() -> None:
    """Kill every descendant and reap it. Stopped first, because a running one can fork faster than it is found."""
    for _ in range(_SWEEPS_MAX):
        found = _descendants()
        _signal(found, signal.SIGSTOP)
        if set(_descendants()) <= set(found):
            break
    while True:
        _signal(_descendants(), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # it ended meanwhile
            continue


def _descendants() -> list[int]:
    found: list[int] = []
    pending = [os.getpid()]
    while pending:
        parent = pending.pop()
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children", encoding="ascii") as file:
                    children = [int(pid) for pid in file.read().split()]
                found += children
                pending += children
        except OSError:  # it ended meanwhile
            continue
    return found


def _say(status: int, document: dict[str, Any]) -> None:
    os.write(status, json.dumps(document).encode() + b"\n")


def _landlock() -> Any:
    """The sibling module by its file: this script runs isolated, without the package on its path."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "landlock.py")
    specification = importlib.util.spec_from_file_location("landlock", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
