"""Where words go: data to stdout, talk to stderr, and nothing a model wrote may steer the terminal.

Everything shown to people passes ``printable``: control characters and bidirectional overrides are spelled out, so
that the output of a tool cannot move the cursor, change a title or hide a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TextIO

from setpoint.kernel.errors import Fault, UsageFault

_STEERING: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class OutputClosed(Exception):
    """Whoever read stdout has gone (`setpoint events | head -1`): nothing more can be said, and nothing is wrong."""


class OutputLost(Fault):
    """stdout cannot be written, for example because its disk is full."""


class Interrupted(Exception):
    """A signal ended the verb. ``message`` says what was left, and how to go on."""

    def __init__(self, signum: int, message: str = "") -> None:
        super().__init__(message or f"ended by signal {signum}")
        self.signum = signum
        self.message = message


def printable(text: str) -> str:
    """``text`` with everything that steers a terminal spelled out; newlines and tabs stay."""
    return _STEERING.sub(lambda match: _spelled(ord(match[0])), text)


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str, longest: int = 200) -> str:
    """``text`` as a single printable line of at most ``longest`` characters; white space is collapsed, as in prose."""
    return _cut(printable(" ".join(text.split())), longest)


def exact_line(text: str, longest: int) -> str:
    """Like ``one_line``, with every blank kept and line breaks spelled out: for what must be read to the letter."""
    return _cut(printable(text).replace("\n", "\\n").replace("\t", "\\t"), longest)


def _cut(line: str, longest: int) -> str:
    return line if len(line) <= longest else line[: max(1, longest - 1)] + "…"


def is_terminal(stream: TextIO) -> bool:
    """Whether a person may be looking: a terminal that understands control sequences."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except ValueError:  # closed
        return False


def has_colour(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def width_of(stream: TextIO) -> int | None:
    """Columns of the terminal, None when ``stream`` is none: then nothing is cut."""
    return shutil.get_terminal_size((100, 24)).columns if is_terminal(stream) else None


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """``text`` in a colour where the stream (stdout) shows colours."""
    if not style or not has_colour(stream or sys.stdout):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def prepare_streams() -> None:
    """Characters the locale lacks are spelled out, never a crash; a stream the caller closed leads nowhere."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _open_what_is_closed() -> None:
    """Streams closed by the caller (``>&-``, some daemons) become /dev/null.

    The descriptors too: otherwise the next file opened would get the number 1, and be what a child process takes for
    its standard output.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:  # Python found it closed when it started
            setattr(sys, name, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """What can happen to stdout: its reader goes (OutputClosed), or it cannot be written (a Fault, exit 1)."""
    try:
        yield
    except BrokenPipeError as fault:
        raise OutputClosed from fault
    except OSError as fault:
        raise OutputLost(f"cannot write to stdout: {fault.strerror}; what is missing there was not said") from fault


def say(text: str = "") -> None:
    """One line (or several) of data on stdout."""
    with _writing():
        sys.stdout.write(text + "\n")


def say_bytes(data: bytes) -> None:
    """Bytes on stdout exactly as they are, and at once: a reader of a stream waits for whole lines."""
    with _writing():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def say_json(document: Any) -> None:
    """One JSON document on stdout. Lone surrogates, which UTF-8 lacks, stay JSON escapes."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    say_bytes(text.encode("utf-8", "backslashreplace"))


def flush() -> None:
    """Everything said has left this process. OutputClosed when nobody reads it, OutputLost when it found no room."""
    with _writing():
        sys.stdout.flush()


def talk(text: str, style: str = "") -> None:
    """A line for people on stderr. Lost when nobody listens."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(styled(text, style, sys.stderr) + "\n")
        sys.stderr.flush()


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Aligned columns; the last one is cut to the terminal's width, and never where no terminal is."""
    cells = [[one_line(cell, 2000) for cell in row] for row in rows]
    widths = [max(len(row[n]) for row in [list(headers), *cells]) for n in range(len(headers))]
    room = width_of(sys.stdout)
    lines = [styled(_row(headers, widths, room), "bold")]
    return lines + [_row(row, widths, room) for row in cells]


def _row(cells: Sequence[str], widths: Sequence[int], room: int | None) -> str:
    text = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    return text if room is None or len(text) <= room else text[: room - 1] + "…"


def read_input(path: str, what: str) -> bytes:
    """The bytes of a file, ``-`` for stdin. UsageFault when it cannot be read."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as fault:
        raise UsageFault(f"cannot read {what} {path}: {fault.strerror}") from fault


def write_output(path: str, data: bytes, *, replace: bool = True) -> None:
    """Write a file the user named. UsageFault when it cannot be written, or exists and may not be replaced."""
    try:
        with open(path, "wb" if replace else "xb") as file:
            file.write(data)
    except FileExistsError as fault:
        raise UsageFault(f"{path} exists; it was left as it is", hint="Name another file, or move it away.") from fault
    except OSError as fault:
        raise UsageFault(f"cannot write {path}: {fault.strerror}") from fault
