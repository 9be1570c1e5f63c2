"""The example's bank, and servers that say exactly the bytes they are told; all on loopback."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

BANK = Path(__file__).resolve().parents[2] / "examples" / "refunds" / "bank.py"


def bank_module() -> ModuleType:
    """``examples/refunds/bank.py`` as a module; the examples are no package."""
    name = "setpoint_example_bank"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BANK)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def talking(talk: Talk) -> AsyncIterator[str]:
    """The URL of a server that treats each connection with ``talk`` and closes it."""
    talks: set[asyncio.Task[None]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(task := asyncio.current_task())  # type: ignore[arg-type]
        try:
            await talk(reader, writer)
        except ConnectionError:
            pass
        finally:
            talks.discard(task)  # type: ignore[arg-type]
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tuple(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


def answering(answer: bytes, seen: list[bytes] | None = None) -> Talk:
    """Read one request, send these bytes, close."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
        body = await reader.readexactly(int(length.partition(b":")[2]))
        if seen is not None:
            seen.append(head + body)
        writer.write(answer)
        await writer.drain()

    return talk


def http(status: str, body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
