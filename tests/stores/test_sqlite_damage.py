"""R050: an altered or shortened log is found at the event that differs, and nothing is repaired."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.kernel.errors import LogCorrupt, StoreFault
from setpoint.ports.log import Draft

from .words import EMPTY, OWNER, Clock, begin, drafts, texts


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log.db")


def write(path: str, count: int = 10) -> None:
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log, "before")
        await log.append(lease, EMPTY, drafts("other"))
        lease = begin(log)
        await log.append(lease, EMPTY, drafts(*map(str, range(1, count + 1))), payloads=[b"p"], checkpoint=b"r")
        await log.close()

    asyncio.run(body())


def tamper(path: str, *statements: str) -> None:
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER event_is_never_updated")
    db.execute("DROP TRIGGER event_is_never_deleted")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def read(path: str, stream: str = "t-1") -> tuple[int, LogCorrupt | None]:
    """How many events were given out, and the corruption that ended it."""
    log = SqliteLog(path, Clock())
    seen = 0
    try:
        for _ in log.read(stream):
            seen += 1
    except LogCorrupt as corrupt:
        return seen, corrupt
    finally:
        asyncio.run(log.close())
    return seen, None


@pytest.mark.parametrize("statement", ["UPDATE event SET data=x'7b7d'", "DELETE FROM event WHERE seq=3"])
def test_the_database_itself_refuses_to_change_an_event(path, statement):
    """R050"""
    write(path)
    db = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(statement)
    db.close()
    assert read(path) == (10, None)


@pytest.mark.parametrize(
    ("statement", "seq", "says"),
    [
        ("UPDATE event SET data=x'7b7d' WHERE stream=2 AND seq=4", 4, "does not match its hash"),
        ("UPDATE event SET turn=2 WHERE stream=2 AND seq=4", 4, "does not match its hash"),
        ("UPDATE event SET type='Certified' WHERE stream=2 AND seq=4", 4, "does not match its hash"),
        ("UPDATE event SET at='2026-01-01T00:00:00.001Z' WHERE stream=2 AND seq=4", 4, "does not match its hash"),
        ("UPDATE event SET v=2 WHERE stream=2 AND seq=4", 4, "does not match its hash"),
        ("UPDATE event SET hash=randomblob(32) WHERE stream=2 AND seq=4", 4, "does not match its hash"),
        ("UPDATE event SET hash=x'00' WHERE stream=2 AND seq=4", 4, "does not match its hash"),
        ("UPDATE event SET type=CAST(x'ff' AS TEXT) WHERE stream=2 AND seq=4", 4, "cannot be read"),
        ("DELETE FROM event WHERE stream=2 AND seq=4", 4, "event 4 is missing: the next one found is 5"),
        ("DELETE FROM event WHERE stream=2 AND seq=1", 1, "event 1 is missing"),
        ("DELETE FROM event WHERE stream=2 AND seq>8", 9, "events end at 8, the head is at 10"),
        ("DELETE FROM event WHERE stream=2", 1, "events end at 0, the head is at 10"),
        ("UPDATE stream SET hash=randomblob(32) WHERE id=2", 10, "expected sha256:"),
        ("UPDATE stream SET seq=9 WHERE id=2", 10, "events go on to 10, beyond its head at 9"),
        ("INSERT INTO event SELECT 2, 11, turn, type, v, at, hash, data FROM event WHERE stream=2 AND seq=10", 11,
         "beyond its head at 10"),
    ],
)  # fmt: skip
def test_every_alteration_is_found_where_it_is(path, statement, seq, says):
    """R050"""
    write(path)
    tamper(path, statement)
    seen, corrupt = read(path)
    assert corrupt is not None, "the alteration went unnoticed"
    assert (corrupt.stream, corrupt.seq) == ("t-1", seq)
    assert says in str(corrupt) and "Nothing was repaired" in str(corrupt)
    assert seen <= seq
    assert read(path, "before") == (1, None)  # another stream in the same file is untouched


def test_two_events_that_changed_places_are_found(path):
    write(path)
    tamper(
        path,
        "UPDATE event SET seq=99 WHERE stream=2 AND seq=4",
        "UPDATE event SET seq=4 WHERE stream=2 AND seq=5",
        "UPDATE event SET seq=5 WHERE stream=2 AND seq=99",
    )
    assert read(path)[1].seq == 4


def test_a_whole_log_moved_to_another_stream_is_found(path):
    write(path)
    tamper(path, "UPDATE stream SET stream_id='gone' WHERE id=2", "UPDATE stream SET stream_id='t-1' WHERE id=1")
    seen, corrupt = read(path)
    assert (seen, corrupt.seq) == (0, 1)


def test_bytes_cannot_wander_between_fields_under_one_hash(path):
    """The envelope of the altered row has the very bytes of the original; only the split differs."""

    async def body():
        log = SqliteLog(path, Clock())
        await log.append(begin(log), EMPTY, [Draft(1, "A", b'{"a":"x","data":{"b":"y"}}', "2026-01-01T00:00:00.000Z")])
        await log.close()

    asyncio.run(body())
    tamper(
        path,
        """UPDATE event SET at='2026-01-01T00:00:00.000Z","data":{"a":"x', data=CAST('{"b":"y"}}' AS BLOB)""",
    )
    assert read(path)[1].seq == 1


def test_an_append_onto_a_log_that_already_goes_on_fails_alone(path):
    """Rows beyond the head are damage of one stream; a batch it shares with others must not fail them."""
    write(path)
    tamper(
        path,
        "INSERT INTO event SELECT 2, 11, turn, type, v, at, hash, data FROM event WHERE stream=2 AND seq=10",
    )

    async def body():
        log = SqliteLog(path, Clock())
        damaged, sound = log.claim("t-1", OWNER, 9), log.claim("before", OWNER, 9)
        heads = [log.head("t-1"), log.head("before")]
        results = await asyncio.gather(
            log.append(damaged, heads[0], drafts("x")),
            log.append(sound, heads[1], drafts("y")),
            return_exceptions=True,
        )
        assert isinstance(results[0], StoreFault) and "contradicts itself" in str(results[0])
        assert results[1].seq == 2
        assert texts(log, "before") == ["other", "y"]
        await log.close()

    asyncio.run(body())


def test_an_altered_payload_is_found(path):
    write(path)
    tamper(path, "UPDATE payload SET bytes=x'00'")
    log = SqliteLog(path, Clock())
    with pytest.raises(LogCorrupt, match="has digest sha256:6e340b9cffb3"):
        log.payload("sha256:148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940")
    asyncio.run(log.close())


@pytest.mark.parametrize("statement", ["UPDATE checkpoint SET seq=9", "UPDATE checkpoint SET hash=randomblob(32)"])
def test_a_checkpoint_cannot_be_moved(path, statement):
    """R176"""
    write(path)
    tamper(path, statement)
    log = SqliteLog(path, Clock())
    with pytest.raises(LogCorrupt, match="log of t-1: its checkpoint at"):
        log.checkpoint("t-1")
    asyncio.run(log.close())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), mask=st.integers(1, 255))
def test_any_flipped_byte_in_an_event_row_is_found_or_changes_nothing(tmp_path_factory, place, mask):
    """R050: bytes flipped in the raw file, inside the pages that hold events."""
    path = str(tmp_path_factory.mktemp("log") / "log.db")
    write(path, 40)
    content = bytearray(Path(path).read_bytes())
    start, end = content.index(b"TurnStarted"), content.rindex(b"TurnStarted")
    content[start + place % (end - start)] ^= mask
    original = _told(path)
    Path(path).write_bytes(content)
    with contextlib.suppress(LogCorrupt, StoreFault):
        assert _told(path) == original


def _told(path: str) -> list[tuple[int, str, bytes]]:
    log = SqliteLog(path, Clock())
    try:
        return [(e.seq, e.hash, e.data) for e in log.read("t-1")]
    finally:
        asyncio.run(log.close())
