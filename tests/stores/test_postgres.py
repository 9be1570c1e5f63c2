"""What is Postgres's own: sessions that are lost, locks, the database's clock, and what a statement may be."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from setpoint.adapters.stores import open_log, this_owner
from setpoint.kernel.errors import Fault, LeaseLost, LogCorrupt, StatementRefused, StoreFault, UsageFault
from setpoint.ports.log import Beside, Head, Statement

from .words import EMPTY, OTHER, OWNER, TTL_MS, Clock, begin, drafts, texts

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

from setpoint.adapters.stores import postgres_session  # noqa: E402
from setpoint.adapters.stores.postgres import PostgresLog  # noqa: E402
from setpoint.adapters.stores.postgres_session import name_of  # noqa: E402
from setpoint.adapters.stores.postgres_statements import with_psycopg_names  # noqa: E402

from .test_processes import child  # noqa: E402


@pytest.fixture
def db(postgres_url) -> Iterator[psycopg.Connection]:
    """The user's own session."""
    with psycopg.connect(postgres_url, autocommit=True) as db:
        yield db


@pytest.fixture
def run(postgres_url):
    def run_body(body):
        async def whole():
            log = PostgresLog(postgres_url, Clock())
            try:
                return await body(log)
            finally:
                with contextlib.suppress(Fault):
                    await log.close()

        return asyncio.run(whole())

    return run_body


SESSIONS = "FROM pg_stat_activity WHERE application_name = 'setpoint' AND datname = current_database()"


def sessions(db) -> int:
    return db.execute(f"SELECT count(*) {SESSIONS}").fetchone()[0]


def end_sessions(db) -> int:
    """The server ends every session of Setpoint's; how many there were."""
    (count,) = db.execute(f"SELECT count(pg_terminate_backend(pid)) {SESSIONS}").fetchone()
    while sessions(db):
        time.sleep(0.005)
    return count


# Sessions.


def test_a_closed_store_leaves_no_session_behind(run, db):
    async def body(log):
        await log.append(begin(log), EMPTY, drafts("a"))

    run(body)
    deadline = time.monotonic() + 10
    while sessions(db):  # the server notices within milliseconds
        assert time.monotonic() < deadline


def test_lost_sessions_are_opened_anew(run, db):
    async def body(log):
        lease = begin(log)
        head = await log.append(lease, EMPTY, drafts("a"))
        assert end_sessions(db) == 2
        assert log.head("t-1") == head  # a read
        assert end_sessions(db) >= 1
        head = await log.append(lease, head, drafts("b"), beside=Beside(claims=("k",)))  # an append
        assert end_sessions(db) >= 1
        await log.append(lease, head, drafts("c"), durable=False)
        await log.flush("t-1")
        assert texts(log, "t-1") == ["a", "b", "c"] and log.claimant("k") == "t-1"
        end_sessions(db)
        lease = log.renew(lease, TTL_MS)  # a lease
        end_sessions(db)
        assert log.deliver("t-1", "k", b"{}")  # a message
        end_sessions(db)
        log.create("t-2", "trajectory")
        assert log.holder("t-1") == lease and len(log.inbox("t-1")) == 1

    run(body)


@pytest.mark.parametrize("has_committed", [True, False])
def test_a_session_lost_while_it_commits_leaves_no_doubt(run, db, has_committed):
    """The log tells whether the events are there; either way they are there once."""
    db.execute("CREATE TABLE mine (id int)")

    async def body(log):
        lease, other = begin(log), begin(log, "t-2")
        writer = log._batches
        write, lost = writer._write_once, []

        def lose_the_first(jobs, in_doubt):
            if lost:
                return write(jobs, in_doubt)
            lost.append(jobs)
            outcomes = write(jobs, in_doubt) if has_committed else None
            writer._is_committing = True
            writer.session.close()
            raise psycopg.OperationalError(f"the connection is lost {outcomes}")

        beside = Beside(claims=("k",), statements=(Statement("INSERT INTO mine VALUES (1)"),), wake_ms=3)
        with log._commits.writing:  # so that both are one batch
            log._batches._write_once = lose_the_first
            tasks = [
                asyncio.create_task(log.append(lease, EMPTY, drafts("a"), beside=beside)),
                asyncio.create_task(log.append(other, EMPTY, drafts("b"))),
            ]
            await asyncio.sleep(0)
        heads = await asyncio.gather(*tasks)
        assert len(lost) == 1 and heads == [log.head("t-1"), log.head("t-2")]
        assert texts(log, "t-1") == ["a"] and texts(log, "t-2") == ["b"]
        assert db.execute("SELECT id FROM mine").fetchall() == [(1,)]
        assert log.claimant("k") == "t-1" and log.next_wake("trajectory") == 3
        await log.append(lease, heads[0], drafts("c"))

    run(body)


