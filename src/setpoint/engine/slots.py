"""Slots for model calls: fair by tokens between flows, paced under the provider's limit.

A call holds its slot only while the model works. Whatever waits for a tool, a person or a timer holds none (R119).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from setpoint.kernel.fair import Bucket, Class, FairQueue
from setpoint.ports.clock import Clock

SLOTS = 16
"""Model calls at once by one process: what the usual rate limits of a provider can feed."""
RESERVED = 2
"""Of these, for people who wait: with calls of some seconds an interactive turn never waits for a batch to end."""


class ModelSlots:
    """Used as ``async with slots.hold(flow, tokens, kind): await proposer.propose(...)``."""

    def __init__(
        self, clock: Clock, slots: int = SLOTS, reserved: int = RESERVED, tokens_per_minute: int | None = None
    ) -> None:
        self._clock = clock
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(slots, reserved)
        rate = tokens_per_minute
        self._bucket = None if rate is None else Bucket(rate, rate, rate, clock.now_ms())

    @contextlib.asynccontextmanager
    async def hold(self, flow: str, tokens: int, kind: Class = "batch", weight: int = 1) -> AsyncGenerator[None]:
        """Wait for a turn of this flow; the slot is free again when the block ends, however it ends."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(turn, flow=flow, tokens=tokens, kind=kind, weight=weight)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if not self._queue.drop(turn):  # it had its turn already
                self._end(kind)
            raise
        try:
            await self._pace(tokens)
            yield
        finally:
            self._end(kind)

    async def _pace(self, tokens: int) -> None:
        while self._bucket is not None:
            self._bucket, wait_ms = self._bucket.take(tokens, self._clock.now_ms())
            if not wait_ms:
                return
            await self._clock.sleep_ms(wait_ms)

    def _end(self, kind: Class) -> None:
        self._queue.give_back(kind)
        self._let_in()

    def _let_in(self) -> None:
        while (found := self._queue.take()) is not None:
            kind, turn = found
            if turn.done():  # cancelled in between
                self._queue.give_back(kind)
            else:
                turn.set_result(None)
