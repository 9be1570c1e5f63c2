"""The one matcher of path patterns: what ``goal.forbid`` and ``actions[].paths`` mean.

A pattern and a path are workspace-relative, ``/``-separated and case-sensitive.

- ``**`` as a whole component: any number of components, also none; so ``tests/**`` matches ``tests`` itself, because
  replacing the directory by a link changes everything below it.
- ``*``: any characters within a component, also a leading dot; ``?``: one character.
- ``[abc]``, ``[a-z]``, ``[!a-z]``: one character of (or outside) a set; there is no escape, write ``[*]``.

Matching is O(pattern * path), whatever the path: a model chooses the path, so backtracking would be its weapon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

PATTERN_CHARS_MAX: Final = 1000
"""A path of PATH_MAX (4096) is longer, but no one writes a longer pattern on purpose; it bounds the work of a match."""

_ANY_DEPTH: Final = "**"


class BadGlob(ValueError):
    """A pattern that cannot be meant: absolute, climbing, empty, or with a broken set."""


@dataclass(frozen=True, slots=True)
class _Set:
    members: tuple[tuple[str, str], ...]  # inclusive ranges
    negated: bool

    def holds(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.members) != self.negated


_Token = str | _Set  # "*" and "?" are wild, any other string is one literal character


def check_glob(pattern: str) -> None:
    """Raise BadGlob, with the reason, unless ``pattern`` can be matched."""
    _compiled(pattern)


def matches(pattern: str, path: str) -> bool:
    """Whether ``path`` lies in ``pattern``. ValueError when ``path`` is not a resolved workspace-relative path."""
    return _match_components(_compiled(pattern), _split(path), prefix=False)


def reaches_below(pattern: str, directory: str) -> bool:
    """Whether ``pattern`` could match ``directory`` or something below it.

    Replacing or removing a directory changes all it holds; a scope that protects ``a/b/**`` is broken when ``a``
    becomes a link.
    """
    return _match_components(_compiled(pattern), _split(directory), prefix=True)


def is_inside(inner: str, outer: str) -> bool:
    """Whether every path that ``inner`` matches is provably matched by ``outer``.

    Sound, not complete: a no may be wrong for patterns that are spelled differently (``[ab]c`` in ``?c``), a yes never
    is. Costs O(inner * outer).
    """
    return _included(_compiled(inner), _compiled(outer), lambda part: part is None, _component_inside)


def _component_inside(inner: tuple[_Token, ...] | None, outer: tuple[_Token, ...] | None) -> bool:
    assert inner is not None and outer is not None
    return _included(inner, outer, lambda token: token == "*", _token_inside)


def _token_inside(inner: _Token, outer: _Token) -> bool:
    if outer == "?" or inner == outer:
        return True
    return isinstance(outer, _Set) and isinstance(inner, str) and inner != "?" and outer.holds(inner)


T = TypeVar("T")


def _included(
    inner: Sequence[T], outer: Sequence[T], is_any: Callable[[T], bool], covers: Callable[[T, T], bool]
) -> bool:
    """Inclusion of two sequences in which ``is_any`` elements stand for any number of others."""
    below = [False] * (len(outer) + 1)  # the row of the next position of ``inner``
    for i in range(len(inner), -1, -1):
        row = [False] * (len(outer) + 1)
        row[len(outer)] = i == len(inner)
        for j in range(len(outer) - 1, -1, -1):
            if is_any(outer[j]):
                row[j] = row[j + 1] or (i < len(inner) and below[j])
            else:
                row[j] = i < len(inner) and not is_any(inner[i]) and below[j + 1] and covers(inner[i], outer[j])
        below = row
    return below[0]


def first_match(patterns: tuple[str, ...], path: str) -> str | None:
    """The first pattern that matches, for a message that names it."""
    return next((pattern for pattern in patterns if matches(pattern, path)), None)


def _split(path: str) -> list[str]:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{path!r} is not a resolved, workspace-relative path")
    return parts


def _match_components(pattern: tuple[tuple[_Token, ...] | None, ...], parts: list[str], *, prefix: bool) -> bool:
    """Run the pattern as a set of positions over the components; None stands for ``**``."""
    positions = _skip_any_depth(pattern, {0})
    for part in parts:
        following: set[int] = set()
        for position in positions:
            if position == len(pattern):
                continue
            component = pattern[position]
            if component is None:
                following.add(position)
            elif _match_one(component, part):
                following.add(position + 1)
        positions = _skip_any_depth(pattern, following)
        if not positions:
            return False
    return bool(positions) if prefix else len(pattern) in positions


def _skip_any_depth(pattern: tuple[tuple[_Token, ...] | None, ...], positions: set[int]) -> set[int]:
    reached = set(positions)
    for start in positions:
        position = start
        while position < len(pattern) and pattern[position] is None:
            position += 1
            reached.add(position)
    return reached


def _match_one(tokens: tuple[_Token, ...], text: str) -> bool:
    """Greedy wildcard match with one remembered star: no exponential backtracking."""
    token = char = 0
    star = -1
    resume = 0
    while char < len(text):
        if token < len(tokens) and tokens[token] == "*":
            star, resume = token, char
            token += 1
        elif token < len(tokens) and _takes(tokens[token], text[char]):
            token += 1
            char += 1
        elif star >= 0:
            resume += 1
            token, char = star + 1, resume
        else:
            return False
    return all(rest == "*" for rest in tokens[token:])


def _takes(token: _Token, char: str) -> bool:
    if isinstance(token, _Set):
        return token.holds(char)
    # A literal "?" or "*" is written as a set, so these two strings are never literals here.
    return token == "?" or token == char


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> tuple[tuple[_Token, ...] | None, ...]:
    if not pattern:
        raise BadGlob("the pattern is empty; write ** for everything")
    if len(pattern) > PATTERN_CHARS_MAX:
        raise BadGlob(f"the pattern has {len(pattern)} characters, above {PATTERN_CHARS_MAX}")
    if pattern.startswith(("/", "~")):
        raise BadGlob(f"{pattern!r} is not relative to the workspace; write it without the leading {pattern[0]!r}")
    if "\\" in pattern or "\0" in pattern:
        raise BadGlob(f"{pattern!r} holds a backslash or NUL; a special character is written as a set, e.g. [*]")
    components: list[tuple[_Token, ...] | None] = []
    for part in pattern.split("/"):
        if part == "..":
            raise BadGlob(f"{pattern!r} climbs out with '..'; a pattern stays inside the workspace")
        if part in ("", "."):
            wanted = pattern.rstrip("/.") + "/**" if pattern.endswith("/") else "a pattern without empty parts"
            raise BadGlob(f"{pattern!r} has an empty component; write {wanted}")
        components.append(None if part == _ANY_DEPTH else _tokens(pattern, part))
    return tuple(components)


def _tokens(pattern: str, part: str) -> tuple[_Token, ...]:
    if _ANY_DEPTH in part:
        raise BadGlob(f"{pattern!r}: ** stands alone between slashes, as in src/**/{part.replace('**', '*')}")
    tokens: list[_Token] = []
    position = 0
    while position < len(part):
        if part[position] == "[":
            chars, position = _set(pattern, part, position)
            tokens.append(chars)
        else:
            tokens.append(part[position])
            position += 1
    return tuple(tokens)


def _set(pattern: str, part: str, start: int) -> tuple[_Set, int]:
    first = start + 1
    negated = part[first : first + 1] in ("!", "^")
    first += negated
    end = part.find("]", first + 1)  # a ] right after the opening is a member
    if end < 0:
        raise BadGlob(f"{pattern!r}: the set that opens at {part[start:]!r} is never closed with ]")
    members: list[tuple[str, str]] = []
    position = first
    while position < end:
        char = part[position]
        if position + 2 < end and part[position + 1] == "-":
            high = part[position + 2]
            if high < char:
                raise BadGlob(f"{pattern!r}: the range {char}-{high} runs backwards")
            members.append((char, high))
            position += 3
        else:
            members.append((char, char))
            position += 1
    return _Set(tuple(members), negated), end + 1
