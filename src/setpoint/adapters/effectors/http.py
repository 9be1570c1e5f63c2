"""Effects and reads over HTTP, with what is known of the effect said honestly.

    bank = HttpClient("https://bank.example", headers={"Authorization": token})

    async def issue_refund(ctx: Context, order_id: str, cents: int) -> Receipt:
        order = {"order_id": order_id, "cents": cents}
        return await bank.send("POST", "/refunds", key=ctx.key, body=order, parse=read_receipt)

    async def find_refund(ctx: Context, order_id: str, cents: int) -> ProbeAnswer:
        found = await bank.get("/refunds", query={"key": wire_key(ctx.key)})
        return Happened(found["refunds"][0]) if found["refunds"] else DidNotHappen()

- One call is one request: nothing is tried again here, and no redirect is followed. The runtime does that, on record.
- A mutation that got no whole, readable 2xx answer is in doubt unless it surely had no effect.
- The environment's proxies and credentials are not used; an answer is read up to a bound and within one deadline.

| what happened | of a mutation | of a read |
|---|---|---|
| no connection (refused, unreachable, no such host, TLS) | not sent | not sent |
| 429, 425; 503 with Retry-After | not sent, with the pause | not sent, with the pause |
| 2xx, readable | the parsed answer | the parsed answer |
| 2xx that breaks off, is too long or unreadable | in doubt | not sent |
| 409 (in flight), 408, 5xx, redirect | in doubt | 409 and redirect: declined; else not sent |
| any other 4xx | declined | declined |
| timeout, reset, or no answer after sending | in doubt | not sent |
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from setpoint.kernel import limits
from setpoint.kernel.effects import EffectDeclined, EffectInDoubt, EffectNotSent
from setpoint.kernel.errors import UsageFault

if TYPE_CHECKING:
    import httpx

Answer = TypeVar("Answer")

KEY_HEADER: Final = "Idempotency-Key"
_PRINTABLE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def wire_key(key: str) -> str:
    """The key as it stands in the header: what is no printable ASCII is percent-encoded, so no two keys become one.

    A probe that asks by key uses the same form.
    """
    return quote(key, safe=_PRINTABLE)


def retry_after_ms(value: str, now: datetime) -> int | None:
    """Milliseconds of a ``Retry-After`` in seconds or as an HTTP date; None when it says neither.

    A date in the past is 0. More than a day is read as a day.
    """
    text = value.strip()
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", text):
        return min(round(float(text) * 1000), limits.HTTP_RETRY_AFTER_MS_MAX)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    left = (at if at.tzinfo else at.replace(tzinfo=UTC)) - now
    return max(0, min(round(left.total_seconds() * 1000), limits.HTTP_RETRY_AFTER_MS_MAX))


def exact_json(body: bytes) -> Any:
    """JSON as a value; None for an empty body. ValueError when it is none."""
    return json.loads(body) if body else None


class HttpClient:
    """Requests to one origin. Connections belong to an event loop: each loop that uses it gets its own.

    UsageFault when httpx is not installed or ``base_url`` is not ``http(s)://host[:port][/path]``. ``headers`` go with
    every request; credentials belong there, never into a call's arguments. ``wall_clock`` is for tests.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int = limits.HTTP_TIMEOUT_MS,
        connect_ms: int = limits.HTTP_CONNECT_MS,
        answer_bytes_max: int = limits.HTTP_ANSWER_BYTES_MAX,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise UsageFault(
                "HttpClient needs the library 'httpx', which is not installed.", hint="pip install 'setpoint[http]'"
            ) from None
        self._httpx = httpx
        self._base = _checked_origin(base_url)
        if timeout_ms < 1 or connect_ms < 1:
            raise UsageFault(f"timeout_ms {timeout_ms} and connect_ms {connect_ms} are at least 1.")
        self._headers = {
            **(headers or {}),
            "Accept-Encoding": "identity",
        }  # a bound on bytes read, not on unpacked ones
        self._timeout_ms = timeout_ms
        self._connect_ms = connect_ms
        self._bytes_max = answer_bytes_max
        self._wall_clock = wall_clock
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    async def send(
        self,
        method: str,
        path: str,
        *,
        key: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        parse: Callable[[bytes], Answer] = exact_json,
    ) -> Answer:
        """What ``parse`` makes of the 2xx answer to one mutation. docs/how-to/call-http.md has a table of all else.

        ``key`` goes along as ``Idempotency-Key``; ``body`` becomes JSON, bytes go as they are. A ``parse`` that raises
        ValueError found no receipt: the effect is in doubt. Cancelled, it leaves the effect in doubt.
        """
        if method not in _METHODS:
            raise EffectDeclined(
                f"{method} is no mutation; nothing was sent.",
                hint=f"Use get(), or one of {', '.join(sorted(_METHODS))}.",
            )
        request = self._request(method, path, headers, key=key, body=body, query=None)
        what = f"{method} {self._base}{path}"
        try:
            response, raw = await self._exchange(request, timeout_ms)
        except _NoAnswer as failure:
            if not failure.sent:
                raise EffectNotSent(f"{what} was not sent: {failure}") from failure
            raise EffectInDoubt(f"{what} was sent, but {failure}") from failure
        _refuse_status_of_mutation(what, response, raw, self._wall_clock())
        if isinstance(raw, _Broken):
            raise EffectInDoubt(f"{what} was answered {response.status_code}, but {raw.why}")
        try:
            return parse(raw)
        except (ValueError, RecursionError) as error:  # json, msgspec and pydantic all say it with a ValueError
            raise EffectInDoubt(
                f"{what} was answered {response.status_code} with no readable receipt ({_short(str(error))}): "
                f"{_words(raw)!r}"
            ) from error

    async def get(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        parse: Callable[[bytes], Answer] = exact_json,
    ) -> Answer:
        """What ``parse`` makes of the 2xx answer to one read. EffectNotSent when it may be asked again later.

        A 404 is EffectDeclined like any other no: that nothing is there is said by an answer about the thing, never by
        a path that may be mistyped.
        """
        request = self._request("GET", path, headers, key=None, body=None, query=query)
        what = f"GET {self._base}{path}"
        try:
            response, raw = await self._exchange(request, timeout_ms)
        except _NoAnswer as failure:
            raise EffectNotSent(f"{what} has no answer: {failure}") from failure
        _refuse_status_of_read(what, response, raw, self._wall_clock())
        if isinstance(raw, _Broken):
            raise EffectNotSent(f"{what} was answered {response.status_code}, but {raw.why}")
        try:
            return parse(raw)
        except (ValueError, RecursionError) as error:
            raise EffectNotSent(f"{what} was answered unreadably ({_short(str(error))}): {_words(raw)!r}") from error

    async def close(self) -> None:
        """Close the connections of this event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # One request

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = self._httpx.AsyncClient(
                headers=self._headers, follow_redirects=False, trust_env=False
            )
        return client

    def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None,
        *,
        key: str | None,
        body: Any,
        query: Mapping[str, str] | None,
    ) -> httpx.Request:
        """EffectDeclined when no such request can be made: the same arguments will never make one."""
        if not path.startswith("/") or path.startswith("//") or not path.isascii() or not path.isprintable():
            raise EffectDeclined(
                f"{path!r} is no path on {self._base}; nothing was sent.",
                hint="It begins with one slash; what comes from data goes through urllib.parse.quote(part, safe='').",
            )
        given = dict(headers or {})
        if key is not None:
            given[KEY_HEADER] = wire_key(key)
        for name, value in given.items():
            if not (name + value).isascii() or not (name + value).isprintable():
                # Not its value: it may be a credential.
                raise EffectDeclined(f"The header {name!r} holds what no header may hold; nothing was sent.")
        try:
            if body is not None and not isinstance(body, bytes):
                given.setdefault("Content-Type", "application/json")
                body = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
            return self._client().build_request(
                method, self._base + path, headers=given, content=body, params=dict(query) if query else None
            )
        except (TypeError, ValueError, self._httpx.InvalidURL) as error:
            raise EffectDeclined(f"The request {method} {path} cannot be made, nothing was sent: {error}") from error

    async def _exchange(self, request: httpx.Request, timeout_ms: int | None) -> tuple[httpx.Response, bytes | _Broken]:
        """Status, headers and body of the answer. _NoAnswer when not even the headers came."""
        whole_ms = timeout_ms or self._timeout_ms
        connect_s = min(self._connect_ms, whole_ms) / 1000
        request.extensions = {
            "timeout": {"connect": connect_s, "pool": connect_s, "read": whole_ms / 1000, "write": whole_ms / 1000},
            "trace": (progress := _Progress()),
        }
        httpx = self._httpx
        response = None
        try:
            async with asyncio.timeout(whole_ms / 1000):
                response = await self._client().send(request, stream=True)
                return response, await _read(response, self._bytes_max)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _NoAnswer(f"there was no connection ({_named(error)})", sent=False) from error
        except (TimeoutError, httpx.TimeoutException) as error:
            why = f"no whole answer came within {whole_ms} ms"
            if response is not None:
                return response, _Broken(why)
            raise _NoAnswer(why, sent=progress.may_have_sent) from error
        except httpx.TransportError as error:
            why = f"the connection broke ({_named(error)})"
            if response is not None:
                return response, _Broken(why)
            raise _NoAnswer(why, sent=progress.may_have_sent) from error
        finally:
            if response is not None:
                await response.aclose()


class _Progress:
    """Follows httpx's trace of one request. Without one, or with words it does not know, all may have gone out."""

    def __init__(self) -> None:
        self._connecting = False
        self._sending = False

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        self._connecting = self._connecting or event.startswith("connection.connect_tcp.")
        self._sending = self._sending or not event.startswith("connection.")

    @property
    def may_have_sent(self) -> bool:
        return self._sending or not self._connecting


