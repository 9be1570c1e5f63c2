"""The HTTP adapter says of every trouble what is known of the effect: over real sockets, against the example's bank."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("httpx", reason="the extra 'http' is not installed")

from setpoint.adapters.effectors.http import HttpClient, retry_after_ms, wire_key
from setpoint.kernel.effects import (
    DidNotHappen,
    EffectDeclined,
    EffectFault,
    EffectInDoubt,
    EffectNotSent,
    Happened,
    ProbeAnswer,
)
from setpoint.kernel.errors import UsageFault

from .servers import answering, bank_module, http, talking

ORDER = {"order_id": "A-1001", "cents": 4200}


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Any]:
    with bank_module().Bank(tmp_path / "bank.db") as bank:
        yield bank


async def refund(client: HttpClient, key: str = "refund:A-1001", **how: Any) -> Any:
    return await client.send("POST", "/refunds", key=key, body=ORDER, **how)


async def probe(client: HttpClient, key: str = "refund:A-1001") -> ProbeAnswer:
    found = await client.get("/refunds", query={"key": wire_key(key)})
    return Happened(found["refunds"][0]) if found["refunds"] else DidNotHappen()


def told(url: str, what: Any, **settings: Any) -> Any:
    """What ``what(client)`` gives, or the fault it raises."""

    async def whole() -> Any:
        async with HttpClient(url, **{"timeout_ms": 5_000, **settings}) as client:
            try:
                return await what(client)
            except EffectFault as fault:
                return fault

    return asyncio.run(whole())


# The bank in every mode: what is said, what is true, what a probe then finds.

MODES = [
    ("normal", None, 1),
    ("duplicate", None, 1),
    ("slow:1", None, 1),
    ("commit-then-timeout", EffectInDoubt, 1),
    ("commit-then-garbage", EffectInDoubt, 1),
    ("commit-then-hang", EffectInDoubt, 1),
    ("drop", EffectInDoubt, 0),
    ("slow:30000", EffectInDoubt, 0),
    ("rate-limited:7", EffectNotSent, 0),
    ("outage", EffectNotSent, 0),
    ("decline", EffectDeclined, 0),
]


@pytest.mark.parametrize(("mode", "fault", "effects"), MODES, ids=[row[0] for row in MODES])
def test_each_trouble_of_the_bank_is_told_as_what_it_is(bank, mode: str, fault: type | None, effects: int) -> None:
    """R133, R136, R137, B3: "in doubt" is said with and without an effect; "not sent" and "declined" never with one."""
    bank.trouble(mode)
    waits = mode in ("commit-then-hang", "slow:30000")
    got = told(bank.url, refund, timeout_ms=200 if waits else 5_000)
    assert type(got) is (fault or dict)
    assert len(bank.ledger()["refunds"]) == effects
    found = told(bank.url, probe)
    if effects:
        assert found == Happened({"refund_id": 1, "key": "refund:A-1001", **ORDER, "reversed": False})
    else:
        assert found == DidNotHappen()
    assert bank.ledger()["requests"] == 1  # nothing was tried again


def test_every_mode_of_the_bank_is_in_the_table() -> None:
    assert {row[0].partition(":")[0] for row in MODES} == set(bank_module().MODES)


def test_the_pause_the_bank_asks_for_arrives(bank) -> None:
    """R130"""
    bank.trouble("rate-limited:7", "outage")
    busy, down = told(bank.url, refund), told(bank.url, refund)
    assert (busy.retry_after_ms, busy.is_up, busy.effect) == (7_000, True, "not_sent")
    assert (down.retry_after_ms, down.is_up, down.effect) == (1_000, False, "not_sent")


def test_a_no_carries_the_banks_own_words(bank) -> None:
    bank.trouble("decline")
    fault = told(bank.url, refund)
    assert fault.code == "402" and "The bank declines this refund." in fault.message and fault.effect == "settled"


def test_a_second_request_while_the_first_is_in_flight_is_in_doubt(bank, tmp_path: Path) -> None:
    """R138: 409 says that the first may still act, so it is no final no."""
    pause = tmp_path / "committed"
    bank.change({"pause_after_commit": str(pause)})

    async def both(client: HttpClient) -> Any:
        first = asyncio.create_task(refund(client))
        while not pause.exists():
            await asyncio.sleep(0.005)
        try:
            with pytest.raises(EffectInDoubt, match=r"409 .*in_flight") as caught:
                await refund(client)
            assert caught.value.is_up
        finally:
            pause.unlink()
        return await first == await refund(client)

    assert told(bank.url, both) is True
    assert len(bank.ledger()["refunds"]) == 1


def test_an_outage_meets_the_probe_too_and_says_ask_again(bank) -> None:
    bank.change({"mode": "outage"})
    assert type(told(bank.url, probe)) is EffectNotSent
    assert type(told(bank.url, refund)) is EffectNotSent


def test_a_refund_is_taken_back_under_a_key_of_its_own(bank) -> None:
    async def both(client: HttpClient) -> Any:
        receipt = await refund(client)
        return await client.send("POST", f"/refunds/{receipt['refund_id']}/reversal", key="undo:refund:A-1001")

    assert told(bank.url, both) == {"reversal_id": 1, "key": "undo:refund:A-1001", "refund_id": 1, "cents": 4200}
    assert told(bank.url, probe).result["reversed"] is True


# Statuses, byte by byte

STATUSES = [
    ("200 OK", (), None, None),
    ("204 No Content", (), None, None),
    ("301 Moved", ("Location: /x",), EffectInDoubt, EffectDeclined),
    ("303 See Other", ("Location: /x",), EffectInDoubt, EffectDeclined),
    ("307 Temporary Redirect", ("Location: /x",), EffectDeclined, EffectDeclined),
    ("400 Bad Request", (), EffectDeclined, EffectDeclined),
    ("401 Unauthorized", (), EffectDeclined, EffectDeclined),
    ("404 Not Found", (), EffectDeclined, EffectDeclined),
    ("408 Request Timeout", (), EffectInDoubt, EffectNotSent),
    ("409 Conflict", (), EffectInDoubt, EffectDeclined),
    ("422 Unprocessable", (), EffectDeclined, EffectDeclined),
    ("425 Too Early", (), EffectNotSent, EffectNotSent),
    ("429 Too Many Requests", (), EffectNotSent, EffectNotSent),
    ("500 Internal Server Error", (), EffectInDoubt, EffectNotSent),
    ("500 Internal Server Error", ("Retry-After: 3",), EffectInDoubt, EffectNotSent),
    ("502 Bad Gateway", (), EffectInDoubt, EffectNotSent),
    ("503 Service Unavailable", (), EffectInDoubt, EffectNotSent),
    ("503 Service Unavailable", ("Retry-After: 3",), EffectNotSent, EffectNotSent),
    ("504 Gateway Timeout", (), EffectInDoubt, EffectNotSent),
]


@pytest.mark.parametrize(("status", "headers", "of_mutation", "of_read"), STATUSES)
def test_a_status_says_what_is_known_of_the_effect(status, headers, of_mutation, of_read) -> None:
    """R133, R136"""
    body = b"" if status.startswith("204") else b"{}"
    seen: list[bytes] = []

    async def both() -> tuple[Any, Any]:
        async with talking(answering(http(status, body, *headers), seen)) as url, HttpClient(url) as client:
            answers = []
            for ask in (lambda: refund(client), lambda: client.get("/refunds")):
                try:
                    answers.append(await ask())
                except EffectFault as fault:
                    answers.append(fault)
            return tuple(answers)

    mutation, read = asyncio.run(both())
    assert type(mutation) is of_mutation if of_mutation else not isinstance(mutation, EffectFault)
    assert type(read) is of_read if of_read else not isinstance(read, EffectFault)
    assert len(seen) == 2  # no redirect was followed, nothing tried again


BROKEN = [
    (b"", "the connection broke"),
    (b"HTTP/1.1 2", "the connection broke"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", "200, but the connection broke"),
    (b"SSH-2.0-OpenSSH\r\n", "the connection broke"),
    (http("200 OK", b"<html>ok</html>"), "no readable receipt .*<html>ok</html>"),
    (http("200 OK", b"[" * 100_000), "no readable receipt"),
    (http("200 OK", b'"' + b"x" * 2_000 + b'"'), "longer than 1000 bytes"),
    (http("200 OK", b"\x1f\x8b", "Content-Encoding: gzip"), "packed as 'gzip'"),
]


@pytest.mark.parametrize(("answer", "why"), BROKEN)
def test_an_answer_that_is_no_receipt_is_in_doubt_for_a_mutation_and_asked_again_for_a_read(answer, why) -> None:
    """R133"""

    async def both() -> None:
        limit = 1_000 if b"x" * 2_000 in answer else 1 << 20
        async with talking(answering(answer)) as url, HttpClient(url, answer_bytes_max=limit) as client:
            with pytest.raises(EffectInDoubt, match=why):
                await refund(client)
            with pytest.raises(EffectNotSent):
                await client.get("/refunds")

    asyncio.run(both())


def test_a_receipt_of_another_shape_is_in_doubt() -> None:
    """R133: success is what the author's own reading accepts."""

    def receipt(body: bytes) -> int:
        value = json.loads(body)
        if "refund_id" not in value:
            raise ValueError("it has no refund_id")
        return value["refund_id"]

    async def ask() -> None:
        async with talking(answering(http("200 OK", b'{"ok": true}'))) as url, HttpClient(url) as client:
            with pytest.raises(EffectInDoubt, match="it has no refund_id"):
                await refund(client, parse=receipt)

    asyncio.run(ask())


