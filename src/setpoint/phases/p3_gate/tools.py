"""The built-in tools: names, schemas and effect classes (docs/reference/tools.md).

The class comes from here, never from the caller (law L8). What is not in the task's allow-list does not exist for the
model.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from setpoint.kernel.grants import Right
from setpoint.kernel.ruling import Effect
from setpoint.ports.proposer import ToolSpec


@dataclass(frozen=True, slots=True)
class Tool:
    """A descriptor of the host's own. ``path_argument`` names the argument that is a workspace path."""

    spec: ToolSpec
    effect: Effect
    path_argument: str | None = None

    @property
    def name(self) -> str:
        return self.spec.name


def right_of(tool: Tool) -> Right:
    """What using the tool is an exercise of. Running a program is its own right, whatever the program does."""
    if tool.name == "shell_exec":
        return "execute"
    if tool.effect in ("pure", "read"):
        return "read"
    return "write" if tool.path_argument is not None else "effect"


def _object(properties: dict[str, Any], required: list[str], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


_PATH: Final = {"type": "string", "minLength": 1, "maxLength": 4096, "description": "path inside the workspace"}

SHELL_EXEC: Final = Tool(
    ToolSpec(
        "shell_exec",
        "Run a command in the workspace: isolated, no network, staged. Give `command` (run by sh -c) or `argv`.",
        _object(
            {
                "command": {"type": "string", "minLength": 1, "maxLength": 65536, "description": "run by sh -c"},
                "argv": {
                    "type": "array",
                    "items": {"type": "string", "maxLength": 65536},
                    "minItems": 1,
                    "maxItems": 256,
                    "description": "program and arguments, without a shell",
                },
                "timeout": {"type": "integer", "minimum": 1, "maximum": 86400, "description": "seconds"},
            },
            [],
            oneOf=[{"required": ["command"]}, {"required": ["argv"]}],
        ),
    ),
    "reversible",
)
FILE_READ: Final = Tool(
    ToolSpec(
        "file_read",
        "Read a text file, whole or from line `start` to line `end` (1-based, inclusive).",
        _object(
            {"path": _PATH, "start": {"type": "integer", "minimum": 1}, "end": {"type": "integer", "minimum": 1}},
            ["path"],
        ),
    ),
    "read",
    "path",
)
FILE_EDIT: Final = Tool(
    ToolSpec(
        "file_edit",
        "Replace exactly one occurrence of `old_str` in a file by `new_str`.",
        _object(
            {
                "path": _PATH,
                "old_str": {"type": "string", "minLength": 1, "maxLength": 1 << 20},
                "new_str": {"type": "string", "maxLength": 1 << 20},
            },
            ["path", "old_str", "new_str"],
        ),
    ),
    "reversible",
    "path",
)
FILE_WRITE: Final = Tool(
    ToolSpec(
        "file_write",
        "Create a file or replace its whole content.",
        _object({"path": _PATH, "content": {"type": "string", "maxLength": 1 << 20}}, ["path", "content"]),
    ),
    "reversible",
    "path",
)
ASK_OPERATOR: Final = Tool(
    ToolSpec(
        "ask_operator",
        "Ask the person responsible a question. The work pauses until it is answered.",
        _object({"question": {"type": "string", "minLength": 1, "maxLength": 4000}}, ["question"]),
    ),
    "pure",
)
COMPLETE_TASK: Final = Tool(
    ToolSpec(
        "complete_task",
        "Claim that the task is done. The runtime then judges the criteria itself; the claim alone changes nothing.",
        _object({"summary": {"type": "string", "maxLength": 4000}}, []),
    ),
    "pure",
)

BUILTIN: Final[dict[str, Tool]] = {
    tool.name: tool for tool in (SHELL_EXEC, FILE_READ, FILE_EDIT, FILE_WRITE, ASK_OPERATOR, COMPLETE_TASK)
}

READ_ONLY_COMMANDS: Final = frozenset(
    {
        "basename",
        "cat",
        "cmp",
        "cut",
        "diff",
        "dirname",
        "du",
        "echo",
        "egrep",
        "env",
        "false",
        "fgrep",
        "file",
        "find",
        "grep",
        "head",
        "jq",
        "ls",
        "md5sum",
        "nl",
        "od",
        "pwd",
        "readlink",
        "realpath",
        "rg",
        "sha256sum",
        "sort",
        "stat",
        "tail",
        "test",
        "tr",
        "tree",
        "true",
        "uniq",
        "wc",
        "which",
    }
)
"""Programs that write nothing and start nothing unless an option or argument below tells them to."""

_METACHARACTERS: Final = frozenset(";&|<>`$(){}\n\r\\!*?[]~#")
_WITHIN_DOUBLE_QUOTES: Final = frozenset("`$\\!\n\r")
"""What the shell still acts on between double quotes."""

_FIND_ACTIONS: Final = frozenset(
    {"-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fprint0", "-fprintf", "-fls"}
)
_WRITING_LETTERS: Final = {"sort": "o", "tree": "oR", "file": "C", "env": "S"}
"""One-letter options, alone, in a cluster (``-uo``) or with their value attached (``-ofile``)."""
_WRITING_LONG: Final = {
    "sort": ("--output", "--compress-program"),
    "tree": ("--output",),
    "file": ("--compile",),
    "env": ("--split-string",),
    "rg": ("--pre", "--hostname-bin"),
}


def is_read_only(arguments: Mapping[str, Any]) -> bool:
    """Whether a shell_exec call is one simple command from the read-only list, without shell metacharacters.

    A convenience for the restricted stage and read-only grants. It is never the lock itself: the sandbox stages
    every write whatever this says. Every doubt is a no.
    """
    argv = arguments.get("argv")
    words = _plain_words(str(arguments.get("command", ""))) if argv is None else [str(word) for word in argv]
    if not words or words[0] not in READ_ONLY_COMMANDS:
        return False
    program, rest = words[0], words[1:]
    if program == "env":
        return not rest  # anything after it may be a command to run
    if program == "find":
        return not any(word in _FIND_ACTIONS for word in rest)
    if program == "uniq" and sum(not word.startswith("-") for word in rest) > 1:
        return False  # its second file is written
    return not any(_may_write(program, word) for word in rest)


def _plain_words(command: str) -> list[str]:
    """The words of one command that the shell takes as written; none when it would act on any character."""
    quote = ""
    for char in command:
        if quote == "'":
            quote = "" if char == "'" else quote
        elif quote == '"':
            if char in _WITHIN_DOUBLE_QUOTES:
                return []
            quote = "" if char == '"' else quote
        elif char in _METACHARACTERS:
            return []
        elif char in "'\"":
            quote = char
    return [] if quote else shlex.split(command)


def _may_write(program: str, word: str) -> bool:
    if word.startswith("--"):
        name = word.split("=", 1)[0]  # GNU programs take any unambiguous abbreviation of a long option
        return len(name) > 2 and any(option.startswith(name) for option in _WRITING_LONG.get(program, ()))
    return word.startswith("-") and any(letter in word for letter in _WRITING_LETTERS.get(program, ""))


def blast_radius(arguments: Mapping[str, Any]) -> str:
    """ "high" when a command deletes recursively, rewrites history or changes modes of a tree; else "normal" (R073)."""
    text = " ".join(str(word) for word in arguments.get("argv", ())) or str(arguments.get("command", ""))
    return "high" if _HIGH_BLAST.search(text) else "normal"


_HIGH_BLAST: Final = re.compile(
    r"\brm\s+(-\S*[rR]|--recursive)|\bfind\b.*-delete|\bgit\s+(clean|reset\s+--hard|checkout\s+--|push\s+.*(-f|--force))"
    r"|\bchmod\s+-R|\bchown\s+-R|\bmkfs|\bdd\s|\bshred\b|\btruncate\b",
    re.IGNORECASE,
)
