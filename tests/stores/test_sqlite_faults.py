"""What the world can do to the file, and what the store says then: full, locked, read-only, foreign, newer."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from setpoint.adapters.stores import sqlite_schema
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.kernel.errors import LogCorrupt, StoreFault

from .words import EMPTY, TTL_MS, Clock, begin, drafts, texts


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log.db")


def mounting() -> list[str] | None:
    """The command prefix under which this user may mount, None where it may not."""
    if shutil.which("unshare") is None:
        return None
    for prefix in (["unshare", "-m", "--"], ["unshare", "-Urm", "--"]):
        probe = [*prefix, "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/tmp"]
        if subprocess.run(probe, capture_output=True).returncode == 0:
            return prefix
    return None


def run_mounted(script: str, *arguments: str) -> str:
    prefix = mounting()
    if prefix is None:
        pytest.skip("this user may not mount a file system, not even in a namespace of its own")
    done = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# Full.


def test_a_full_store_fails_the_whole_batch_and_later_appends_succeed(path):
    async def body():
        log = SqliteLog(path, Clock())
        leases = [begin(log, f"t-{n}") for n in range(5)]
        heads = await asyncio.gather(*(log.append(lease, EMPTY, drafts("a")) for lease in leases))
        db = log._batches.connection
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count={pages + 2}")
        with log._commits.writing:  # so that the five surely are one batch
            tasks = [
                asyncio.create_task(log.append(leases[n], heads[n], drafts("x" * 90_000 if n == 3 else "x")))
                for n in range(5)
            ]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, StoreFault) for r in results), results
        assert "disk or quota is full" in str(results[0]) and path in str(results[0])
        assert results[0].effect == "not_sent"
        assert len({id(r) for r in results}) == 5  # each waiter raises a fault of its own
        assert [texts(log, f"t-{n}") for n in range(5)] == [["a"]] * 5
        db.execute("PRAGMA max_page_count=1000000")
        await asyncio.gather(*(log.append(leases[n], heads[n], drafts("b")) for n in range(5)))
        assert [texts(log, f"t-{n}") for n in range(5)] == [["a", "b"]] * 5
        await log.close()

    asyncio.run(body())


def test_an_append_nobody_waited_for_that_met_a_full_disk_is_told_at_the_next(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a"))
        db = log._batches.connection
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count={pages}")
        lost = await log.append(lease, head, drafts("x" * 90_000), durable=False)
        assert log.head("t-1") == head
        db.execute("PRAGMA max_page_count=1000000")
        with pytest.raises(StoreFault, match="full"):
            await log.append(lease, lost, drafts("y"))
        await log.append(lease, head, drafts("b"))
        assert texts(log, "t-1") == ["a", "b"]
        await log.close()

    asyncio.run(body())


def test_a_disk_that_is_really_full_loses_nothing_acknowledged(tmp_path):
    """Requirement: a full disk raises StoreFault, and nothing acknowledged is lost."""
    out = run_mounted(
        """
        import asyncio, os, subprocess, sys
        from setpoint.adapters.stores.sqlite import SqliteLog
        from setpoint.kernel.errors import StoreFault
        from setpoint.ports.log import Draft, Head, ZERO_HASH
        room = sys.argv[1]
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", room], check=True)

        async def main():
            log = SqliteLog(room + "/log.db", lambda: 0)
            assert log.durability == "process"
            with open(room + "/ballast", "wb") as ballast:
                ballast.write(bytes(400_000))
            log.create("t", "x")
            lease, head, told = log.claim("t", "o", 9), Head(0, ZERO_HASH), 0
            draft = Draft(1, "A", b'{"x":"%b"}' % (b"x" * 3000), "2026-01-01T00:00:00.000Z")
            for n in range(1000):
                try:
                    head = await log.append(lease, head, [draft])
                except StoreFault as fault:
                    assert "full" in str(fault), fault
                    told += 1
                    if told == 3:
                        break
            assert told == 3 and head.seq > 10, (told, head)
            assert log.head("t") == head and len(list(log.read("t"))) == head.seq
            os.unlink(room + "/ballast")
            for n in range(10):
                head = await log.append(lease, head, [draft])
            assert len(list(log.read("t"))) == head.seq
            await log.close()
            log = SqliteLog(room + "/log.db", lambda: 0)
            assert len(list(log.read("t"))) == head.seq
            await log.close()
            print("fine")

        asyncio.run(main())
        """,
        str(tmp_path),
    )
    assert out == "fine\n"
    assert os.listdir(tmp_path) == []  # the mount went with its namespace


# Read-only and out of reach.


def test_a_read_only_file_system_is_said_when_opening(tmp_path):
    asyncio.run(SqliteLog(str(tmp_path / "log.db"), Clock()).close())
    out = run_mounted(
        """
        import subprocess, sys
        from setpoint.adapters.stores.sqlite import SqliteLog
        from setpoint.kernel.errors import StoreFault
        room = sys.argv[1]
        subprocess.run(["mount", "--bind", room, room], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", room], check=True)
        for name in ("log.db", "new.db", "sub/new.db"):
            try:
                SqliteLog(room + "/" + name, lambda: 0)
            except StoreFault as fault:
                assert "Read-only file system" in str(fault) and name in str(fault), fault
            else:
                raise SystemExit("opened " + name)
        print("fine")
        """,
        str(tmp_path),
    )
    assert out == "fine\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where it likes")
def test_a_directory_without_write_permission_is_said_when_opening(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreFault, match="Permission denied"):
            SqliteLog(str(tmp_path / "log.db"), Clock())
    finally:
        tmp_path.chmod(0o700)


def test_a_store_that_turns_read_only_refuses_appends_and_stays_readable(path):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a"))
        log._batches.connection.execute("PRAGMA query_only=1")  # the error is SQLITE_READONLY, as of a remount
        with pytest.raises(StoreFault, match="is read-only"):
            await log.append(lease, head, drafts("x"))
        with pytest.raises(StoreFault, match="is read-only"):
            log.claim("t-1", lease.owner, TTL_MS)
        assert texts(log, "t-1") == ["a"]
        log._batches.connection.execute("PRAGMA query_only=0")
        await log.append(lease, head, drafts("b"))
        await log.close()

    asyncio.run(body())


def test_a_path_that_cannot_be_a_file_is_said_when_opening(tmp_path):
    (tmp_path / "file").write_text("")
    for bad in (tmp_path, tmp_path / "file" / "log.db"):
        with pytest.raises(StoreFault, match="cannot be opened for writing"):
            SqliteLog(str(bad), Clock())


# Locked.


def test_a_lock_of_another_process_is_waited_for_then_said(path, monkeypatch):
    monkeypatch.setattr(sqlite_schema, "BUSY_MS", 100)
    hold = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('BEGIN IMMEDIATE'); print('held', flush=True); input(); db.execute('ROLLBACK')"
    )

    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a"))
        with subprocess.Popen(
            [sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout.readline() == "held\n"
            with pytest.raises(StoreFault, match="is locked by another process"):
                await log.append(lease, head, drafts("x"))
            with pytest.raises(StoreFault, match="locked by another process"):
                log.claim("t-1", lease.owner, TTL_MS)
            assert texts(log, "t-1") == ["a"]  # readers are not held up
            child.stdin.write("\n")
            child.stdin.close()
            child.wait(10)
        await log.append(lease, head, drafts("b"))
        assert texts(log, "t-1") == ["a", "b"]
        await log.close()

    asyncio.run(body())


# Not ours.


@pytest.mark.parametrize("content", [b"x", b"SQLite", bytes(600), b"minutes of the meeting\n" * 100], ids=len)
def test_a_file_that_is_no_database_is_left_as_it_is(path, content):
    """One of a few bytes too, which SQLite itself takes for an empty one."""
    Path(path).write_bytes(content)
    with pytest.raises(StoreFault, match="is not an SQLite database"):
        SqliteLog(path, Clock())
    assert Path(path).read_bytes() == content
    assert os.listdir(Path(path).parent) == [Path(path).name]


def test_the_database_of_another_program_is_left_as_it_is(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()
    before = Path(path).read_bytes()
    with pytest.raises(StoreFault, match="of another program"):
        SqliteLog(path, Clock())
    assert Path(path).read_bytes() == before


def test_a_newer_schema_is_refused(path):
    asyncio.run(SqliteLog(path, Clock()).close())
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreFault, match="has schema version 99; this Setpoint knows up to 2"):
        SqliteLog(path, Clock())


def test_a_damaged_page_is_told_as_corruption_not_as_an_empty_log(path):
    async def write():
        log = SqliteLog(path, Clock())
        await log.append(begin(log), EMPTY, drafts(*("x" * 500 for _ in range(100))))
        await log.close()

    asyncio.run(write())
    content = bytearray(Path(path).read_bytes())
    middle = content.index(b"x" * 400, len(content) // 2) // 4096 * 4096
    content[middle : middle + 4096] = bytes(4096)
    Path(path).write_bytes(content)

    async def read():
        log = SqliteLog(path, Clock())
        seen = 0
        with pytest.raises(LogCorrupt) as caught:
            for _ in log.read("t-1"):
                seen += 1
        assert (caught.value.stream, caught.value.seq) == ("t-1", seen + 1)
        assert 0 < seen < 100
        await log.close()

    asyncio.run(read())
