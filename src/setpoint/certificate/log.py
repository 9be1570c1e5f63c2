"""The bundled events as a chain and as a Merkle tree.

An event's ``hash`` is the sha256 of its canonical envelope without ``hash``; ``prev`` is the hash of the event before
(64 zeros for the first). A leaf of the tree is the canonical bytes of the full envelope, ``hash`` included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from . import merkle
from .canonical import DIGEST_PREFIX, canonical, digest, is_digest

ZERO_HASH: Final = DIGEST_PREFIX + "0" * 64
FIELDS: Final = frozenset({"stream", "seq", "turn", "type", "v", "at", "prev", "hash", "data"})

_AT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z\Z", re.ASCII)


def event_hash(envelope: dict[str, Any]) -> str:
    """What ``hash`` of this envelope must be."""
    return digest({name: value for name, value in envelope.items() if name != "hash"})


def leaf(envelope: dict[str, Any]) -> bytes:
    """The leaf hash of one full envelope."""
    return merkle.leaf_hash(canonical(envelope))


def head(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a certificate says of the log: algorithm, size, root, first and last hash."""
    return {
        "algorithm": merkle.ALGORITHM,
        "size": len(events),
        "root": DIGEST_PREFIX + merkle.root([leaf(event) for event in events]).hex(),
        "first": events[0]["hash"] if events else ZERO_HASH,
        "last": events[-1]["hash"] if events else ZERO_HASH,
    }


def misshapen(event: Any) -> str | None:
    """Why ``event`` is not an envelope, None when it is one."""
    if not isinstance(event, dict):
        return "an event is not an object"
    if event.keys() != FIELDS:
        return f"an event has the fields {sorted(event)}, not {sorted(FIELDS)}"
    for name in ("seq", "turn", "v"):
        if not isinstance(event[name], int) or isinstance(event[name], bool) or event[name] < 0:
            return f"an event's {name} is {event[name]!r}, not a count"
    if (
        not isinstance(event["stream"], str)
        or not isinstance(event["type"], str)
        or not isinstance(event["data"], dict)
    ):
        return "an event's stream, type or data has the wrong type"
    if not isinstance(event["at"], str) or not _AT.match(event["at"]):
        return f"an event's at is {event['at']!r}, not UTC with milliseconds"
    if not is_digest(event["prev"]) or not is_digest(event["hash"]):
        return "an event's prev or hash is not sha256:<64 hex>"
    return None


def breaks(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Everything wrong with the sequence and the chain: gaps, reorderings, edits, foreign events."""
    if not events:
        yield "there are no events"
        return
    stream, prev = events[0]["stream"], ZERO_HASH
    for position, event in enumerate(events, start=1):
        seq = event["seq"]
        if seq != position:
            yield f"event {position} has seq {seq}: one is missing, repeated or out of order"
        if event["stream"] != stream:
            yield f"event {seq} is of stream {event['stream']!r}, not {stream!r}"
        if event["prev"] != prev:
            yield f"event {seq} does not chain to the one before it"
        if event["hash"] != event_hash(event):
            yield f"event {seq} ({event['type']}) was changed: its hash does not match its content"
        if event["v"] != 1:
            yield f"event {seq} has schema version {event['v']}; this verifier knows version 1"
        prev = event["hash"]
