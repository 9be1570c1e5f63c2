"""The only way out of a sandbox with a network allow-list: an HTTP and CONNECT proxy that knows the list.

The sandbox has an otherwise empty network namespace; on its loopback listens a socket whose other side is this proxy
in the supervisor. Names are resolved here, so nothing inside can ask a DNS server. Whatever is not exactly an allowed
``host:port`` is answered 403 and logged.

Stated limits: a client that ignores ``http_proxy`` has no network at all; inside an allowed TLS connection the proxy
sees nothing, so an allowed host can receive anything, and a front that serves several names serves them all.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit

from setpoint.kernel.errors import SandboxFault

PORT = 3128
HEADER_BYTES_MAX = 64 << 10
CONNECTIONS_MAX = 64  # at once, per action; more are refused
CONNECT_S = 10.0
IDLE_S = 120.0
_LISTENER_S = 10.0
_CHUNK = 64 << 10

_LISTENER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "netns_listener.py")
_log = logging.getLogger("setpoint.sandbox.network")

ENVIRONMENT = tuple(
    (name, f"http://127.0.0.1:{PORT}")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str  # lower case, no trailing dot, no brackets
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> Endpoint:
        """ValueError unless ``text`` is host:port and nothing else (no user, no path)."""
        parts = urlsplit(f"//{text}")
        if parts.username is not None or parts.path or parts.query or parts.fragment or "@" in text:
            raise ValueError(f"{text!r} is not host:port")
        port = parts.port if parts.port is not None else default_port
        if not parts.hostname or port is None:
            raise ValueError(f"{text!r} is not host:port")
        return cls(parts.hostname.lower().rstrip("."), port)


def allow_list(entries: tuple[str, ...]) -> frozenset[Endpoint]:
    """SandboxFault for an entry that is not host:port."""
    try:
        return frozenset(map(Endpoint.parse, entries))
    except ValueError as error:
        raise SandboxFault(f"bad entry in the network allow-list: {error}") from error


class AllowProxy:
    """Serves one sandbox until ``close``; ``refused`` lists what was asked for and not allowed."""

    def __init__(self, allowed: frozenset[Endpoint], listener: socket.socket) -> None:
        self.refused: list[str] = []
        self._allowed = allowed
        self._listener = listener
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name="setpoint-proxy", daemon=True)
        self._acceptor.start()

    @classmethod
    def inside(cls, init: int, allowed: frozenset[Endpoint]) -> AllowProxy:
        """A proxy that listens on the loopback of the sandbox of ``init``. SandboxFault when it cannot get in."""
        return cls(allowed, _listener_in(init))

    def close(self) -> None:
        """End every connection, also those in the middle of something: the sandbox is dead."""
        with self._lock:
            self._closed = True
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._acceptor.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._track(client):
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
            else:
                client.close()

    def _track(self, connection: socket.socket) -> bool:
        with self._lock:
            if self._closed or len(self._open) >= 2 * CONNECTIONS_MAX:
                return False
            self._open.add(connection)
            return True

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(IDLE_S)
        try:
            head, rest = _read_head(client)
            target, forward = _target(head)
            if target not in self._allowed:
                self._refuse(client, f"{target.host}:{target.port}")
                return
            server = _connect(target)
        except ValueError as error:
            self._refuse(client, str(error))
            return
        except OSError as error:
            _answer(client, "502 Bad Gateway", str(error))
            self._drop(client)
            return
        if self._track(server):
            with contextlib.suppress(OSError):
                if forward is None:
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    server.sendall(rest)
                else:
                    server.sendall(forward + rest)
                _pump(client, server)
            self._drop(server)
        else:
            server.close()
        self._drop(client)

    def _refuse(self, client: socket.socket, what: str) -> None:
        if len(self.refused) < 1000:
            self.refused.append(what)
        _log.warning("network access refused", extra={"target": what})
        _answer(client, "403 Forbidden", f"{what} is not in this task's network allow-list")
        self._drop(client)


def _listener_in(init: int) -> socket.socket:
    pidfd = os.pidfd_open(init)
    ours, theirs = socket.socketpair()
    try:
        with ours, theirs:
            run = subprocess.run(
                [sys.executable, "-I", "-S", _LISTENER, str(pidfd), str(theirs.fileno()), str(PORT)],
                pass_fds=(pidfd, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LISTENER_S,
                check=False,
                env={},
            )
            if run.returncode != 0:
                raise SandboxFault(f"no proxy inside the sandbox: {run.stderr.decode(errors='replace').strip()[-300:]}")
            _, fds, _, _ = socket.recv_fds(ours, 1, 1)
            return socket.socket(fileno=fds[0])
    except subprocess.TimeoutExpired:
        raise SandboxFault(f"the proxy did not come up inside the sandbox within {_LISTENER_S:.0f} s") from None
    finally:
        os.close(pidfd)


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = client.recv(4096)
        if not chunk or len(received) > HEADER_BYTES_MAX:
            raise ValueError("no complete request")
        received += chunk
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


def _target(head: bytes) -> tuple[Endpoint, bytes | None]:
    """Where a request wants to go, and what to send there (None for CONNECT). ValueError when it is neither."""
    line, *headers = head.decode("latin-1").split("\r\n")
    method, url, _version = line.split(" ")
    if method == "CONNECT":
        return Endpoint.parse(url), None
    scheme, _, after = url.partition("://")
    authority, slash, path = after.partition("/")
    if scheme.lower() != "http" or not authority:
        raise ValueError(f"{url[:200]!r} is not a proxy request")
    target = Endpoint.parse(authority, default_port=80)
    # One request a connection, and the Host header says what was checked, whatever the client wrote there.
    hop = ("host:", "connection:", "proxy-connection:", "proxy-authorization:", "keep-alive:")
    kept = [header for header in headers if not header.lower().startswith(hop)]
    text = "\r\n".join((f"{method} {slash or '/'}{path} HTTP/1.1", f"Host: {authority}", *kept, "Connection: close"))
    return target, text.encode("latin-1") + b"\r\n\r\n"


def _connect(target: Endpoint) -> socket.socket:
    """Connect to the first address that may be meant. OSError when there is none.

    A name that resolves to this machine or to a link-local service (cloud metadata) is not followed; who wants that
    lists the address itself, or ``localhost``.
    """
    literal = target.host == "localhost" or _is_address(target.host)
    refused = None
    for *_, address in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM):
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
        if not literal and (ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified):
            refused = ValueError(f"{target.host}:{target.port} resolves to {ip}, which is local to the host")
            continue
        with contextlib.suppress(OSError):
            server = socket.create_connection((str(ip), target.port), CONNECT_S)
            server.settimeout(IDLE_S)
            return server
    if refused is not None:
        raise refused
    raise OSError(f"{target.host}:{target.port} cannot be reached")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _pump(client: socket.socket, server: socket.socket) -> None:
    """Copy both ways until either side is done or nothing moved for ``IDLE_S``."""
    other = {client: server, server: client}
    with selectors.DefaultSelector() as selector:
        for side in other:
            selector.register(side, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(IDLE_S)
            if not events:
                return
            for key, _ in events:
                side = key.fileobj
                assert isinstance(side, socket.socket)
                chunk = side.recv(_CHUNK)
                if chunk:
                    other[side].sendall(chunk)
                else:
                    selector.unregister(side)
                    other[side].shutdown(socket.SHUT_WR)


def _answer(client: socket.socket, status: str, why: str) -> None:
    body = why.encode(errors="replace") + b"\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError):
        client.sendall(head.encode() + body)
