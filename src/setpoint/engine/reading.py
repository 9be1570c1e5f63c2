"""Fold a trajectory's log into its record. No model, no tool, no clock (R175)."""

from __future__ import annotations

import msgspec

from setpoint.kernel.errors import LogCorrupt, UnknownTrajectory
from setpoint.kernel.events import decode
from setpoint.kernel.record import Record
from setpoint.kernel.trajectory import fold
from setpoint.ports.log import ZERO_HASH, Checkpoint, Head, Log, Stored

_record_decoder = msgspec.json.Decoder(Record)


def read_record(log: Log, trajectory_id: str, *, verify_all: bool = True) -> tuple[Record, Head]:
    """The record and head of a trajectory, from its newest checkpoint on. LogCorrupt when the chain does not hold.

    ``verify_all`` walks the hash chain from the first event even where a checkpoint spares the folding.
    """
    record, head = _start(log, trajectory_id, verify_all)
    for stored in log.read(trajectory_id, head.seq, prev=head.hash):
        record = apply(record, stored)
        head = Head(stored.seq, stored.hash)
    if head.seq == 0:
        raise UnknownTrajectory(f"trajectory {trajectory_id} holds no event; it was never accepted")
    return record, head


def _start(log: Log, trajectory_id: str, verify_all: bool) -> tuple[Record, Head]:
    """Where folding begins: at the newest checkpoint, or before the first event when there is none to be used (R015).

    A checkpoint only spares folding, so a damaged one costs time and nothing else. One that lies beyond the end of
    the log says that events are missing, and that is LogCorrupt.
    """
    before_all = Record(trajectory_id=trajectory_id), Head(0, ZERO_HASH)
    try:
        checkpoint = log.checkpoint(trajectory_id)
    except LogCorrupt as fault:
        if fault.seq < 0 or fault.seq > log.head(trajectory_id).seq:
            raise
        return before_all
    if checkpoint is None:
        return before_all
    if verify_all and not _stands_on_its_event(log, trajectory_id, checkpoint):
        return before_all
    try:
        record = _record_decoder.decode(checkpoint.record)
    except msgspec.DecodeError:
        return before_all
    if (record.trajectory_id, record.seq) != (trajectory_id, checkpoint.seq):
        return before_all
    return record, Head(checkpoint.seq, checkpoint.hash)


def apply(record: Record, stored: Stored) -> Record:
    """Fold one stored event."""
    folded = fold(record, stored.turn, decode(stored.type, stored.data))
    return msgspec.structs.replace(folded, last_event_at=stored.at)


def _stands_on_its_event(log: Log, trajectory_id: str, checkpoint: Checkpoint) -> bool:
    for stored in log.read(trajectory_id):
        if stored.seq == checkpoint.seq:
            return stored.hash == checkpoint.hash
    raise LogCorrupt(f"the log of {trajectory_id} ends before its checkpoint", stream=trajectory_id, seq=checkpoint.seq)
