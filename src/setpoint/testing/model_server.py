"""A model provider on loopback that speaks the real wire formats, for tests through the real client libraries.

    steps = [Say(calls=[ToolCall("file_read", '{"path": "a"}')]), Fail(429, headers={"retry-after": "2"})]
    with ModelServer(steps) as server:
        proposer = open_proposer(f"openai:any?base_url={server.openai_url}", base_dir=here)
        ...
        assert len(server.requests) == 2

Each request takes the next step, whichever format it asks for: ``/v1/chat/completions`` (OpenAI) or ``/v1/messages``
(Anthropic), streamed when the request says ``"stream": true``. It listens on 127.0.0.1 only, on a port of its own,
and ``close`` leaves no thread or socket behind. What it sends is scripted down to the byte: arguments are given as
text, so they may be no JSON at all.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from setpoint.testing.model_wire import WIRES, Bytes, Drop, Fail, Hang, Say, Step, ToolCall, Wire, json_bytes

__all__ = ["Bytes", "Drop", "Fail", "Hang", "ModelServer", "Received", "Say", "Step", "ToolCall"]

BODY_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came; ``raw`` are the bytes of its body."""

    path: str
    headers: dict[str, str]  # names in lower case
    body: dict[str, Any]
    raw: bytes


class ModelServer:
    """Runs from construction to ``close``, in threads of its own."""

    def __init__(self, steps: Sequence[Step], *, repeat_last: bool = False) -> None:
        self.requests: list[Received] = []
        self._steps = list(steps)
        self._repeat_last = repeat_last
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._client_gone = threading.Event()
        self._connections: set[socket.socket] = set()
        owner = self

        class Handler(_Handler):
            server_state = owner

        self._http = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """What ``anthropic`` calls its base URL."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def openai_url(self) -> str:
        """What ``openai`` calls its base URL."""
        return f"{self.url}/v1"

    def wait_for_client_gone(self, timeout_s: float = 10.0) -> bool:
        """Whether a client closed its connection while an answer was held or hanging."""
        return self._client_gone.wait(timeout_s)

    def close(self) -> None:
        """Stop, close every connection, join every thread. May be called again."""
        self._closing.set()
        self._http.shutdown()
        with self._lock:
            for connection in self._connections:
                _shut(connection)
        self._http.server_close()
        self._thread.join()

    # Called by handlers

    def connected(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)
            if self._closing.is_set():
                _shut(connection)

    def disconnected(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def next_step(self, request: Received) -> Step:
        with self._lock:
            self.requests.append(request)
            position = len(self.requests) - 1
            if position < len(self._steps):
                return self._steps[position]
            if self._repeat_last and self._steps:
                return self._steps[-1]
            return Fail(400, "invalid_request_error", None, f"no step for request {position + 1}")

    def pause(self, ms: int) -> None:
        self._closing.wait(ms / 1000)

    def hold(self, connection: socket.socket) -> None:
        """Wait until the client closes ``connection`` or the server closes."""
        while not self._closing.is_set():
            readable, _, _ = select.select([connection], [], [], 0.02)
            if readable and _is_closed(connection):
                self._client_gone.set()
                return


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is what some tests are about; it is no news."""


class _Cut(Exception):
    """The step says to stop here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: ModelServer

    def setup(self) -> None:
        super().setup()
        self.server_state.connected(self.connection)

    def finish(self) -> None:
        self.server_state.disconnected(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", "0"))
        if length > BODY_BYTES_MAX:
            self.send_error(413)
            return
        raw = self.rfile.read(length)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Received(self.path, headers, json.loads(raw), raw)
        wire = WIRES.get(self.path.partition("?")[0])
        if wire is None:
            self._send(404, b"{}", "application/json")
            return
        self._play(self.server_state.next_step(request), wire(request.body))

    def _play(self, step: Step, wire: Wire) -> None:
        match step:
            case Say() if wire.streams:
                self._stream(step, wire)
            case Say():
                self._send(200, json_bytes(wire.whole(step)), "application/json")
            case Fail():
                self._send(step.status, json_bytes(wire.failure(step)), "application/json", step.headers)
            case Bytes():
                self._send(200, step.body, step.content_type)
            case Hang():
                self.server_state.hold(self.connection)
                self._reset()
            case Drop():
                self._reset()

    def _send(self, status: int, body: bytes, content_type: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, say: Say, wire: Wire) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in _paced(say, wire, self.server_state):
                self._chunk(event)
        except _Cut:
            if say.hold_after is not None:
                self.server_state.hold(self.connection)
            if say.cut == "reset" and say.error_after is None:
                self._reset()
                return
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _reset(self) -> None:
        # Linger 0: the client sees a reset, not an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def _paced(say: Say, wire: Wire, state: ModelServer) -> Iterator[bytes]:
    """The events of an answer in their order, with the pauses and cuts the step asks for."""
    yield from wire.head(say)
    for sent, piece in enumerate(wire.pieces(say)):
        if sent in (say.cut_after, say.hold_after):
            raise _Cut
        if sent == say.error_after:
            yield wire.error(say)
            raise _Cut
        if say.piece_ms:
            state.pause(say.piece_ms)
        yield piece
    yield from wire.tail(say)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was closed already
