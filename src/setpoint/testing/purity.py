"""Steps are pure, or the test fails: no file, socket, or process, and the same answer twice.

An audit hook sees what the interpreter is asked to do while a step runs (``sys.addaudithook``); it cannot be removed,
so it is installed once and looks only inside ``pure``. What a C extension does without telling the interpreter, and a
look at the clock, it does not see: that is what calling twice is for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

_FORBIDDEN: Final = (
    "open",
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.putenv",
    "os.listdir",
    "os.scandir",
    "shutil.",
    "sqlite3.connect",
    "tempfile.",
    "urllib.Request",
    "_thread.start_new_thread",
)
_inside: ContextVar[bool] = ContextVar("inside a step", default=False)
_installed = False


class ImpureStep(BaseException):
    """A step did something besides computing. Derives from BaseException: no step can catch it and carry on."""


def pure(call: Callable[[], Any]) -> Any:
    """The result of ``call``. ImpureStep when it does I/O, or gives another result the second time.

    For ``Runs(around_step=pure)``; ``AppKit`` does so.
    """
    _install()
    token = _inside.set(True)
    try:
        first = call()
        second = call()
    finally:
        _inside.reset(token)
    if first != second:
        raise ImpureStep(
            f"a step gave {first!r} and then {second!r} for the same state; it looks at a clock, at chance, or at "
            "something outside its state"
        )
    return first


def _install() -> None:
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_watch)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not event.startswith(_FORBIDDEN) or not _inside.get():
        return
    if _is_importing():
        return
    what = f" {arguments[0]!r}" if arguments else ""
    raise ImpureStep(
        f"a step did {event}{what}; a step is a pure function of the state: I/O belongs into a capability, which the "
        "runtime records"
    )


def _is_importing() -> bool:
    """Whether the interpreter reads a module on its way to an import statement."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
