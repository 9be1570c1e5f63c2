"""Markdown as a story that can be played: its files are written, its commands run, what they print is compared.

- A block with ``title=PATH`` is a file; with ``title=PATH more`` it goes on with that file.
- A ``console`` block holds lines ``$ command`` (a trailing backslash goes on), each followed by what it prints on
  standard output. ``...`` alone stands for any number of lines, ``…`` for any text within one. A command's exit code
  is 0 unless a line ``[exit N]`` closes its output. Standard error is not compared.
- Other blocks are for reading: ``sh`` is what the story cannot run (set-up, network, another machine).

All blocks of one page share one directory and one state directory, in the order of the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)[ \t]*([^\n]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"\[exit (\d+)\]")


@dataclass(frozen=True, slots=True)
class File:
    """A file to write, or to go on with."""

    line: int
    path: str
    text: str
    more: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command with what it should print and its exit code."""

    line: int
    command: str
    output: tuple[str, ...]
    exit_code: int = 0


def steps_of(page: Path) -> list[File | Command]:
    """Files and commands of a page in order."""
    text = page.read_text(encoding="utf-8")
    steps: list[File | Command] = []
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        language, options, body = found.groups()
        title = re.search(r"title=(\S+)", options)
        if title:
            steps.append(File(line, title[1], body, more=options.split()[-1] == "more"))
        elif language == "console":
            steps += _commands(body, line)
    return steps


def _commands(body: str, line: int) -> list[Command]:
    commands: list[Command] = []
    lines = body.splitlines()
    at = 0
    while at < len(lines):
        if not lines[at].startswith("$ "):
            raise ValueError(f"line {line + at}: a console block starts with a command: {lines[at]!r}")
        started, words = at, [lines[at][2:]]
        while words[-1].endswith("\\"):
            at += 1
            words.append(lines[at].removeprefix("> "))
        at += 1
        output: list[str] = []
        while at < len(lines) and not lines[at].startswith("$ "):
            output.append(lines[at])
            at += 1
        while output and not output[-1].strip():
            output.pop()
        code = _EXIT.fullmatch(output[-1]) if output else None
        said = tuple(output[:-1] if code else output)
        commands.append(Command(line + started, "\n".join(words), said, int(code[1]) if code else 0))
    return commands


def agrees(expected: tuple[str, ...], printed: str) -> bool:
    """Whether the output is what the page shows, with its gaps."""
    pattern = "".join(r"(?:[^\n]*\n)*?" if line.strip() == "..." else _line(line) for line in expected)
    return (
        re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.rstrip("\n").splitlines())) is not None
    )


def _line(line: str) -> str:
    return "[^\n]*".join(re.escape(part) for part in line.rstrip().split("…")) + "\n"
