"""The contract of ``setpoint.ports.log``, sentence by sentence, against every store."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from setpoint.adapters.stores import export_lines, this_owner, verify_lines
from setpoint.kernel.errors import HeadMoved, LeaseLost, LogCorrupt, StoreFault, UnknownTrajectory
from setpoint.kernel.keys import canonical
from setpoint.ports.log import ZERO_HASH, Draft, Head, Lease

from .words import AT, EMPTY, OTHER, OWNER, TTL_MS, Clock, begin, draft, drafts, runner, texts

_numbers = itertools.count(1)

# Streams.


def test_a_new_stream_is_empty(run):
    async def body(log):
        log.create("t-1", "trajectory")
        assert log.head("t-1") == EMPTY
        assert list(log.read("t-1")) == []
        assert log.checkpoint("t-1") is None
        assert log.holder("t-1") is None

    run(body)


def test_a_stream_is_made_once(run):
    async def body(log):
        log.create("t-1", "trajectory")
        with pytest.raises(StoreFault, match="already holds a log named 't-1'"):
            log.create("t-1", "trajectory")

    run(body)


def test_every_question_about_an_unknown_stream_is_refused_by_name(run):
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
            with pytest.raises(UnknownTrajectory, match="'nope'"):
                ask()
        with pytest.raises(UnknownTrajectory, match="'nope'"):
            await log.append(Lease("nope", 1, OWNER, 0), EMPTY, drafts("a"))

    run(body)


def test_streams_are_listed_newest_first_and_by_kind(run, clock):
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


def test_what_was_appended_is_read_back_chained(run):
    """R050 R167 R171"""

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


def test_the_hash_is_that_of_the_canonical_envelope(run):
    """R050"""

    async def body(log):
        lease = log_lease(log, 'odd "name" with 100%s ünï')
        data = canonical({"z": [1, None, True], "a": {"ключ": '"\\\n'}})
        await log.append(lease, EMPTY, [Draft(7, "ToolResult", data, AT, v=3)])
        (event,) = log.read(lease.stream)
        envelope = {
            "stream": lease.stream, "seq": 1, "turn": 7, "type": "ToolResult", "v": 3, "at": AT,
            "prev": ZERO_HASH, "data": json.loads(data),
        }  # fmt: skip
        assert event.hash == "sha256:" + hashlib.sha256(canonical(envelope)).hexdigest()

    def log_lease(log, stream):
        return begin(log, stream)

    run(body)


def test_reading_goes_on_from_a_known_position(run):
    async def body(log):
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a", "b"))
        await log.append(lease, head, drafts("c", "d"))
        assert [e.seq for e in log.read("t-1", head.seq, prev=head.hash)] == [3, 4]
        with pytest.raises(LogCorrupt) as caught:
            list(log.read("t-1", 2, prev="sha256:" + "1" * 64))
        assert (caught.value.stream, caught.value.seq) == ("t-1", 3)
        with pytest.raises(LogCorrupt, match="ends at 4 but is known to reach 9"):
            list(log.read("t-1", 9, prev=head.hash))

    run(body)


def test_a_log_longer_than_one_fetch_is_read_whole(run):
    async def body(log):
        lease = begin(log)
        await log.append(lease, EMPTY, drafts(*map(str, range(1300))))
        assert texts(log, "t-1") == [str(n) for n in range(1300)]

    run(body)


@pytest.mark.parametrize("durable", [True, False])
def test_an_append_at_another_head_is_refused_and_writes_nothing(run, durable):
    """R180"""

    async def body(log):
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a"))
        forged = Head(1, "sha256:" + "2" * 64)
        for wrong in (EMPTY, Head(2, head.hash), forged):
            with pytest.raises(HeadMoved, match="t-1 is at 1"):
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
def test_a_stale_worker_writes_nothing(run, clock, durable):
    """R180"""

    async def body(log):
        stale = begin(log)
        head = await log.append(stale, EMPTY, drafts("a"))
        clock.ms += TTL_MS + 1
        fresh = log.claim("t-1", OTHER, TTL_MS)
        with pytest.raises(LeaseLost, match=r"fence 1 is no longer valid .fence 2, held by elsewhere"):
            await log.append(stale, head, drafts("x"), durable=durable)
            await log.flush("t-1")
        head = await log.append(fresh, head, drafts("b"))
        assert texts(log, "t-1") == ["a", "b"]

    run(body)


def test_the_new_holder_does_not_hear_of_the_old_ones_failure(run, clock):
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


def test_an_expired_lease_that_nobody_took_still_writes(run, clock):
    """Only the fence decides: a slow worker that is alone loses nothing."""

    async def body(log):
        lease = begin(log)
        clock.ms += TTL_MS * 5
        await log.append(lease, EMPTY, drafts("a"))
        assert texts(log, "t-1") == ["a"]

    run(body)


def test_appends_that_wait_for_nothing_keep_order_with_those_that_do(run):
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


def test_what_followed_a_failed_append_fails_with_its_reason(run):
    async def body(log):
        lease = begin(log)
        wrong = Head(5, "sha256:" + "5" * 64)
        with pytest.raises(HeadMoved, match="expected 5"):
            head = await log.append(lease, wrong, drafts("x"), durable=False)
            await log.append(lease, head, drafts("y"))
        await log.append(lease, EMPTY, drafts("a"))
        assert texts(log, "t-1") == ["a"]

    run(body)


def test_of_two_tasks_at_one_head_exactly_one_appends(run):
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


def test_one_refused_stream_does_not_hinder_the_others(run):
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


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Draft(1, "Turn Started", b"{}", AT), "not an ASCII identifier"),
        (Draft(1, 'X","v":1,"', b"{}", AT), "not an ASCII identifier"),
        (Draft(1, "TurnStarted", b"{}", "2026-01-01T00:00:00Z"), "not RFC 3339"),
        (Draft(1, "TurnStarted", b"[]", AT), "not a canonical JSON object"),
        (Draft(-1, "TurnStarted", b"{}", AT), "turn -1"),
        (Draft(2**60, "TurnStarted", b"{}", AT), "2.53-1"),
    ],
)
def test_an_event_that_would_not_read_back_is_refused_before_it_is_queued(run, bad, says):
    async def body(log):
        lease = begin(log)
        with pytest.raises(ValueError, match=says):
            await log.append(lease, EMPTY, [draft("a"), bad], durable=False)
        assert log.head("t-1") == EMPTY

    run(body)


def test_an_event_of_a_megabyte_survives(run):
    async def body(log):
        lease = begin(log)
        await log.append(lease, EMPTY, drafts("a", "b" * 1_000_000, "c"))
        assert [len(text) for text in texts(log, "t-1")] == [1, 1_000_000, 1]

    run(body)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans(), st.sampled_from(["", "head", "flush"])),
        max_size=40,
    )
)
def test_however_appends_of_several_streams_interleave_each_keeps_its_order(tmp_path_factory, url, steps):
    """R050 R172"""
    if url.startswith("sqlite"):
        url = f"sqlite:///{tmp_path_factory.mktemp('log')}/log.db"

    names = [f"t-{next(_numbers)}" for _ in range(4)]  # in a database that stays the examples meet

    async def body(log):
        leases = [begin(log, name) for name in names]
        heads = [EMPTY] * 4
        model: list[list[str]] = [[], [], [], []]

        async def stream(n):  # the steps of one stream in order, the streams among each other as they come
            for place, (which, count, durable, then) in enumerate(steps):
                if which != n:
                    continue
                said = [f"{place}.{i}" for i in range(count)]
                heads[n] = await log.append(leases[n], heads[n], drafts(*said), durable=durable)
                model[n] += said
                if then == "head":
                    assert log.head(names[n]) == heads[n]
                elif then == "flush":
                    await log.flush(names[n])

        await asyncio.gather(*map(stream, range(4)))
        for n in range(4):
            assert texts(log, names[n]) == model[n]
            assert log.head(names[n]) == heads[n]

    runner(url, Clock())(body)


# Payloads and checkpoints.


def test_a_payload_is_found_by_its_digest_and_stored_once(run):
    async def body(log):
        lease = begin(log)
        content = b"long output" * 1000
        head = await log.append(lease, EMPTY, drafts("a"), payloads=[content, b""])
        await log.append(lease, head, drafts("b"), payloads=[content])
        assert log.payload("sha256:" + hashlib.sha256(content).hexdigest()) == content
        assert log.payload("sha256:" + hashlib.sha256(b"").hexdigest()) == b""
        with pytest.raises(StoreFault, match="no payload sha256:1111"):
            log.payload("sha256:" + "1" * 64)

    run(body)


def test_the_newest_checkpoint_stands_on_its_event(run):
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


def test_a_lease_is_exclusive_until_it_expires_and_each_claim_raises_the_fence(run, clock):
    """R180"""

    async def body(log):
        first = begin(log)
        assert (first.fence, first.owner, first.expires_at_ms) == (1, OWNER, clock.ms + TTL_MS)
        assert log.holder("t-1") == first
        clock.ms += TTL_MS - 1
        with pytest.raises(LeaseLost, match=r"held by elsewhere/some-boot/4711/1 \(fence 1\) for another 1 ms"):
            log.claim("t-1", OTHER, TTL_MS)
        clock.ms += 1
        assert log.holder("t-1") is None
        second = log.claim("t-1", OTHER, TTL_MS)
        assert (second.fence, second.owner) == (2, OTHER)

    run(body)


def test_the_same_owner_claims_again_under_a_new_fence(run):
    async def body(log):
        stale = begin(log)
        fresh = log.claim("t-1", OWNER, TTL_MS)
        assert fresh.fence == 2
        with pytest.raises(LeaseLost):
            await log.append(stale, EMPTY, drafts("x"))
        await log.append(fresh, EMPTY, drafts("a"))

    run(body)


def test_renewing_holds_others_off(run, clock):
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
        with pytest.raises(LeaseLost, match="fence 1 is no longer valid"):
            log.renew(renewed, TTL_MS)

    run(body)


def test_a_released_lease_is_free_and_writes_no_more(run):
    async def body(log):
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a"), durable=False)
        log.release(lease)
        assert log.holder("t-1") is None
        assert texts(log, "t-1") == ["a"]  # what was appended before counts
        with pytest.raises(LeaseLost, match="released"):
            await log.append(lease, head, drafts("x"))
        with pytest.raises(LeaseLost):
            log.renew(lease, TTL_MS)
        assert log.claim("t-1", OTHER, TTL_MS).fence == 2
        log.release(lease)  # a stale release frees nothing
        assert log.holder("t-1").owner == OTHER

    run(body)


def test_the_lease_of_a_dead_process_is_free_at_once_that_of_a_live_one_is_not(run):
    """R180 R178"""
    tell = "from setpoint.adapters.stores import this_owner; print(this_owner(), flush=True); input()"

    async def body(log):
        with subprocess.Popen(
            [sys.executable, "-c", tell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                owner = child.stdout.readline().strip()
                begin(log, owner=owner)
                with pytest.raises(LeaseLost, match=f"held by .*/{child.pid}/"):
                    log.claim("t-1", this_owner(), TTL_MS)
                assert log.holder("t-1").owner == owner
            finally:
                child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but still a zombie
            assert log.holder("t-1") is None
            assert log.claim("t-1", this_owner(), TTL_MS).fence == 2

    run(body)


# The mailbox.


def test_messages_come_in_order_and_each_key_once(run):
    """R181"""

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


def test_a_closed_store_says_so(run):
    async def body(log):
        lease = begin(log)
        await log.append(lease, EMPTY, drafts("a"), durable=False)
        await log.close()
        await log.close()
        for ask in (lambda: log.head("t-1"), lambda: log.create("t-2", "x"), lambda: log.streams()):
            with pytest.raises(StoreFault, match="is closed"):
                ask()
        with pytest.raises(StoreFault, match="is closed"):
            await log.append(lease, EMPTY, drafts("b"))

    run(body)


# Exports.


def test_an_export_verifies_from_nothing_but_its_lines(run):
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


@pytest.mark.parametrize(
    ("damage", "seq"),
    [
        (lambda ls: [ls[0], ls[1].replace(b'"text":"b"', b'"text":"B"'), ls[2]], 2),
        (lambda ls: [ls[0], ls[1].replace(b'"turn":1', b'"turn":2'), ls[2]], 2),
        (lambda ls: [ls[0], ls[2]], 2),
        (lambda ls: [ls[1], ls[0], ls[2]], 1),
        (lambda ls: [ls[0], ls[1].replace(b'"v":1', b'"v":1,"extra":0'), ls[2]], 2),
        (lambda ls: [ls[0], ls[1].replace(b'{"text":"b"}', b'{"text":"x","text":"b"}'), ls[2]], 2),
        (lambda ls: [ls[0], ls[1].replace(b'"seq":2', b'"seq":2.0'), ls[2]], 2),
        (lambda ls: [ls[0], ls[1][:40]], 2),
        (lambda ls: [*ls[:2], b"null\n"], 3),
    ],
)
def test_an_altered_export_is_refused_at_the_line_that_differs(run, damage, seq):
    """R050"""

    async def body(log):
        lease = begin(log)
        await log.append(lease, EMPTY, drafts("a", "b", "c"))
        with pytest.raises(LogCorrupt) as caught:
            verify_lines(damage(list(export_lines(log, "t-1"))))
        assert caught.value.seq == seq

    run(body)
