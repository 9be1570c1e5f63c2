"""Blank what the contract's patterns match, before anything of the outside is stored or shown (R239).

The patterns are the contract author's, the texts are not: an expression that takes exponential time on a text that
somebody chose must not hold up the supervisor. Matching therefore has a time bound, and a text that could not be
searched through in time is blanked whole: fail closed (law L10).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

REDACTED: Final = "[redacted]"
MATCH_SECONDS_MAX: Final = 0.5
"""For one pattern over one text: a sane pattern takes milliseconds over the largest output that is kept."""


def redact(text: str, patterns: Sequence[str]) -> str:
    """``text`` with every match blanked; wholly blanked, with the reason, when a pattern takes too long."""
    for pattern in patterns:
        try:
            text = _compiled(pattern).sub(REDACTED, text, timeout=MATCH_SECONDS_MAX)
        except TimeoutError:
            return f"[redacted whole: searching for {pattern!r} took longer than {MATCH_SECONDS_MAX} s]"
    return text


@lru_cache(maxsize=128)
def _compiled(pattern: str) -> Any:
    # The standard library's matcher cannot be bounded in time. Imported with the first pattern: most tasks have none.
    import regex

    return regex.compile(pattern)
