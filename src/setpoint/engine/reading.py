"""Fold a stream of the log into its record: a trajectory, a run or a session. No model, no tool, no clock (R175)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from setpoint.kernel.errors import LogCorrupt, UnknownTrajectory
from setpoint.kernel.events import decode
from setpoint.kernel.record import Record
from setpoint.kernel.run_record import RunRecord
from setpoint.kernel.session_record import SessionRecord
from setpoint.kernel.trajectory import fold
from setpoint.ports.log import ZERO_HASH, Checkpoint, Head, Log, Stored

RecordT = TypeVar("RecordT", Record, RunRecord, SessionRecord)


@dataclass(frozen=True, slots=True)
class Reading(Generic[RecordT]):
    """How streams of one kind are folded. ``named``: the stream a record is of, so that none is taken for another's."""

    empty: Callable[[str], RecordT]
    decoder: msgspec.json.Decoder[RecordT]
    apply: Callable[[RecordT, Stored], RecordT]
    named: Callable[[RecordT], str]
    unknown: str  # what is said of a stream without events: "it was never accepted"

    def read(self, log: Log, stream: str, *, verify_all: bool) -> tuple[RecordT, Head]:
        """The record and head, from the newest sound checkpoint on. UnknownTrajectory; LogCorrupt when the chain does
        not hold. ``verify_all`` walks the hash chain from the first event even where a checkpoint spares the folding.
        """
        record, head = self._start(log, stream, verify_all)
        at = record.last_event_at
        for stored in log.read(stream, head.seq, prev=head.hash):
            record = self.apply(record, stored)
            head, at = Head(stored.seq, stored.hash), stored.at
        if head.seq == 0:
            raise UnknownTrajectory(f"{stream} holds no event; {self.unknown}")
        if record.seq != head.seq:
            message = f"the record of {stream} folded {record.seq} events of {head.seq}"
            raise LogCorrupt(message, stream=stream, seq=head.seq)
        return msgspec.structs.replace(record, last_event_at=at), head

    def _start(self, log: Log, stream: str, verify_all: bool) -> tuple[RecordT, Head]:
        """Where folding begins: at the newest checkpoint, or before the first event when none can be used (R015).

        A checkpoint only spares folding, so a damaged one costs time and nothing else. One that lies beyond the end
        of the log says that events are missing, and that is LogCorrupt.
        """
        before_all = self.empty(stream), Head(0, ZERO_HASH)
        try:
            checkpoint = log.checkpoint(stream)
        except LogCorrupt as fault:
            if fault.seq < 0 or fault.seq > log.head(stream).seq:
                raise
            return before_all
        if checkpoint is None:
            return before_all
        if verify_all and not _stands_on_its_event(log, stream, checkpoint):
            return before_all
        try:
            record = self.decoder.decode(checkpoint.record)
        except msgspec.DecodeError:
            return before_all
        if (self.named(record), record.seq) != (stream, checkpoint.seq):
            return before_all
        return record, Head(checkpoint.seq, checkpoint.hash)


def _stands_on_its_event(log: Log, stream: str, checkpoint: Checkpoint) -> bool:
    for stored in log.read(stream):
        if stored.seq == checkpoint.seq:
            return stored.hash == checkpoint.hash
    raise LogCorrupt(f"the log of {stream} ends before its checkpoint", stream=stream, seq=checkpoint.seq)


def apply(record: Record, stored: Stored) -> Record:
    """Fold one stored event of a trajectory."""
    folded = fold(record, stored.turn, decode(stored.type, stored.data))
    return msgspec.structs.replace(folded, last_event_at=stored.at)


_TRAJECTORIES: Reading[Record] = Reading(
    lambda stream: Record(trajectory_id=stream),
    msgspec.json.Decoder(Record),
    apply,
    lambda record: record.trajectory_id,
    "it was never accepted",
)


def read_record(log: Log, trajectory_id: str, *, verify_all: bool = True) -> tuple[Record, Head]:
    """The record and head of a trajectory. Raises as ``Reading.read`` does."""
    return _TRAJECTORIES.read(log, trajectory_id, verify_all=verify_all)
