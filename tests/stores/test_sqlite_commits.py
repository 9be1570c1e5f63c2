"""How the SQLite store reaches the disk: shared syncs, few bytes, one wake-up, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from setpoint.adapters.stores import group_commit, open_log, sqlite_schema
from setpoint.adapters.stores.file_system import type_in
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.kernel.errors import HeadMoved, StoreFault, UsageFault
from setpoint.ports.log import Draft, Head

from .words import AT, EMPTY, Clock, begin, drafts, texts

_DATA = b'{"a":"' + b"x" * 112 + b'"}'
_BEFORE = ["ModelReplied", "Authorized", "ToolIntent"]
_AFTER = ["ToolResult", "EvidenceRecorded", "DeltaMeasured", "SavepointKept", "TurnStarted"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log.db")


async def turns(log: SqliteLog, lease, head: Head, first: int, count: int) -> Head:
    """Turns as the engine writes them: intents waited for, results left to go down with the next intent."""
    for turn in range(first, first + count):
        head = await log.append(lease, head, [Draft(turn, type, _DATA, AT) for type in _BEFORE])
        after = [Draft(turn, type, _DATA, AT) for type in _AFTER]
        head = await log.append(lease, head, after, durable=False)
    return head


def test_a_turn_costs_one_sync_on_the_critical_path(path):
    """R170"""

    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        before = log.syncs
        await turns(log, lease, EMPTY, 1, 200)
        assert log.syncs - before <= 205  # a result that lingered on a loaded machine has a sync of its own
        await log.close()

    asyncio.run(body())


def test_a_hundred_concurrent_streams_share_syncs(path):
    """R170"""

    async def body():
        log = SqliteLog(path, Clock())
        leases = [begin(log, f"t-{n}") for n in range(100)]
        before = log.syncs
        heads = await asyncio.gather(*(turns(log, lease, EMPTY, 1, 10) for lease in leases))
        assert log.syncs - before <= 200  # of 1,000 turns
        assert [log.head(f"t-{n}") for n in range(100)] == heads
        assert sum(len(texts(log, f"t-{n}")) for n in range(100)) == 8_000
        await log.close()

    asyncio.run(body())


def test_each_batch_wakes_the_event_loop_once(path, monkeypatch):
    async def body():
        log = SqliteLog(path, Clock())
        leases = [begin(log, f"t-{n}") for n in range(50)]
        loop = asyncio.get_running_loop()
        woken = 0
        wake = loop.call_soon_threadsafe

        def count(*args):
            nonlocal woken
            woken += 1
            return wake(*args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        before = log.syncs
        await asyncio.gather(*(log.append(lease, EMPTY, drafts("a")) for lease in leases))
        assert 1 <= woken <= log.syncs - before <= 10
        await log.close()

    asyncio.run(body())


def test_new_streams_leases_and_reads_need_no_sync(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        log.renew(lease, 1000)
        log.head("t-1"), log.streams(), list(log.read("t-1")), log.holder("t-1")
        log.release(lease)
        await log.flush("t-1")
        assert log.syncs == 0
        log.deliver("t-1", "k", b"{}")
        assert log.syncs == 1
        await log.close()

    asyncio.run(body())


def test_a_look_at_the_mailbox_or_the_holder_does_not_hurry_what_is_queued(path):
    """The engine looks every turn; a sync each time would double the price of a turn."""

    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        head = EMPTY
        with log._commits.writing:  # held as by a writer that is waiting for the disk
            head = await log.append(lease, head, drafts("a"), durable=False)
            assert log.inbox("t-1") == []
            assert log.holder("t-1") == lease
        assert log.head("t-1") == head
        await log.close()

    asyncio.run(body())


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_system_sees_as_many_syncs_as_the_store_counts(tmp_path):
    """A commit that is acknowledged was really synced, and nothing else is."""
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("strace may not trace here")
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, sys\n"
        "from setpoint.adapters.stores.sqlite import SqliteLog\n"
        "from setpoint.ports.log import Draft, Head, ZERO_HASH\n"
        "async def main():\n"
        "    log = SqliteLog(sys.argv[1], lambda: 0)\n"
        "    log.create('t', 'x'); lease = log.claim('t', 'o', 9); head = Head(0, ZERO_HASH)\n"
        "    for n in range(50): head = await log.append(lease, head, [Draft(n, 'A', b'{}', '" + AT + "')])\n"
        "    print(log.syncs)\n"
        "    await log.close()\n"
        "asyncio.run(main())\n"
    )
    trace = tmp_path / "trace"
    done = subprocess.run(
        ["strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(trace), sys.executable, str(script),
         str(tmp_path / "log.db")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) == 50
    seen = sum("sync(" in line for line in trace.read_text().splitlines())
    assert 50 <= seen <= 50 + 12  # making the file, its directory entry, and the checkpoint at close


def test_an_append_nobody_waits_for_goes_down_by_itself(path):
    async def body():
        log = SqliteLog(path, Clock())
        await log.append(begin(log), EMPTY, drafts("a"), durable=False)
        other = sqlite3.connect(path)
        deadline = time.monotonic() + 20
        while not other.execute("SELECT count(*) FROM event").fetchone()[0]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.002)
        other.close()
        await log.close()

    asyncio.run(body())


def test_an_append_nobody_waits_for_shares_the_sync_of_the_next(path, monkeypatch):
    """R170"""
    monkeypatch.setattr(group_commit, "LINGER_S", 60.0)

    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a"), durable=False)
        await asyncio.sleep(0.02)  # the writer is awake by now, and waits for company
        assert log.syncs == 0
        await log.append(lease, head, drafts("b"))
        assert log.syncs == 1
        await log.close()

    asyncio.run(body())


def test_an_acknowledged_append_is_in_the_file_when_it_returns(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        other = sqlite3.connect(path)
        head = EMPTY
        for n in range(20):
            head = await log.append(lease, head, drafts("x"), durable=False)
            head = await log.append(lease, head, drafts(str(n)))
            assert other.execute("SELECT count(*) FROM event").fetchone() == (2 * n + 2,)
        other.close()
        await log.close()

    asyncio.run(body())


def test_one_store_serves_event_loops_of_several_threads(path):
    log = SqliteLog(path, Clock())
    leases = [begin(log, f"t-{n}") for n in range(4)]
    heads: dict[int, Head] = {}

    def work(n: int) -> None:
        heads[n] = asyncio.run(turns(log, leases[n], EMPTY, 1, 25))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [log.head(f"t-{n}") for n in range(4)] == [heads[n] for n in range(4)]
    asyncio.run(log.close())


def test_a_cancelled_append_leaves_a_store_that_goes_on(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        task = asyncio.create_task(log.append(lease, EMPTY, drafts("a")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        head = log.head("t-1")
        await log.append(lease, head, drafts("b"))
        assert texts(log, "t-1")[-1] == "b"
        await log.close()

    asyncio.run(body())


def test_a_full_queue_makes_every_append_wait(path, monkeypatch):
    monkeypatch.setattr(group_commit, "QUEUE_MAX", 8)

    async def body():
        log = SqliteLog(path, Clock())
        lease, head, most = begin(log), EMPTY, 0
        for n in range(100):
            head = await log.append(lease, head, drafts(str(n)), durable=False)
            most = max(most, log._commits._unwritten)
        assert most <= 9
        assert texts(log, "t-1") == [str(n) for n in range(100)]
        await log.close()

    asyncio.run(body())


def test_a_failure_nobody_heard_of_is_told_at_close(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        await log.append(lease, Head(3, EMPTY.hash), drafts("x"), durable=False)
        with pytest.raises(HeadMoved):
            await log.close()
        assert not Path(path + "-wal").exists()

    asyncio.run(body())


def test_a_bug_in_the_writer_reaches_the_waiters_and_does_not_hang_them(path, monkeypatch):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        with monkeypatch.context() as patch:
            patch.setattr("setpoint.adapters.stores.sqlite_batch._insert_events", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                await log.append(lease, EMPTY, drafts("x"))
        await log.append(lease, EMPTY, drafts("a"))
        assert texts(log, "t-1") == ["a"]
        await log.close()

    asyncio.run(body())


def test_what_cannot_be_stored_fails_its_own_stream_only(path):
    async def body():
        log = SqliteLog(path, Clock())
        odd, sound = begin(log, "t-1"), begin(log, "t-2")
        with pytest.raises(ValueError, match="not sha256"):
            await log.append(odd, Head(0, "sha256:12"), drafts("x"), durable=False)
        with log._commits.writing:  # so that both surely are one batch
            tasks = [
                asyncio.create_task(log.append(odd, EMPTY, drafts("x"), checkpoint=object())),
                asyncio.create_task(log.append(sound, EMPTY, drafts("a"))),
            ]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], StoreFault)
        assert texts(log, "t-2") == ["a"] and texts(log, "t-1") == []
        await log.close()

    asyncio.run(body())


def test_a_store_opens_while_another_process_is_writing(path):
    """A look with the command line must not wait for a worker."""
    log = SqliteLog(path, Clock())
    begin(log)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    other = SqliteLog(path, Clock())
    assert [info.stream for info in other.streams()] == ["t-1"]
    assert time.monotonic() - started < sqlite_schema.BUSY_MS / 1000
    writer.execute("ROLLBACK")
    writer.close()
    asyncio.run(other.close())
    asyncio.run(log.close())


@pytest.mark.parametrize("streams", [1, 50])
def test_a_turn_of_eight_events_takes_at_most_2500_bytes(path, streams):
    """R167"""

    async def body():
        log = SqliteLog(path, Clock())
        leases = [begin(log, f"t-{n}") for n in range(streams)]
        await asyncio.gather(*(turns(log, lease, EMPTY, 1, 500 // streams) for lease in leases))
        await log.close()

    asyncio.run(body())
    assert os.path.getsize(path) / 500 <= 2_500


def test_the_write_ahead_log_stays_bounded(path, monkeypatch):
    monkeypatch.setattr(sqlite_schema, "WAL_PAGES", 64)

    async def body():
        log = SqliteLog(path, Clock())
        lease, head = begin(log), EMPTY
        for n in range(300):
            head = await log.append(lease, head, drafts("x" * 4000, str(n)))
        assert os.path.getsize(path + "-wal") < 80 * 4200
        await log.close()
        assert os.listdir(os.path.dirname(path)) == ["log.db"]

    asyncio.run(body())


def test_only_the_two_newest_checkpoints_are_kept(path):
    """R187"""

    async def body():
        log = SqliteLog(path, Clock())
        lease, head = begin(log), EMPTY
        for n in range(5):
            head = await log.append(lease, head, drafts(str(n)), checkpoint=b"r")
        await log.close()
        with sqlite3.connect(path) as db:
            assert db.execute("SELECT seq FROM checkpoint ORDER BY seq").fetchall() == [(4,), (5,)]
        db.close()

    asyncio.run(body())


# Opening.


def test_the_store_is_private_to_its_user(tmp_path):
    path = tmp_path / "a" / "b" / "log.db"
    old = os.umask(0)
    try:
        log = open_log(f"sqlite:///{path}", Clock())
        begin(log)
    finally:
        os.umask(old)
    assert os.stat(path.parent).st_mode & 0o777 == 0o700
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file
    asyncio.run(log.close())


def test_a_store_outlives_its_process_memory(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a", "b"), payloads=[b"p"], checkpoint=b"r")
        log.deliver("t-1", "k", b"{}")
        await log.close()
        log = SqliteLog(path, Clock())
        assert texts(log, "t-1") == ["a", "b"]
        assert log.head("t-1") == head
        assert log.checkpoint("t-1").record == b"r"
        assert log.inbox("t-1") == [(1, "k", b"{}")]
        assert log.holder("t-1") == lease
        await log.append(lease, head, drafts("c"))
        await log.close()

    asyncio.run(body())


def test_urls_name_a_store_or_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = open_log("sqlite:///relative.db", Clock())
    assert log.path == str(tmp_path / "relative.db")
    asyncio.run(log.close())
    for url in ("sqlite:///", "sqlite://x.db", "relative.db", "mysql://h", "sqlite:///dir/"):
        with pytest.raises(UsageFault, match="Write sqlite:///relative"):
            open_log(url, Clock())


def test_the_innermost_mount_decides_what_a_sync_is_worth():
    mounts = (
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "30 22 0:25 / /mnt/with\\040blank rw - nfs4 server:/x rw\n"
        "31 22 0:26 / /dev/shm rw shared:1 - tmpfs tmpfs rw\n"
        "32 31 0:27 / /dev/shm rw - ext4 /dev/vdb rw\n"
    )
    assert type_in(mounts, "/home/x/log.db") == "ext4"
    assert type_in(mounts, "/mnt/with blank/log.db") == "nfs4"
    assert type_in(mounts, "/mnt/with blankness/log.db") == "ext4"
    assert type_in(mounts, "/dev/shm/log.db") == "ext4"
    assert type_in("", "/x") == ""


def test_a_store_on_a_network_file_system_is_refused(path, monkeypatch):
    monkeypatch.setattr(sqlite_schema, "file_system_of", lambda _: "nfs4")
    with pytest.raises(StoreFault, match=r"network file system .nfs4."):
        SqliteLog(path, Clock())
    assert not os.path.exists(path)


def test_a_store_in_memory_files_does_not_claim_to_survive_a_power_cut(path, monkeypatch):
    monkeypatch.setattr("setpoint.adapters.stores.sqlite.file_system_of", lambda _: "tmpfs")
    log = SqliteLog(path, Clock())
    assert log.durability == "process"
    asyncio.run(log.close())
