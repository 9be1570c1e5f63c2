"""The example's bank keeps the promises it makes: tests of the runtime rest on them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .servers import BANK, bank_module

ORDER = {"order_id": "A-1001", "cents": 4200}
KEY = "refund:A-1001"


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    """Status and bytes; a POST when there is a body. OSError when there was no answer."""
    data = None if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data=data, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Any]:
    with bank_module().Bank(tmp_path / "bank.db") as bank:
        yield bank


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The bank as a program, and its URL."""
    child = subprocess.Popen([sys.executable, "-B", str(BANK), *arguments], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield child, child.stdout.readline().strip()
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        child.stdout.close()


def wait_for(path: Path) -> str:
    for _ in range(2_000):
        if path.exists():
            return path.read_text()
        time.sleep(0.005)
    raise AssertionError(f"{path} never came")


def test_fifty_at_once_with_one_key_are_one_refund(bank) -> None:
    """R138: each gets the same bytes, or is told that it is in flight."""
    bank.change({"mode": "slow:30"})
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY), range(50)))
    assert len(bank.ledger()["refunds"]) == 1
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) <= {201, 409} and statuses[201] >= 1  # 409 itself: test_http.py, with a barrier
    assert len({body for status, body in answers if status == 201}) == 1
    assert ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY) in answers


def test_a_naive_bank_does_it_as_often_as_it_is_told(bank) -> None:
    ask(f"{bank.url}/mode", {"dedup": False})
    ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY)
    ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY, Bank_Mode="duplicate")
    assert [row["key"] for row in bank.ledger()["refunds"]] == [KEY] * 3
    for _ in range(2):
        assert ask(f"{bank.url}/refunds/1/reversal", {}, Idempotency_Key="undo")[0] == 201
    assert len(bank.ledger()["reversals"]) == 2


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/refunds", ORDER, {}, 400),
        ("/refunds", {"order_id": "A-1001"}, {"Idempotency_Key": "k"}, 422),
        ("/refunds", {"order_id": "A-1001", "cents": 0}, {"Idempotency_Key": "k"}, 422),
        ("/refunds", {"order_id": "A-1001", "cents": True}, {"Idempotency_Key": "k"}, 422),
        ("/refunds", [], {"Idempotency_Key": "k"}, 422),
        ("/refunds", {"order_id": "A-9", "cents": 1}, {"Idempotency_Key": "k"}, 404),
        ("/refunds", {"order_id": "A-1001", "cents": 4201}, {"Idempotency_Key": "k"}, 402),
        ("/refunds", {"order_id": "A-1001", "cents": 1}, {"Idempotency_Key": "k", "Bank_Mode": "chaos"}, 400),
        ("/refunds/1/reversal", {}, {"Idempotency_Key": "k"}, 404),
        ("/elsewhere", {}, {"Idempotency_Key": "k"}, 404),
        ("/mode", {"mode": "slow"}, {}, 400),
        ("/mode", {"mood": "normal"}, {}, 400),
        ("/mode", {"mode": "outage", "next": ["chaos"]}, {}, 400),
        ("/mode", [], {}, 400),
    ],
)
def test_a_wrong_request_is_refused_and_moves_no_money(bank, path, body, headers, status) -> None:
    assert ask(bank.url + path, body, **headers)[0] == status
    assert bank.ledger()["refunds"] == []
    assert ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY)[0] == 201  # and changed no mode


def test_the_same_key_with_another_body_is_refused(bank) -> None:
    """R138"""
    assert ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY)[0] == 201
    status, body = ask(f"{bank.url}/refunds", {**ORDER, "cents": 1}, Idempotency_Key=KEY)
    assert status == 422 and b"key_reused" in body
    status, body = ask(f"{bank.url}/refunds/1/reversal", {}, Idempotency_Key=KEY)
    assert status == 422 and b"key_reused" in body
    assert len(bank.ledger()["refunds"]) == 1 and bank.ledger()["reversals"] == []


def test_a_key_that_is_done_is_never_declined(bank) -> None:
    first = ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY)
    assert ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY, Bank_Mode="decline") == first