def test_statements_without_an_event_beside_them_are_doubtful_when_the_session_is_lost_while_it_commits(run, db):
    db.execute("CREATE TABLE mine (id int)")

    async def body(log):
        lease = begin(log)
        writer = log._batches
        write = writer._write_once

        def lose(jobs, in_doubt):
            writer._write_once = write
            write(jobs, in_doubt)
            writer.session.close()
            raise psycopg.OperationalError("the connection is lost")

        writer._write_once = lose
        with pytest.raises(StoreFault, match="whether they were is not known") as caught:
            add = Statement("INSERT INTO mine VALUES (1)")
            await log.append(lease, EMPTY, [], beside=Beside(statements=(add,)))
        assert caught.value.effect == "in_doubt"
        assert db.execute("SELECT id FROM mine").fetchall() == [(1,)]  # and not twice

    run(body)


def test_a_session_that_stays_lost_while_it_commits_is_told_as_doubt(run, monkeypatch):
    async def body(log):
        lease = begin(log)
        writer = log._batches
        write = writer._write_once

        def lose(jobs, in_doubt):
            write(jobs, in_doubt)
            writer.session.close()
            monkeypatch.setattr(writer.session, "_connect", refuse)
            raise psycopg.OperationalError("the connection is lost")

        def refuse():
            raise psycopg.OperationalError("connection refused")

        monkeypatch.setattr("setpoint.adapters.stores.postgres_batch.RECONNECT_S", 0)
        monkeypatch.setattr(writer, "_write_once", lose)
        with pytest.raises(StoreFault, match="whether it was written is not known") as caught:
            await log.append(lease, EMPTY, drafts("a"))
        assert caught.value.effect == "in_doubt"
        assert texts(log, "t-1") == ["a"]  # reads have a session of their own

    run(body)


def test_a_worker_stopped_inside_a_transaction_holds_nobody_up_and_is_fenced_when_it_wakes(postgres_url):
    """R180: the server ends the transaction that stands still, and with it the lock on the stream."""
    sleeper = """
        import signal, threading
        from setpoint.adapters.stores import postgres_batch, postgres_session
        postgres_session.IDLE_MS = 300
        write = postgres_batch._write_events

        def stop(db, admitted):
            postgres_batch._write_events = write
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            write(db, admitted)

        async def main():
            log = open_log(sys.argv[1], now)
            lease = log.claim("t-1", this_owner(), 200)
            head = await log.append(lease, Head(0, ZERO_HASH), [draft(1)])
            postgres_batch._write_events = stop
            say("ready")
            try:
                await log.append(lease, head, [draft(666)], beside=Beside(claims=("k",)))
                say("wrote")
            except LeaseLost as fault:
                say("fenced", fault.effect)
            await log.close()
        asyncio.run(main())
    """
    log = open_log(postgres_url, Clock())
    log.create("t-1", "trajectory")
    with child(sleeper, postgres_url) as worker:
        assert worker.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(LeaseLost):
                lease = log.claim("t-1", this_owner(), TTL_MS)
                break
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert lease.fence == 2
        asyncio.run(log.append(lease, log.head("t-1"), drafts("taken over")))
        worker.send_signal(signal.SIGCONT)
        assert worker.stdout.readline() == "fenced not_sent\n"
        assert worker.wait(10) == 0
    assert texts(log, "t-1") == ["1", "taken over"] and log.claimant("k") is None
    asyncio.run(log.close())


