"""``setpoint``: find the verb, do it, and turn whatever comes of it into words and an exit code.

This is the outermost edge: faults become a message and their exit code, bugs a file with the traceback, a signal or a
closed pipe the code a shell expects. What a verb needs is imported when the verb is used.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from setpoint.cli.grammar import Verb, find_verb, help_text
from setpoint.cli.terminal import Interrupted, OutputClosed, OutputLost, flush, prepare_streams, printable, say, talk
from setpoint.kernel.errors import Fault, UsageFault

EXIT_CLOSED_PIPE = 141  # 128 + SIGPIPE
EXIT_INTERRUPTED = 130  # 128 + SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code (docs/reference/exit-codes.md) and never raises."""
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    try:
        code = _run(words)
        flush()
        return code
    except OutputClosed:
        _silence_stdout()
        return EXIT_CLOSED_PIPE
    except KeyboardInterrupt:
        talk("setpoint: interrupted")
        return EXIT_INTERRUPTED
    except Interrupted as end:
        talk(f"setpoint: {end}")
        return 128 + end.signum
    except SystemExit as end:  # argparse, after --help
        return end.code if isinstance(end.code, int) else 2
    except Fault as fault:
        if isinstance(fault, OutputLost):
            _silence_stdout()
        _report(fault)
        return fault.exit_code
    except Exception as bug:  # noqa: BLE001  # the outermost edge: a bug becomes a message, a file and exit 1
        _report_bug(bug, words)
        return 1


def _run(words: list[str]) -> int:
    words = _options_last(words)
    if not words or words[0] in ("-h", "--help", "help"):
        return _help(words[1:])
    if words[0] in ("--version", "-V"):
        from setpoint.version import VERSION

        say(f"setpoint {VERSION}")
        return 0
    verb, rest = find_verb(words)
    arguments = verb.parser().read(rest)
    return _doer(verb)(arguments)


def _options_last(words: list[str]) -> list[str]:
    """``setpoint --store URL get`` means ``setpoint get --store URL``."""
    options: list[str] = []
    while words and (words[0] in ("--store", "--json") or words[0].startswith("--store=")):
        taken = 2 if words[0] == "--store" else 1
        options += words[:taken]
        words = words[taken:]
    return words + options if words else words


def _help(words: list[str]) -> int:
    if not words:
        say(help_text())
        return 0
    verb, _ = find_verb(words)
    verb.parser().print_help()
    return 0


def _doer(verb: Verb) -> Any:
    module_name, _, function = verb.doer.partition(":")
    try:
        module = importlib.import_module(f"setpoint.cli.{module_name}")
    except ModuleNotFoundError as fault:
        if fault.name != f"setpoint.cli.{module_name}":
            raise
        raise NotImplementedError(f"`setpoint {verb.name}`") from fault
    return getattr(module, function)


# What went wrong


def _report(fault: Fault) -> None:
    """A fault in its own words. The problems of a manifest stand alone, as a compiler's do."""
    problems = getattr(fault, "problems", None)
    if problems:
        for problem in problems:
            talk(printable(str(problem)))
        count = f"{len(problems)} problem" + "s" * (len(problems) > 1)
        talk(f"setpoint: the manifest is invalid ({count}); nothing was started")
        return
    talk(printable(f"setpoint: {fault.message}"))
    if fault.hint:
        talk(printable(f"  {fault.hint}"))
    if os.environ.get("SETPOINT_DEBUG"):
        talk("".join(traceback.format_exception(fault)))


def _report_bug(bug: Exception, words: list[str]) -> None:
    if isinstance(bug, NotImplementedError):
        talk(f"setpoint: not built yet: {bug}")
        return
    talk(printable(f"setpoint: unexpected {type(bug).__name__}: {bug}"))
    trace = "".join(traceback.format_exception(bug))
    if os.environ.get("SETPOINT_DEBUG"):
        talk(trace)
        return
    path = _write_trace(trace, words)
    where = f"The traceback is in {path}." if path else "The traceback could not be written to the state directory."
    talk(f"  This is a bug. {where} SETPOINT_DEBUG=1 shows it here.")


def _write_trace(trace: str, words: list[str]) -> str | None:
    """The file with the traceback, in the state directory; None when it cannot be written there."""
    import time

    from setpoint.app.places import find_places

    try:
        places = find_places()
        places.make()
        path = places.home / f"crash-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.txt"
        path.write_text(f"setpoint {' '.join(words)}\n\n{trace}", encoding="utf-8", errors="backslashreplace")
    except (OSError, UsageFault):
        return None
    return str(path)


def _silence_stdout() -> None:
    """stdout is gone: what is still buffered must not fail again when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


__all__ = ["main"]
