"""Group commit: appends of all streams queue up, and whoever writes takes everything that is queued.

One thread a store writes; one transaction holds all that came in while the transaction before was being synced, so
a hundred concurrent trajectories share a sync. A job that nobody waits for does not hurry the writer: it goes down
with the next one that somebody does wait for, or after ``LINGER_S``.

A caller that has nobody to share a sync with may write on its own thread (``try_write``): two changes of thread cost
more than the whole commit.

Invariants: jobs reach ``write`` in the order they came; only the holder of ``writing`` touches the database; every
waiter gets exactly one outcome; a failure nobody waited for is kept and told at the stream's next append or flush.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from setpoint.adapters.stores.leases import closed
from setpoint.adapters.stores.sealing import Row
from setpoint.ports.log import ZERO_HASH, Beside, Head

LINGER_S = 0.005  # far below any model's reply time, above a scripted turn: the two commits of a fast turn become one
QUEUE_MAX = 4_096  # jobs; beyond it an append waits for the disk whatever it asked for
OWN_THREAD_S_MAX = 0.010  # a caller is held up for one commit this long; then the thread writes until it is fast again


@dataclass(frozen=True, slots=True)
class Waiter:
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class Job(msgspec.Struct, frozen=True):
    """One append, already sealed. ``fence`` None: a barrier that writes nothing."""

    stream: str
    fence: int | None
    expected: Head
    head: Head
    rows: Sequence[Row] = ()
    payloads: Sequence[tuple[bytes, bytes]] = ()  # raw digest, bytes
    checkpoint: bytes | None = None
    waiter: Waiter | None = None
    beside: Beside | None = None


Outcome = BaseException | None


class GroupCommit:
    """The queue and the thread that empties it through ``write``, which answers with one outcome a job."""

    def __init__(self, write: Callable[[Sequence[Job]], list[Outcome]], name: str) -> None:
        self.writing = threading.Lock()
        self._write = write
        self._name = name
        self._state = threading.Condition()
        self._queue: list[Job] = []
        self._urgent = False
        self._asleep = False  # the thread waits without a bound, so it has to be told of work
        self._queued_since = 0.0  # of the oldest job in the queue
        self._is_slow = False
        self._closed = False
        self._unwritten = 0
        self._under_way: dict[str, int] = {}  # by stream: how many of them are its own
        self._failed: dict[str, tuple[int | None, BaseException]] = {}
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        return self._unwritten >= QUEUE_MAX

    @property
    def is_settled(self) -> bool:
        """Whether everything entered so far has been written or refused."""
        return self._unwritten == 0

    def enter(self, job: Job) -> None:
        """Queue a job; its waiter hears of it. StoreFault when the store is closed."""
        with self._state:
            if self._closed:
                raise closed(self._name)
            if not self._queue:
                self._queued_since = time.monotonic()
            self._queue.append(job)
            self._count(job)
            if job.waiter is not None and not self._urgent:
                self._urgent = True
                self._state.notify()
            elif self._asleep:
                self._state.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    async def wait_for(self, job: Job) -> None:
        """Queue a job and return when it is written, or raise why it was refused."""
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop, loop.create_future())
        self.enter(replace(job, waiter=waiter))
        await waiter.future

    async def flush(self, stream: str) -> None:
        """Return when all that was entered before is written; raise what an append of the stream that nobody waited
        for ran into."""
        if not self.is_settled:
            nowhere = Head(0, ZERO_HASH)
            await self.wait_for(Job(stream, None, nowhere, nowhere))
        if failure := self.take_failure(stream):
            raise failure

    def try_write(self, job: Job) -> bool:
        """Write a job nobody waits for, and all that is queued before it, on this thread; False: it was not entered.

        It is not when somebody else is writing, or when the disk was slow the last time. A failure is kept for
        ``take_failure``.
        """
        if self._is_slow or not self.writing.acquire(blocking=False):
            return False
        try:
            with self._state:
                if self._closed:
                    raise closed(self._name)
                batch, self._queue, self._urgent = [*self._queue, job], [], False
                self._count(job)
            self._write_batch(batch)
        finally:
            self.writing.release()
        return True

    def settle(self, stream: str | None = None) -> None:
        """Return once everything entered before this call, or what of it is ``stream``'s, was written or refused."""
        if self._unwritten if stream is None else stream in self._under_way:
            self._drain()

    def _count(self, job: Job) -> None:
        self._unwritten += 1
        self._under_way[job.stream] = self._under_way.get(job.stream, 0) + 1

    def take_failure(self, stream: str, fence: int | None = None) -> BaseException | None:
        """The failure of an append nobody waited for, once. Another lease's failure is dropped, not told."""
        if not self._failed:
            return None
        failed_fence, error = self._failed.pop(stream, (None, None))
        return error if fence is None or failed_fence == fence else None

    def close(self) -> BaseException | None:
        """Write what is queued, end the thread; a failure that was never told."""
        with self._state:
            self._closed = True
            self._state.notify()
        if self._thread is not None:
            self._thread.join()
        self._drain()
        return next((error for _, error in self._failed.values()), None)

    def _run(self) -> None:
        while self._wait_for_work():
            self._drain()

    def _wait_for_work(self) -> bool:
        """True when there is something to write now, False when the store is closing.

        Whoever writes on its own thread empties the queue and wakes nobody. So that the next job need not wake this
        thread again, it looks once more after ``LINGER_S`` before it sleeps.
        """
        looked_again = False
        with self._state:
            while not (self._urgent or self._closed):
                if self._queue:
                    left = self._queued_since + LINGER_S - time.monotonic()
                    if left <= 0:
                        break
                    self._state.wait(left)
                elif not looked_again:
                    looked_again = True
                    self._state.wait(LINGER_S)
                else:
                    self._asleep = True
                    self._state.wait()
                    self._asleep = looked_again = False
            return not self._closed

    def _drain(self) -> None:
        with self.writing:
            with self._state:
                batch, self._queue, self._urgent = self._queue, [], False
            if batch:
                self._write_batch(batch)

    def _write_batch(self, batch: Sequence[Job]) -> None:
        """Write and tell; the caller holds ``writing``."""
        outcomes: list[Outcome] = []
        started = time.monotonic()
        try:
            outcomes = self._write(batch)
        except BaseException as error:  # a bug in the writer must reach the waiters, not hang them
            outcomes = [error] * len(batch)
            if not isinstance(error, Exception):  # an interrupt that hit a reader while it was draining
                raise
        finally:
            self._is_slow = time.monotonic() - started > OWN_THREAD_S_MAX
            self._tell(batch, outcomes)

    def _tell(self, batch: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
        """Keep the failures nobody waits for, then wake each event loop once."""
        waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Outcome]]] = {}
        for job, outcome in zip(batch, outcomes, strict=True):
            waiter = job.waiter
            if waiter is not None:
                if outcome is not None:  # it may have queued behind the append that was the first to fail
                    outcome = self.take_failure(job.stream, job.fence) or outcome
                waiting.setdefault(waiter.loop, []).append((waiter.future, outcome))
            elif outcome is not None:
                self._failed.setdefault(job.stream, (job.fence, outcome))
        with self._state:
            self._unwritten -= len(batch)
            for job in batch:
                left = self._under_way[job.stream] - 1
                if left:
                    self._under_way[job.stream] = left
                else:
                    del self._under_way[job.stream]
        for loop, results in waiting.items():
            try:
                loop.call_soon_threadsafe(_resolve, results)
            except RuntimeError:  # that loop is closed: nobody is waiting any more
                continue


def _resolve(results: Sequence[tuple[asyncio.Future[None], Outcome]]) -> None:
    for future, outcome in results:
        if future.done():  # cancelled meanwhile
            continue
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
