"""Shape an outcome into an observation: redact, clamp, distil."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from setpoint.kernel.redaction import redact

STORED_CHARS_MAX: Final = 256 * 1024
"""An observation's text in the log; the sandbox keeps no more of an output than its limit anyway."""


def shape(text: str, patterns: Sequence[str]) -> str:
    """What the log keeps of an output: redacted, printable, bounded with head and tail."""
    text = redact(text, patterns).encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= STORED_CHARS_MAX:
        return text
    half = STORED_CHARS_MAX // 2
    return f"{text[:half]}\n... [{len(text) - 2 * half} characters left out] ...\n{text[-half:]}"
