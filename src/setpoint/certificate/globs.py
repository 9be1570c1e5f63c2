"""Path patterns, by the runtime's rule: what ``goal.forbid`` and ``actions[].paths`` mean.

``**`` as a whole component is any number of components, also none; ``*`` is any characters within one; ``?`` is one
character; ``[...]`` and ``[!...]`` are sets. Both levels run as sets of positions, so hostile patterns cost
O(pattern * path) and never backtrack. A test holds this equal to the runtime's matcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_TOKEN = re.compile(r"\[[!^]?.[^\]]*\]|.", re.DOTALL)


def matches(pattern: str, path: str) -> bool:
    """Whether the workspace-relative ``path`` lies in ``pattern``."""
    components = pattern.split("/")
    steps = [None if part == "**" else (lambda text, p=part: _component(p, text)) for part in components]
    return _run(steps, path.split("/"))


def _component(pattern: str, text: str) -> bool:
    return _run([None if token == "*" else _taker(token) for token in _TOKEN.findall(pattern)], text)


def _run(steps: Sequence[Callable[[str], bool] | None], items: Sequence[str]) -> bool:
    """Whether the steps consume the items exactly; None is a step that takes any number of items."""
    at = _past_wild(steps, {0})
    for item in items:
        after: set[int] = set()
        for position in at:
            if position == len(steps):
                continue
            step = steps[position]
            if step is None:
                after.add(position)
            elif step(item):
                after.add(position + 1)
        at = _past_wild(steps, after)
    return len(steps) in at


def _past_wild(steps: Sequence[Callable[[str], bool] | None], at: set[int]) -> set[int]:
    reached = set(at)
    for position in at:
        while position < len(steps) and steps[position] is None:
            position += 1
            reached.add(position)
    return reached


def _taker(token: str) -> Callable[[str], bool]:
    if token == "?":
        return lambda char: True
    if len(token) == 1:
        return lambda char: char == token
    negated = token[1] in "!^"
    body = token[1 + negated : -1]
    ranges: list[tuple[str, str]] = []
    position = 0
    while position < len(body):
        if body[position + 1 : position + 2] == "-" and position + 2 < len(body):
            ranges.append((body[position], body[position + 2]))
            position += 3
        else:
            ranges.append((body[position], body[position]))
            position += 1
    return lambda char: any(low <= char <= high for low, high in ranges) != negated
