"""What goes down beside an append in the SQLite store: what a statement cannot reach, and a file of version 1."""

from __future__ import annotations

import asyncio
import lzma
import sqlite3
from pathlib import Path

import pytest

from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.kernel.errors import DuplicateEffect, StatementRefused, StoreFault
from setpoint.ports.log import Beside, Head, Statement

from .words import EMPTY, OWNER, TTL_MS, Clock, begin, draft, drafts, texts

VERSION_1 = Path(__file__).with_name("version-1.db.xz")  # written by the release before wake-up times were kept


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log.db")


@pytest.fixture
def db(path):
    """The user's own connection, to a file that holds a table of the user's."""
    asyncio.run(SqliteLog(path, Clock()).close())
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(
        "CREATE TABLE mine (id INTEGER PRIMARY KEY AUTOINCREMENT, word TEXT UNIQUE ON CONFLICT ROLLBACK);"
        "CREATE VIEW events AS SELECT * FROM event;"
        "CREATE VIEW harmless AS SELECT word FROM mine;"
        "CREATE TABLE bait (id INTEGER);"
        "CREATE TRIGGER bait_taken AFTER INSERT ON bait BEGIN UPDATE stream SET fence=99; END;"
        "CREATE TABLE totals (total INTEGER);"
    )
    yield db
    db.close()


def mine(db: sqlite3.Connection) -> list[str]:
    return [word for (word,) in db.execute("SELECT word FROM mine ORDER BY id")]


def add(word: str) -> Statement:
    return Statement("INSERT INTO mine (word) VALUES (:word)", {"word": word})


# Statements.


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO event VALUES (1, 9, 1, 'A', 1, '', x'00', x'00')",
        "UPDATE stream SET fence=7",
        "UPDATE main.STREAM SET fence=7",
        "DELETE FROM inbox",
        "DELETE FROM effect_claim",
        "REPLACE INTO payload VALUES (x'00', x'00')",
        "DELETE FROM checkpoint",
        "INSERT INTO mine (word) SELECT data FROM event LIMIT 1",
        "INSERT INTO mine (word) VALUES ((SELECT count(*) FROM events))",
        "UPDATE mine SET word='x' FROM stream",
        "INSERT INTO mine (word) SELECT sql FROM sqlite_schema LIMIT 1",
        "UPDATE sqlite_sequence SET seq=1",
        "INSERT INTO bait VALUES (1)",
        "DROP TRIGGER event_is_never_updated",
        "ALTER TABLE event RENAME TO gone",
        "CREATE TABLE more (id INTEGER)",
        "CREATE TEMP TRIGGER t AFTER INSERT ON mine BEGIN DELETE FROM inbox; END",
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT s",
        "RELEASE beside",
        "PRAGMA writable_schema=1",
        "PRAGMA synchronous=OFF",
        "ATTACH ':memory:' AS elsewhere",
        "VACUUM",
        "REINDEX",
        "ANALYZE",
        "INSERT INTO mine (word) VALUES ('x'); COMMIT",
        "INSERT INTO mine (word) VALUES (load_extension('x'))",
    ],
)
@pytest.mark.parametrize("company", [False, True])
def test_a_statement_reaches_nothing_but_rows_of_the_users_own(path, db, sql, company):
    async def body():
        log = SqliteLog(path, Clock())
        leases = [begin(log, f"t-{n}") for n in range(1 + company)]
        heads = [await log.append(lease, EMPTY, drafts("a")) for lease in leases]
        log.deliver("t-0", "k", b"{}")
        beside = Beside(statements=(add("first"), Statement(sql)), claims=("k",))
        results = await asyncio.gather(
            log.append(leases[0], heads[0], drafts("x"), beside=beside),
            *(log.append(leases[1], heads[1], drafts("b"), beside=Beside(claims=("l",))) for _ in range(company)),
            return_exceptions=True,
        )
        assert isinstance(results[0], StatementRefused), results
        assert not company or isinstance(results[1], Head)
        assert mine(db) == [] and texts(log, "t-0") == ["a"] and len(log.inbox("t-0")) == 1
        assert log.claimant("k") is None and log.claimant("l") == ("t-1" if company else None)
        head = await log.append(leases[0], heads[0], drafts("b"), beside=Beside(statements=(add("then"),)))
        await log.append(leases[0], head, drafts("c"), payloads=[b"p"], checkpoint=b"r")  # nothing stayed forbidden
        assert mine(db) == ["then"]
        await log.close()

    asyncio.run(body())