def test_a_refund_is_taken_back_once(bank) -> None:
    ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY)
    assert json.loads(ask(f"{bank.url}/orders/A-1001")[1])["refunded_cents"] == 4200
    first = ask(f"{bank.url}/refunds/1/reversal", {}, Idempotency_Key="undo")
    assert first[0] == 201 and ask(f"{bank.url}/refunds/1/reversal", {}, Idempotency_Key="undo") == first
    assert ask(f"{bank.url}/refunds/1/reversal", {}, Idempotency_Key="undo again")[0] == 422
    assert len(bank.ledger()["reversals"]) == 1
    assert json.loads(ask(f"{bank.url}/orders/A-1001")[1])["refunded_cents"] == 0


def test_looking_changes_nothing(bank) -> None:
    """R134"""
    ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY)
    bank.trouble("drop")
    before = bank.ledger()
    for path in (f"/refunds?key={KEY}", "/refunds?order_id=A-1001", f"/reversals?key={KEY}", "/orders/A-1001"):
        assert ask(bank.url + path)[0] == 200
    assert bank.ledger() == before
    with pytest.raises(OSError):  # the queued trouble is still there for the next refund
        ask(f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY)


def test_what_was_refunded_survives_the_death_of_the_bank(tmp_path: Path) -> None:
    ledger = str(tmp_path / "bank.db")
    with process("--ledger", ledger) as (child, url):
        first = ask(f"{url}/refunds", ORDER, Idempotency_Key=KEY)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    with process("--ledger", ledger) as (child, url):
        assert ask(f"{url}/refunds", ORDER, Idempotency_Key=KEY) == first
        child.terminate()
        assert child.wait(timeout=10) == 0


CLIENT = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1] + "/refunds", data=sys.argv[2].encode(), headers={"Idempotency-Key": "k"})
print(urllib.request.urlopen(request).read())
"""


def test_a_client_can_be_killed_between_the_commit_and_its_answer(tmp_path: Path) -> None:
    """B3: no luck and no sleep; the file appears when the money has moved, and the answer waits until it is gone."""
    pause = tmp_path / "committed"
    with process("--ledger", str(tmp_path / "bank.db"), "--pause-after-commit", str(pause)) as (_, url):
        client = subprocess.Popen([sys.executable, "-c", CLIENT, url, json.dumps(ORDER)], stdout=subprocess.PIPE)
        assert client.stdout is not None
        assert wait_for(pause) == "k"
        client.kill()
        assert client.wait() == -signal.SIGKILL and client.stdout.read() == b""
        client.stdout.close()
        pause.unlink()
        found = json.loads(ask(f"{url}/refunds?key=k")[1])["refunds"]
        assert [row["order_id"] for row in found] == ["A-1001"]
        status, _ = ask(f"{url}/refunds", {"order_id": "A-1002", "cents": 5}, Idempotency_Key="other")
        assert status == 201 and not pause.exists()  # it pauses once


def test_orders_may_come_from_a_file(tmp_path: Path) -> None:
    orders = tmp_path / "orders.json"
    orders.write_text(json.dumps({"Z/1 ü": {"cents": 7, "status": "delivered"}}))
    arguments = ("--ledger", str(tmp_path / "bank.db"), "--orders", str(orders), "--no-dedup", "--mode", "duplicate")
    with process(*arguments) as (_, url):
        assert ask(f"{url}/refunds", {"order_id": "Z/1 ü", "cents": 7}, Idempotency_Key="k")[0] == 201
        assert len(json.loads(ask(f"{url}/ledger")[1])["refunds"]) == 2
        assert ask(f"{url}/orders/A-1001")[0] == 404


def test_a_bank_that_is_closed_leaves_no_thread(tmp_path: Path) -> None:
    import threading

    before = set(threading.enumerate())
    with bank_module().Bank(tmp_path / "bank.db") as bank, ThreadPoolExecutor(1) as pool:
        bank.trouble("commit-then-hang")
        hanging = pool.submit(ask, f"{bank.url}/refunds", ORDER, Idempotency_Key=KEY)
        for _ in range(2_000):
            if bank.ledger()["refunds"]:
                break
            time.sleep(0.005)
        bank.stopped.set()
        with pytest.raises(OSError):
            hanging.result()
    assert not {thread for thread in set(threading.enumerate()) - before if thread.is_alive()}
