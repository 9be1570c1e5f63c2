"""One light project, a real runtime, a real sandbox, and scripts as the model (CASES.md)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from setpoint.adapters.proposers.scripted import ScriptedProposer
from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.app.manifest import load_task
from setpoint.app.runtime import Outcome, Runtime, open_runtime
from setpoint.kernel.errors import IsolationUnavailable
from setpoint.kernel.events import decode
from setpoint.ports.proposer import Context

SPEC: dict[str, Any] = {
    "goal": {"text": "src/value holds 5"},
    "environment": {
        "workspace": "project",
        "toolchain": [],
        "sandbox": {
            "limits": {
                "wall": "20s",
                "cpu": "20s",
                "memory": "256Mi",
                "pids": 64,
                "output": "16Ki",
                "disk": "64Mi",
            }
        },
    },
    "actions": [
        {"tool": "shell_exec"},
        {"tool": "file_read"},
        {"tool": "file_edit", "paths": ["src/**", "tests/**"]},
        {"tool": "file_write", "paths": ["src/**", "tests/**"]},
        {"tool": "ask_operator"},
        {"tool": "complete_task"},
    ],
    "observe": {"max_tokens": 2000},
    "done": [{"id": "unit", "run": "sh tests/check.sh", "level": "visible"}],
    "budget": {"turns": 20, "tokens": 200000, "usd": 2.0, "wall": "5m"},
    "policy": {"commit": "converged"},
    "models": ["scripted:script.yaml"],
}


@pytest.fixture(scope="session")
def probe_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The probe's answer, found once and copied into every case's state."""
    cache = tmp_path_factory.mktemp("probe")
    try:
        sandbox = open_sandbox("namespaces", cache_dir=cache)
    except IsolationUnavailable as reason:
        pytest.skip(f"no sandbox on this machine: {reason}")
    asyncio.run(sandbox.close())
    return cache


def write(path: str, content: str) -> dict[str, Any]:
    return {"name": "file_write", "arguments": {"path": path, "content": content}}


def shell(command: str) -> dict[str, Any]:
    return {"name": "shell_exec", "arguments": {"command": command}}


CLAIM = {"name": "complete_task"}
MENDED: dict[str, Any] = {"calls": [write("src/value", "5")]}


def say(*calls: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"calls": list(calls), **rest}


@dataclass
class Case:
    """A folder with ``project/``, ``task.yaml``, scripts and the state of its own installation."""

    root: Path
    prompts: list[Context] = field(default_factory=list)
    trajectory_id: str = ""

    def __post_init__(self) -> None:
        self.project = self.root / "project"
        self.files({"src/value": "3", "tests/check.sh": 'test "$(cat src/value)" = 5\n'})

    def files(self, files: dict[str, str], below: str = "project") -> None:
        for name, content in files.items():
            path = self.root / below / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    def task(self, **changes: Any) -> Path:
        """The manifest, with parts of its spec replaced."""
        path = self.root / "task.yaml"
        document = {
            "apiVersion": "setpoint.dev/v1",
            "kind": "Task",
            "metadata": {"name": "case"},
            "spec": {**SPEC, **changes},
        }
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    def script(self, *proposals: dict[str, Any], name: str = "script.yaml", **rest: Any) -> None:
        usage = {"input_tokens": 1000, "output_tokens": 100, "usd": 0.004}
        (self.root / name).write_text(yaml.safe_dump({"usage": usage, **rest, "proposals": list(proposals)}))

    # Running

    def runtime(self) -> Runtime:
        return open_runtime()

    def converge(self, *proposals: dict[str, Any], models: list[str] | None = None, **changes: Any) -> Outcome:
        if proposals:
            self.script(*proposals)
        task = self.task(**changes)

        async def pursue() -> Outcome:
            async with self.runtime() as runtime:
                return await runtime.converge(load_task(str(task)), models=models)

        return self._noted(asyncio.run(pursue()))

    def resume(self) -> Outcome:
        async def pursue() -> Outcome:
            async with self.runtime() as runtime:
                return await runtime.resume(self.trajectory_id or runtime.newest())

        return self._noted(asyncio.run(pursue()))

    def _noted(self, outcome: Outcome) -> Outcome:
        self.trajectory_id = outcome.trajectory_id
        return outcome

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The command line in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "setpoint", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        if check:
            assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return done

    # Looking

    def events(self, *types: str) -> list[Any]:
        async def read() -> list[Any]:
            async with self.runtime() as runtime:
                stream = self.trajectory_id or runtime.newest()
                return [decode(s.type, s.data) for s in runtime.log.read(stream) if not types or s.type in types]

        return asyncio.run(read())

    def prompt(self, number: int) -> str:
        """The text of prompt ``number``, from 0, of all routes in order."""
        return self.prompts[number].text

    def tree(self, below: str = "project") -> dict[str, tuple[int, str | bytes | None]]:
        """Every path: mode, and content, link target or nothing."""
        top = self.root / below

        def of(path: Path) -> str | bytes | None:
            if path.is_symlink():
                return os.readlink(path)
            return path.read_bytes() if path.is_file() else None

        return {str(p.relative_to(top)): (p.lstat().st_mode, of(p)) for p in sorted(top.rglob("*"))}


@pytest.fixture
def case(tmp_path: Path, probe_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    for path in probe_cache.glob("*.json"):
        (home / "cache" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("SETPOINT_HOME", str(home))
    monkeypatch.delenv("SETPOINT_STORE", raising=False)
    made = Case(tmp_path)
    propose = ScriptedProposer.propose

    async def seen(self: ScriptedProposer, context: Context, deadline_ms: int) -> Any:
        made.prompts.append(context)
        return await propose(self, context, deadline_ms)

    monkeypatch.setattr(ScriptedProposer, "propose", seen)
    yield made
