"""A log as lines anyone can read, and the check of such lines from nothing but the lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from setpoint.adapters.stores.sealing import CORRUPT_HINT
from setpoint.kernel.errors import LogCorrupt
from setpoint.kernel.keys import canonical, digest
from setpoint.ports.log import ZERO_HASH, Head, Log, Stored

_FIELDS = frozenset({"stream", "seq", "turn", "type", "v", "at", "prev", "hash", "data"})


def envelope_line(event: Stored) -> bytes:
    """The event as one JSON object, as stdout, SSE and exports carry it; no newline at its end."""
    return (b'{"stream":%b,"seq":%d,"turn":%d,"type":"%b","v":%d,"at":"%b","prev":"%b","hash":"%b","data":%b}') % (
        canonical(event.stream),
        event.seq,
        event.turn,
        event.type.encode(),
        event.v,
        event.at.encode(),
        event.prev.encode(),
        event.hash.encode(),
        event.data,
    )


def export_lines(log: Log, stream: str) -> Iterator[bytes]:
    """Every event of the stream, verified, one envelope a line, each ending in a newline."""
    for event in log.read(stream):
        yield envelope_line(event) + b"\n"


def verify_lines(lines: Iterable[bytes | str]) -> Head:
    """The head the exported lines lead to; LogCorrupt at the first line that does not follow from the ones before.

    Lines that are whole but too few cannot be told from a shorter log: compare the head with one you trust.
    """
    head = Head(0, ZERO_HASH)
    stream: str | None = None
    for line in lines:
        stream, head = _follow(line, stream, head)
    return head


def _follow(line: bytes | str, stream: str | None, head: Head) -> tuple[str, Head]:
    seq = head.seq + 1
    event = _parsed(line, stream, seq)
    if stream is not None and event["stream"] != stream:
        raise _refused(stream, seq, f"belongs to {event['stream']!r}")
    if type(event["seq"]) is not int or event["seq"] != seq:
        raise _refused(event["stream"], seq, f"has seq {event['seq']!r}")
    if event["prev"] != head.hash:
        raise _refused(event["stream"], seq, f"follows {event['prev']!r}, the event before has hash {head.hash}")
    claimed = event.pop("hash")
    try:
        found = digest(event)
    except (TypeError, ValueError) as error:
        raise _refused(event["stream"], seq, f"holds what no event may: {error}") from error
    if found != claimed:
        raise _refused(event["stream"], seq, f"says its hash is {claimed!r}, its content has {found}")
    return event["stream"], Head(seq, found)


def _parsed(line: bytes | str, stream: str | None, seq: int) -> dict[str, Any]:
    try:
        event: object = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _refused(stream or "", seq, f"is not JSON: {error}") from error
    if not isinstance(event, dict) or event.keys() != _FIELDS or not isinstance(event["stream"], str):
        raise _refused(stream or "", seq, "is not an event envelope")
    return event


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two values under one name would let two readers see two different events."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return made


def _refused(stream: str, seq: int, what: str) -> LogCorrupt:
    return LogCorrupt(f"export of {stream or 'a log'}: line {seq} {what}", stream=stream, seq=seq, hint=CORRUPT_HINT)
