"""Take sealed paths and sealed lines out of what a check recorded, before it becomes evidence (law L9).

Tracebacks and assertion reports quote the test they came from. A held-out check whose failure is disclosed would hand
its own text to the model that way.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Final

from setpoint.adapters.verifiers.verdicts import Judgement
from setpoint.kernel.evidence import Failure
from setpoint.ports.sandbox import SEALED_AT

LINE_CHARS_MIN: Final = 12
"""A shorter line (``pass``, ``return x``) is in every program; dropping it hides messages and protects nothing."""
FILE_BYTES_MAX: Final = 1 << 20
LINES_MAX: Final = 200_000
_SEALED_PATH = re.compile(rf"{re.escape(SEALED_AT)}(?:/[^\s:'\",<>()\[\]]*)?(?![\w])")
_NONE: Final[frozenset[str]] = frozenset()
_MARKER = re.compile(r"^\s*(?:[>E]\s+)?")


def sealed_lines(root: str) -> frozenset[str] | None:
    """Every line of the sealed text files, stripped; None when there are more than LINES_MAX. Reads files."""
    lines: set[str] = set()
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as file:  # of a long file (data, hardly ever quoted by line) the beginning
                text = file.read(FILE_BYTES_MAX).decode("utf-8", "replace")
            lines.update(line for raw in text.splitlines() if len(line := raw.strip()) >= LINE_CHARS_MIN)
            if len(lines) > LINES_MAX:
                return None
    return frozenset(lines)


def scrub_text(text: str, sealed: frozenset[str]) -> str:
    """``text`` without lines that are in a sealed file, and with sealed paths replaced."""
    kept = [line for line in text.split("\n") if _MARKER.sub("", line).strip() not in sealed]
    return _SEALED_PATH.sub("<sealed>", "\n".join(kept))


def scrub(judgement: Judgement, sealed: frozenset[str] | None) -> Judgement:
    """The same judgement; what it says of sealed files is gone. Without lines to compare, no message is kept."""
    failures = tuple(
        Failure(
            scrub_text(failure.name, sealed or _NONE), "" if sealed is None else scrub_text(failure.message, sealed)
        )
        for failure in judgement.failures
    )
    return replace(judgement, reason=scrub_text(judgement.reason, sealed or _NONE), failures=failures)