def test_no_connection_is_surely_not_sent() -> None:
    with socket.socket() as closed:  # bound and not listening: the port is taken, and refuses
        closed.bind(("127.0.0.1", 0))
        fault = told(f"http://127.0.0.1:{closed.getsockname()[1]}", refund)
    assert type(fault) is EffectNotSent and "no connection (ConnectError" in fault.message and not fault.is_up


def test_a_host_that_has_no_address_is_surely_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", none)  # no query leaves the machine
    fault = told("http://bank.invalid", refund)
    assert type(fault) is EffectNotSent and "Name or service not known" in fault.message


def test_a_connection_that_never_stands_is_surely_not_sent() -> None:
    """The whole deadline and that of the connection end together; either way nothing went out."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):  # the queue is full: the kernel drops what comes next
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        fault = told(f"http://127.0.0.1:{full.getsockname()[1]}", refund, timeout_ms=150)
    assert type(fault) is EffectNotSent, fault


def test_an_answer_that_drips_does_not_outlive_the_deadline() -> None:
    """L7: each byte comes in time, the whole does not."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def ask() -> None:
        async with talking(drip) as url, HttpClient(url, timeout_ms=200) as client:
            with pytest.raises(EffectInDoubt, match="no whole answer came within 200 ms"):
                await refund(client)

    asyncio.run(ask())


