"""The place where the demo is played: one directory with its own state, and everything it ran there.

Nothing outside it is touched. It is removed at the end unless the user named it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import setpoint
from setpoint.app.manifest import load_task
from setpoint.app.runtime import Runtime
from setpoint.cli.account import Account, read_account
from setpoint.kernel.errors import UsageFault

MATERIAL: Final = Path(setpoint.__file__).parent / "demo"
PROGRAM_S_MAX: Final = 60
"""No program of the demo runs longer than a few seconds; what does is ended."""

Tree = dict[str, tuple[int, bytes]]
"""Every path below a directory: mode with file type, and content of a file or target of a link."""


@dataclass(frozen=True, slots=True)
class Ground:
    """``root`` holds ``home`` (Setpoint's own state) and a folder for each scene; ``runtime`` uses that state."""

    root: Path
    runtime: Runtime

    @property
    def home(self) -> Path:
        return self.root / "home"

    def lay_out(self, name: str, material: str) -> Path:
        """A fresh copy of the material under ``name``, writable whatever the modes of the installation are."""
        source, target = MATERIAL / material, self.root / name
        for path in [source, *sorted(source.rglob("*"))]:
            if "__pycache__" in path.parts:
                continue
            copy = target / path.relative_to(source)
            if path.is_dir():
                copy.mkdir(parents=True)
            else:
                copy.write_bytes(path.read_bytes())
        return target

    async def converge(self, task: Path, *models: str) -> Account:
        """Pursue the task at ``task`` to its end, and what the log says of it then."""
        outcome = await self.runtime.converge(load_task(str(task)), models=models or None)
        return read_account(self.runtime, outcome.trajectory_id)


@contextlib.contextmanager
def opened(workdir: str | None) -> Iterator[Path]:
    """The directory of the demo, a temporary one or ``workdir`` (which must be new or empty, and stays).

    While it is open, this process and its children use its state and no other. UsageFault.
    """
    root = _temporary() if workdir is None else _named(workdir)
    before = {name: os.environ.get(name) for name in ("SETPOINT_HOME", "SETPOINT_STORE")}
    os.environ["SETPOINT_HOME"] = str(root / "home")
    os.environ.pop("SETPOINT_STORE", None)
    try:
        yield root
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if workdir is None:
            remove(root)


def _temporary() -> Path:
    return Path(os.path.realpath(tempfile.mkdtemp(prefix="setpoint-demo-")))


def _named(workdir: str) -> Path:
    root = Path(os.path.realpath(workdir))
    try:
        root.mkdir(parents=True, exist_ok=True)
        occupied = any(root.iterdir())
    except OSError as fault:
        raise UsageFault(f"the demo cannot use {workdir}: {fault.strerror}") from fault
    if occupied:
        raise UsageFault(f"{workdir} is not empty; the demo was not played", hint="Name a new or an empty directory.")
    return root


def remove(root: Path) -> None:
    """Delete a tree, directories without permissions included."""
    for folder, folders, _ in os.walk(root):
        for name in folders:
            path = os.path.join(folder, name)
            if not os.path.islink(path) and os.lstat(path).st_mode & 0o700 != 0o700:
                os.chmod(path, 0o700)
    shutil.rmtree(root)


def tree(root: Path) -> Tree:
    """Everything below ``root``, byte for byte."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            content = os.fsencode(os.readlink(path))
        else:
            content = path.read_bytes() if stat.S_ISREG(mode) else b""
        found[str(path.relative_to(root))] = (mode, content)
    return found


def changed(before: Tree, after: Tree) -> list[str]:
    """The paths that differ."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


async def program(argv: Sequence[str], *, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a program to its end: its exit code, and both its streams as one text."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), PROGRAM_S_MAX)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode("utf-8", "replace")


def setpoint_command(*words: str) -> list[str]:
    """The command line of this very installation."""
    return [sys.executable, "-m", "setpoint", *words]
