"""The promises of ``setpoint.ports.log`` on what goes down beside the events: keys and wake-up times."""

from __future__ import annotations

import asyncio
import random

import pytest

from setpoint.kernel.errors import DuplicateEffect, HeadMoved, LeaseLost, StatementRefused, StoreFault
from setpoint.ports.log import NO_WAKE, WAKE_AS_BEFORE, WAKE_BY_MESSAGE, Beside, Head, Log, Statement
from setpoint.testing.conformance.log_words import EMPTY, OTHER, OWNER, TTL_MS, LogBench, begin, drafts, texts

DELETE = Statement("DELETE FROM orders")


class BesideTests(LogBench):
    """A part of ``LogSuite``."""

    # Keys of outside effects.

    # Keys of outside effects.

    def test_a_claimed_key_is_the_streams_until_it_gives_it_up(self, run):
        """A claimed key stays until its stream releases it; ``claimant`` tells who holds it."""

        async def body(log):
            one, two = begin(log, "t-1"), begin(log, "t-2")
            assert log.claimant("pay:7") is None
            head = await log.append(one, EMPTY, drafts("a"), beside=Beside(claims=("pay:7", "mail:7")))
            assert log.claimant("pay:7") == log.claimant("mail:7") == "t-1"
            head = await log.append(one, head, drafts("b"))
            log.release(one)  # the lease is another matter
            with pytest.raises(DuplicateEffect) as caught:
                await log.append(two, EMPTY, drafts("x"), beside=Beside(claims=("pay:7",)))
            assert (caught.value.key, caught.value.holder, caught.value.effect) == ("pay:7", "t-1", "not_sent")
            one = log.claim("t-1", OTHER, TTL_MS)
            await log.append(one, head, drafts("c"), beside=Beside(releases=("pay:7",)))
            assert log.claimant("pay:7") is None
            await log.append(two, EMPTY, drafts("y"), beside=Beside(claims=("pay:7",)))
            assert (log.claimant("pay:7"), log.claimant("mail:7")) == ("t-2", "t-1")
            assert texts(log, "t-2") == ["y"]

        run(body)

    def test_a_refused_claim_writes_nothing(self, run):
        """A key in ``claims`` that another stream holds raises DuplicateEffect and nothing was written."""

        async def body(log):
            one, two = begin(log, "t-1"), begin(log, "t-2")
            await log.append(one, EMPTY, drafts("a"), beside=Beside(claims=("k",)))
            mine = await log.append(two, EMPTY, drafts("b"), beside=Beside(claims=("mine",)))
            beside = Beside(claims=("new", "k"), releases=("mine",), wake_ms=7)
            with pytest.raises(DuplicateEffect):
                await log.append(two, mine, drafts("x"), beside=beside, payloads=[b"x"], checkpoint=b"x")
            with pytest.raises(DuplicateEffect):
                await log.append(two, mine, drafts("x"), beside=Beside(claims=("new", "k")))
            assert log.head("t-2") == mine and texts(log, "t-2") == ["b"]
            assert (log.claimant("new"), log.claimant("mine")) == (None, "t-2")
            assert log.checkpoint("t-2") is None and log.next_wake("trajectory") is None
            with pytest.raises(StoreFault):
                log.payload("sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881")
            await log.append(two, mine, drafts("c"), beside=Beside(claims=("new",)))
            assert texts(log, "t-2") == ["b", "c"]

        run(body)

    def test_a_key_that_the_stream_holds_already_is_no_change(self, run):
        """One that this stream holds already is no change."""

        async def body(log):
            lease = begin(log)
            head = await log.append(lease, EMPTY, drafts("a"), beside=Beside(claims=("k", "k")))
            head = await log.append(lease, head, drafts("b"), beside=Beside(claims=("k", "l")))
            assert log.claimant("k") == log.claimant("l") == "t-1"
            await log.append(lease, head, drafts("c"), beside=Beside(releases=("k", "never held")))
            assert (log.claimant("k"), log.claimant("l")) == (None, "t-1")

        run(body)

    def test_a_stream_gives_up_no_key_of_another(self, run):
        async def body(log):
            one, two = begin(log, "t-1"), begin(log, "t-2")
            await log.append(one, EMPTY, drafts("a"), beside=Beside(claims=("k",)))
            await log.append(two, EMPTY, drafts("b"), beside=Beside(releases=("k",)))
            assert log.claimant("k") == "t-1"

        run(body)

    def test_of_many_claims_at_once_each_key_goes_to_one_and_the_others_fail_alone(self, run):
        """Appends that share a batch do not share its refusals."""

        async def body(log):
            leases = [begin(log, f"t-{n}") for n in range(30)]
            results = await asyncio.gather(
                *(
                    log.append(lease, EMPTY, drafts(str(n)), beside=Beside(claims=(f"k-{n % 10}",)) if n % 3 else None)
                    for n, lease in enumerate(leases)
                ),
                return_exceptions=True,
            )
            for key in range(10):
                claimed = [n for n in range(30) if n % 3 and n % 10 == key]
                won = [n for n in claimed if isinstance(results[n], Head)]
                assert len(won) == 1 and log.claimant(f"k-{key}") == f"t-{won[0]}"
                assert all(isinstance(results[n], DuplicateEffect) for n in claimed if n not in won)
            for n, result in enumerate(results):
                assert texts(log, f"t-{n}") == ([str(n)] if isinstance(result, Head) else [])
            assert all(isinstance(results[n], Head) for n in range(0, 30, 3))

        run(body)

    def test_of_keys_given_up_and_claimed_at_once_the_order_decides(self, run):
        async def body(log):
            one, two = begin(log, "t-1"), begin(log, "t-2")
            first = await log.append(one, EMPTY, drafts("a"), beside=Beside(claims=("k", "m")))
            await asyncio.gather(
                log.append(one, first, drafts("b"), beside=Beside(releases=("k", "never held"))),
                log.append(two, EMPTY, drafts("c"), beside=Beside(claims=("k",))),
            )
            assert log.claimant("k") == "t-2"
            head = log.head("t-1")
            await log.append(one, head, drafts("d"), beside=Beside(claims=("n",), releases=("n",)))
            assert (log.claimant("n"), log.claimant("m")) == (None, "t-1")

        run(body)

    def test_a_key_given_up_without_waiting_and_claimed_in_the_next_append_is_held(self, run):
        async def body(log):
            lease = begin(log)
            begin(log, "t-2")  # in company appends wait for each other and share a batch
            head = await log.append(lease, EMPTY, drafts("a stream that is known takes the short way"))
            for _ in range(2):  # first it is not held, then it is
                head = await log.append(lease, head, drafts("a"), durable=False, beside=Beside(releases=("k",)))
                head = await log.append(lease, head, drafts("b"), beside=Beside(claims=("k",)))
                assert log.claimant("k") == "t-1"

        run(body)

    def test_what_follows_a_refused_claim_fails_with_its_reason(self, run):
        async def body(log):
            one, two = begin(log, "t-1"), begin(log, "t-2")
            await log.append(one, EMPTY, drafts("a"), beside=Beside(claims=("k",)))
            after = Head(1, "sha256:" + "1" * 64)
            results = await asyncio.gather(
                log.append(two, EMPTY, drafts("x"), beside=Beside(claims=("k",))),
                log.append(two, after, drafts("y"), beside=Beside(claims=("l",))),
                return_exceptions=True,
            )
            assert isinstance(results[0], DuplicateEffect) and isinstance(results[1], HeadMoved)
            assert log.claimant("l") is None and texts(log, "t-2") == []

        run(body)

    def test_an_append_that_fails_claims_nothing_gives_up_nothing_and_sets_no_time(self, run, clock):
        """``beside`` goes down with the events or not at all."""

        async def body(log):
            stale = begin(log)
            head = await log.append(stale, EMPTY, drafts("a"), beside=Beside(claims=("held",)))
            beside = Beside(claims=("k",), releases=("held",), wake_ms=7)
            with pytest.raises(HeadMoved):
                await log.append(stale, EMPTY, drafts("x"), beside=beside)
            clock.ms += TTL_MS + 1
            log.claim("t-1", OTHER, TTL_MS)
            with pytest.raises(LeaseLost):
                await log.append(stale, head, drafts("x"), beside=beside)
            assert (log.claimant("k"), log.claimant("held"), log.next_wake("trajectory")) == (None, "t-1", None)
            assert texts(log, "t-1") == ["a"]

        run(body)

    @pytest.mark.parametrize(
        "beside",
        [Beside(claims=("k",)), Beside(statements=(DELETE,))],
        ids=["claim", "statement"],
    )
    def test_claims_and_statements_want_to_be_waited_for(self, run, beside):
        """Claims and statements need ``durable=True`` (else ValueError)."""

        async def body(log):
            lease = begin(log)
            with pytest.raises(ValueError):
                await log.append(lease, EMPTY, drafts("x"), durable=False, beside=beside)
            assert log.head("t-1") == EMPTY and log.claimant("k") is None

        run(body)

    def test_whatever_is_asked_at_once_stands_as_if_asked_one_after_the_other(self, run):
        async def body(log):
            for seed in range(40):
                await check_asked_at_once(log, seed)

        run(body)

    # Wake-up times.

    def test_streams_that_are_due_are_listed_earliest_first_and_by_kind(self, run):
        """``due`` lists streams whose wake-up time has come, earliest first; one without is never listed."""

        async def body(log):
            assert log.next_wake("trajectory") is None and log.due("trajectory", 10**13, 9) == []
            for name, at in (("t-a", 300), ("t-b", 100), ("t-c", 200), ("t-d", WAKE_BY_MESSAGE), ("t-e", 200)):
                await log.append(begin(log, name), EMPTY, drafts("a"), beside=Beside(wake_ms=at))
            log.create("s-1", "session")
            await log.append(log.claim("s-1", OTHER, TTL_MS), EMPTY, drafts("a"), beside=Beside(wake_ms=50))
            begin(log, "t-without")
            assert log.due("trajectory", 99, 9) == []
            assert log.due("trajectory", 200, 9) == [("t-b", 100), ("t-c", 200), ("t-e", 200)]
            assert log.due("trajectory", 10**13, 9) == [("t-b", 100), ("t-c", 200), ("t-e", 200), ("t-a", 300)]
            assert log.due("trajectory", 10**13, 2) == [("t-b", 100), ("t-c", 200)]
            assert log.due("session", 50, 9) == [("s-1", 50)]
            assert (log.next_wake("trajectory"), log.next_wake("session"), log.next_wake("other")) == (100, 50, None)

        run(body)

    def test_a_wake_up_time_stays_until_another_is_set(self, run):
        async def body(log):
            lease = begin(log)
            head = await log.append(lease, EMPTY, drafts("a"), beside=Beside(wake_ms=100))
            head = await log.append(lease, head, drafts("b"))
            head = await log.append(lease, head, drafts("c"), beside=Beside(claims=("k",)))
            assert log.next_wake("trajectory") == 100
            head = await log.append(lease, head, [], beside=Beside(wake_ms=0))  # no event is needed for it
            assert log.due("trajectory", 0, 9) == [("t-1", 0)]
            await log.append(lease, head, drafts("d"), beside=Beside(wake_ms=NO_WAKE))
            assert log.next_wake("trajectory") is None and log.due("trajectory", 10**13, 9) == []

        run(body)

    def test_a_wake_up_time_goes_down_with_an_append_that_waits_for_nothing(self, run):
        async def body(log):
            lease = begin(log)
            head = await log.append(lease, EMPTY, drafts("a"), durable=False, beside=Beside(wake_ms=100))
            assert log.next_wake("trajectory") == 100  # a read sees what this process has appended
            head = await log.append(lease, head, drafts("b"), durable=False, beside=Beside(wake_ms=300))
            await log.append(lease, head, drafts("c"), durable=False, beside=Beside(wake_ms=200))
            await log.flush("t-1")
            assert log.due("trajectory", 999, 9) == [("t-1", 200)]

        run(body)

    def test_wake_up_times_of_many_streams_at_once(self, run):
        async def body(log):
            leases = [begin(log, f"t-{n:03}") for n in range(150)]
            heads = await asyncio.gather(*(log.append(lease, EMPTY, drafts("a")) for lease in leases))
            await asyncio.gather(
                *(log.append(leases[n], heads[n], drafts("b"), beside=Beside(wake_ms=n)) for n in range(150))
            )
            assert log.due("trajectory", 10**9, 999) == [(f"t-{n:03}", n) for n in range(150)]

        run(body)

    def test_a_message_wakes_a_stream_that_has_a_wake_up_time_and_no_other(self, run):
        """A message delivered to a stream with a wake-up time brings it to 0."""

        async def body(log):
            waiting, over = begin(log, "t-1"), begin(log, "t-2")
            begin(log, "t-3")
            head = await log.append(waiting, EMPTY, drafts("a"), beside=Beside(wake_ms=WAKE_BY_MESSAGE))
            done = await log.append(over, EMPTY, drafts("a"), beside=Beside(wake_ms=77))
            await log.append(over, done, drafts("b"), beside=Beside(wake_ms=NO_WAKE))
            for name in ("t-1", "t-2", "t-3"):
                assert log.deliver(name, "k", b"{}")
            assert log.due("trajectory", 0, 9) == [("t-1", 0)]
            await log.append(waiting, head, drafts("b"), beside=Beside(wake_ms=500))
            assert not log.deliver("t-1", "k", b"{}")  # delivered before: nothing new to see
            assert log.next_wake("trajectory") == 500

        run(body)

    def test_whoever_has_set_a_wake_up_time_sees_every_message_that_came_before_it(self, open_log, clock):
        """Else a message that was delivered just before would be slept through: its wake-up time is written over."""
        if not self.has_processes:
            pytest.skip("a store in memory has one process")

        async def body():
            log, elsewhere = open_log(clock), open_log(clock)
            lease, head = begin(log), EMPTY
            for n in range(20):
                assert len(log.inbox("t-1")) == n  # a look that may be kept for a while
                elsewhere.deliver("t-1", f"k-{n}", b"{}")
                head = await log.append(lease, head, drafts("parked"), beside=Beside(wake_ms=500))
                assert len(log.inbox("t-1")) == n + 1
            await elsewhere.close()
            await log.close()

        asyncio.run(body())

    def test_a_cancelled_append_has_its_key_exactly_when_it_has_its_events(self, run):
        """Cancelled while it waits, it may still go down: all of it or nothing."""

        async def body(log):
            for n in range(20):
                lease = begin(log, f"t-{n}")
                task = asyncio.create_task(log.append(lease, EMPTY, drafts("a"), beside=Beside(claims=(f"k-{n}",))))
                for _ in range(n % 3):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await log.flush(f"t-{n}")
                assert log.claimant(f"k-{n}") == (f"t-{n}" if texts(log, f"t-{n}") else None)
            assert log.claimant("k-0") is None  # cancelled before it began

        run(body)

    @pytest.mark.parametrize("wake_ms", [-3, 2**53])
    def test_a_wake_up_time_that_is_none_is_refused(self, run, wake_ms):
        async def body(log):
            with pytest.raises(ValueError):
                await log.append(begin(log), EMPTY, drafts("x"), beside=Beside(wake_ms=wake_ms))
            assert log.head("t-1") == EMPTY

        run(body)

    def test_a_store_without_tables_refuses_statements(self, run):
        async def body(log):
            lease = begin(log)
            with pytest.raises(StatementRefused):
                await log.append(
                    lease,
                    EMPTY,
                    drafts("x"),
                    beside=Beside(statements=(DELETE,), claims=("k",)),
                )
            assert log.head("t-1") == EMPTY and log.claimant("k") is None

        run(body)


