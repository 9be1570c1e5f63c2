"""Shape an outcome into an observation: redact, clamp, distil."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_REDACTED: Final = "[redacted]"
STORED_CHARS_MAX: Final = 256 * 1024
"""An observation's text in the log; the sandbox keeps no more of an output than its limit anyway."""


def redact(text: str, patterns: Sequence[str]) -> str:
    """``text`` with every match of the contract's patterns replaced, before anything is stored or shown (R239)."""
    for pattern in patterns:
        text = _compiled(pattern).sub(_REDACTED, text)
    return text


def shape(text: str, patterns: Sequence[str]) -> str:
    """What the log keeps of an output: redacted, printable, bounded with head and tail."""
    text = redact(text, patterns).encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= STORED_CHARS_MAX:
        return text
    half = STORED_CHARS_MAX // 2
    return f"{text[:half]}\n... [{len(text) - 2 * half} characters left out] ...\n{text[-half:]}"


@lru_cache(maxsize=128)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
