"""e) Restate: its server and a Python service that runs steps which do nothing. Prints one JSON line.

The server is a program of its own; it comes as an npm package, is used for this measurement only, and is looked for in
``RESTATE_SERVER``, on the path, and in ``--npm``, where it is installed when it is missing. Server and service listen
on loopback, keep their data in ``--dir`` and are ended at the end. The CPU is of both. Where it cannot be had the line
is ``{"unavailable": why}``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = "@restatedev/restate-server@^1.7"
WARM_UP_STEPS = 20
READY_S_MAX = 60.0
CALL_S_MAX = 600.0
INSTALL_S_MAX = 300


class Unavailable(Exception):
    """Restate cannot be had here."""


# The service, in a process of its own.


def serve(port: int) -> None:
    import restate
    from hypercorn.asyncio import serve as listen
    from hypercorn.config import Config

    steps = restate.Workflow("steps")

    @steps.main()
    async def run(ctx: Any, count: int) -> int:  # annotations are looked up in the module, which has no ``restate``
        n = 0
        for _ in range(count):
            n = await ctx.run_typed("noop", _noop, n=n)
        return n

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "ERROR"
    asyncio.run(listen(restate.app([steps]), config))  # type: ignore[arg-type]


def _noop(n: int) -> int:
    return n + 1


# The server


def server_binary(npm: Path) -> str:
    """The server's program. Unavailable says why there is none."""
    for name in ("restate", "hypercorn"):
        if find_spec(name) is None:
            raise Unavailable(f"the Python package {name} is not installed")
    if found := os.environ.get("RESTATE_SERVER") or shutil.which("restate-server"):
        return found
    if not (found := _installed(npm)):
        _install(npm)
        found = _installed(npm)
    if not found:
        raise Unavailable(f"{PACKAGE} has no program for this machine")
    return found


def _installed(npm: Path) -> str:
    binaries = npm.glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
    return str(next(iter(sorted(binaries)), ""))


def _install(npm: Path) -> None:
    if shutil.which("npm") is None:
        raise Unavailable("there is no npm to install the server with")
    npm.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--prefix", str(npm), "--ignore-scripts", "--no-audit", "--no-fund", PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S_MAX)
    except subprocess.TimeoutExpired as fault:
        raise Unavailable(f"npm did not install {PACKAGE} within {INSTALL_S_MAX} s") from fault
    if done.returncode:
        raise Unavailable(f"npm could not install {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody used a moment ago."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def running(command: list[str], directory: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to a file; ended, and waited for, on the way out."""
    with (Path(directory) / "output").open("ab") as output:
        process = subprocess.Popen(
            command, cwd=directory, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def post(url: str, body: Any, patience_s: float = CALL_S_MAX) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=patience_s) as answer:
        return json.loads(answer.read() or b"null")


def retried(url: str, body: Any) -> Any:
    """The answer to a request, made until somebody listens."""
    until = time.monotonic() + READY_S_MAX
    while True:
        try:
            return post(url, body, 10)
        except (urllib.error.URLError, ConnectionError, TimeoutError) as fault:
            if time.monotonic() > until:
                raise Unavailable(f"{url} did not answer within {READY_S_MAX:.0f} s: {fault}") from fault
            time.sleep(0.1)


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    """CPU of a running process, all its threads."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(directory: str, binary: str, steps: int, concurrent: int) -> dict[str, object]:
    ingress, admin, fabric, service = free_ports(4)
    settings = {
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{fabric}",
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE": "512MiB",
    }
    serving = [sys.executable, str(HERE / "peer_restate.py"), "--serve", str(service)]
    with (
        running([binary, "--no-logo", "--base-dir", directory], directory, **settings) as server,
        running(serving, directory) as worker,
    ):
        retried(f"http://127.0.0.1:{admin}/deployments", {"uri": f"http://127.0.0.1:{service}", "force": True})
        calls = f"http://127.0.0.1:{ingress}/steps"
        assert retried(f"{calls}/warm-up/run", WARM_UP_STEPS) == WARM_UP_STEPS
        idle, began = cpu_s(server) + cpu_s(worker), time.perf_counter()
        time.sleep(1)  # what the two use while nothing is asked of them, for the page
        idle = (cpu_s(server) + cpu_s(worker) - idle) / (time.perf_counter() - began)
        used, used_worker, began = cpu_s(server), cpu_s(worker), time.perf_counter()
        with ThreadPoolExecutor(min(concurrent, 100)) as pool:
            answers = list(pool.map(lambda n: post(f"{calls}/k{n}/run", steps), range(concurrent)))
        wall = time.perf_counter() - began
        cpu_server, cpu_worker = cpu_s(server) - used, cpu_s(worker) - used_worker
        assert answers == [steps] * concurrent
    total = steps * concurrent
    return {
        "steps": total,
        "cpu_ms": (cpu_server + cpu_worker) * 1000 / total,
        "service_cpu_ms": cpu_worker * 1000 / total,
        "idle_cpu_ms_per_s": idle * 1000,
        "steps_per_s": total / wall,
    }


def version_of(binary: str) -> str:
    from importlib.metadata import version

    said = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.split("(")[0].strip()
    return f"{said}, restate-sdk {version('restate-sdk')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="where the server keeps its data")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--concurrent", type=int, default=1)
    parser.add_argument("--npm", default=str(HERE.parent / "build" / "npm"), help="where the server is installed")
    parser.add_argument("--install", action="store_true", help="only see to it that the server is there")
    parser.add_argument("--serve", type=int, metavar="PORT", help="be the service")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    try:
        binary = server_binary(Path(options.npm))
        if options.install:
            found: dict[str, object] = {"binary": binary}
        else:
            with tempfile.TemporaryDirectory(dir=options.dir) as directory:
                try:
                    found = measure(directory, binary, options.steps, options.concurrent)
                except Unavailable:
                    sys.stderr.write((Path(directory) / "output").read_text(errors="replace")[-4000:])
                    raise
        found["version"] = version_of(binary)
    except Unavailable as fault:
        found = {"unavailable": str(fault)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
