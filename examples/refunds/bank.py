"""A fake bank: a real HTTP server on loopback with a ledger on disk, and troubles on request.

    python examples/refunds/bank.py --port 0 --ledger bank.db        # prints its URL, serves until it is stopped
    python examples/refunds/bank.py --ledger bank.db --show          # what it holds

    with Bank("bank.db") as bank:                                     # or inside a test
        bank.trouble("commit-then-timeout")                           # for the next refund
        ...
        assert len(bank.ledger()["refunds"]) == 1

| request | answer |
|---|---|
| `POST /refunds` `{"order_id": ..., "cents": ...}` | 201 and a receipt; 402 declined, 404 no order, 422 malformed |
| `POST /refunds/ID/reversal` | 201 and a receipt; the refund is taken back |
| `POST /letters` `{"to": CUSTOMER, "text": ...}` | 201 and a receipt; 402 when that customer's mail comes back |
| `GET /refunds?key=K` or `?order_id=O` | what the ledger holds; changes nothing |
| `GET /reversals?key=K`, `GET /letters?key=K` | likewise |
| `GET /orders/ID` | the order and what was refunded of it |
| `GET /customers/ID` | their tier, and their orders |
| `GET /ledger` | everything, in every mode; for tests |
| `POST /mode` `{"mode": M, "next": [M, ...], "dedup": true, "pause_after_commit": FILE}` | sets what is given |

Every POST that moves money or sends a letter needs an `Idempotency-Key` header. A key that is done gets the same bytes
again, one in flight 409, a new one is executed once; a key used before with another body gets 422. `dedup: false` makes
a naive bank of it, which does whatever it is told as often as it is told.

A mode is a trouble. `next` is a queue that requests which do something take from, one each; `mode` holds while the
queue is empty; the header `Bank-Mode` holds for its one request and wins over both.

| mode | what happens |
|---|---|
| `normal` | |
| `commit-then-timeout` | the money moves, the connection closes without an answer |
| `commit-then-hang` | the money moves, the answer never comes |
| `commit-then-garbage` | the money moves, the answer breaks off in the middle |
| `drop` | nothing happens, the connection closes without an answer |
| `slow:MS` | the money moves after that time |
| `duplicate` | the delivery is processed twice |
| `rate-limited[:SECONDS]` | 429 with `Retry-After` (1 by default) |
| `outage` | 503 with `Retry-After`; as the standing mode it meets reads too |
| `decline` | 402 with a reason, unless the key is done |
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

ORDERS: dict[str, dict[str, Any]] = {  # days: since the delivery; mail: what becomes of it
    "A-1001": {"customer": "customer:17", "item": "kettle", "cents": 4_200, "status": "delivered", "days": 6},
    "A-1002": {"customer": "customer:17", "item": "desk", "cents": 31_900, "status": "delivered", "days": 11},
    "A-1003": {
        "customer": "customer:31",
        "item": "chair",
        "cents": 8_700,
        "status": "delivered",
        "days": 3,
        "mail": "returned",
    },
    "A-0900": {"customer": "customer:17", "item": "toaster", "cents": 3_900, "status": "delivered", "days": 45},
    "A-2001": {"customer": "customer:23", "item": "lamp", "cents": 5_500, "status": "shipped"},
}
GOLD_FROM_ORDERS = 2
MODES = (
    "normal",
    "commit-then-timeout",
    "commit-then-hang",
    "commit-then-garbage",
    "drop",
    "slow",
    "duplicate",
    "rate-limited",
    "outage",
    "decline",
)
BODY_BYTES_MAX = 64 * 1024
PAUSE_S_MAX = 120


class BadMode(ValueError):
    """No mode of that name."""


@dataclass(frozen=True)
class Mode:
    name: str
    number: int = 0

    @staticmethod
    def read(text: str) -> Mode:
        """BadMode when there is no such mode."""
        name, _, number = text.partition(":")
        takes_number = name in ("slow", "rate-limited")
        if name not in MODES or (number and not (takes_number and number.isdigit())) or (name == "slow" and not number):
            raise BadMode(f"{text!r} is no mode; modes are {', '.join(MODES)} (slow:MS, rate-limited:SECONDS)")
        return Mode(name, int(number or 1))


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(status: int, value: Any, **headers: str) -> Answer:
        body = json.dumps(value, sort_keys=True).encode() + b"\n"
        return Answer(status, body, tuple((name.replace("_", "-"), text) for name, text in headers.items()))

    @staticmethod
    def error(status: int, code: str, message: str, **headers: str) -> Answer:
        return Answer.of(status, {"error": code, "message": message}, **headers)


# The ledger: one SQLite file, one transaction for each movement of money and its remembered answer.

SCHEMA = """
CREATE TABLE IF NOT EXISTS refunds(id INTEGER PRIMARY KEY, key TEXT NOT NULL, order_id TEXT NOT NULL,
    cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS reversals(id INTEGER PRIMARY KEY, key TEXT NOT NULL,
    refund_id INTEGER NOT NULL REFERENCES refunds(id), cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS letters(id INTEGER PRIMARY KEY, key TEXT NOT NULL, recipient TEXT NOT NULL,
    text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers(key TEXT PRIMARY KEY, request TEXT NOT NULL, status INTEGER NOT NULL,
    body BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS refunds_by_key ON refunds(key);
CREATE INDEX IF NOT EXISTS refunds_by_order ON refunds(order_id);
"""
SELECT_REFUNDS = """SELECT id, key, order_id, cents, EXISTS(SELECT 1 FROM reversals WHERE refund_id = refunds.id)
    FROM refunds"""


class Ledger:
    """Money moved, on disk. What a method has returned survives a power cut."""

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(SCHEMA)

    def refund(self, key: str, order_id: str, cents: int, request: str, *, remember: bool) -> Answer:
        with self._transaction():
            row = self._db.execute("INSERT INTO refunds(key, order_id, cents) VALUES (?, ?, ?)", (key, order_id, cents))
            receipt = {"refund_id": row.lastrowid, "key": key, "order_id": order_id, "cents": cents}
            return self._answered(key, request, receipt, remember)

    def reverse(self, key: str, refund_id: int, request: str, *, remember: bool) -> Answer:
        """A naive bank (``remember`` is false) reverses again what is reversed."""
        with self._transaction():
            found = self._db.execute("SELECT cents FROM refunds WHERE id = ?", (refund_id,)).fetchone()
            if found is None:
                return Answer.error(404, "no_such_refund", f"There is no refund {refund_id}.")
            before = self._db.execute("SELECT id FROM reversals WHERE refund_id = ?", (refund_id,)).fetchone()
            if before and remember:
                return Answer.error(422, "reversed", f"Refund {refund_id} was taken back by reversal {before[0]}.")
            row = self._db.execute(
                "INSERT INTO reversals(key, refund_id, cents) VALUES (?, ?, ?)", (key, refund_id, found[0])
            )
            receipt = {"reversal_id": row.lastrowid, "key": key, "refund_id": refund_id, "cents": found[0]}
            return self._answered(key, request, receipt, remember)

    def letter(self, key: str, to: str, text: str, request: str, *, remember: bool) -> Answer:
        with self._transaction():
            row = self._db.execute("INSERT INTO letters(key, recipient, text) VALUES (?, ?, ?)", (key, to, text))
            return self._answered(key, request, {"letter_id": row.lastrowid, "key": key, "to": to}, remember)

    def remembered(self, key: str) -> tuple[str, Answer] | None:
        """The request that was made under this key, and the answer it got."""
        with self._lock:
            row = self._db.execute("SELECT request, status, body FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else (row[0], Answer(row[1], row[2]))

    def refunds(self, key: str | None = None, order_id: str | None = None) -> list[dict[str, Any]]:
        given = [(column, value) for column, value in (("key", key), ("order_id", order_id)) if value is not None]
        where = " AND ".join(f"{column} = ?" for column, _ in given) or "1"
        with self._lock:
            rows = self._db.execute(f"{SELECT_REFUNDS} WHERE {where} ORDER BY id", [value for _, value in given])
            return [
                {"refund_id": row[0], "key": row[1], "order_id": row[2], "cents": row[3], "reversed": bool(row[4])}
                for row in rows
            ]

    def reversals(self, key: str | None = None) -> list[dict[str, Any]]:
        with self._lock:
            rows = self._db.execute(
                "SELECT id, key, refund_id, cents FROM reversals WHERE ? IS NULL OR key = ? ORDER BY id", (key, key)
            )
            return [{"reversal_id": row[0], "key": row[1], "refund_id": row[2], "cents": row[3]} for row in rows]

    def letters(self, key: str | None = None) -> list[dict[str, Any]]:
        with self._lock:
            rows = self._db.execute(
                "SELECT id, key, recipient, text FROM letters WHERE ? IS NULL OR key = ? ORDER BY id", (key, key)
            )
            return [{"letter_id": row[0], "key": row[1], "to": row[2], "text": row[3]} for row in rows]

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _answered(self, key: str, request: str, receipt: dict[str, Any], remember: bool) -> Answer:
        answer = Answer.of(201, receipt)
        if remember:
            self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?)", (key, request, answer.status, answer.body))
        return answer

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:  # whatever it was: no half of it stays
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


# The bank


class Bank:
    """The server. ``with`` starts it on a port of its own and stops it again; the ledger stays.

    ``pause_after_commit`` names a file: the next movement of money, once it is durable, writes its key there and waits,
    unanswered, until the file is gone. So a test can kill the client between the bank's commit and the client's record.
    """

    def __init__(
        self,
        ledger: str | Path,
        orders: Mapping[str, Mapping[str, Any]] = ORDERS,
        *,
        port: int = 0,
        dedup: bool = True,
        pause_after_commit: str | Path | None = None,
    ) -> None:
        self.orders = {order_id: dict(order) for order_id, order in orders.items()}
        self.dedup = dedup
        self.requests = 0  # that wanted to do something and arrived, whatever came of them
        self.stopped = threading.Event()
        self._pause_at = Path(pause_after_commit) if pause_after_commit else None
        self._mode = Mode("normal")
        self._queue: deque[Mode] = deque()
        self._in_flight: set[str] = set()
        self._lock = threading.Lock()
        self._ledger = Ledger(ledger)
        self._server = _Server(("127.0.0.1", port), _Request)
        self._server.bank = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Bank:
        # 10 ms: how long a stop may take.
        threading.Thread(target=self._server.serve_forever, args=(0.01,), name="bank", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()  # waits for the requests it is still answering
        self._ledger.close()

    def trouble(self, *modes: str) -> None:
        """The modes of the next requests that do something."""
        self.change({"next": list(modes)})

    def change(self, settings: Mapping[str, Any]) -> None:
        """What ``POST /mode`` does. BadMode, and nothing changed, when a mode or a setting is not known."""
        unknown = set(settings) - {"mode", "next", "dedup", "pause_after_commit"}
        if unknown:
            raise BadMode(f"there is no setting {', '.join(sorted(unknown))}")
        mode = Mode.read(settings["mode"]) if "mode" in settings else None
        queue = [Mode.read(text) for text in settings["next"]] if "next" in settings else None
        with self._lock:
            if mode is not None:
                self._mode = mode
            if queue is not None:
                self._queue = deque(queue)
            self.dedup = bool(settings.get("dedup", self.dedup))
            if "pause_after_commit" in settings:
                file = settings["pause_after_commit"]
                self._pause_at = Path(file) if file else None

    def ledger(self) -> dict[str, Any]:
        return {
            "refunds": self._ledger.refunds(),
            "reversals": self._ledger.reversals(),
            "letters": self._ledger.letters(),
            "requests": self.requests,
        }

    # Reads

    def mode_of_a_read(self, path: str, header: str | None) -> Mode:
        if header is not None:
            return Mode.read(header)
        with self._lock:
            return self._mode if self._mode.name == "outage" and path != "/ledger" else Mode("normal")

    def look(self, path: str, query: Mapping[str, str]) -> Answer:
        match path.split("/")[1:]:
            case ["refunds"] if query.keys() & {"key", "order_id"}:
                return Answer.of(200, {"refunds": self._ledger.refunds(query.get("key"), query.get("order_id"))})
            case ["reversals"] if "key" in query:
                return Answer.of(200, {"reversals": self._ledger.reversals(query["key"])})
            case ["letters"] if "key" in query:
                return Answer.of(200, {"letters": self._ledger.letters(query["key"])})
            case ["orders", order_id] if order_id in self.orders:
                refunded = sum(row["cents"] for row in self._ledger.refunds(order_id=order_id) if not row["reversed"])
                return Answer.of(200, {"order_id": order_id, **self.orders[order_id], "refunded_cents": refunded})
            case ["orders", order_id]:
                return Answer.error(404, "no_such_order", f"There is no order {order_id}.")
            case ["customers", customer]:
                orders = sorted(
                    order_id for order_id, order in list(self.orders.items()) if order["customer"] == customer
                )
                tier = "gold" if len(orders) > GOLD_FROM_ORDERS else "standard"
                return Answer.of(200, {"customer": customer, "tier": tier, "orders": orders})
            case ["ledger"]:
                return Answer.of(200, self.ledger())
            case _:
                return Answer.error(404, "no_such_page", f"There is nothing at {path}.")

    # Movements of money

    def next_mode(self, header: str | None) -> Mode:
        """The mode of a request that does something; it counts the request."""
        given = None if header is None else Mode.read(header)
        with self._lock:
            self.requests += 1
            return given or (self._queue.popleft() if self._queue else self._mode)

    def move(self, path: str, key: str, body: bytes, mode: Mode) -> Answer:
        """Move money once for this key: the protocol of every endpoint that deduplicates."""
        request = hashlib.sha256(path.encode() + b"\n" + body).hexdigest()
        dedup = self.dedup
        if not dedup:
            return self._execute(path, key, body, request, mode, remember=False)
        with self._lock:
            if key in self._in_flight:
                return Answer.error(409, "in_flight", f"A request with the key {key} is being processed.")
            self._in_flight.add(key)
        try:
            before = self._ledger.remembered(key)
            if before is None:
                return self._execute(path, key, body, request, mode, remember=True)
            if before[0] != request:
                return Answer.error(422, "key_reused", f"The key {key} was used with another body.")
            return before[1]
        finally:
            with self._lock:
                self._in_flight.discard(key)

    def _execute(self, path: str, key: str, body: bytes, request: str, mode: Mode, *, remember: bool) -> Answer:
        if mode.name == "decline":
            return Answer.error(402, "declined", "The bank declines this refund.")
        if mode.name == "slow" and self.stopped.wait(mode.number / 1000):
            return Answer.error(503, "stopped", "The bank was stopped before any money moved.")
        match path.split("/")[1:]:
            case ["refunds"]:
                answer = self._refund(key, body, request, remember)
            case ["refunds", refund_id, "reversal"] if refund_id.isdigit():
                answer = self._ledger.reverse(key, int(refund_id), request, remember=remember)
            case ["letters"]:
                answer = self._letter(key, body, request, remember)
            case _:
                return Answer.error(404, "no_such_page", f"There is nothing to POST to at {path}.")
        if answer.status == 201:
            self._pause(key)
        return answer

    def _refund(self, key: str, body: bytes, request: str, remember: bool) -> Answer:
        try:
            asked = json.loads(body)
            order_id, cents = asked["order_id"], asked["cents"]
        except (ValueError, TypeError, KeyError):
            return Answer.error(422, "malformed", 'The body is {"order_id": TEXT, "cents": WHOLE NUMBER}.')
        if type(order_id) is not str or type(cents) is not int or cents < 1:
            return Answer.error(422, "malformed", f"cents is {cents!r}; it is a whole number above 0.")
        order = self.orders.get(order_id)
        if order is None:
            return Answer.error(404, "no_such_order", f"There is no order {order_id}.")
        if cents > order["cents"]:
            return Answer.error(402, "too_much", f"{cents} cents are more than the {order['cents']} of {order_id}.")
        return self._ledger.refund(key, order_id, cents, request, remember=remember)

    def _letter(self, key: str, body: bytes, request: str, remember: bool) -> Answer:
        try:
            asked = json.loads(body)
            to, text = asked["to"], asked["text"]
        except (ValueError, TypeError, KeyError):
            to = text = None
        if type(to) is not str or type(text) is not str:
            return Answer.error(422, "malformed", 'The body is {"to": TEXT, "text": TEXT}.')
        if any(order["customer"] == to and order.get("mail") == "returned" for order in list(self.orders.values())):
            return Answer.error(402, "undeliverable", f"Mail to {to} comes back.")
        return self._ledger.letter(key, to, text, request, remember=remember)

    def _pause(self, key: str) -> None:
        with self._lock:
            file, self._pause_at = self._pause_at, None
        if file is None:
            return
        whole = file.with_name(file.name + ".part")
        whole.write_text(key)
        whole.rename(file)  # who sees the file sees the whole key
        for _ in range(PAUSE_S_MAX * 100):
            if not file.exists() or self.stopped.wait(0.01):
                return


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for every request, so none writes to a closed ledger
    request_queue_size = 512
    bank: Bank


class _Request(BaseHTTPRequestHandler):
    """One request on a connection of its own. The answer goes out in one piece, or in the half that its mode says."""

    timeout = 10  # seconds for the request to arrive

    def do_GET(self) -> None:
        bank = self._bank
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        try:
            mode = bank.mode_of_a_read(url.path, self.headers.get("Bank-Mode"))
        except BadMode as error:
            return self._send(Answer.error(400, "no_such_mode", str(error)))
        return self._answer(mode, lambda: bank.look(unquote(url.path), query))

    def do_POST(self) -> None:
        bank = self._bank
        body = self._body()
        if body is None:
            return None
        path = urlsplit(self.path).path
        key = self.headers.get("Idempotency-Key", "")
        try:
            if path == "/mode":
                bank.change(json.loads(body))
                return self._send(Answer.of(200, {}))
            mode = bank.next_mode(self.headers.get("Bank-Mode"))
        except (ValueError, AttributeError, TypeError) as error:
            return self._send(Answer.error(400, "no_such_mode", str(error)))
        if not key:
            return self._send(Answer.error(400, "no_key", "Money moves only with an Idempotency-Key header."))
        return self._answer(mode, lambda: bank.move(path, key, body, mode))

    def _answer(self, mode: Mode, work: Callable[[], Answer]) -> None:
        match mode.name:
            case "drop":
                pass
            case "rate-limited":
                self._send(Answer.error(429, "rate_limited", "Too many requests.", Retry_After=str(mode.number)))
            case "outage":
                self._send(Answer.error(503, "outage", "The bank is closed for maintenance.", Retry_After="1"))
            case "duplicate":
                work()
                self._send(work())
            case "commit-then-timeout":
                work()
            case "commit-then-hang":
                work()
                self._wait_for_hang_up()
            case "commit-then-garbage":
                answer = work()
                self._send(Answer(200, answer.body, answer.headers), cut=len(answer.body) // 2)
            case _:
                self._send(work())

    def _body(self) -> bytes | None:
        """The whole body; None, and answered where that still can be, when there is none to be had."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            self._send(Answer.error(400, "malformed", f"A body has a Content-Length of at most {BODY_BYTES_MAX}."))
            return None
        body = self.rfile.read(int(length))
        return body if len(body) == int(length) else None  # the client went away in the middle: nothing was asked

    def _send(self, answer: Answer, cut: int | None = None) -> None:
        """``cut``: how many bytes of the body go out before the connection closes."""
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(answer.body))), *answer.headers]
        lines = [f"HTTP/1.0 {answer.status} {HTTPStatus(answer.status).phrase}", *(f"{n}: {v}" for n, v in headers)]
        with suppress(OSError):  # the client is gone; what was done is done
            self.wfile.write("\r\n".join(lines).encode() + b"\r\n\r\n" + answer.body[:cut])

    def _wait_for_hang_up(self) -> None:
        self.connection.settimeout(0.05)
        with suppress(ConnectionError):
            while not self._bank.stopped.is_set():
                with suppress(TimeoutError):
                    if not self.connection.recv(1):
                        return

    @property
    def _bank(self) -> Bank:
        assert isinstance(self.server, _Server)
        return self.server.bank

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the ledger is the record."""


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bank.py", description="A fake bank on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0: any free port (the URL is printed)")
    parser.add_argument("--ledger", default="bank.db", help="SQLite file; made when it is not there")
    parser.add_argument("--orders", help="JSON file of orders: {ID: {customer, item, cents, status}}")
    parser.add_argument("--no-dedup", action="store_true", help="do everything as often as it is asked for")
    parser.add_argument("--mode", default="normal", help=f"standing mode: {', '.join(MODES)}")
    parser.add_argument("--pause-after-commit", metavar="FILE", help="hold the first answer until FILE is removed")
    parser.add_argument("--show", action="store_true", help="print what the ledger holds, and end")
    given = parser.parse_args(None if arguments is None else list(arguments))
    if given.show:
        return _show(Ledger(given.ledger))
    orders = json.loads(Path(given.orders).read_text()) if given.orders else ORDERS
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with Bank(
        given.ledger, orders, port=given.port, dedup=not given.no_dedup, pause_after_commit=given.pause_after_commit
    ) as bank:
        bank.change({"mode": given.mode})
        print(bank.url, flush=True)
        stop.wait()
    return 0


def _show(ledger: Ledger) -> int:
    for row in ledger.refunds():
        print(f"{row['order_id']}  {row['cents']} cents{'  taken back' if row['reversed'] else ''}")
    for row in ledger.letters():
        print(f"a letter to {row['to']}: {row['text']}")
    ledger.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
