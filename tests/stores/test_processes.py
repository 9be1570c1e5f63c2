"""Several processes at one store: killed in the middle, racing for a lease, racing for a head, stopped too long."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from setpoint.adapters.stores import open_log, this_owner
from setpoint.adapters.stores.owner import is_provably_dead
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.kernel.errors import LeaseLost
from setpoint.ports.log import Lease, Log

from .words import EMPTY, TTL_MS, drafts, texts

PREAMBLE = """
import asyncio, os, sys, time
from setpoint.adapters.stores import open_log, this_owner
from setpoint.kernel.errors import DuplicateEffect, Fault, HeadMoved, LeaseLost
from setpoint.ports.log import ZERO_HASH, Beside, Draft, Head, Lease, Statement
AT = "2026-01-01T00:00:00.000Z"
def now(): return time.time_ns() // 1_000_000
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def draft(n): return Draft(1, "A", b'{"text":"%d"}' % n, AT)
"""

KILLS = 30


def now() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log.db")


@contextmanager
def child(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own; killed, if it still runs, and reaped."""
    with subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


WRITER = """
    async def stream(log, name):
        lease = log.claim(name, this_owner(), 60_000)
        head = log.head(name)
        while True:
            head = await log.append(lease, head, [draft(head.seq), draft(head.seq + 1)], durable=False)
            row = Statement("INSERT INTO done VALUES (:name, :seq)", {"name": name, "seq": head.seq + 1})
            beside = Beside(claims=(f"{name}:{head.seq + 1}",), statements=(row,), wake_ms=head.seq + 1)
            head = await log.append(lease, head, [draft(head.seq)], payloads=[b"%d" % head.seq], checkpoint=b"r",
                                    beside=beside)
            say(name, head.seq, head.hash)

    async def main():
        log = open_log(sys.argv[1], now)
        await asyncio.gather(*(stream(log, f"t-{n}") for n in range(3)))

    asyncio.run(main())
"""


def test_a_process_killed_at_any_moment_loses_nothing_it_acknowledged(sql_url, user):
    """R050 R167 R170 R178: 30 kills, one log; the next process takes the lease over at once.

    Keys of outside effects, wake-up times and the user's own rows stand or fall with the events they went down beside.
    """
    chance = random.Random(1)
    acknowledged = {f"t-{n}": EMPTY for n in range(3)}
    user("CREATE TABLE done (name TEXT, seq BIGINT)")

    async def setup():
        log = open_log(sql_url, now)
        for name in acknowledged:
            log.create(name, "trajectory")
        await log.close()

    asyncio.run(setup())
    for kill in range(KILLS):
        with child(WRITER, sql_url) as writer:
            for _ in range(chance.randint(1, 60)):
                writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
            lines = writer.stdout.read().splitlines()  # what was acknowledged before the signal came
        asyncio.run(check(sql_url, user, acknowledged, lines, kill))


async def check(url, user, acknowledged, lines, kill):
    """Each stream verifies to its head, and the head lies at or beyond everything acknowledged."""
    told = dict(acknowledged)
    for line in lines:
        if line.count(" ") == 2 and len(line) > 70:
            name, seq, hash = line.split()
            told[name] = type(EMPTY)(int(seq), hash)
    log = open_log(url, now)
    for name in told:  # a server may still be at work on what a client asked before it died; this waits for it
        log.release(log.claim(name, this_owner(), TTL_MS))
    for name, head in told.items():
        events = list(log.read(name))
        assert len(events) >= head.seq, f"kill {kill}: {name} lost acknowledged events"
        if head.seq:
            assert events[head.seq - 1].hash == head.hash
        assert [e.data for e in events] == [b'{"text":"%d"}' % n for n in range(len(events))]
        assert log.holder(name) is None  # its holder is dead
        if head.seq:
            assert log.checkpoint(name).seq >= acknowledged[name].seq
        acknowledged[name] = log.head(name)
        check_beside(log, user, name, acknowledged[name].seq)
    await log.close()


def check_beside(log, user, name, last):
    """What went down beside the third of every three events is there exactly as far as the events are."""
    thirds = [*range(3, last + 1, 3)]
    assert user(f"SELECT seq FROM done WHERE name='{name}' ORDER BY seq") == [(seq,) for seq in thirds]
    assert [log.claimant(f"{name}:{seq}") for seq in thirds[-5:]] == [name] * len(thirds[-5:])
    assert log.claimant(f"{name}:{last // 3 * 3 + 3}") is None
    assert (name, thirds[-1]) in log.due("trajectory", 10**9, 9) if thirds else True


