"""Execute a Permit. Only the gate makes a Permit, so nothing runs that was not ruled on.

File tools act on the workspace by resolved path; commands run in the sandbox on the attempt's writable view. What a
tool could not do is its answer (exit code 1 and a message), never an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from setpoint.kernel import limits
from setpoint.kernel.contract import Environment
from setpoint.kernel.errors import SandboxFault, WorkspaceFault
from setpoint.kernel.ruling import Permit
from setpoint.phases.p4_dispatch.outcome import Outcome, completed, failed
from setpoint.ports.sandbox import Action, Finished, Sandbox
from setpoint.ports.workspace import ResolvedPath, Workspace

ToolBody = Callable[[Permit], Awaitable[Outcome]]
"""A tool of the host's own beside the built-in ones."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What dispatch works with. ``wall_ms_left`` bounds every command besides its own limit."""

    workspace: Workspace
    sandbox: Sandbox
    environment: Environment
    extra: Mapping[str, ToolBody]


async def dispatch(permit: Permit, bench: Bench, wall_ms_left: int) -> Outcome:
    """Run one permitted call to its end. Cancellation kills what it started before it completes."""
    arguments = permit.call.arguments
    match permit.call.name:
        case "shell_exec":
            return await _shell(arguments, bench, wall_ms_left)
        case "file_read":
            return await asyncio.to_thread(_file_read, permit.path, arguments, bench.workspace)
        case "file_edit":
            return await asyncio.to_thread(_file_edit, permit.path, arguments, bench.workspace)
        case "file_write":
            return await asyncio.to_thread(_file_write, permit.path, arguments, bench.workspace)
        case name:
            return await bench.extra[name](permit)


async def _shell(arguments: Mapping[str, Any], bench: Bench, wall_ms_left: int) -> Outcome:
    environment = bench.environment
    argv = tuple(arguments["argv"]) if "argv" in arguments else ("/bin/sh", "-c", arguments["command"])
    wall = min(environment.limits.wall_ms, max(1, wall_ms_left))
    if "timeout" in arguments:
        wall = min(wall, arguments["timeout"] * 1000)
    action = Action(
        argv,
        bench.workspace.action_view(),
        replace(environment.limits, wall_ms=wall),
        environment.env,
        environment.mounts,
        environment.toolchain,
        environment.network,
        hidden=environment.hidden,
    )
    try:
        return _of_finished(await bench.sandbox.run(action), wall)
    except SandboxFault as fault:
        return Outcome("TRANSPORT_FAILURE", str(fault), None, "sandbox")


def _of_finished(done: Finished, wall_ms: int) -> Outcome:
    text = _decode(done.stdout.kept)
    errors = _decode(done.stderr.kept)
    if errors:
        text = f"{text.rstrip()}\n[stderr]\n{errors}" if text else f"[stderr]\n{errors}"
    total = done.stdout.total_bytes + done.stderr.total_bytes
    sha = done.stdout.sha256 if not errors else _join_digests(done.stdout.sha256, done.stderr.sha256)
    if done.reason == "start":
        return Outcome("COMPLETED", text or "the program could not be started", 127, "", done.duration_ms, total, sha)
    if done.reason:
        why = {
            "wall": f"ended after {wall_ms} ms of wall clock",
            "cpu": "ended at its CPU limit",
            "memory": "ended at its memory limit",
            "output": "ended: it wrote more than the output limit",
            "cancelled": "cancelled",
            "killed": f"killed by signal {done.signal}",
        }.get(done.reason, done.reason)
        text = f"{text}\n[{why}; every process it started is gone]"
        return Outcome("TRANSPORT_FAILURE", text, None, done.reason, done.duration_ms, total, sha)
    code = done.exit_code if done.exit_code is not None else 128 + (done.signal or 0)
    truncated = done.stdout.truncated or done.stderr.truncated
    return Outcome("TRUNCATED" if truncated else "COMPLETED", text, code, "", done.duration_ms, total, sha)


def _join_digests(first: str, second: str) -> str:
    from setpoint.kernel.keys import digest

    return digest([first, second])[7:]


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _read_text(path: str, workspace: Workspace) -> str | Outcome:
    content = workspace.read(ResolvedPath(path), limits.FILE_READ_BYTES_MAX + 1)
    if content is None:
        return failed(f"there is no file {path!r}")
    if len(content) > limits.FILE_READ_BYTES_MAX:
        return failed(f"{path!r} is larger than {limits.FILE_READ_BYTES_MAX} bytes; read a part with shell_exec")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        return failed(f"{path!r} is not UTF-8 text (byte {error.start}); use shell_exec to look at it")


def _file_read(path: str | None, arguments: Mapping[str, Any], workspace: Workspace) -> Outcome:
    assert path is not None
    text = _read_text(path, workspace)
    if isinstance(text, Outcome):
        return text
    if "start" not in arguments and "end" not in arguments:
        return completed(text)
    lines = text.splitlines(keepends=True)
    start, end = arguments.get("start", 1), arguments.get("end", len(lines))
    if start > max(1, len(lines)):
        return failed(f"{path!r} has {len(lines)} lines; there is no line {start}")
    return completed("".join(lines[start - 1 : end]))


def _file_edit(path: str | None, arguments: Mapping[str, Any], workspace: Workspace) -> Outcome:
    assert path is not None
    text = _read_text(path, workspace)
    if isinstance(text, Outcome):
        return text
    old, new = arguments["old_str"], arguments["new_str"]
    found = text.find(old)
    if found < 0 or text.find(old, found + 1) >= 0:  # overlapping occurrences are ambiguous as well
        times = "does not occur" if found < 0 else f"occurs {max(2, text.count(old))} times"
        return failed(f"old_str {times} in {path!r}; it must occur exactly once. Nothing was changed.")
    line = text[:found].count("\n") + 1
    return _write(path, text.replace(old, new, 1), workspace, f"edited {path} at line {line}")


def _file_write(path: str | None, arguments: Mapping[str, Any], workspace: Workspace) -> Outcome:
    assert path is not None
    content = arguments["content"]
    return _write(path, content, workspace, f"wrote {len(content.encode('utf-8', 'replace'))} bytes to {path}")


def _write(path: str, text: str, workspace: Workspace, message: str) -> Outcome:
    try:
        workspace.write(ResolvedPath(path), text.encode("utf-8"))
    except UnicodeEncodeError:
        return failed("the text holds characters that are no Unicode text (lone surrogates). Nothing was changed.")
    except (WorkspaceFault, IsADirectoryError, NotADirectoryError, PermissionError) as fault:
        return failed(f"{path!r} cannot be written: {fault}")
    return completed(message)
