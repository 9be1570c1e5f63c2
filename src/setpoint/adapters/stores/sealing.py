"""Drafts become rows, rows become verified events: the hash chain on both sides of storage.

Every store keeps events as the tuple ``Row``; ``prev`` is not stored, since it is the hash of the row before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from setpoint.kernel.chain import (
    envelope_template,
    hash_raw,
    is_unambiguous,
    refuse_malformed,
)
from setpoint.kernel.errors import LogCorrupt
from setpoint.ports.log import Draft, Head, Stored

Row = tuple[int, int, str, int, str, bytes, bytes]  # seq, turn, type, v, at, raw hash, data

CORRUPT_HINT = "Nothing was repaired. Restore the store from a backup, or keep it aside as evidence."


def seal(template: bytes, head: Head, drafts: Sequence[Draft]) -> tuple[list[Row], Head]:
    """The rows that follow ``head``, and the head after them. ValueError on a malformed head or draft.

    The loop spells out ``chain.link``: it runs for every event there is.
    """
    seq, prev = head.seq, head.hash
    hash_raw(prev)
    rows: list[Row] = []
    for draft in drafts:
        turn, type, v, at, data = draft.turn, draft.type, draft.v, draft.at, draft.data
        refuse_malformed(turn, type, v, at, data)
        seq += 1
        raw = sha256(template % (at.encode(), data, prev.encode(), seq, turn, type.encode(), v)).digest()
        rows.append((seq, turn, type, v, at, raw, data))
        prev = "sha256:" + raw.hex()
    return rows, Head(seq, prev)


def verified(stream: str, rows: Iterable[Row], after: Head, until: Head) -> Iterator[Stored]:
    """Events of the rows between two heads; LogCorrupt at the first that does not chain, or when one is missing.

    The loop spells out ``chain.link``: it runs once for every event of a trajectory that is resumed.
    """
    template = envelope_template(stream)
    seq, prev = after.seq, after.hash
    if seq > until.seq:
        raise corrupt(stream, until.seq + 1, f"the log ends at {until.seq} but is known to reach {seq}")
    for found, turn, type, v, at, raw, data in rows:
        seq += 1
        if found != seq:
            raise corrupt(stream, seq, f"event {seq} is missing: the next one found is {found}")
        try:
            envelope = template % (at.encode(), data, prev.encode(), seq, turn, type.encode(), v)
            intact = sha256(envelope).digest() == raw and is_unambiguous(type, at)
        except (TypeError, ValueError, AttributeError):  # a field of another type than was ever written
            intact = False
        if not intact:
            raise corrupt(stream, seq, f"event {seq} does not match its hash and the hash of the event before")
        before, prev = prev, "sha256:" + raw.hex()
        yield Stored(stream, seq, turn, type, v, at, before, prev, data)
    if seq != until.seq:
        raise corrupt(stream, seq + 1, f"the tail is missing: events end at {seq}, the head is at {until.seq}")
    if prev != until.hash:
        raise corrupt(stream, seq, f"event {seq} has hash {prev}, expected {until.hash}")


def corrupt(stream: str, seq: int, what: str) -> LogCorrupt:
    """The fault that names the first event of ``stream`` that is not as it was written."""
    return LogCorrupt(f"log of {stream}: {what}", stream=stream, seq=seq, hint=CORRUPT_HINT)