def test_a_process_that_dies_before_any_statement_of_an_append_leaves_all_of_it_or_nothing(sql_url, user):
    """R178: the n-th process dies as the n-th statement (or message, to a server) is about to go, until one lives."""
    killer = """
        import itertools, signal

        def dies_at(n, ran=itertools.count()):
            if next(ran) == n:
                os.kill(os.getpid(), signal.SIGKILL)

        async def append(n):
            log = open_log(sys.argv[1], now)
            lease = log.claim(f"t-{n}", this_owner(), 60_000)
            if sys.argv[1].startswith("sqlite"):
                log._batches.connection.set_trace_callback(lambda _: dies_at(n))
            else:
                import psycopg
                execute = psycopg.Cursor.execute
                psycopg.Cursor.execute = lambda *a, **k: (dies_at(n), execute(*a, **k))[1]
            row = Statement("INSERT INTO done VALUES (:n)", {"n": n})
            beside = Beside(claims=(f"k-{n}",), statements=(row,), wake_ms=n)
            await log.append(lease, Head(0, ZERO_HASH), [draft(1), draft(2)], payloads=[b"p"], checkpoint=b"r",
                             beside=beside)

        for n in itertools.count():
            pid = os.fork()
            if pid == 0:
                asyncio.run(append(n))
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            say(n, os.waitstatus_to_exitcode(status))
            if status == 0:
                break
        say("done"); sys.stdin.readline()
    """
    user("CREATE TABLE done (n BIGINT)")
    log = open_log(sql_url, now)
    for n in range(40):
        log.create(f"t-{n}", "trajectory")
    with child(killer, sql_url) as process:
        said = until_done(process)
        finish(process)
    deaths = len(said) - 1
    assert said == [*(f"{n} -9" for n in range(deaths)), f"{deaths} 0"] and 6 <= deaths < 40
    for n in range(deaths + 1):
        log.release(log.claim(f"t-{n}", this_owner(), TTL_MS))  # a server may still be at work on it; this waits
        whole = n == deaths
        assert texts(log, f"t-{n}") == (["1", "2"] if whole else [])
        assert log.claimant(f"k-{n}") == (f"t-{n}" if whole else None)
        assert (log.checkpoint(f"t-{n}") is not None) is whole
    assert user("SELECT n FROM done") == [(deaths,)]
    assert log.due("trajectory", 99, 99) == [(f"t-{deaths}", deaths)]
    asyncio.run(log.close())


def test_of_two_processes_racing_for_a_lease_exactly_one_gets_it(sql_url):
    """R180"""
    racer = """
        log = open_log(sys.argv[1], now)
        say("ready"); sys.stdin.readline()
        for n in range(60):
            try:
                lease = log.claim(f"t-{n}", this_owner(), 60_000)
                asyncio.run(log.append(lease, Head(0, ZERO_HASH), [draft(os.getpid())]))
                say(n, "won", lease.fence)
            except LeaseLost:
                say(n, "lost")
        say("done"); sys.stdin.readline()
        asyncio.run(log.close())
    """
    log = open_log(sql_url, now)
    for n in range(60):
        log.create(f"t-{n}", "trajectory")
    with child(racer, sql_url) as one, child(racer, sql_url) as two:
        said = [until_done(p) for p in started(one, two)]
        for n in range(60):
            outcomes = sorted(lines[n] for lines in said)
            assert outcomes == [f"{n} lost", f"{n} won 1"], outcomes
            assert len(texts(log, f"t-{n}")) == 1
        finish(one, two)
    asyncio.run(log.close())


def test_of_two_processes_racing_for_a_key_exactly_one_claims_it_and_the_other_writes_nothing(sql_url):
    """R180"""
    racer = """
        async def main():
            log = open_log(sys.argv[1], now)
            leases = [log.claim(f"{sys.argv[2]}-{n}", this_owner(), 60_000) for n in range(60)]
            say("ready"); sys.stdin.readline()
            for n in range(0, 60, 5):  # several at once, so that batches meet batches
                results = await asyncio.gather(
                    *(log.append(lease, Head(0, ZERO_HASH), [draft(1)], beside=Beside(claims=(f"k-{n + i}",)))
                      for i, lease in enumerate(leases[n : n + 5])), return_exceptions=True)
                for i, result in enumerate(results):
                    if isinstance(result, Head): say(n + i, "won")
                    elif isinstance(result, DuplicateEffect): say(n + i, "lost", result.holder)
                    else: say(n + i, repr(result))
            say("done"); sys.stdin.readline()
            await log.close()
        asyncio.run(main())
    """
    log = open_log(sql_url, now)
    for n in range(60):
        log.create(f"a-{n}", "trajectory")
        log.create(f"b-{n}", "trajectory")
    with child(racer, sql_url, "a") as one, child(racer, sql_url, "b") as two:
        said = dict(zip("ab", [until_done(p) for p in started(one, two)], strict=True))
        finish(one, two)
    for n in range(60):
        (winner,) = [who for who in "ab" if said[who][n] == f"{n} won"]
        loser = "ab".replace(winner, "")
        assert said[loser][n] == f"{n} lost {winner}-{n}"
        assert log.claimant(f"k-{n}") == f"{winner}-{n}"
        assert texts(log, f"{winner}-{n}") == ["1"] and texts(log, f"{loser}-{n}") == []
    asyncio.run(log.close())


