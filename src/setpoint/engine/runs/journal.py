"""The one way a fact reaches the log of a run, from any number of its blocks at once.

``add`` keeps an event for the next ``write``; ``write`` returns when its events, and all that was added before, are
durable. Events fold into the record only when the store has taken them: a refused append changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from setpoint.engine.journal import holds_fraction, timestamp
from setpoint.engine.reading import Reading
from setpoint.kernel import limits
from setpoint.kernel.errors import DuplicateEffect, StatementRefused
from setpoint.kernel.events import Event, Ref, encode
from setpoint.kernel.keys import digest_bytes
from setpoint.kernel.run_events import EffectQueued, decode
from setpoint.kernel.run_record import RunRecord, Scope, fold_run
from setpoint.ports.clock import Clock
from setpoint.ports.log import WAKE_AS_BEFORE, Beside, Draft, Head, Lease, Log, Statement

Observer = Callable[[Event, RunRecord], None]
_json = msgspec.json.Encoder(order="sorted")


class RunJournal:
    """The live journal of one run under one lease."""

    def __init__(
        self, log: Log, clock: Clock, lease: Lease, head: Head, record: RunRecord, observer: Observer | None = None
    ) -> None:
        self.log = log
        self.lease = lease
        self.head = head
        self.record = record
        self._clock = clock
        self._observer = observer
        self._lock = asyncio.Lock()
        self._added: list[Event] = []
        self._broken: BaseException | None = None
        self._payloads: dict[str, bytes] = {}  # not durable yet
        self._recent: dict[str, bytes] = {}
        self._checkpoint_seq = record.seq

    def add(self, event: Event) -> None:
        """Keep an event for the next write, and fold it in at once: it decides nothing that could be refused."""
        self._added.append(event)
        self.record = self._folded(self.record, event)

    async def write(
        self,
        *events: Event,
        claims: Sequence[str] = (),
        releases: Sequence[str] = (),
        wake_ms: int = WAKE_AS_BEFORE,
        statements: Sequence[Statement] = (),
        is_first: bool = False,
    ) -> None:
        """Append durably, with what goes down beside. DuplicateEffect and StatementRefused: nothing happened.

        ``is_first``: the claims must be new to this run, too; DuplicateEffect names it as the holder when they are not.
        After any other fault nobody knows what the log holds, so every later write raises that fault again.
        """
        beside = None
        if claims or releases or statements or wake_ms != WAKE_AS_BEFORE:
            beside = Beside(tuple(claims), tuple(releases), wake_ms, tuple(statements))
        async with self._lock:
            if self._added and (claims or statements):  # what was added stands even when this is refused
                await self._append([], None)
            if is_first:
                self._require_new(claims)
            await self._append(events, beside)

    async def flush(self) -> None:
        """Make what was added durable."""
        async with self._lock:
            if self._added or self._payloads:
                await self._append([], None)

    def _require_new(self, claims: Sequence[str]) -> None:
        """The store takes a claim that its stream holds already for no change; two nodes with one key are two effects.

        Under the lock, so that of two blocks beside each other only one gets through.
        """
        for claim in claims:
            if self.log.claimant(claim) == self.lease.stream and self._has_intent(claim):
                message = f"another node of {self.lease.stream} has claimed {claim!r} already"
                raise DuplicateEffect(message, key=claim, holder=self.lease.stream)

    def _has_intent(self, claim: str) -> bool:
        """Whether the log says what the claim is for. Looked for only where the claim is this run's already."""
        queued = (decode(s.type, s.data) for s in self.log.read(self.lease.stream) if s.type == EffectQueued.__name__)
        return any(isinstance(intent, EffectQueued) and intent.claim == claim for intent in queued)

    async def _append(self, events: Sequence[Event], beside: Beside | None) -> None:
        if self._broken is not None:
            raise self._broken
        added, self._added = self._added, []
        payloads = dict(self._payloads)
        now = timestamp(self._clock.now_ms())
        record = self.record
        for event in events:
            record = self._folded(record, event)
        turn = record.step
        drafts = [Draft(turn, type(event).__name__, encode(event), now) for event in (*added, *events)]
        if beside is not None and beside.wake_ms != WAKE_AS_BEFORE:
            beside = replace(beside, heard=record.inbox_position)
        checkpoint = None
        if record.seq - self._checkpoint_seq >= limits.RUN_CHECKPOINT_EVENTS:
            checkpoint = _json.encode(replace(record, last_event_at=now))
        try:
            self.head = await self.log.append(
                self.lease, self.head, drafts, payloads=[*payloads.values()], checkpoint=checkpoint, beside=beside
            )
        except (DuplicateEffect, StatementRefused):
            self._added = [*added, *self._added]  # of blocks beside this one, which go on
            raise
        except BaseException as fault:
            self._broken = fault
            raise
        for digest in payloads:
            del self._payloads[digest]
        if checkpoint is not None:
            self._checkpoint_seq = record.seq
        # Blocks beside this one may have added facts while the store wrote: those follow in the log, too.
        for event in self._added:
            record = self._folded(record, event)
        self.record = replace(record, last_event_at=now)
        if self._observer is not None:
            for event in (*added, *events):
                self._observer(event, self.record)

    def _folded(self, record: RunRecord, event: Event) -> RunRecord:
        return fold_run(record, event)

    # Values and payloads

    def store(self, value: Any) -> Ref:
        """Keep a value's JSON in the content-addressed store."""
        return self.store_bytes(_json.encode(value))

    def store_bytes(self, data: bytes) -> Ref:
        digest = digest_bytes(data)
        self._payloads[digest] = data
        self._recent[digest] = data
        if len(self._recent) > _RECENT:
            self._recent.pop(next(iter(self._recent)))
        return Ref(digest, len(data))

    def load(self, ref: Ref) -> Any:
        """The value of a reference."""
        return msgspec.json.decode(self.load_bytes(ref))

    def load_bytes(self, ref: Ref) -> bytes:
        data = self._recent.get(ref.ref) or self._payloads.get(ref.ref)
        return self.log.payload(ref.ref) if data is None else data

    def spill(self, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Ref]]:
        """The fields that fit an event, and references to the others: those that are long or hold a fraction."""
        kept: dict[str, Any] = {}
        refs: dict[str, Ref] = {}
        for name, value in values.items():
            if is_small(value):
                kept[name] = value
            else:
                refs[name] = self.store(value)
        return kept, refs

    def values_at(self, scope: str) -> dict[str, Any]:
        """The state as a scope sees it: the root, and what each scope on the way down changed. A fresh dictionary."""
        scopes = self.record.scopes
        found = self._values(scopes[""])
        if scope:
            for path in sorted(path for path in scopes if path and (scope == path or scope.startswith(f"{path}/"))):
                found.update(self._values(scopes[path]))
        return found

    def _values(self, scope: Scope) -> dict[str, Any]:
        found = dict(scope.values)
        for name, ref in scope.refs.items():
            found[name] = self.load(ref)
        return found


_RECENT = 64
"""Payloads kept at hand: those of the nodes just done, which the next ones read."""


def is_small(value: Any) -> bool:
    """Whether a value may lie in an event: short, and without a fraction."""
    if value is None or isinstance(value, (bool, int)):
        return True
    if isinstance(value, str):
        return len(value) <= limits.INLINE_BYTES_MAX
    return not holds_fraction(value) and len(_json.encode(value)) <= limits.INLINE_BYTES_MAX


_RUNS: Reading[RunRecord] = Reading(
    lambda stream: RunRecord(run_id=stream),
    msgspec.json.Decoder(RunRecord),
    lambda record, stored: fold_run(record, decode(stored.type, stored.data)),
    lambda record: record.run_id,
    "this run was never started",
)


def read_run(log: Log, run_id: str) -> tuple[RunRecord, Head]:
    """The record and head of a run. Raises as ``Reading.read`` does."""
    return _RUNS.read(log, run_id, verify_all=False)
