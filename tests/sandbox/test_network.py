"""No network at all, or exactly the allow-list; every server here is a decoy on loopback."""

from __future__ import annotations

import http.server
import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from setpoint.adapters.sandboxes import netproxy
from setpoint.adapters.sandboxes.netproxy import Endpoint
from setpoint.kernel.errors import SandboxFault
from setpoint.ports.sandbox import Finished

from .conftest import Bench


class Decoy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"{self.server.server_port} {self.headers['Host']} {self.path}".encode()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[tuple[int, int]]:
    """Ports of one server that will be allowed and one that will not."""
    running = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Decoy) for _ in range(2)]
    for server in running:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield running[0].server_port, running[1].server_port
    for server in running:
        server.shutdown()
        server.server_close()


# urllib follows http_proxy like most clients; argument 1 is the URL, 2 "direct" to ignore the proxy
CLIENT = """
import sys, urllib.request, urllib.error
handlers = [urllib.request.ProxyHandler({})] if sys.argv[2:] == ["direct"] else []
try:
    print(urllib.request.build_opener(*handlers).open(sys.argv[1], timeout=5).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print("failed", error)
"""
TUNNEL = """
import socket, sys
s = socket.create_connection(("127.0.0.1", 3128), 5)
s.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
print(s.recv(4096).decode().splitlines()[0])
s.sendall(b"GET /tunnelled HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n")
data = b""
while chunk := s.recv(4096):
    data += chunk
print(data.decode().splitlines()[-1] if data else "closed")
"""


def fetch(bench: Bench, allowed: tuple[str, ...], code: str, *arguments: str) -> Finished:
    action = bench.action("", network=allowed, toolchain=("python",))
    return bench.execute(replace(action, argv=("python3", "-c", code, *arguments)))


def test_the_allowed_endpoint_answers_by_get_and_by_connect(isolated: Bench, servers: tuple[int, int]) -> None:
    """R202"""
    good, _ = servers
    allowed = (f"localhost:{good}",)
    got = fetch(isolated, allowed, CLIENT, f"http://localhost:{good}/path?q=1")
    assert got.stdout.kept.decode() == f"{good} localhost:{good} /path?q=1\n", got.stderr.kept
    tunnelled = fetch(isolated, allowed, TUNNEL, f"localhost:{good}")
    assert tunnelled.stdout.kept.decode() == f"HTTP/1.1 200 Connection established\n{good} x /tunnelled\n"


def test_everything_else_is_refused_and_logged(
    isolated: Bench, servers: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """R202"""
    good, bad = servers
    allowed = (f"localhost:{good}",)
    for url in (
        f"http://localhost:{bad}/",  # another port
        f"http://127.0.0.1:{good}/",  # an address where a name is allowed
        f"http://localhost:{good}.evil.test/",
        f"http://localhost.evil.test:{good}/",
        f"http://user@localhost:{good}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://example.test/",
    ):
        with caplog.at_level(logging.WARNING, "setpoint.sandbox.network"):
            got = fetch(isolated, allowed, CLIENT, url).stdout.kept.decode()
        assert got.startswith(("403", "failed")), (url, got)
    assert sum(record.message == "network access refused" for record in caplog.records) >= 5
    assert fetch(isolated, allowed, TUNNEL, f"localhost:{bad}").stdout.kept.startswith(b"HTTP/1.1 403")


def test_going_around_the_proxy_leads_nowhere(isolated: Bench, servers: tuple[int, int]) -> None:
    """R202"""
    good, _ = servers
    got = fetch(isolated, (f"localhost:{good}",), CLIENT, f"http://127.0.0.1:{good}/", "direct")
    assert got.stdout.kept.startswith(b"failed")


def test_without_a_list_there_is_no_proxy_and_no_network(isolated: Bench, servers: tuple[int, int]) -> None:
    """R202"""
    good, _ = servers
    got = fetch(isolated, (), CLIENT, f"http://127.0.0.1:{good}/")
    assert got.stdout.kept.startswith(b"failed")
    assert b"roxy" not in isolated.run("env").stdout.kept


def test_a_name_that_resolves_to_the_host_itself_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("127.0.0.1", "169.254.169.254", "::1", "0.0.0.0"):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        answer = [(family, socket.SOCK_STREAM, 6, "", (address, 80))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, answer=answer, **__: answer)
        with pytest.raises(ValueError, match="local to the host"):
            netproxy._connect(Endpoint("innocent.test", 80))  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("entry", ["host", "host:", "host:x", "host:1/path", "u@host:1", "", ":80", "host:99999"])
def test_a_bad_entry_in_the_list_is_a_fault(isolated: Bench, entry: str) -> None:
    with pytest.raises(SandboxFault, match="allow-list"):
        isolated.run("true", network=(entry,))


def test_a_rung_without_its_own_network_refuses_a_list(bench: Bench) -> None:
    if bench.isolated:
        pytest.skip("this rung has one")
    with pytest.raises(SandboxFault, match="allow-list"):
        bench.run("true", network=("localhost:80",))


def test_a_proxy_ends_with_its_action(isolated: Bench, servers: tuple[int, int]) -> None:
    good, _ = servers
    before = threading.active_count()
    fetch(isolated, (f"localhost:{good}",), CLIENT, f"http://localhost:{good}/")
    names = [thread.name for thread in threading.enumerate()]
    assert "setpoint-proxy" not in names and threading.active_count() <= before + 3
