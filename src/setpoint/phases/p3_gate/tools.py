"""The built-in tools: names, schemas and effect classes (INTERFACE section 2).

The class comes from here, never from the caller (law L8). What is not in the task's allow-list does not exist for the
model.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
"""Programs that cannot write without an option we exclude below. ``sort -o`` and ``find -delete`` are excluded."""

_METACHARACTERS: Final = re.compile(r"[;&|<>`$(){}\n\\!*?\[\]~#]")
_WRITING_OPTIONS: Final = {
    "find": {"-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fprint0", "-fprintf", "-fls"},
    "sort": {"-o", "--output"},
    "tree": {"-o"},
    "env": {"-S", "--split-string"},
    "rg": {"--pre"},
    "file": {"-C", "--compile"},
}


def is_read_only(arguments: Mapping[str, Any]) -> bool:
    """Whether a shell_exec call is one simple command from the read-only list, without shell metacharacters.

    A convenience for the restricted stage and read-only grants. It is never the lock itself: the sandbox stages
    every write whatever this says (CASES H5).
    """
    argv = arguments.get("argv")
    if argv is None:
        command = str(arguments.get("command", ""))
        if _METACHARACTERS.search(re.sub(r"'[^']*'", "", command)):
            return False
        try:
            argv = shlex.split(command)
        except ValueError:
            return False
    words = [str(word) for word in argv]
    if not words or words[0] not in READ_ONLY_COMMANDS:
        return False
    if words[0] == "env" and len(words) > 1:
        return False
    banned = _WRITING_OPTIONS.get(words[0], set())
    return not any(word in banned or word.split("=", 1)[0] in banned for word in words[1:])


def blast_radius(arguments: Mapping[str, Any]) -> str:
    """ "high" when a command deletes recursively, rewrites history or changes modes of a tree; else "normal" (R073)."""
    text = " ".join(str(word) for word in arguments.get("argv", ())) or str(arguments.get("command", ""))
    return "high" if _HIGH_BLAST.search(text) else "normal"


_HIGH_BLAST: Final = re.compile(
    r"\brm\s+(-\S*[rR]|--recursive)|\bfind\b.*-delete|\bgit\s+(clean|reset\s+--hard|checkout\s+--|push\s+.*(-f|--force))"
    r"|\bchmod\s+-R|\bchown\s+-R|\bmkfs|\bdd\s|\bshred\b|\btruncate\b",
    re.IGNORECASE,
)