class _NoAnswer(Exception):
    """Not even the headers of an answer came. ``sent``: some of the request may have arrived."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class _Broken:
    """A body that did not come whole."""

    def __init__(self, why: str) -> None:
        self.why = why


async def _read(response: httpx.Response, bytes_max: int) -> bytes | _Broken:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        return _Broken(f"its body is packed as {encoding!r}, which was not asked for")
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > bytes_max:
            return _Broken(f"its body is longer than {bytes_max} bytes")
        parts.append(part)
    return b"".join(parts)


# What a status says


def _refuse_status_of_mutation(what: str, response: httpx.Response, raw: bytes | _Broken, now: datetime) -> None:
    """Returns for 2xx only."""
    status = response.status_code
    said = f"{what} was answered {_said(status, raw)}"
    pause = retry_after_ms(response.headers.get("retry-after", ""), now)
    if 200 <= status < 300:
        return
    _refuse_before_processing(said, status, pause)
    if status == 409:
        # Another request with this key is being processed, and what comes of it is not known yet.
        raise EffectInDoubt(said, is_up=True)
    if status in (307, 308):
        raise EffectDeclined(said, code=str(status), hint=_elsewhere(response))  # "send it there": not processed here
    if status < 400:
        raise EffectInDoubt(said, is_up=True, hint=_elsewhere(response))  # 303 comes after the deed
    if status == 408 or status >= 500:
        raise EffectInDoubt(said)
    raise EffectDeclined(said, code=str(status))


def _refuse_status_of_read(what: str, response: httpx.Response, raw: bytes | _Broken, now: datetime) -> None:
    """Returns for 2xx only."""
    status = response.status_code
    said = f"{what} was answered {_said(status, raw)}"
    pause = retry_after_ms(response.headers.get("retry-after", ""), now)
    if 200 <= status < 300:
        return
    _refuse_before_processing(said, status, pause)
    if status == 408 or status >= 500:
        raise EffectNotSent(said, retry_after_ms=pause)
    raise EffectDeclined(said, code=str(status), hint=_elsewhere(response) if status < 400 else None)


def _refuse_before_processing(said: str, status: int, pause: int | None) -> None:
    if status in (425, 429):
        raise EffectNotSent(said, retry_after_ms=pause, is_up=True)
    if status == 503 and pause is not None:
        # With a time to come back it is the server's own word. Without, gateways say it of a server that broke off.
        raise EffectNotSent(said, retry_after_ms=pause)


def _elsewhere(response: httpx.Response) -> str:
    to = _short(response.headers.get("location", ""))
    return f"It points to {to!r}. Redirects are not followed; give the final address."


def _said(status: int, raw: bytes | _Broken) -> str:
    words = "" if isinstance(raw, _Broken) else _words(raw)
    return f"{status} {words!r}" if words else str(status)


def _words(raw: bytes) -> str:
    return _short(raw[: 4 * limits.HTTP_REASON_CHARS_MAX].decode("utf-8", "replace"))


def _short(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[: limits.HTTP_REASON_CHARS_MAX]


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {_short(str(error))}" if str(error) else type(error).__name__


def _checked_origin(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        _refuse_origin(base_url)
    if not is_good or parts.query or parts.fragment or not base_url.isascii() or not base_url.isprintable():
        _refuse_origin(base_url)
    if parts.username is not None:
        raise UsageFault(
            "The base URL holds credentials, which would show in every message.",
            hint="Give them in headers={'Authorization': ...}.",
        )
    return base_url.rstrip("/")


def _refuse_origin(base_url: str) -> NoReturn:
    raise UsageFault(f"{base_url!r} is no base URL.", hint="It is http://host[:port][/path] or https://...")