def test_an_append_that_meets_a_claim_of_its_lease_waits_for_it_and_is_fenced(run, db):
    """R180"""

    async def body(log):
        lease = begin(log)
        with db.transaction():
            db.execute("UPDATE setpoint.stream SET fence = 2")  # as another process that claims it right now
            task = asyncio.create_task(log.append(lease, EMPTY, drafts("x")))
            deadline = time.monotonic() + 10
            while db.execute(f"SELECT count(*) {SESSIONS} AND wait_event_type = 'Lock'").fetchone() != (1,):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.005)
        with pytest.raises(LeaseLost):
            await task
        assert texts(log, "t-1") == []

    run(body)


# Batches.


def test_a_hundred_concurrent_streams_share_commits(run):
    """R170"""

    async def body(log):
        leases = [begin(log, f"t-{n}") for n in range(100)]
        heads = [EMPTY] * 100
        before = log.syncs
        for turn in range(5):
            heads = await asyncio.gather(
                *(log.append(leases[n], heads[n], drafts(f"{turn}"), beside=Beside(wake_ms=n)) for n in range(100))
            )
        assert log.syncs - before <= 50  # of 500 appends
        assert all(texts(log, f"t-{n}") == ["0", "1", "2", "3", "4"] for n in range(0, 100, 9))

    run(body)


def test_what_cannot_be_stored_fails_its_own_append_and_what_follows_it(run):
    async def body(log):
        odd, sound = begin(log, "t-1"), begin(log, "t-2")
        with log._commits.writing:  # so that all surely are one batch
            tasks = [
                asyncio.create_task(log.append(odd, EMPTY, drafts("x"), checkpoint=object())),
                asyncio.create_task(log.append(sound, EMPTY, drafts("a"))),
            ]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], StoreFault) and isinstance(results[1], Head), results
        assert texts(log, "t-2") == ["a"] and texts(log, "t-1") == []

    run(body)


def test_a_full_disk_fails_the_whole_batch_and_loses_nothing_acknowledged(run, db):
    """The server's own words for it, from a trigger: the whole way from the error to the fault is real."""
    db.execute(
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$"
    )

    async def body(log):
        leases = [begin(log, f"t-{n}") for n in range(3)]
        heads = await asyncio.gather(*(log.append(lease, EMPTY, drafts("a")) for lease in leases))
        db.execute("CREATE TRIGGER full_disk BEFORE INSERT ON setpoint.event EXECUTE FUNCTION fill()")
        results = await asyncio.gather(
            *(log.append(leases[n], heads[n], drafts("x"), beside=Beside(claims=(f"k-{n}",))) for n in range(3)),
            return_exceptions=True,
        )
        assert all(isinstance(r, StoreFault) and "disk is full" in str(r) and r.effect == "not_sent" for r in results)
        db.execute("DROP TRIGGER full_disk ON setpoint.event")
        assert [texts(log, f"t-{n}") for n in range(3)] == [["a"]] * 3 and log.claimant("k-0") is None
        await asyncio.gather(*(log.append(leases[n], heads[n], drafts("b")) for n in range(3)))

    run(body)


def test_a_deadlock_of_the_users_making_is_run_again(run, db, postgres_url):
    db.execute(f"ALTER DATABASE {db.info.dbname} SET deadlock_timeout = '50ms'")
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, n int NOT NULL)")
    db.execute("INSERT INTO orders VALUES (1, 0), (2, 0)")

    def take(*ids: int) -> Beside:
        slow = "UPDATE orders SET n = n + 1 FROM (SELECT pg_sleep(0.2)) AS pause WHERE id = :id"
        return Beside(statements=tuple(Statement(slow, {"id": id}) for id in ids))

    async def body(log):
        other = PostgresLog(postgres_url, Clock())
        one, two = begin(log, "t-1"), begin(log, "t-2")
        await asyncio.gather(
            log.append(one, EMPTY, drafts("a"), beside=take(1, 2)),
            other.append(two, EMPTY, drafts("b"), beside=take(2, 1)),
        )
        assert db.execute("SELECT n FROM orders").fetchall() == [(2,), (2,)]
        assert db.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
        assert texts(log, "t-1") == ["a"] and texts(log, "t-2") == ["b"]
        await other.close()

    run(body)


