"""Every store keeps the promises of ``setpoint.ports.log``; and says in its words what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from setpoint.adapters.stores import export_lines, verify_lines
from setpoint.kernel.errors import HeadMoved, LeaseLost, LogCorrupt, StatementRefused, StoreFault
from setpoint.ports.log import Beside, Draft, Head, Log, Statement
from setpoint.testing.conformance import LogSuite, StatementSuite
from setpoint.testing.conformance.log_statements import ship

from .words import AT, EMPTY, OTHER, TTL_MS, Clock, begin, draft, drafts, open_by_clock

Open = Callable[[Clock], Log]


class TestSqlite(LogSuite):
    @pytest.fixture
    def open_log(self, sqlite_url: str) -> Open:
        return lambda clock: open_by_clock(sqlite_url, clock)


class TestMemory(LogSuite):
    has_processes = False

    @pytest.fixture
    def open_log(self) -> Open:
        return lambda clock: open_by_clock("memory:", clock)


class TestPostgres(LogSuite):
    @pytest.fixture
    def open_log(self, postgres_url: str) -> Open:
        return lambda clock: open_by_clock(postgres_url, clock)


class TestStatements(StatementSuite):
    @pytest.fixture
    def open_log(self, sql_url: str) -> Open:
        return lambda clock: open_by_clock(sql_url, clock)

    @pytest.fixture
    def sql(self, user: Callable[[str], list[Any]]) -> Callable[[str], list[Any]]:
        return user

    def test_rows_that_a_trigger_changes_do_not_count(self, run, orders, user, trigger_on_orders):
        user("CREATE TABLE journal (id INTEGER)")
        trigger_on_orders("INSERT INTO journal SELECT NEW.id UNION ALL SELECT NEW.id")

        async def body(log):
            await log.append(begin(log), EMPTY, drafts("a"), beside=Beside(statements=(ship(1),)))
            assert user("SELECT id FROM journal") == [(1,), (1,)]

        run(body)

    def test_a_wrong_number_of_rows_is_said_in_numbers(self, run, orders):
        async def body(log):
            lease = begin(log)
            for statement, says in (
                (ship(3), "changes 0 rows where it must change 1"),
                (Statement("UPDATE orders SET amount=5"), "changes 3 rows where it must change 1"),
                (Statement("SELECT id FROM orders WHERE id=1"), "changes 0 rows where it must change 1"),
            ):
                with pytest.raises(StatementRefused, match=says):
                    await log.append(lease, EMPTY, drafts("x"), beside=Beside(statements=(statement,)))

        run(body)


# What a refusal says: the same words in every store.


def test_a_refusal_says_who_holds_what_and_where_the_stream_is(run, clock):
    async def body(log):
        lease = begin(log)
        with pytest.raises(StoreFault, match="already holds a log named 't-1'"):
            log.create("t-1", "trajectory")
        head = await log.append(lease, EMPTY, drafts("a"))
        with pytest.raises(HeadMoved, match=r"t-1 is at 1.*expected 5"):
            await log.append(lease, Head(5, head.hash), drafts("x"))
        with pytest.raises(LogCorrupt, match="ends at 1 but is known to reach 9"):
            list(log.read("t-1", 9, prev=head.hash))
        with pytest.raises(StoreFault, match="no payload sha256:1111"):
            log.payload("sha256:" + "1" * 64)
        clock.ms += TTL_MS - 1
        with pytest.raises(LeaseLost, match=r"held by elsewhere/some-boot/4711/1 \(fence 1\) for another 1 ms"):
            log.claim("t-1", OTHER, TTL_MS)
        clock.ms += 2
        log.claim("t-1", OTHER, TTL_MS)
        with pytest.raises(LeaseLost, match=r"fence 1 is no longer valid .fence 2, held by elsewhere"):
            await log.append(lease, head, drafts("x"))
        log.release(fresh := log.claim("t-1", OTHER, TTL_MS))
        with pytest.raises(LeaseLost, match="released"):
            await log.append(fresh, head, drafts("x"))
        await log.close()
        with pytest.raises(StoreFault, match="is closed"):
            log.head("t-1")

    run(body)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Draft(1, "Turn Started", b"{}", AT), "not an ASCII identifier"),
        (Draft(1, "TurnStarted", b"{}", "2026-01-01T00:00:00Z"), "not RFC 3339"),
        (Draft(1, "TurnStarted", b"[]", AT), "not a canonical JSON object"),
        (Draft(-1, "TurnStarted", b"{}", AT), "turn -1"),
        (Draft(2**60, "TurnStarted", b"{}", AT), "2.53-1"),
    ],
)
def test_a_malformed_draft_is_refused_with_what_is_wrong(run, bad, says):
    async def body(log):
        with pytest.raises(ValueError, match=says):
            await log.append(begin(log), EMPTY, [draft("a"), bad])

    run(body)


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        (Beside(claims=("k",)), "durable=True"),
        (Beside(wake_ms=-3), "is no time"),
        (Beside(wake_ms=2**53), "is no time"),
    ],
)
def test_what_cannot_go_down_beside_is_refused_with_what_is_wrong(run, beside, says):
    async def body(log):
        with pytest.raises(ValueError, match=says):
            await log.append(begin(log), EMPTY, drafts("x"), durable=False, beside=beside)

    run(body)


# Exports.


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
