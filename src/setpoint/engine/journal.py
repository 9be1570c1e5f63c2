"""Write down before acting: the one way an event reaches the log, and the record follows it.

``emit`` folds the event into the record at once and buffers it; ``barrier`` makes everything emitted so far durable
(before a dispatch, a commit, the end); ``hand_over`` gives it to the log without waiting (while the model thinks).
Nothing outside happens between an ``emit`` that needs durability and its ``barrier``.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from setpoint.engine.reading import read_record
from setpoint.kernel import limits
from setpoint.kernel.events import ChangeItem, Event, Ref, encode
from setpoint.kernel.keys import digest_bytes
from setpoint.kernel.record import Record
from setpoint.kernel.trajectory import fold
from setpoint.ports.clock import Clock
from setpoint.ports.log import Draft, Head, Lease, Log

_PAYLOADS_REMEMBERED: Final = 4096
"""Digests this process knows to be stored; a payload above that count may be written twice, which costs only time."""
_FRACTION: Final = re.compile(rb"[0-9][.eE]")
_json: Final = msgspec.json.Encoder(order="sorted")


class Scribe(Protocol):
    """What a turn needs of a journal; replay has one that compares instead of writing."""

    @property
    def record(self) -> Record: ...

    def emit(self, event: Event) -> None: ...

    def start_turn(self, event: Event, turn: int) -> None: ...

    async def barrier(self) -> None: ...

    async def hand_over(self) -> None: ...

    def spill_text(self, text: str) -> str | Ref: ...

    def spill_json(self, value: dict[str, Any]) -> tuple[dict[str, Any] | None, Ref | None]: ...

    def spill_list(self, items: list[ChangeItem]) -> tuple[list[ChangeItem] | None, Ref | None]: ...

    def store(self, data: bytes) -> Ref: ...

    def is_stored(self, digest: str) -> bool: ...

    def load(self, ref: Ref) -> bytes: ...


class Journal:
    """The live journal of one trajectory under one lease."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        lease: Lease,
        head: Head,
        record: Record,
        observer: Callable[[int, Event, Record], None] | None = None,
    ) -> None:
        self._log = log
        self._clock = clock
        self.lease = lease
        self.head = head
        self._record = record
        self._observer = observer
        self._drafts: list[Draft] = []
        self._payloads: list[bytes] = []
        self._known: OrderedDict[str, None] = OrderedDict()

    @property
    def record(self) -> Record:
        return self._record

    def emit(self, event: Event) -> None:
        """Fold ``event`` and keep it for the next hand-over. The turn is the record's present one."""
        self.start_turn(event, self._record.turn)

    def start_turn(self, event: Event, turn: int) -> None:
        """Emit the event that opens ``turn``; every later one belongs to it."""
        at = timestamp(self._clock.now_ms())
        self._record = replace(fold(self._record, turn, event), last_event_at=at)
        self._drafts.append(Draft(turn, type(event).__name__, encode(event), at))
        if self._observer is not None:
            self._observer(turn, event, self._record)

    async def barrier(self) -> None:
        """Everything emitted so far is durable when this returns."""
        await self._append(durable=True)

    async def hand_over(self) -> None:
        """Give everything emitted so far to the log; it becomes durable with the next barrier or shortly after."""
        if self._drafts:
            await self._append(durable=False)

    async def checkpoint(self) -> None:
        """Like ``barrier``, with a snapshot of the record at the new head."""
        await self._append(durable=True, checkpoint=_json.encode(self._record))

    async def resynchronise(self) -> None:
        """After a cancelled turn: what was not handed over is dropped, and the record is read from the log again.

        An append that was under way may or may not have gone down; the log knows.
        """
        self._drafts, self._payloads = [], []
        await self._log.flush(self.lease.stream)
        self._record, self.head = read_record(self._log, self.lease.stream)

    async def _append(self, *, durable: bool, checkpoint: bytes | None = None) -> None:
        drafts, payloads = self._drafts, self._payloads
        self._drafts, self._payloads = [], []
        if not drafts and not payloads and checkpoint is None:
            if durable:
                await self._log.flush(self.lease.stream)
            return
        self.head = await self._log.append(
            self.lease, self.head, drafts, durable=durable, payloads=payloads, checkpoint=checkpoint
        )

    def spill_text(self, text: str) -> str | Ref:
        """``text`` itself when small, else a reference to its stored bytes."""
        if len(text) <= limits.INLINE_BYTES_MAX:
            return text
        return self.store(text.encode("utf-8", "backslashreplace"))

    def spill_json(self, value: dict[str, Any]) -> tuple[dict[str, Any] | None, Ref | None]:
        """(value, None) when it is small and free of fractions, else (None, reference)."""
        data = _json.encode(value)
        # Bytes that look like a fraction may be text; only then is the value walked.
        if len(data) <= limits.INLINE_BYTES_MAX and not (_FRACTION.search(data) and holds_fraction(value)):
            return value, None
        return None, self.store(data)

    def spill_list(self, items: list[ChangeItem]) -> tuple[list[ChangeItem] | None, Ref | None]:
        """The list itself when small, else a reference to its JSON."""
        data = _json.encode(items)
        return (items, None) if len(data) <= limits.INLINE_BYTES_MAX else (None, self.store(data))

    def store(self, data: bytes) -> Ref:
        """Keep bytes in the content-addressed store, once."""
        digest = digest_bytes(data)
        if digest not in self._known:
            self._payloads.append(data)
            self._known[digest] = None
            if len(self._known) > _PAYLOADS_REMEMBERED:
                self._known.popitem(last=False)
        return Ref(digest, len(data))

    def is_stored(self, digest: str) -> bool:
        """Whether this journal has kept the bytes of that digest already; False when it does not know."""
        return digest in self._known

    def load(self, ref: Ref) -> bytes:
        for data in self._payloads:
            if digest_bytes(data) == ref.ref:
                return data
        return self._log.payload(ref.ref)


def holds_fraction(value: Any) -> bool:
    """Whether a JSON value holds a float, which canonical events may not."""
    if isinstance(value, float):
        return True
    if isinstance(value, dict):
        return any(holds_fraction(item) for item in value.values())  # type: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return any(holds_fraction(item) for item in value)  # type: ignore[reportUnknownVariableType]
    return False


def timestamp(ms: int) -> str:
    """RFC 3339 UTC with milliseconds."""
    seconds, rest = divmod(ms, 1000)
    return f"{_second(seconds)}.{rest:03d}Z"


_last_second: tuple[int, str] = (-1, "")


def _second(seconds: int) -> str:
    global _last_second
    if _last_second[0] != seconds:
        from datetime import UTC, datetime

        _last_second = (seconds, datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    return _last_second[1]