def test_a_refusal_names_the_table_that_is_not_the_users(path, db):
    async def body():
        log = SqliteLog(path, Clock())
        with pytest.raises(StatementRefused, match="may only touch tables of the user's own, and stream is none"):
            statement = Statement("UPDATE stream SET fence=7")
            await log.append(begin(log), EMPTY, drafts("x"), beside=Beside(statements=(statement,)))
        await log.close()

    asyncio.run(body())


def test_views_common_tables_and_returning_rows_are_the_users_to_use(path, db):
    async def body():
        log = SqliteLog(path, Clock())
        statements = (
            Statement("WITH n(i) AS (VALUES (1) UNION ALL SELECT i+1 FROM n WHERE i<3) "
                      "INSERT INTO mine (word) SELECT 'w' || i FROM n", rows=3),
            Statement("INSERT INTO totals SELECT count(*) FROM harmless"),
            Statement("UPDATE mine SET word=upper(word) WHERE id<3 RETURNING id", rows=2),
            Statement("REPLACE INTO mine (id, word) VALUES (3, 'new')"),
        )  # fmt: skip
        await log.append(begin(log), EMPTY, drafts("a"), beside=Beside(statements=statements))
        assert mine(db) == ["W1", "W2", "new"]
        assert db.execute("SELECT total FROM totals").fetchall() == [(3,)]
        await log.close()

    asyncio.run(body())


@pytest.mark.parametrize("company", [1, 5])
def test_a_statement_that_takes_the_transaction_along_fails_alone(path, db, company):
    """The user's table says ON CONFLICT ROLLBACK, which undoes what the others of the batch had written."""
    db.execute("INSERT INTO mine (word) VALUES ('taken')")

    async def body():
        log = SqliteLog(path, Clock())
        leases = [begin(log, f"t-{n}") for n in range(company)]
        heads = [await log.append(lease, EMPTY, drafts("a")) for lease in leases]

        def beside(n: int) -> Beside:
            words = ("taken",) if n % 2 == 0 else (f"word {n}",)
            return Beside(statements=tuple(map(add, words)), claims=(f"k-{n}",))

        with log._commits.writing:  # so that all surely are one batch
            tasks = [
                asyncio.create_task(log.append(leases[n], heads[n], drafts("b"), beside=beside(n)))
                for n in range(company)
            ]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(r, StatementRefused) for r in results] == [n % 2 == 0 for n in range(company)]
        assert mine(db) == ["taken", *(f"word {n}" for n in range(1, company, 2))]
        for n in range(company):
            assert texts(log, f"t-{n}") == ["a", "b"][: 1 + n % 2]
            assert log.claimant(f"k-{n}") == (f"t-{n}" if n % 2 else None)
        await log.close()

    asyncio.run(body())


@pytest.mark.parametrize("value", [2**70, "\ud800"])
def test_a_value_that_cannot_be_stored_is_refused(path, db, value):
    async def body():
        log = SqliteLog(path, Clock())
        with pytest.raises(StatementRefused):
            await log.append(begin(log), EMPTY, drafts("x"), beside=Beside(statements=(add(value),)))
        await log.close()

    asyncio.run(body())


def test_a_full_disk_is_no_fault_of_the_statement(path, db):
    async def body():
        log = SqliteLog(path, Clock())
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a"))
        writer = log._batches.connection
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count={pages}")
        beside = Beside(statements=(add("x" * 90_000),), claims=("k",))
        with pytest.raises(StoreFault, match="disk or quota is full") as caught:
            await log.append(lease, head, drafts("x"), beside=beside)
        assert not isinstance(caught.value, StatementRefused)
        writer.execute("PRAGMA max_page_count=1000000")
        await log.append(lease, head, drafts("b"), beside=beside)
        assert texts(log, "t-1") == ["a", "b"] and log.claimant("k") == "t-1"
        await log.close()

    asyncio.run(body())


# The price.


