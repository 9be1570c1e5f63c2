"""Fold a trajectory's log into its record. No model, no tool, no clock (R175)."""

from __future__ import annotations

import msgspec

from setpoint.kernel.errors import LogCorrupt, UnknownTrajectory
from setpoint.kernel.events import decode
from setpoint.kernel.trajectory import Record, fold
from setpoint.ports.log import ZERO_HASH, Head, Log, Stored

_record_decoder = msgspec.json.Decoder(Record)


def read_record(log: Log, trajectory_id: str, *, verify_all: bool = True) -> tuple[Record, Head]:
    """The record and head of a trajectory, from its newest checkpoint on. LogCorrupt when the chain does not hold.

    ``verify_all`` walks the hash chain from the first event even where a checkpoint spares the folding.
    """
    checkpoint = log.checkpoint(trajectory_id)
    record, start, prev = Record(trajectory_id=trajectory_id), 0, ZERO_HASH
    if checkpoint is not None:
        record = _record_decoder.decode(checkpoint.record)
        start, prev = checkpoint.seq, checkpoint.hash
        if verify_all:
            _walk_to(log, trajectory_id, checkpoint.seq, checkpoint.hash)
    head = Head(start, prev)
    for stored in log.read(trajectory_id, start, prev=prev):
        record = apply(record, stored)
        head = Head(stored.seq, stored.hash)
    if head.seq == 0:
        raise UnknownTrajectory(f"trajectory {trajectory_id} holds no event; it was never accepted")
    return record, head


def apply(record: Record, stored: Stored) -> Record:
    """Fold one stored event."""
    folded = fold(record, stored.turn, decode(stored.type, stored.data))
    return msgspec.structs.replace(folded, last_event_at=stored.at)


def _walk_to(log: Log, trajectory_id: str, seq: int, expected: str) -> None:
    for stored in log.read(trajectory_id):
        if stored.seq == seq:
            if stored.hash != expected:
                raise LogCorrupt(
                    f"the checkpoint of {trajectory_id} at event {seq} does not belong to this log",
                    stream=trajectory_id,
                    seq=seq,
                )
            return
    raise LogCorrupt(f"the log of {trajectory_id} ends before its checkpoint", stream=trajectory_id, seq=seq)
