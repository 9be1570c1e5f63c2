"""The promises of ``setpoint.ports.log``: streams, appends, leases, payloads, checkpoints, the mailbox."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys

import pytest

from setpoint.adapters.stores import export_lines, this_owner, verify_lines
from setpoint.kernel.errors import HeadMoved, LeaseLost, LogCorrupt, StoreFault, UnknownTrajectory
from setpoint.kernel.keys import canonical
from setpoint.ports.log import ZERO_HASH, Draft, Head, Lease, Log
from setpoint.testing.conformance.log_beside import BesideTests
from setpoint.testing.conformance.log_words import (
    AT,
    EMPTY,
    OTHER,
    OWNER,
    TTL_MS,
    begin,
    draft,
    drafts,
    texts,
)

MALFORMED = [
    Draft(1, "Turn Started", b"{}", AT),
    Draft(1, 'X","v":1,"', b"{}", AT),
    Draft(1, "TurnStarted", b"{}", "2026-01-01T00:00:00Z"),
    Draft(1, "TurnStarted", b"[]", AT),
    Draft(-1, "TurnStarted", b"{}", AT),
    Draft(2**60, "TurnStarted", b"{}", AT),
]


class LogSuite(BesideTests):
    """Every log keeps these. Override ``open_log``; set ``has_processes = False`` for a store in memory.

        class TestMyLog(LogSuite):
            @pytest.fixture
            def open_log(self, tmp_path):
                return lambda clock: MyLog(tmp_path / "log.db", clock)

    A log with room for tables of the user's own keeps ``StatementSuite``, too. What no test in one process can show
    stays with the author: that an acknowledged event survives a power cut, that a full disk is a StoreFault.
    """

    # Streams.

    def test_a_new_stream_is_empty(self, run):
        async def body(log):
            log.create("t-1", "trajectory")
            assert log.head("t-1") == EMPTY
            assert list(log.read("t-1")) == []
            assert log.checkpoint("t-1") is None
            assert log.holder("t-1") is None

        run(body)

    def test_a_stream_is_made_once(self, run):
        """A new empty stream; StoreFault when it exists."""

        async def body(log):
            log.create("t-1", "trajectory")
            with pytest.raises(StoreFault, match="t-1"):
                log.create("t-1", "trajectory")

        run(body)

    def test_every_question_about_an_unknown_stream_is_refused_by_name(self, run):
        """A stream that does not exist raises UnknownTrajectory."""

        async def body(log):
            for ask in (
                lambda: log.head("nope"),
                lambda: log.read("nope"),
                lambda: log.checkpoint("nope"),
                lambda: log.claim("nope", OWNER, TTL_MS),
                lambda: log.holder("nope"),
                lambda: log.deliver("nope", "k", b"{}"),
                lambda: log.inbox("nope"),
            ):
                with pytest.raises(UnknownTrajectory, match="nope"):
                    ask()
            with pytest.raises(UnknownTrajectory, match="nope"):
                await log.append(Lease("nope", 1, OWNER, 0), EMPTY, drafts("a"))

        run(body)

    def test_streams_are_listed_newest_first_and_by_kind(self, run, clock):
        """Newest first."""

        async def body(log):
            log.create("t-1", "trajectory")
            clock.ms += 5
            log.create("s-1", "session")
            log.create("t-2", "trajectory")
            lease = log.claim("t-1", OWNER, TTL_MS)
            await log.append(lease, EMPTY, [Draft(1, "TurnStarted", b"{}", "2026-02-02T00:00:00.000Z")])
            assert [info.stream for info in log.streams()] == ["t-2", "s-1", "t-1"]
            assert [info.stream for info in log.streams("trajectory")] == ["t-2", "t-1"]
            info = log.streams("trajectory")[-1]
            assert (info.kind, info.seq) == ("trajectory", 1)
            assert (info.created_at, info.updated_at) == ("2026-01-01T00:00:00.000Z", "2026-02-02T00:00:00.000Z")

        run(body)

    # Appending and reading.

    def test_what_was_appended_is_read_back_chained(self, run):
        """R050 R167 R171, R062"""

        async def body(log):
            lease = begin(log)
            head = await log.append(lease, EMPTY, [draft("a"), draft("b", turn=2, type="ToolIntent")])
            head = await log.append(lease, head, drafts("c"))
            events = list(log.read("t-1"))
            assert [(e.seq, e.turn, e.type, e.v, e.at) for e in events] == [
                (1, 1, "TurnStarted", 1, AT),
                (2, 2, "ToolIntent", 1, AT),
                (3, 1, "TurnStarted", 1, AT),
            ]
            assert texts(log, "t-1") == ["a", "b", "c"]
            assert [e.prev for e in events] == [ZERO_HASH, events[0].hash, events[1].hash]
            assert log.head("t-1") == head == Head(3, events[-1].hash)

        run(body)

    def test_the_hash_is_that_of_the_canonical_envelope(self, run):
        """``hash = sha256(canonical envelope without "hash")``. R050"""

        async def body(log):
            lease = begin(log, 'odd "name" with 100%s ünï')
            data = canonical({"z": [1, None, True], "a": {"ключ": '"\\\n'}})
            await log.append(lease, EMPTY, [Draft(7, "ToolResult", data, AT, v=3)])
            (event,) = log.read(lease.stream)
            envelope = {
                "stream": lease.stream, "seq": 1, "turn": 7, "type": "ToolResult", "v": 3, "at": AT,
                "prev": ZERO_HASH, "data": json.loads(data),
            }  # fmt: skip
            assert event.hash == "sha256:" + hashlib.sha256(canonical(envelope)).hexdigest()

        run(body)

    def test_reading_goes_on_from_a_known_position(self, run):
        """``read`` verifies the chain and raises LogCorrupt naming stream and seq."""

        async def body(log):
            lease = begin(log)
            head = await log.append(lease, EMPTY, drafts("a", "b"))
            await log.append(lease, head, drafts("c", "d"))
            assert [e.seq for e in log.read("t-1", head.seq, prev=head.hash)] == [3, 4]
            with pytest.raises(LogCorrupt) as caught:
                list(log.read("t-1", 2, prev="sha256:" + "1" * 64))
            assert (caught.value.stream, caught.value.seq) == ("t-1", 3)
            with pytest.raises(LogCorrupt):
                list(log.read("t-1", 9, prev=head.hash))

        run(body)

    def test_a_log_longer_than_one_fetch_is_read_whole(self, run):
        async def body(log):
            lease = begin(log)
            await log.append(lease, EMPTY, drafts(*map(str, range(1300))))
            assert texts(log, "t-1") == [str(n) for n in range(1300)]

        run(body)

    @pytest.mark.parametrize("durable", [True, False])
    def test_an_append_at_another_head_is_refused_and_writes_nothing(self, run, durable):
        """``append`` with another head than the stream has raises HeadMoved; nothing was written. R180"""

        async def body(log):
            lease = begin(log)
            head = await log.append(lease, EMPTY, drafts("a"))
            forged = Head(1, "sha256:" + "2" * 64)
            for wrong in (EMPTY, Head(2, head.hash), forged):
                with pytest.raises(HeadMoved, match="t-1"):
                    await log.append(lease, wrong, drafts("x"), durable=durable, payloads=[b"x"], checkpoint=b"x")
                    await log.flush("t-1")
            assert texts(log, "t-1") == ["a"]
            assert log.checkpoint("t-1") is None
            with pytest.raises(StoreFault):
                log.payload("sha256:" + hashlib.sha256(b"x").hexdigest())
            await log.append(lease, head, drafts("b"))  # and the stream goes on
            assert texts(log, "t-1") == ["a", "b"]

        run(body)

    @pytest.mark.parametrize("durable", [True, False])
    def test_a_stale_worker_writes_nothing(self, run, clock, durable):
        """``append`` with a stale fence raises LeaseLost; nothing was written. R180"""

        async def body(log):
            stale = begin(log)
            head = await log.append(stale, EMPTY, drafts("a"))
            clock.ms += TTL_MS + 1
            fresh = log.claim("t-1", OTHER, TTL_MS)
            with pytest.raises(LeaseLost, match="t-1"):
                await log.append(stale, head, drafts("x"), durable=durable)
                await log.flush("t-1")
            head = await log.append(fresh, head, drafts("b"))
            assert texts(log, "t-1") == ["a", "b"]

        run(body)

    def test_the_new_holder_does_not_hear_of_the_old_ones_failure(self, run, clock):
        """What a lease ran into is raised under the same lease."""

        async def body(log):
            stale = begin(log)
            clock.ms += TTL_MS + 1
            fresh = log.claim("t-1", OTHER, TTL_MS)
            with contextlib.suppress(LeaseLost):  # a store may also tell at once
                await log.append(stale, EMPTY, drafts("x"), durable=False)
            log.head("t-1")
            await log.append(fresh, EMPTY, drafts("a"))
            assert texts(log, "t-1") == ["a"]

        run(body)

    def test_an_expired_lease_that_nobody_took_still_writes(self, run, clock):
        """Only the fence decides: a slow worker that is alone loses nothing."""

        async def body(log):
            lease = begin(log)
            clock.ms += TTL_MS * 5
            await log.append(lease, EMPTY, drafts("a"))
            assert texts(log, "t-1") == ["a"]

        run(body)

    def test_appends_that_wait_for_nothing_keep_order_with_those_that_do(self, run):
        """``durable=False`` keeps order; reads see everything this process has appended."""

        async def body(log):
            lease = begin(log)
            head = await log.append(lease, EMPTY, drafts("a"), durable=False)
            head = await log.append(lease, head, drafts("b"), durable=False)
            head = await log.append(lease, head, drafts("c"))
            head = await log.append(lease, head, drafts("d"), durable=False)
            assert log.head("t-1") == head  # a read sees what this process has appended
            await log.flush("t-1")
            assert texts(log, "t-1") == ["a", "b", "c", "d"]

        run(body)

    def test_what_followed_a_failed_append_fails_with_its_reason(self, run):
        """What it ran into is raised at the latest by the next ``append`` under the same lease."""

        async def body(log):
            lease = begin(log)
            wrong = Head(5, "sha256:" + "5" * 64)
            with pytest.raises(HeadMoved):
                head = await log.append(lease, wrong, drafts("x"), durable=False)
                await log.append(lease, head, drafts("y"))
            await log.append(lease, EMPTY, drafts("a"))
            assert texts(log, "t-1") == ["a"]

        run(body)

    def test_of_two_tasks_at_one_head_exactly_one_appends(self, run):
        """R180"""

        async def body(log):
            lease = begin(log)
            results = await asyncio.gather(
                *(log.append(lease, EMPTY, drafts(str(n))) for n in range(5)), return_exceptions=True
            )
            assert sum(isinstance(r, Head) for r in results) == 1
            assert sum(isinstance(r, HeadMoved) for r in results) == 4
            assert len(texts(log, "t-1")) == 1

        run(body)

    def test_one_refused_stream_does_not_hinder_the_others(self, run):
        """Concurrent appends share syncs, and not their refusals."""

        async def body(log):
            leases = [begin(log, f"t-{n}") for n in range(20)]
            wrong = Head(3, "sha256:" + "3" * 64)
            results = await asyncio.gather(
                *(log.append(x, wrong if n % 5 == 0 else EMPTY, drafts(str(n))) for n, x in enumerate(leases)),
                return_exceptions=True,
            )
            assert [n for n, r in enumerate(results) if isinstance(r, HeadMoved)] == [0, 5, 10, 15]
            assert [texts(log, f"t-{n}") for n in range(20)] == [[str(n)] if n % 5 else [] for n in range(20)]

        run(body)

    @pytest.mark.parametrize("bad", MALFORMED)
    def test_an_event_that_would_not_read_back_is_refused_before_it_is_queued(self, run, bad):
        """A malformed draft raises ValueError before anything is queued."""

        async def body(log):
            lease = begin(log)
            with pytest.raises(ValueError):
                await log.append(lease, EMPTY, [draft("a"), bad], durable=False)
            assert log.head("t-1") == EMPTY

        run(body)

    def test_an_event_of_a_megabyte_survives(self, run):
        async def body(log):
            lease = begin(log)
            await log.append(lease, EMPTY, drafts("a", "b" * 1_000_000, "c"))
            assert [len(text) for text in texts(log, "t-1")] == [1, 1_000_000, 1]

        run(body)

    # However it comes.

    def test_however_appends_of_several_streams_interleave_each_keeps_its_order(self, run):
        """``append`` keeps order, durable or not; reads see everything this process has appended. R050 R172"""

        async def body(log):
            for seed in range(30):
                await check_interleaving(log, seed)

        run(body)

    # Payloads and checkpoints.

    def test_a_payload_is_found_by_its_digest_and_stored_once(self, run):
        """Bytes of ``sha256:...``; StoreFault when unknown."""

        async def body(log):
            lease = begin(log)
            content = b"long output" * 1000
            head = await log.append(lease, EMPTY, drafts("a"), payloads=[content, b""])
            await log.append(lease, head, drafts("b"), payloads=[content])
            assert log.payload("sha256:" + hashlib.sha256(content).hexdigest()) == content
            assert log.payload("sha256:" + hashlib.sha256(b"").hexdigest()) == b""
            with pytest.raises(StoreFault, match="sha256:1111"):
                log.payload("sha256:" + "1" * 64)

        run(body)

    def test_the_newest_checkpoint_stands_on_its_event(self, run):
        """R176"""

        async def body(log):
            lease = begin(log)
            head = EMPTY
            for n in range(4):
                head = await log.append(lease, head, drafts(str(n)), checkpoint=b"record %d" % n)
            found = log.checkpoint("t-1")
            assert (found.seq, found.hash, found.record) == (4, head.hash, b"record 3")
            head = await log.append(lease, head, drafts("more"))
            assert log.checkpoint("t-1") == found
            assert [e.seq for e in log.read("t-1", found.seq, prev=found.hash)] == [5]
            await log.append(lease, head, [], checkpoint=b"at the same head")
            assert (log.checkpoint("t-1").seq, log.checkpoint("t-1").record) == (5, b"at the same head")

        run(body)

    # Leases.

    def test_a_lease_is_exclusive_until_it_expires_and_each_claim_raises_the_fence(self, run, clock):
        """A lease is exclusive; each claim raises the fencing token. R180"""

        async def body(log):
            first = begin(log)
            assert (first.fence, first.owner, first.expires_at_ms) == (1, OWNER, clock.ms + TTL_MS)
            assert log.holder("t-1") == first
            clock.ms += TTL_MS - 1
            with pytest.raises(LeaseLost, match=OWNER):
                log.claim("t-1", OTHER, TTL_MS)
            clock.ms += 1
            assert log.holder("t-1") is None
            second = log.claim("t-1", OTHER, TTL_MS)
            assert (second.fence, second.owner) == (2, OTHER)

        run(body)

    def test_the_same_owner_claims_again_under_a_new_fence(self, run):
        """Each claim raises the fencing token."""

        async def body(log):
            stale = begin(log)
            fresh = log.claim("t-1", OWNER, TTL_MS)
            assert fresh.fence == 2
            with pytest.raises(LeaseLost):
                await log.append(stale, EMPTY, drafts("x"))
            await log.append(fresh, EMPTY, drafts("a"))

        run(body)

    def test_renewing_holds_others_off(self, run, clock):
        """A lease is exclusive while it is renewed."""

        async def body(log):
            lease = begin(log)
            clock.ms += TTL_MS - 1
            renewed = log.renew(lease, TTL_MS)
            assert (renewed.fence, renewed.expires_at_ms) == (1, clock.ms + TTL_MS)
            clock.ms += TTL_MS - 1
            with pytest.raises(LeaseLost):
                log.claim("t-1", OTHER, TTL_MS)
            clock.ms += 1
            log.claim("t-1", OTHER, TTL_MS)
            with pytest.raises(LeaseLost):
                log.renew(renewed, TTL_MS)

        run(body)

    def test_a_released_lease_is_free_and_writes_no_more(self, run):
        """The fence alone decides: a released lease does not append."""

        async def body(log):
            lease = begin(log)
            head = await log.append(lease, EMPTY, drafts("a"), durable=False)
            log.release(lease)
            assert log.holder("t-1") is None
            assert texts(log, "t-1") == ["a"]  # what was appended before counts
            with pytest.raises(LeaseLost):
                await log.append(lease, head, drafts("x"))
            with pytest.raises(LeaseLost):
                log.renew(lease, TTL_MS)
            assert log.claim("t-1", OTHER, TTL_MS).fence == 2
            log.release(lease)  # a stale release frees nothing
            assert log.holder("t-1").owner == OTHER

        run(body)

    def test_the_lease_of_a_dead_process_is_free_at_once_that_of_a_live_one_is_not(self, run):
        """A dead owner is told by ``this_owner()``. R180 R178"""
        tell = "from setpoint.adapters.stores import this_owner; print(this_owner(), flush=True); input()"

        async def body(log):
            with subprocess.Popen(
                [sys.executable, "-c", tell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as child:
                try:
                    assert child.stdout is not None
                    owner = child.stdout.readline().strip()
                    begin(log, owner=owner)
                    with pytest.raises(LeaseLost, match=str(child.pid)):
                        log.claim("t-1", this_owner(), TTL_MS)
                    assert log.holder("t-1").owner == owner
                finally:
                    child.kill()
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but still a zombie
                assert log.holder("t-1") is None
                assert log.claim("t-1", this_owner(), TTL_MS).fence == 2

        run(body)

    # The mailbox.

    def test_messages_come_in_order_and_each_key_once(self, run):
        """Durable, ordered, deduplicated by key. R181"""

        async def body(log):
            log.create("t-1", "trajectory")
            log.create("t-2", "trajectory")
            assert log.deliver("t-1", "pause-1", b'{"a":1}')
            assert log.deliver("t-1", "answer-7", b'{"b":2}')
            assert not log.deliver("t-1", "pause-1", b'{"other":3}')
            assert log.deliver("t-2", "pause-1", b"{}")  # keys are the stream's own
            assert log.inbox("t-1") == [(1, "pause-1", b'{"a":1}'), (2, "answer-7", b'{"b":2}')]
            assert log.inbox("t-1", after=1) == [(2, "answer-7", b'{"b":2}')]
            assert log.inbox("t-2") == [(1, "pause-1", b"{}")]

        run(body)

    # The end.

    def test_a_closed_store_says_so(self, run):
        """Closed is a StoreFault; closing twice is none."""

        async def body(log):
            lease = begin(log)
            await log.append(lease, EMPTY, drafts("a"), durable=False)
            await log.close()
            await log.close()
            for ask in (lambda: log.head("t-1"), lambda: log.create("t-2", "x"), lambda: log.streams()):
                with pytest.raises(StoreFault):
                    ask()
            with pytest.raises(StoreFault):
                await log.append(lease, EMPTY, drafts("b"))

        run(body)

    # Exports.

    def test_an_export_verifies_from_nothing_but_its_lines(self, run):
        """R050"""

        async def body(log):
            lease = begin(log, 'stream "ü"')
            head = await log.append(lease, EMPTY, [*drafts("a", "b"), draft("c", type="ToolIntent")])
            lines = list(export_lines(log, lease.stream))
            assert verify_lines(lines) == head
            assert verify_lines([line.decode() for line in lines]) == head
            first = json.loads(lines[0])
            assert list(first) == ["stream", "seq", "turn", "type", "v", "at", "prev", "hash", "data"]
            assert first["data"] == {"text": "a"}
            assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)

        run(body)


async def check_interleaving(log: Log, seed: int) -> None:
    """Four streams append at once, as chance of that seed has it; each ends with exactly what it said, in order."""
    chance = random.Random(seed)
    names = [f"seed-{seed}-{n}" for n in range(4)]
    leases = [begin(log, name) for name in names]
    heads = [EMPTY] * 4
    said: list[list[str]] = [[], [], [], []]

    async def speak(n: int) -> None:
        for place in range(chance.randrange(12)):
            words = [f"{place}.{i}" for i in range(chance.randrange(5))]
            heads[n] = await log.append(leases[n], heads[n], drafts(*words), durable=chance.random() < 0.5)
            said[n] += words
            match chance.randrange(3):
                case 0:
                    assert log.head(names[n]) == heads[n], f"seed {seed}"
                case 1:
                    await log.flush(names[n])
                case _:
                    pass

    await asyncio.gather(*map(speak, range(4)))
    for n in range(4):
        assert texts(log, names[n]) == said[n], f"seed {seed}"
        assert log.head(names[n]) == heads[n], f"seed {seed}"
