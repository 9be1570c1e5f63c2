"""Thousands of streams over one store: looks wait only for what they are about, and a released stream costs nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from setpoint.adapters.stores import group_commit
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.kernel.keys import digest_bytes
from setpoint.ports.log import Beside

from .words import EMPTY, Clock, begin, drafts, texts


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log.db")


def test_a_look_at_one_stream_hurries_no_commit_of_another(path, monkeypatch):
    monkeypatch.setattr(group_commit, "LINGER_S", 60.0)

    async def body():
        log = SqliteLog(path, Clock())
        mine, other = begin(log, "t-1"), begin(log, "t-2")
        content = b"a payload"
        head = await log.append(mine, EMPTY, drafts("a"), payloads=[content], beside=Beside(claims=("k",)))
        queued = await log.append(other, EMPTY, drafts("b"), durable=False)
        syncs = log.syncs
        assert log.head("t-1") == head and texts(log, "t-1") == ["a"]
        assert log.claimant("k") == "t-1" and log.claimant("other") is None
        assert log.payload(digest_bytes(content)) == content
        log.release(mine)
        assert log.syncs == syncs
        assert log.head("t-2") == queued  # its own is written first
        assert log.syncs == syncs + 1
        await log.close()

    asyncio.run(body())


def test_a_payload_that_is_only_queued_is_found(path, monkeypatch):
    monkeypatch.setattr(group_commit, "LINGER_S", 60.0)

    async def body():
        log = SqliteLog(path, Clock())
        await log.append(begin(log), EMPTY, drafts("a"), payloads=[b"queued"], durable=False)
        assert log.payload(digest_bytes(b"queued")) == b"queued"
        await log.close()

    asyncio.run(body())


def test_nothing_of_a_released_stream_is_left_in_memory(path):
    """L12"""

    async def body():
        log = SqliteLog(path, Clock())
        for n in range(20):
            lease = begin(log, f"t-{n}")
            await log.append(lease, EMPTY, drafts("a"))
            log.inbox(f"t-{n}")
            log.release(lease)
        kept = (log._templates, log._leased, log._no_mail, log._batches._ids, log._commits._under_way)
        assert [len(table) for table in kept] == [0] * 5
        lease = log.claim("t-3", "somebody", 1_000)
        await log.append(lease, log.head("t-3"), drafts("b"))
        assert texts(log, "t-3") == ["a", "b"]
        await log.close()

    asyncio.run(body())


def test_a_streams_first_append_after_its_claim_needs_no_look_of_its_own(path):
    async def body():
        log = SqliteLog(path, Clock())
        leases = [begin(log, f"t-{n}") for n in range(20)]
        statements: list[str] = []
        log._batches.connection.set_trace_callback(statements.append)
        await asyncio.gather(*(log.append(lease, EMPTY, drafts("a")) for lease in leases))
        assert not [said for said in statements if said.startswith("SELECT")]
        await log.close()

    asyncio.run(body())
