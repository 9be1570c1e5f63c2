"""A real sandbox, real files, and one call that judges a check against a candidate tree."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.adapters.verifiers.judge import CheckVerifier
from setpoint.adapters.verifiers.sealed_files import digest_directory
from setpoint.kernel.contract import Criterion, Environment, Invariant, Level, Limits, Predicate, RunCheck
from setpoint.kernel.errors import IsolationUnavailable
from setpoint.kernel.evidence import Counts, Evidence
from setpoint.ports.sandbox import OverlayView, Sandbox
from setpoint.ports.verifier import Candidate
from setpoint.ports.workspace import ChangeSet

Files = Mapping[str, str]


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with tempfile.TemporaryDirectory(prefix="setpoint-test-") as cache:
        try:
            opened = open_sandbox("namespaces", cache_dir=Path(cache))
        except IsolationUnavailable as reason:
            pytest.skip(f"no sandbox on this machine: {reason}")
        yield opened
        asyncio.run(opened.close())


class Bench:
    """Builds trees below one directory and judges checks against them. ``workspace`` is the candidate."""

    def __init__(self, root: Path, sandbox: Sandbox) -> None:
        self.workspace = root / "workspace"
        self.sealed = root / "sealed"
        self.workspace.mkdir()
        self.sealed.mkdir()
        self.sandbox = sandbox
        self.environment = Environment(str(self.workspace), limits=Limits(wall_ms=30_000))
        self.probes: dict[str, Callable[[dict[str, Any]], Any]] = {}

    def write(self, files: Files, where: Path | None = None) -> None:
        for name, content in files.items():
            path = (where or self.workspace) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            path.chmod(0o755 if content.startswith("#!") else 0o644)

    def seal(self, files: Files) -> None:
        self.write(files, self.sealed)

    def criterion(self, predicate: Predicate, level: Level = Level.VISIBLE, **changes: Any) -> Criterion:
        check = Criterion("c", predicate, level)
        if level >= Level.SEALED and any(self.sealed.iterdir()):
            check = replace(check, files=str(self.sealed), files_digest=digest_directory(str(self.sealed)))
        return replace(check, **changes)

    def candidate(self, **changes: Any) -> Candidate:
        given = {"changes": ChangeSet((), "sha256:state"), "fingerprint": "sha256:state"} | changes
        return Candidate(OverlayView((str(self.workspace),)), **given)

    def judge(
        self, check: Criterion | Invariant, baseline: Counts | None = None, candidate: Candidate | None = None
    ) -> Evidence:
        verifier = CheckVerifier(self.sandbox, self.environment, self.probes)
        return asyncio.run(verifier.judge(check, candidate or self.candidate(), baseline))

    def run(
        self,
        command: str,
        parse: str = "exit",
        level: Level = Level.VISIBLE,
        baseline: Counts | None = None,
        **rest: Any,
    ) -> Evidence:
        check = RunCheck(command, parse, **rest)  # type: ignore[arg-type]
        return self.judge(self.criterion(check, level), baseline)


@pytest.fixture
def bench(tmp_path: Path, sandbox: Sandbox) -> Bench:
    return Bench(tmp_path, sandbox)