def test_of_two_processes_appending_at_one_head_each_event_lands_once(sql_url):
    """R180: the same lease in two hands, so that only the head decides."""
    racer = """
        async def main():
            log = open_log(sys.argv[1], now)
            lease = Lease("t-1", 1, sys.argv[2], 0)
            say("ready"); sys.stdin.readline()
            moved = done = 0
            while done < 150:
                head = log.head("t-1")
                try:
                    await log.append(lease, head, [draft(int(sys.argv[3]) + done)])
                    done += 1
                except HeadMoved:
                    moved += 1
            say("moved", moved); say("done"); sys.stdin.readline()
            await log.close()
        asyncio.run(main())
    """
    log = open_log(sql_url, now)
    log.create("t-1", "trajectory")
    lease = log.claim("t-1", this_owner(), TTL_MS)
    with child(racer, sql_url, lease.owner, "0") as one, child(racer, sql_url, lease.owner, "1000") as two:
        for process in started(one, two):
            until_done(process)
        finish(one, two)
    numbers = [int(text) for text in texts(log, "t-1")]
    assert sorted(numbers) == [*range(150), *range(1000, 1150)]
    assert [n for n in numbers if n < 1000] == list(range(150))  # each in its own order
    asyncio.run(log.close())


def test_a_worker_stopped_past_its_lease_is_fenced_when_it_wakes(sql_url):
    """R180"""
    sleeper = """
        async def main():
            log = open_log(sys.argv[1], now)
            lease = log.claim("t-1", this_owner(), 200)
            head = await log.append(lease, Head(0, ZERO_HASH), [draft(1)])
            say("ready"); sys.stdin.readline()
            try:
                await log.append(lease, head, [draft(666)])
                say("wrote")
            except LeaseLost as fault:
                say("fenced", fault.effect)
            await log.close()
        asyncio.run(main())
    """
    log = open_log(sql_url, now)
    log.create("t-1", "trajectory")
    with child(sleeper, sql_url) as worker:
        assert worker.stdout.readline() == "ready\n"
        worker.send_signal(signal.SIGSTOP)
        lease = claim_when_free(log, "t-1")
        assert lease.fence == 2
        asyncio.run(append_one(log, lease))
        worker.send_signal(signal.SIGCONT)
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "fenced not_sent\n"
        worker.wait(10)
    assert texts(log, "t-1") == ["1", "taken over"]
    asyncio.run(log.close())


def test_two_processes_may_make_the_same_store_at_once(path):
    opener = """
        say("ready"); sys.stdin.readline()
        for n in range(20):
            log = open_log(f"sqlite:///{sys.argv[1]}-{n}", now)
            log.create(sys.argv[2], "trajectory")
            asyncio.run(log.close())
        say("done"); sys.stdin.readline()
    """
    with child(opener, path, "a") as one, child(opener, path, "b") as two:
        for process in started(one, two):
            until_done(process)
        finish(one, two)
    for n in range(20):
        log = SqliteLog(f"{path}-{n}", now)
        assert {info.stream for info in log.streams()} == {"a", "b"}
        asyncio.run(log.close())


# Owners.


def test_this_process_is_not_provably_dead():
    assert not is_provably_dead(this_owner())


def test_a_recycled_pid_is_another_owner():
    place, _, start = this_owner().rpartition("/")
    assert is_provably_dead(f"{place}/{int(start) - 1}")


def test_only_a_process_of_this_very_place_can_be_proved_dead():
    host, boot, _, _ = this_owner().split("/")
    gone = 2**22 - 3  # beyond any pid a system under test has
    assert is_provably_dead(f"{host}/{boot}/{gone}/1")
    for elsewhere in (
        f"other/{boot}/{gone}/1",
        f"{host}/other/{gone}/1",
        f"{host}/{boot}/x/1",
        "nonsense",
        "",
        "a/b",
    ):
        assert not is_provably_dead(elsewhere)
    assert not is_provably_dead(f"{host}/{boot}/{os.getppid()}/0")  # start time unknown: may be alive


# Words.


def started(*processes: subprocess.Popen[str]) -> tuple[subprocess.Popen[str], ...]:
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    return processes


def until_done(process: subprocess.Popen[str]) -> list[str]:
    lines = list(iter(process.stdout.readline, "done\n"))
    return [line.strip() for line in lines]


def finish(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.stdin.close()
        assert process.wait(20) == 0


def claim_when_free(log: Log, stream: str) -> Lease:
    deadline = time.monotonic() + 30
    while True:
        try:
            return log.claim(stream, this_owner(), TTL_MS)
        except LeaseLost:
            assert time.monotonic() < deadline
            time.sleep(0.01)


async def append_one(log: Log, lease: Lease) -> None:
    await log.append(lease, log.head(lease.stream), drafts("taken over"))
