"""What came back, in four statuses. An observation is never evidence (R090): the types do not mix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["COMPLETED", "TRUNCATED", "REFUSED", "TRANSPORT_FAILURE"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One structured line distilled from compiler or test output (R116)."""

    path: str
    line: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Observation:
    """The envelope of one dispatched or refused call. Text is redacted and shaped; the full bytes are payloads."""

    ordinal: int
    tool: str
    status: Status
    text: str
    exit_code: int | None = None
    reason: str = ""
    duration_ms: int = 0
    output_bytes: int = 0
    output_sha256: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
