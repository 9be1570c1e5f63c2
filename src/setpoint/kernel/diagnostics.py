"""Distil compiler, linter and test output into structured lines. Pure, bounded, and never a ground for a verdict.

Known forms: pytest's summary and locations, Python tracebacks and syntax errors, gcc and clang, tsc, mypy, pyright,
ruff and flake8. What is not recognised is left out; the text itself is still there for whoever wants it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

DIAGNOSTICS_MAX: Final = 50
"""More than a prompt holds; a tool that says more says it again after the first fifty are repaired."""
MESSAGE_CHARS_MAX: Final = 300
LINE_CHARS_MAX: Final = 2_000
"""A longer line is minified code or data, not a diagnostic; skipping it also bounds the work of the patterns."""


class Diagnostic(msgspec.Struct, frozen=True, array_like=True):
    """One structured line distilled from compiler or test output (R116). ``line`` is 0 when none is named."""

    path: str
    line: int
    code: str
    message: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else self.path
        return f"{where}: {self.code}" + (f": {self.message}" if self.message else "")


_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PATH = r"(?P<path>[^\s:()<>\"'|][^:()<>\"'|]{0,400}?)"
_LINE_FORMS: Final = (
    # gcc, clang, mypy: path:line[:col]: error: message [code]
    re.compile(
        rf"^{_PATH}:(?P<line>\d+):(?:\d+:)? (?P<code>fatal error|error|warning): (?P<message>.+?)"
        r"(?:\s+\[(?P<rule>[\w+=,-]+)\])?$"
    ),
    # tsc: path(line,col): error TS1: message; or path:line:col - error TS1: message
    re.compile(rf"^{_PATH}\((?P<line>\d+),\d+\): (?:error|warning) (?P<code>TS\d+): (?P<message>.+)$"),
    re.compile(rf"^{_PATH}:(?P<line>\d+):\d+ - (?:error|warning) (?P<code>TS\d+): (?P<message>.+)$"),
    # the same with a rule in parentheses, as pyright writes it
    re.compile(
        rf"^{_PATH}:(?P<line>\d+):\d+ - (?P<code>error|warning): (?P<message>.+?)(?:\s+\((?P<rule>report\w+)\))?$"
    ),
    # ruff (concise) and flake8: path:line:col: CODE message
    re.compile(rf"^{_PATH}:(?P<line>\d+):\d+: (?P<code>[A-Z]{{1,5}}\d{{2,5}}|SyntaxError)\b:? (?P<message>.+)$"),
    # pytest: the place of a failure, then in the summary its name
    re.compile(
        rf"^{_PATH}:(?P<line>\d+): (?P<code>[A-Z]\w*(?:Error|Exception|Warning|Failed|Exit|Interrupt))(?P<message>)$"
    ),
    re.compile(rf"^(?P<code>FAILED|ERROR) {_PATH}(?:::(?P<message>.+))?$"),
)
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]{1,400})", line (?P<line>\d+)')
_RAISED = re.compile(r"^(?P<code>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (?P<message>.*))?$")
_RUFF_HEAD = re.compile(r"^(?P<code>[A-Z]{1,5}\d{2,5}|invalid-syntax):? (?:\[\*\] )?(?P<message>.+)$")
_RUFF_PLACE = re.compile(rf"^\s*--> {_PATH}:(?P<line>\d+):\d+$")


def diagnose(text: str) -> tuple[Diagnostic, ...]:
    """The first ``DIAGNOSTICS_MAX`` different diagnostics in ``text``, in its order. Paths are workspace-relative."""
    found: dict[Diagnostic, None] = {}
    for diagnostic in _diagnostics(_lines(text)):
        found.setdefault(diagnostic)
        if len(found) == DIAGNOSTICS_MAX:
            break
    return tuple(found)


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if len(line) <= LINE_CHARS_MAX:
            yield _ANSI.sub("", line).rstrip()


def _diagnostics(lines: Iterator[str]) -> Iterator[Diagnostic]:
    frame: re.Match[str] | None = None  # the innermost frame of a traceback being read
    head: re.Match[str] | None = None  # ruff's message, whose place follows on the next line
    for line in lines:
        if match := _FRAME.match(line):
            frame = match
        elif frame is not None and line and not line[0].isspace():
            if (match := _RAISED.match(line)) and match["code"] != "Traceback":
                yield _diagnostic(frame["path"], frame["line"], match["code"], match["message"] or "")
            frame = None
        elif head is not None and (match := _RUFF_PLACE.match(line)):
            yield _diagnostic(match["path"], match["line"], head["code"], head["message"])
        elif match := _first_match(line.strip()):
            groups = match.groupdict()
            message = groups["message"] or ""
            if rule := groups.get("rule"):
                message = f"{message} [{rule}]"
            yield _diagnostic(groups["path"], groups.get("line") or "0", groups["code"], message)
        head = _RUFF_HEAD.match(line)


def _first_match(line: str) -> re.Match[str] | None:
    return next((match for form in _LINE_FORMS if (match := form.match(line))), None)


def _diagnostic(path: str, line: str, code: str, message: str) -> Diagnostic:
    path = path.removeprefix("/workspace/").removeprefix("./")
    number = int(line) if len(line) <= 9 else 0
    clean = message.strip()
    if len(clean) > MESSAGE_CHARS_MAX:
        clean = clean[: MESSAGE_CHARS_MAX - 1] + "…"
    return Diagnostic(path, number, code, clean)