def test_a_row_that_another_session_keeps_locked_refuses_the_statement(db, postgres_url, monkeypatch):
    monkeypatch.setattr(postgres_session, "LOCK_MS", 100)
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    db.execute("INSERT INTO orders VALUES (1)")

    async def body():
        log = PostgresLog(postgres_url, Clock())
        lease = begin(log)
        with db.transaction():
            db.execute("SELECT * FROM orders FOR UPDATE")
            with pytest.raises(StatementRefused, match="lock timeout"):
                delete = Statement("DELETE FROM orders WHERE id = 1")
                await log.append(lease, EMPTY, drafts("x"), beside=Beside(statements=(delete,)))
        await log.append(lease, EMPTY, drafts("a"), beside=Beside(statements=(delete,)))
        await log.close()

    asyncio.run(body())


def test_a_constraint_that_is_checked_at_the_end_fails_its_own_append(run, db):
    db.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    db.execute("CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")

    async def body(log):
        leases = [begin(log, f"t-{n}") for n in range(3)]
        child_first = (Statement("INSERT INTO child VALUES (1)"), Statement("INSERT INTO parent VALUES (1)"))
        with log._commits.writing:  # so that all surely are one batch
            tasks = [
                asyncio.create_task(log.append(lease, EMPTY, drafts("a"), beside=Beside(statements=statements)))
                for lease, statements in zip(
                    leases, [child_first, (Statement("INSERT INTO child VALUES (9)"),), ()], strict=True
                )
            ]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[1], StatementRefused) and "foreign key" in str(results[1])
        assert [isinstance(r, Head) for r in results] == [True, False, True]
        assert db.execute("SELECT parent FROM child").fetchall() == [(1,)]
        assert [texts(log, f"t-{n}") for n in range(3)] == [["a"], [], ["a"]]

    run(body)


# Leases and mail.


def test_the_databases_clock_times_the_leases_whatever_the_workers_clocks_say(postgres_url):
    async def body():
        behind, ahead = PostgresLog(postgres_url, lambda: 0), PostgresLog(postgres_url, lambda: 9 * 10**12)
        behind.create("t-1", "trajectory")
        lease = behind.claim("t-1", OWNER, 60_000)
        assert abs(lease.expires_at_ms - 60_000 - time.time_ns() // 1_000_000) < 5_000
        assert ahead.holder("t-1") == lease
        with pytest.raises(LeaseLost):
            ahead.claim("t-1", OTHER, 60_000)
        behind.renew(lease, 0)
        assert ahead.claim("t-1", OTHER, 60_000).fence == 2
        await behind.close()
        await ahead.close()

    asyncio.run(body())


def test_mail_of_another_process_is_seen_within_the_bound(postgres_url):
    async def body():
        log, elsewhere = PostgresLog(postgres_url, Clock()), PostgresLog(postgres_url, Clock())
        begin(log)
        assert log.inbox("t-1") == []
        elsewhere.deliver("t-1", "k", b"{}")
        deadline = time.monotonic() + 5
        while not log.inbox("t-1"):
            assert time.monotonic() < deadline
        assert log.inbox("t-1") == [(1, "k", b"{}")] and log.inbox("t-1", after=1) == []
        await elsewhere.close()
        await log.close()

    asyncio.run(body())


# Damage.


@pytest.mark.parametrize("sql", ["UPDATE setpoint.event SET turn = 2", "DELETE FROM setpoint.event",
                                 "TRUNCATE setpoint.event"])  # fmt: skip
def test_the_database_itself_refuses_to_change_an_event(run, db, sql):
    """R050"""

    async def body(log):
        await log.append(begin(log), EMPTY, drafts("a"))
        with pytest.raises(psycopg.IntegrityError, match="append-only"):
            db.execute(sql)
        assert texts(log, "t-1") == ["a"]

    run(body)


@pytest.mark.parametrize(
    ("sql", "seq", "says"),
    [
        ("UPDATE setpoint.event SET data = '{}' WHERE seq = 4", 4, "does not match its hash"),
        ("DELETE FROM setpoint.event WHERE seq = 4", 4, "event 4 is missing"),
        ("DELETE FROM setpoint.event WHERE seq > 8", 9, "events end at 8, the head is at 10"),
        ("UPDATE setpoint.stream SET seq = 9", 10, "beyond its head at 9"),
    ],
)
def test_an_alteration_is_found_where_it_is(run, db, sql, seq, says):
    """R050"""

    async def body(log):
        await log.append(begin(log), EMPTY, drafts(*map(str, range(10))))
        db.execute("DROP TRIGGER event_is_never_changed ON setpoint.event")
        db.execute(sql)
        with pytest.raises(LogCorrupt, match=says) as caught:
            list(log.read("t-1"))
        assert (caught.value.stream, caught.value.seq) == ("t-1", seq)

    run(body)


def test_an_append_onto_a_log_that_already_goes_on_fails_alone(run, db):
    async def body(log):
        damaged, sound = begin(log, "t-1"), begin(log, "t-2")
        head = await log.append(damaged, EMPTY, drafts("a"))
        db.execute("INSERT INTO setpoint.event SELECT stream, 2, turn, type, v, at, hash, data FROM setpoint.event")
        with log._commits.writing:
            tasks = [
                asyncio.create_task(log.append(damaged, head, drafts("x"))),
                asyncio.create_task(log.append(sound, EMPTY, drafts("b"))),
            ]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], StoreFault) and "contradicts itself" in str(results[0])
        assert isinstance(results[1], Head) and texts(log, "t-2") == ["b"]

    run(body)


