"""Make it fit: drop settled observations, then shorten files, then drop the map; the anchors stay.

The ladder is deterministic and ends: each rung removes something or the next rung is taken, and when the anchors
alone do not fit the answer is ContextTooLarge with the part, its size and the limit, never a loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from setpoint.kernel import limits
from setpoint.kernel.errors import Fault
from setpoint.ports.proposer import Part


class ContextTooLarge(Fault):
    """The parts that may not be left out exceed the window of the route."""

    exit_code = 11


def clamp(text: str, chars: int) -> str:
    """Head and tail of ``text`` with a marker that says how much is left out; unchanged when it fits."""
    if len(text) <= chars:
        return text
    head = chars * 2 // 3
    tail = chars - head
    return f"{text[:head]}\n... [{len(text) - chars} characters left out] ...\n{text[len(text) - tail :]}"


def fit(
    anchors: Sequence[Part], optional: Sequence[Part], state: Part, leaf: Sequence[Part], max_tokens: int
) -> tuple[Part, ...]:
    """The parts in prompt order, at most ``max_tokens`` in total.

    Never left out: ``anchors`` (instructions, goal) and ``state`` (delta, notes), and the newest observation in a
    shortened form. Raises ContextTooLarge when those alone exceed the limit.
    """
    fixed = sum(part.tokens for part in anchors) + state.tokens
    if fixed > max_tokens:
        worst = max((*anchors, state), key=lambda part: part.tokens)
        raise ContextTooLarge(
            f"the prompt's fixed parts need {fixed} tokens and the limit is {max_tokens}; the largest is "
            f"{worst.name!r} with {worst.tokens}",
            hint="Shorten the goal, the list of criteria or the tools, or use a route with a larger window.",
        )
    room = max_tokens - fixed
    if sum(part.tokens for part in (*optional, *leaf)) <= room:
        return (*anchors, *optional, state, *leaf)
    middle, end = list(optional), list(leaf)

    def used() -> int:
        return sum(part.tokens for part in middle) + sum(part.tokens for part in end)

    while used() > room and len(end) > 1:  # rung 1: the oldest settled observation
        del end[0]
    files = [part for part in middle if part.name.startswith("file:")]
    if used() > room and files:  # rung 2: every file to a quarter of its room, oldest first
        for part in files:
            if used() <= room:
                break
            middle[middle.index(part)] = _shorten(part, max(64, room // (4 * len(files))))
    while used() > room and middle:  # rung 3: whole blocks, the map last
        del middle[-1]
    if used() > room and end:  # rung 4: the newest observation, cut to what is left
        end[0] = _shorten(end[0], room)
        if end[0].tokens > room:
            end.clear()
    return (*anchors, *middle, state, *end)


def _shorten(part: Part, tokens: int) -> Part:
    text = clamp(part.text, max(0, tokens * limits.CHARS_PER_TOKEN - 80))
    return replace(
        part,
        text=text,
        tokens=-(-len(text.encode("utf-8", "replace")) // limits.CHARS_PER_TOKEN),
        digest=hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
    )
