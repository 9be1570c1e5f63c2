"""How numbers, moments and verdicts are said, the same in every verb. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from setpoint.kernel.events import Event, ToolIntent
from setpoint.kernel.record import UNKNOWN_PROGRESS, Record, Ticketed
from setpoint.kernel.spelling import one_line

_PASSWORD = re.compile(r"(?<=[^/:]:)[^/@:]+(?=@)|(?<=[?&]password=)[^&]*")
MARKS = {"pass": "✓", "fail": "✗", "missing": "?"}


def progress_said(progress: tuple[int, int, int]) -> str:
    """``0/2/3``: hard violations, unmet criteria, weighted debt."""
    return "-" if progress == UNKNOWN_PROGRESS else "/".join(map(str, progress))


def counted(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def checks_said(verdicts: Mapping[str, str]) -> str:
    """``unit ✓ golden ✗``; what is judged without being a criterion keeps its whole address."""
    return " ".join(
        f"{check.removeprefix('done/')} {MARKS.get(verdict, verdict)}" for check, verdict in verdicts.items()
    )


def dollars(micros: int) -> str:
    """``0.0120``: four decimals, enough to see a cheap call."""
    return f"{micros // 1_000_000}.{micros % 1_000_000 // 100:04d}"


def span(ms: int) -> str:
    """A duration for people, two units at most."""
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f}s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24}h"


def moment_ms(at: str) -> int:
    """Epoch milliseconds of an event's stamp."""
    return int(datetime.strptime(at, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp() * 1000)


def age(at: str, now_ms: int) -> str:
    return span(max(0, now_ms - moment_ms(at))) if at else "-"


def paths_said(paths: Iterable[str]) -> str:
    """Names of files in one line. A name with a line break stays one name, and says no line of ours."""
    return ", ".join(map(one_line, paths))


def shown_url(url: str) -> str:
    """A store's URL without the password in it."""
    return _PASSWORD.sub("***", url)


def status(record: Record, *, owned: bool) -> str:
    """One word for where a trajectory stands."""
    if record.undone:
        return "undone"
    if record.is_terminal:
        return {"COMPLETED": "converged", "FAILED": "failed", "CANCELLED": "cancelled"}[record.state]
    if record.question is not None:
        return "asks"
    if record.state == "PAUSED":
        return "paused"
    if open_ticket(record) is not None and not owned:
        return "waiting"
    return "running" if owned else "interrupted"


def open_ticket(record: Record) -> Ticketed | None:
    """The approval that a trajectory waits for."""
    ticketed = record.ticket if record.state == "AWAITING_APPROVAL" else None
    return ticketed if ticketed is not None and not ticketed.outcome else None


def event_said(event: Event) -> str:
    """One line for an event: its fields that are neither empty nor long digests."""
    parts: list[str] = []
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if value in ("", None, [], 0, False) or name in ("call_digest", "output_sha256", "check_digest"):
            continue
        if name == "key" and isinstance(event, ToolIntent):  # derived, and long; an effect's is the author's
            continue
        parts.append(f"{name}={value_said(value)}")
    return " ".join(parts)


def value_said(value: object) -> str:
    text = str(value)
    if isinstance(value, str) and value.startswith("sha256:"):
        return value[:19] + "…"
    if hasattr(value, "ref") and hasattr(value, "bytes"):
        return f"<{value.bytes} bytes {value.ref[7:19]}…>"  # type: ignore[attr-defined]
    if isinstance(value, str) and (not value or "\\" in value or any(c.isspace() for c in value)):
        return repr(value)
    return text