# Statements.


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        ("UPDATE t SET a=:a WHERE b=:b_2", "UPDATE t SET a=%(a)s WHERE b=%(b_2)s"),
        ("INSERT INTO t VALUES (:a::int, '5%', 'it''s :a')", "INSERT INTO t VALUES (%(a)s::int, '5%%', 'it''s :a')"),
        ("SELECT E'\\':a' || $$ :a $$ || $q$ $$ :a $q$", "SELECT E'\\':a' || $$ :a $$ || $q$ $$ :a $q$"),
        ("DELETE FROM t -- :a\nWHERE \":a\" = :a /* :a */", "DELETE FROM t -- :a\nWHERE \":a\" = %(a)s /* :a */"),
        ("UPDATE pid SET setpoint = :setpoint", "UPDATE pid SET setpoint = %(setpoint)s"),
        ("-- a note\n  (SELECT 1)", "-- a note\n  (SELECT 1)"),
    ],
)  # fmt: skip
def test_named_parameters_are_found_where_they_are_and_nowhere_else(sql, made):
    assert with_psycopg_names(sql) == made


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("UPDATE setpoint.stream SET fence = 7", "names the schema setpoint"),
        ("DELETE FROM SetPoint /* */ . inbox", "names the schema setpoint"),
        ('DELETE FROM "setpoint"."inbox"', "names the schema setpoint"),
        ('DELETE FROM U&"setp\\006fint".inbox', "U&"),
        ("INSERT INTO mine SELECT seq FROM setpoint.stream", "names the schema setpoint"),
        ("WITH gone AS (DELETE FROM setpoint.inbox) DELETE FROM mine", "names the schema setpoint"),
        ("SELECT set_config('search_path', 'setpoint', false)", "may not change settings"),
        ("SELECT pg_catalog.set_config('synchronous_commit', 'off', false)", "may not change settings"),
        ("INSERT INTO mine VALUES (1); COMMIT", "multiple commands"),
        ("COMMIT", "may only read and change rows"),
        ("/* x */ ROLLBACK", "may only read and change rows"),
        ("ROLLBACK TO SAVEPOINT beside", "may only read and change rows"),
        ("SET search_path = setpoint", "may only read and change rows"),
        ("SET synchronous_commit = off", "may only read and change rows"),
        ("DO $$ BEGIN DELETE FROM setpoint.inbox; END $$", "may only read and change rows"),
        ("TRUNCATE mine", "may only read and change rows"),
        ("CREATE TABLE more (id int)", "may only read and change rows"),
        ("DROP SCHEMA setpoint CASCADE", "may only read and change rows"),
        ("COPY mine FROM PROGRAM 'true'", "may only read and change rows"),
        ("CALL p()", "may only read and change rows"),
        ("", "may only read and change rows"),
    ],
)
def test_a_statement_only_reads_and_changes_rows_of_the_users_own(run, db, sql, says):
    db.execute("CREATE TABLE mine (id int)")

    async def body(log):
        lease = begin(log)
        log.deliver("t-1", "k", b"{}")
        first = Statement("INSERT INTO mine VALUES (:id)", {"id": 0})
        with pytest.raises(StatementRefused, match=says):
            await log.append(lease, EMPTY, drafts("x"), beside=Beside(statements=(first, Statement(sql))))
        assert db.execute("SELECT count(*) FROM mine").fetchone() == (0,)
        assert len(log.inbox("t-1")) == 1 and texts(log, "t-1") == []
        await log.append(lease, EMPTY, drafts("a"), beside=Beside(statements=(first,)))

    run(body)


