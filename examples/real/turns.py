"""A proposer that plays a fixed story, one turn at a time, over JSON lines.

Reads ``{"context": {...}}`` per line on stdin and answers ``{"thought", "calls", "usage"}`` per line on stdout. The
answer depends on ``context["turn"]`` (1 for the first) and on nothing else, so a proposer that is killed and started
again gives the same answer to the same context.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

Call = dict[str, Any]

USAGE = {"input_tokens": 1200, "output_tokens": 180, "usd": 0.006}  # what a small hosted model would charge


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the one occurrence of ``old`` in ``path`` by ``new``."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What the proposer says in one turn."""

    thought: str
    calls: tuple[Call, ...]


def shell(command: str) -> Call:
    return {"name": "shell_exec", "arguments": {"command": command}}


def read(path: str) -> Call:
    return {"name": "file_read", "arguments": {"path": path}}


def edit(change: Edit) -> Call:
    return {
        "name": "file_edit",
        "arguments": {"path": change.path, "old_str": change.old, "new_str": change.new},
    }


def claim(summary: str) -> Call:
    return {"name": "complete_task", "arguments": {"summary": summary}}


def take_back(patches: Iterable[Iterable[Edit]]) -> Call:
    """Undo whatever is left of these patches, whether the runtime kept them or rolled them back.

    The story is fixed and cannot see which of the two happened, so this does nothing where there is nothing to undo.
    """
    triples = [(change.path, change.new, change.old) for patch in patches for change in patch]
    program = (
        "from pathlib import Path\n"
        f"for name, wrong, original in {triples!r}:\n"
        "    text = Path(name).read_bytes().decode()\n"
        "    if wrong in text and original not in text:\n"
        "        Path(name).write_bytes(text.replace(wrong, original).encode())\n"
    )
    return shell(f"python -c {shlex.quote(program)}")


def answer(turn_number: int, story: Sequence[Turn], after: Callable[[int], Turn] | None) -> Turn:
    """The turn to play: past the end ``after(turn_number)``, or the last turn again."""
    position = max(turn_number, 1) - 1
    if position < len(story):
        return story[position]
    return after(turn_number) if after is not None else story[-1]


def serve(
    story: Sequence[Turn],
    after: Callable[[int], Turn] | None = None,
    requests: IO[str] | None = None,
    replies: IO[str] | None = None,
) -> None:
    """Answer every request until the other side closes its end."""
    replies = replies or sys.stdout
    for line in requests or sys.stdin:
        if not line.strip():
            continue
        turn = answer(int(json.loads(line)["context"]["turn"]), story, after)
        reply = {"thought": turn.thought, "calls": list(turn.calls), "usage": USAGE}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