def test_a_batch_takes_four_statements_and_one_more_for_each_kind_of_thing_beside_it(path):
    async def body():
        log = SqliteLog(path, Clock())
        leases = [begin(log, f"t-{n}") for n in range(50)]
        heads = [await log.append(lease, EMPTY, drafts("a")) for lease in leases]
        ran: list[str] = []
        log._batches.connection.set_trace_callback(ran.append)

        async def batch(beside) -> int:
            ran.clear()
            with log._commits.writing:  # so that all surely are one batch
                tasks = [
                    asyncio.create_task(log.append(leases[n], heads[n], drafts("b"), beside=beside(n)))
                    for n in range(50)
                ]
                await asyncio.sleep(0)
            heads[:] = await asyncio.gather(*tasks)
            return len(ran)

        assert await batch(lambda n: None) == 4
        assert await batch(lambda n: Beside(wake_ms=n)) == 5
        assert await batch(lambda n: Beside(wake_ms=n) if n == 7 else None) == 5
        assert await batch(lambda n: Beside(claims=(f"k-{n}",))) == 5
        assert await batch(lambda n: Beside(claims=(f"l-{n}",), wake_ms=n)) == 6
        await log.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    "ask", [lambda log: log.due("trajectory", 10, 5), lambda log: log.next_wake("trajectory"),
            lambda log: log.claimant("k-1")],
    ids=["due", "next_wake", "claimant"],
)  # fmt: skip
def test_wake_up_times_and_keys_are_found_through_an_index_alone(path, ask):
    async def body():
        log = SqliteLog(path, Clock())
        await log.append(begin(log), EMPTY, drafts("a"), beside=Beside(wake_ms=1, claims=("k-1",)))
        ran: list[str] = []
        log._reader.set_trace_callback(ran.append)
        assert ask(log)
        log._reader.set_trace_callback(None)
        (sql,) = ran
        plan = [row[3] for row in log._reader.execute(f"EXPLAIN QUERY PLAN {sql}")]
        assert all(step.startswith("SEARCH") and "USING" in step for step in plan), plan
        await log.close()

    asyncio.run(body())


# Files of version 1.


def test_a_file_of_version_1_is_brought_up_where_it_is(path):
    Path(path).write_bytes(lzma.decompress(VERSION_1.read_bytes()))

    async def body():
        log = SqliteLog(path, Clock())
        assert [info.stream for info in log.streams()] == ["s-1", "t-1"]
        assert texts(log, "t-1") == ["t-1 0", "t-1 1", "t-1 2"]
        assert log.checkpoint("t-1").record == b"r" and log.inbox("t-1") == [(1, "k", b"{}")]
        assert log.next_wake("trajectory") is None and log.claimant("k") is None
        assert log.holder("t-1").owner == OWNER
        lease = log.claim("t-1", OWNER, TTL_MS)
        await log.append(lease, log.head("t-1"), drafts("b"), beside=Beside(claims=("k",), wake_ms=3))
        await log.close()
        log = SqliteLog(path, Clock())  # and the second time it is as it should be
        assert log.due("trajectory", 3, 9) == [("t-1", 3)] and log.claimant("k") == "t-1"
        assert texts(log, "t-1")[-1] == "b"
        await log.close()

    asyncio.run(body())
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_a_new_file_and_one_brought_up_have_the_same_tables(path, tmp_path):
    Path(path).write_bytes(lzma.decompress(VERSION_1.read_bytes()))
    new = str(tmp_path / "new.db")

    def tables(file: str) -> list[tuple[str, str]]:
        asyncio.run(SqliteLog(file, Clock()).close())
        db = sqlite3.connect(file)
        try:
            return sorted(db.execute("SELECT name, sql FROM sqlite_schema").fetchall(), key=str)
        finally:
            db.close()

    assert tables(path) == tables(new)


def test_a_file_that_cannot_be_brought_up_stays_as_it_was(path):
    Path(path).write_bytes(lzma.decompress(VERSION_1.read_bytes()))
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE effect_claim (of_the_users INTEGER)")
    db.close()
    with pytest.raises(StoreFault, match="effect_claim already exists"):
        SqliteLog(path, Clock())
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert "wake_ms" not in [row[1] for row in db.execute("PRAGMA table_info(stream)")]
    db.close()


def test_an_older_claim_by_another_process_is_seen(path):
    """Two stores on one file, as two processes have them."""

    async def body():
        log, elsewhere = SqliteLog(path, Clock()), SqliteLog(path, Clock())
        one, two = begin(log, "t-1"), begin(elsewhere, "t-2")
        await log.append(one, EMPTY, [draft("a")], beside=Beside(claims=("k",), wake_ms=4))
        with pytest.raises(DuplicateEffect):
            await elsewhere.append(two, EMPTY, drafts("x"), beside=Beside(claims=("k",)))
        assert elsewhere.claimant("k") == "t-1" and elsewhere.next_wake("trajectory") == 4
        await elsewhere.close()
        await log.close()

    asyncio.run(body())
