"""A trajectory alone in its process writes its commits itself; looks at the mailbox share one statement."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from setpoint.adapters.stores import group_commit
from setpoint.adapters.stores.sqlite import MAIL_AGE_S, SqliteLog
from setpoint.kernel.errors import HeadMoved, LeaseLost, UnknownTrajectory

from .words import EMPTY, OTHER, Clock, begin, drafts, texts


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log.db")


@pytest.fixture(autouse=True)
def no_disk_is_slow(monkeypatch):
    monkeypatch.setattr(group_commit, "OWN_THREAD_S_MAX", 60.0)


class Writers:
    """The threads that wrote, told apart by watching the batch writer."""

    def __init__(self, log: SqliteLog) -> None:
        self.seen: list[int] = []
        write = log._commits._write

        def watched(jobs):
            self.seen.append(threading.get_ident())
            return write(jobs)

        log._commits._write = watched


def test_a_stream_without_company_is_written_without_a_change_of_thread(path, monkeypatch):
    monkeypatch.setattr(group_commit, "LINGER_S", 60.0)  # on a loaded machine the store's thread would write at times

    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        writers = Writers(log)
        head = EMPTY
        for n in range(5):
            head = await log.append(lease, head, drafts(f"before {n}"), durable=False)
            head = await log.append(lease, head, drafts(f"waited for {n}"))
        assert set(writers.seen) == {threading.get_ident()}
        assert log.syncs == len(writers.seen) == 5  # what was handed over went down with what was waited for
        assert len(texts(log, "t-1")) == 10
        await log.close()

    asyncio.run(body())


def test_streams_with_company_are_written_by_the_stores_thread(path):
    async def body():
        log = SqliteLog(path, Clock())
        leases = [begin(log, f"t-{n}") for n in range(2)]
        writers = Writers(log)
        await asyncio.gather(*(log.append(lease, EMPTY, drafts("a")) for lease in leases))
        assert threading.get_ident() not in writers.seen
        log.release(leases[1])  # alone again
        await log.append(leases[0], log.head("t-0"), drafts("b"))
        assert writers.seen[-1] == threading.get_ident()
        await log.close()

    asyncio.run(body())


def test_a_slow_disk_is_waited_for_elsewhere(path, monkeypatch):
    monkeypatch.setattr(group_commit, "OWN_THREAD_S_MAX", -1.0)  # every commit counts as slow

    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        writers = Writers(log)
        head = await log.append(lease, EMPTY, drafts("a"))
        await log.append(lease, head, drafts("b"))
        here = threading.get_ident()
        assert writers.seen[0] == here and writers.seen[1] != here
        await log.close()

    asyncio.run(body())


def test_while_somebody_else_writes_an_append_queues_instead_of_holding_up_the_loop(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        with log._commits.writing:
            waiting = asyncio.create_task(log.append(lease, EMPTY, drafts("a")))
            await asyncio.sleep(0)  # would never come back if the append waited here for the lock
            assert not waiting.done()
        await waiting
        assert texts(log, "t-1") == ["a"]
        await log.close()

    asyncio.run(body())


def test_other_tasks_of_the_loop_run_between_the_appends_of_a_lone_stream(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease, head, looks = begin(log), EMPTY, 0

        async def look():
            nonlocal looks
            while True:
                looks += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(look())
        for _ in range(10):
            head = await log.append(lease, head, drafts("x"))
        assert looks >= 10
        task.cancel()
        await log.close()

    asyncio.run(body())


def test_a_lone_append_raises_what_it_ran_into_and_what_an_earlier_one_did(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a"))
        with pytest.raises(HeadMoved):
            await log.append(lease, EMPTY, drafts("x"))
        other = SqliteLog(path, Clock())
        other.claim("t-1", lease.owner, 10_000)  # the same owner may; the first lease is superseded
        await log.append(lease, head, drafts("x"), durable=False)
        with pytest.raises(LeaseLost):
            await log.append(lease, head, drafts("y"))
        assert texts(log, "t-1") == ["a"]
        await other.close()
        await log.close()

    asyncio.run(body())


def test_looks_at_an_empty_mailbox_share_a_statement(path):
    async def body():
        log = SqliteLog(path, Clock())
        for n in range(100):
            begin(log, f"t-{n}")
            assert log.inbox(f"t-{n}") == []
        statements: list[str] = []
        log._reader.set_trace_callback(statements.append)
        started = time.monotonic()
        for _ in range(10):
            for n in range(100):
                assert log.inbox(f"t-{n}") == []
        assert len(statements) <= 2 + (time.monotonic() - started) / MAIL_AGE_S  # of 1,000 looks
        await log.close()

    asyncio.run(body())


def test_mail_from_this_process_is_seen_at_once_and_from_another_within_the_bound(path):
    async def body():
        log, elsewhere = SqliteLog(path, Clock()), SqliteLog(path, Clock())
        begin(log)
        begin(log, "t-2", OTHER)
        assert log.inbox("t-1") == log.inbox("t-2") == []
        log.deliver("t-1", "k", b"{}")
        assert log.inbox("t-1") == [(1, "k", b"{}")]
        assert log.inbox("t-1", after=1) == log.inbox("t-2") == []
        elsewhere.deliver("t-2", "k2", b"{}")
        delivered = time.monotonic()
        while time.monotonic() - delivered <= MAIL_AGE_S:  # it may be seen before, and must be after
            log.inbox("t-2")
        assert log.inbox("t-2") == [(1, "k2", b"{}")]
        assert log.inbox("t-1", after=1) == []
        await elsewhere.close()
        await log.close()

    asyncio.run(body())


def test_a_mailbox_without_a_stream_is_refused_also_after_looks_at_others(path):
    async def body():
        log = SqliteLog(path, Clock())
        begin(log)
        log.inbox("t-1")
        with pytest.raises(UnknownTrajectory):
            log.inbox("nope")
        await log.close()

    asyncio.run(body())


def test_the_file_has_what_a_lone_append_acknowledged(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease, head = begin(log), EMPTY
        other = sqlite3.connect(path)
        for n in range(10):
            head = await log.append(lease, head, drafts("x"), durable=False)
            head = await log.append(lease, head, drafts(str(n)))
            assert other.execute("SELECT count(*) FROM event").fetchone() == (2 * n + 2,)
        other.close()
        await log.close()

    asyncio.run(body())