def test_a_kept_connection_that_the_other_side_closed_is_told_as_in_doubt_or_renewed() -> None:
    """Never as not sent: a request on a connection that stood may have arrived."""
    count = 0

    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        await answering(http("200 OK"))(reader, writer)
        if count == 1:
            await reader.readuntil(b"\r\n\r\n")  # the second request on it gets no answer

    async def ask() -> None:
        async with talking(twice) as url, HttpClient(url) as client:
            assert await refund(client) == {}
            with pytest.raises(EffectInDoubt, match="the connection broke"):
                await refund(client)

    asyncio.run(ask())


# What goes out


def test_the_key_goes_along_and_no_header_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """R132"""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    seen: list[bytes] = []

    async def ask() -> None:
        async with talking(answering(http("200 OK"), seen)) as url, HttpClient(url, headers={"X-Own": "1"}) as client:
            await refund(client, key="refund:Ä 1%")

    asyncio.run(ask())
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert b"Idempotency-Key: refund:%C3%84%201%25" in head.split(b"\r\n")
    assert b"X-Own: 1" in head.split(b"\r\n") and json.loads(body) == ORDER


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_two_keys_become_one_on_the_wire(one: str, other: str) -> None:
    try:
        first, second = wire_key(one), wire_key(other)
    except UnicodeEncodeError:  # half a surrogate is no text
        return
    assert (first == second) == (one == other)
    assert first.isascii() and first.isprintable() and " " not in first


@pytest.mark.parametrize("path", ["refunds", "//evil.example/x", "/a b\n", "http://evil.example/", "/ü"])
def test_what_is_no_path_is_declined_and_not_sent(path: str) -> None:
    fault = told("http://127.0.0.1:1", lambda client: client.send("POST", path, key="k"))
    assert type(fault) is EffectDeclined and "nothing was sent" in fault.message


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda client: client.send("GET", "/x", key="k"), "GET is no mutation"),
        (lambda client: client.send("POST", "/x", key="k", body={"n": float("nan")}), "cannot be made"),
        (lambda client: client.send("POST", "/x", key="k", body={1, 2}), "cannot be made"),
        (lambda client: client.send("POST", "/x", key="k", headers={"X": "a\r\nY: b"}), "holds what no header may"),
    ],
)
def test_what_is_no_request_is_declined_and_not_sent(what, words: str) -> None:
    fault = told("http://127.0.0.1:1", what)
    assert type(fault) is EffectDeclined and words in fault.message


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://h", "bank.example", "http://", "http://h:x", "http://h?a=1", "http://[", ""]
)
def test_another_scheme_than_http_is_refused(url: str) -> None:
    with pytest.raises(UsageFault, match="is no base URL"):
        HttpClient(url)


def test_credentials_in_the_address_are_refused_unseen() -> None:
    with pytest.raises(UsageFault) as caught:
        HttpClient("http://user:hunter2@bank.example")
    assert "hunter2" not in str(caught.value)


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(UsageFault, match=r"setpoint\[http\]"):
        HttpClient("http://bank.example")


def test_importing_the_adapter_loads_no_http_library() -> None:
    code = "import sys, setpoint.adapters.effectors.http; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_one_client_serves_one_event_loop_after_another(bank) -> None:
    client = HttpClient(bank.url)

    async def ask() -> Any:
        try:
            return await client.get("/orders/A-1001")
        finally:
            await client.close()

    assert asyncio.run(ask()) == asyncio.run(ask())


# Retry-After

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("0", 0),
        (" 120 ", 120_000),
        ("1.5", 1_500),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60_000),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0),
        ("999999999", 86_400_000),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400_000),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1e9", None),
        ("١٢", None),
    ],
)
def test_a_pause_is_read_in_seconds_and_as_a_date(value: str, ms: int | None) -> None:
    """R130"""
    assert retry_after_ms(value, NOW) == ms


@given(st.text(max_size=40))
def test_no_header_breaks_the_reading_of_a_pause(value: str) -> None:
    pause = retry_after_ms(value, NOW)
    assert pause is None or 0 <= pause <= 86_400_000