async def check_asked_at_once(log: Log, seed: int) -> None:
    """Appends of four streams in company, with claims, releases and wake-up times, against a model of one by one."""
    chance = random.Random(seed)
    names, kind = [f"t-{seed}-{n}" for n in range(4)], f"kind-{seed}"
    for name in names:
        log.create(name, kind)
    leases = [log.claim(name, OWNER, TTL_MS) for name in names]
    heads = [EMPTY] * 4
    held: dict[str, int] = {}
    wakes: dict[int, int] = {}
    for _ in range(chance.randrange(9)):
        asked = {n: _asked(chance, seed) for n in chance.sample(range(4), chance.randint(1, 4))}
        results = await asyncio.gather(
            *(log.append(leases[n], heads[n], drafts("x"), beside=beside) for n, beside in asked.items()),
            return_exceptions=True,
        )
        for (n, beside), result in zip(asked.items(), results, strict=True):
            if any(held.get(key, n) != n for key in beside.claims):
                assert isinstance(result, DuplicateEffect), f"seed {seed}"
                continue
            assert isinstance(result, Head), f"seed {seed}: {result!r}"
            heads[n] = result
            held |= dict.fromkeys(beside.claims, n)
            held = {key: who for key, who in held.items() if who != n or key not in beside.releases}
            if beside.wake_ms != WAKE_AS_BEFORE:
                wakes[n] = beside.wake_ms
    assert [log.head(name) for name in names] == heads, f"seed {seed}"
    for key in (f"{seed}-{letter}" for letter in "abcd"):
        assert log.claimant(key) == (names[held[key]] if key in held else None), f"seed {seed}"
    waiting = sorted((at, names[n]) for n, at in wakes.items() if at != NO_WAKE)
    assert log.due(kind, WAKE_BY_MESSAGE, 9) == [(name, at) for at, name in waiting], f"seed {seed}"


def _asked(chance: random.Random, seed: int) -> Beside:
    def keys() -> tuple[str, ...]:
        return tuple(f"{seed}-{letter}" for letter in chance.choices("abcd", k=chance.randrange(4)))

    return Beside(keys(), keys(), chance.choice([WAKE_AS_BEFORE, NO_WAKE, 0, 7, WAKE_BY_MESSAGE]))