# Opening.


def test_urls_that_name_no_database_we_can_use_are_refused(postgres_url, postgres_server):
    for url, says in (
        (postgres_server.url("nowhere"), "database \"nowhere\" does not exist"),
        ("postgresql://u:secret@127.0.0.1:1/db?connect_timeout=2", "cannot be reached"),
    ):  # fmt: skip
        with pytest.raises(StoreFault, match=says) as caught:
            open_log(url, Clock())
        assert "secret" not in str(caught.value)
    with pytest.raises(UsageFault, match="not understood"):
        open_log("postgresql://host/db?nonsense=1", Clock())
    assert name_of("postgresql://u:secret@h:5433/db?sslmode=require") == "postgresql://u@h:5433/db"


def test_without_its_driver_the_url_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageFault, match="needs psycopg") as caught:
        open_log("postgresql://host/db", Clock())
    assert "pip install 'setpoint[postgres]'" in str(caught.value)


def test_a_schema_of_another_program_is_left_as_it_is(postgres_url, db):
    db.execute("CREATE SCHEMA setpoint")
    db.execute("CREATE TABLE setpoint.mine (id int)")
    with pytest.raises(StoreFault, match="another program's"):
        open_log(postgres_url, Clock())
    tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'setpoint'").fetchall()
    assert tables == [("mine",)]


def test_a_newer_schema_is_refused(postgres_url, db):
    asyncio.run(open_log(postgres_url, Clock()).close())
    db.execute("UPDATE setpoint.version SET version = 99")
    with pytest.raises(StoreFault, match="has schema version 99; this Setpoint knows up to 1"):
        open_log(postgres_url, Clock())


def test_a_user_who_may_not_make_the_tables_is_told(postgres_url, db, postgres_server):
    db.execute("CREATE ROLE guest LOGIN")
    try:
        with pytest.raises(StoreFault, match=r"refuses this user .*permission denied"):
            open_log(postgres_url.replace("setpoint@", "guest@"), Clock())
    finally:
        db.execute("DROP ROLE guest")


def test_several_processes_may_make_the_tables_at_once(postgres_url):
    opener = """
        say("ready"); sys.stdin.readline()
        log = open_log(sys.argv[1], now)
        log.create(sys.argv[2], "trajectory")
        asyncio.run(log.close())
    """
    with child(opener, postgres_url, "a") as one, child(opener, postgres_url, "b") as two:
        for process in (one, two):
            assert process.stdout.readline() == "ready\n"
        for process in (one, two):
            process.stdin.write("\n")
            process.stdin.flush()
        assert one.wait(20) == two.wait(20) == 0
    log = open_log(postgres_url, Clock())
    assert {info.stream for info in log.streams()} == {"a", "b"}
    asyncio.run(log.close())


def test_only_a_server_that_syncs_claims_to_survive_a_power_cut(postgres_url, db):
    def durability(url: str) -> str:
        log = open_log(url, Clock())
        asyncio.run(log.close())
        return log.durability

    assert durability(postgres_url) == "process"  # the server of these tests does not sync
    try:
        for setting in ("fsync", "full_page_writes"):
            db.execute(f"ALTER SYSTEM SET {setting} = on")
        db.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 20
        while durability(postgres_url) != "power":
            assert time.monotonic() < deadline
        assert durability(postgres_url + "&options=-csynchronous_commit%3Doff") == "process"
    finally:
        db.execute("ALTER SYSTEM RESET ALL")
        db.execute("SELECT pg_reload_conf()")


def test_nothing_of_a_released_stream_is_left_in_memory(run):
    """L12"""

    async def body(log):
        for n in range(20):
            lease = begin(log, f"t-{n}")
            await log.append(lease, EMPTY, drafts("a"))
            log.inbox(f"t-{n}")
            log.release(lease)
        assert [len(table) for table in (log._templates, log._leased, log._commits._under_way)] == [0] * 3

    run(body)
