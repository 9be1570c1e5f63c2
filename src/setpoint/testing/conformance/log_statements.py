"""The promises of ``setpoint.ports.log`` on statements: rows of the user's own that change with the events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from setpoint.kernel.errors import StatementRefused
from setpoint.ports.log import Beside, Head, Statement
from setpoint.testing.conformance.log_words import EMPTY, LogBench, begin, drafts, texts

Sql = Callable[[str], list[Any]]
ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL, amount INTEGER CHECK (amount > 0))"
SHIP = "UPDATE orders SET state=:state WHERE id=:id AND state='new'"


def ship(id: int, rows: int = 1) -> Statement:
    return Statement(SHIP, {"state": "shipped", "id": id}, rows)


class StatementSuite(LogBench):
    """A log in a database with room for tables of the user's own keeps these. Override ``open_log`` and ``sql``."""

    @pytest.fixture
    def sql(self) -> Sql:
        """``sql(text)`` runs one statement as the user does, beside the log and committed; its rows, if it has any.

        It works before the log was ever opened.
        """
        raise NotImplementedError("Override the fixture sql: it returns a function that runs SQL in your database.")

    @pytest.fixture
    def orders(self, sql: Sql) -> Callable[[], list[Any]]:
        sql(ORDERS)
        sql("INSERT INTO orders VALUES (1, 'new', 10), (2, 'new', 20), (3, 'shipped', 30)")
        return lambda: sql("SELECT id, state FROM orders ORDER BY id")

    def test_statements_change_the_users_rows_with_the_events(self, run, orders):
        """Statements run inside the transaction of the append."""

        async def body(log):
            lease = begin(log)
            add = Statement("INSERT INTO orders VALUES (:id, 'new', :amount)", {"id": 4, "amount": 1})
            both = Statement("UPDATE orders SET amount=amount+1 WHERE state=:state", {"state": "shipped"}, 2)
            none = Statement("DELETE FROM orders WHERE id=:id", {"id": 99}, 0)
            beside = Beside(statements=(ship(1), add, both, none), claims=("ship:1",), wake_ms=9)
            await log.append(lease, EMPTY, drafts("shipped 1"), beside=beside)
            assert orders() == [(1, "shipped"), (2, "new"), (3, "shipped"), (4, "new")]
            assert (log.claimant("ship:1"), log.next_wake("trajectory")) == ("t-1", 9)

        run(body)

    @pytest.mark.parametrize(
        ("statement", "says"),
        [
            (ship(3), "orders"),
            (Statement("UPDATE orders SET amount=5"), "orders"),
            (Statement("SELECT id FROM orders WHERE id=1"), "orders"),
            (Statement("UPDATE orders SET amount=0 WHERE id=1"), "(?i)check constraint"),
            (Statement("INSERT INTO orders VALUES (1, 'new', 1)"), "(?i)unique"),
            (Statement("UPDATE oders SET amount=1"), "oders"),
            (Statement("UPDAT orders"), "(?i)updat"),
            (Statement("UPDATE orders SET amount=:amount WHERE id=1"), "amount"),
        ],
    )
    def test_a_refused_statement_writes_nothing(self, run, orders, statement, says):
        """Another number of rows, or what the database cannot run, is StatementRefused in the database's words."""

        async def body(log):
            lease = begin(log)
            before = orders()
            beside = Beside(statements=(ship(1), statement), claims=("k",), wake_ms=5)
            with pytest.raises(StatementRefused, match=says) as caught:
                await log.append(lease, EMPTY, drafts("x"), beside=beside, checkpoint=b"x")
            assert statement.sql in str(caught.value) and caught.value.effect == "not_sent"
            assert orders() == before
            assert log.head("t-1") == EMPTY and log.checkpoint("t-1") is None
            assert (log.claimant("k"), log.next_wake("trajectory")) == (None, None)
            await log.append(lease, EMPTY, drafts("a"), beside=Beside(statements=(ship(2),)))
            assert orders() == [(1, "new"), (2, "shipped"), (3, "shipped")]

        run(body)

    def test_a_refused_statement_does_not_hinder_the_others(self, run, sql):
        sql("CREATE TABLE seen (n INTEGER PRIMARY KEY, who TEXT)")

        async def body(log):
            leases = [begin(log, f"t-{n}") for n in range(20)]
            heads = await asyncio.gather(*(log.append(lease, EMPTY, drafts("a")) for lease in leases))

            def beside(n: int) -> Beside:
                add = Statement("INSERT INTO seen VALUES (:n, :who)", {"n": n % 12, "who": f"t-{n}"})
                return Beside(statements=(add,), claims=(f"k-{n}",), wake_ms=n)

            results = await asyncio.gather(
                *(log.append(leases[n], heads[n], drafts("b"), beside=beside(n)) for n in range(20)),
                return_exceptions=True,
            )
            won = {n for n in range(20) if isinstance(results[n], Head)}
            assert len(won) == 12 and {n % 12 for n in won} == set(range(12))
            assert all(isinstance(results[n], StatementRefused) for n in range(20) if n not in won)
            assert {who for (who,) in sql("SELECT who FROM seen")} == {f"t-{n}" for n in won}
            assert {name for name, _ in log.due("trajectory", 99, 99)} == {f"t-{n}" for n in won}
            for n in range(20):
                assert texts(log, f"t-{n}") == (["a", "b"] if n in won else ["a"])
                assert log.claimant(f"k-{n}") == (f"t-{n}" if n in won else None)

        run(body)

    def test_parameters_of_every_type_arrive_as_they_are(self, run, sql):
        sql("CREATE TABLE kinds (id INTEGER PRIMARY KEY, words TEXT, number BIGINT, ratio FLOAT, raw TEXT, nil TEXT)")

        async def body(log):
            values = {"words": "ünï 'x' :id %s", "number": 2**40, "ratio": 1.5, "nil": None, "id": 1}
            add = Statement("INSERT INTO kinds VALUES (:id, :words, :number, :ratio, ':words', :nil)", values)
            await log.append(begin(log), EMPTY, drafts("a"), beside=Beside(statements=(add,)))
            assert sql("SELECT * FROM kinds") == [(1, "ünï 'x' :id %s", 2**40, 1.5, ":words", None)]

        run(body)
