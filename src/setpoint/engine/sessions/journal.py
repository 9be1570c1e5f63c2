"""The one way a fact reaches the log of a session, and how its record is read back.

A session is owned only while something is written: a second writer, in this process or another, loses its lease or
finds the head moved, and its append changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from setpoint.engine.journal import timestamp
from setpoint.engine.reading import Reading
from setpoint.engine.runs.journal import is_small
from setpoint.kernel import limits
from setpoint.kernel.events import Event, Ref, encode
from setpoint.kernel.keys import digest_bytes
from setpoint.kernel.session_events import decode
from setpoint.kernel.session_record import SessionRecord, fold_session
from setpoint.ports.clock import Clock
from setpoint.ports.log import Draft, Head, Lease, Log

KIND = "session"
Observer = Callable[[Event, SessionRecord], None]
_json = msgspec.json.Encoder(order="sorted")


def stream_of(session_id: str) -> str:
    """The stream of a session. A prefix, since its id is the host's: it must not be able to name a run."""
    return f"{KIND}:{session_id}"


class SessionJournal:
    """The live journal of one session under one lease."""

    def __init__(
        self, log: Log, clock: Clock, lease: Lease, head: Head, record: SessionRecord, observer: Observer | None = None
    ) -> None:
        self.log = log
        self.lease = lease
        self.head = head
        self.record = record
        self._clock = clock
        self._observer = observer
        self._drafts: list[Draft] = []
        self._events: list[Event] = []
        self._payloads: list[bytes] = []
        self._written_seq = record.seq

    def add(self, event: Event) -> None:
        """Fold an event in and keep it for the next ``write``."""
        at = timestamp(self._clock.now_ms())
        self.record = replace(fold_session(self.record, event), last_event_at=at)
        self._drafts.append(Draft(self.record.turn, type(event).__name__, encode(event), at))
        self._events.append(event)

    async def write(self, *events: Event) -> None:
        """These and everything added before are durable when it returns. LeaseLost, HeadMoved: nothing was written."""
        for event in events:
            self.add(event)
        drafts, self._drafts = self._drafts, []
        payloads, self._payloads = self._payloads, []
        written, self._events = self._events, []
        if not drafts and not payloads:
            return
        # At every multiple: a turn is short, and the next one is another journal.
        every = limits.RUN_CHECKPOINT_EVENTS
        is_due = self.record.seq // every > self._written_seq // every
        checkpoint = _json.encode(self.record) if is_due else None
        self._written_seq = self.record.seq
        self.head = await self.log.append(self.lease, self.head, drafts, payloads=payloads, checkpoint=checkpoint)
        if self._observer is not None:
            for event in written:
                self._observer(event, self.record)

    # Values

    def spill(self, value: Any) -> tuple[Any, Ref | None]:
        """(value, None) when it may lie in an event, else (None, reference)."""
        return (value, None) if is_small(value) else (None, self._store(_json.encode(value)))

    def spill_text(self, text: str) -> str | Ref:
        text = text.encode("utf-8", "backslashreplace").decode()  # no log holds half a surrogate
        return text if len(text) <= limits.INLINE_BYTES_MAX else self._store(text.encode())

    def _store(self, data: bytes) -> Ref:
        self._payloads.append(data)
        return Ref(digest_bytes(data), len(data))

    def value(self, inline: Any, ref: Ref | None) -> Any:
        return inline if ref is None else msgspec.json.decode(self._load(ref))

    def text(self, text: str | Ref) -> str:
        return text if isinstance(text, str) else self._load(text).decode()

    def _load(self, ref: Ref) -> bytes:
        for data in self._payloads:
            if digest_bytes(data) == ref.ref:
                return data
        return self.log.payload(ref.ref)


_SESSIONS: Reading[SessionRecord] = Reading(
    lambda stream: SessionRecord(session_id=stream.removeprefix(stream_of(""))),
    msgspec.json.Decoder(SessionRecord),
    lambda record, stored: fold_session(record, decode(stored.type, stored.data)),
    lambda record: stream_of(record.session_id),
    "this session was never opened",
)


def read_session(log: Log, session_id: str) -> tuple[SessionRecord, Head]:
    """The record and head of a session. Raises as ``Reading.read`` does."""
    return _SESSIONS.read(log, stream_of(session_id), verify_all=False)
