"""What a dispatch gave, before it is shaped into an observation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from setpoint.kernel.keys import digest_bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """``text`` is the kept output; ``total_bytes`` and ``sha256`` are over everything that arrived."""

    status: Literal["COMPLETED", "TRUNCATED", "TRANSPORT_FAILURE"]
    text: str
    exit_code: int | None = None
    reason: str = ""
    duration_ms: int = 0
    total_bytes: int = 0
    sha256: str = ""


def completed(text: str, exit_code: int = 0, duration_ms: int = 0) -> Outcome:
    raw = text.encode("utf-8", "replace")
    return Outcome("COMPLETED", text, exit_code, "", duration_ms, len(raw), digest_bytes(raw)[7:])


def failed(text: str) -> Outcome:
    """A tool that ran and could not do what was asked: completed with exit code 1."""
    return completed(text, 1)
