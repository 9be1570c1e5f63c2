"""One bench a test: a workspace, a state directory beside it, and a provider."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from setpoint.adapters.workspaces.copy import CopyWorkspaceProvider
from setpoint.adapters.workspaces.overlay import OverlayWorkspaceProvider
from setpoint.ports.workspace import Workspace, WorkspaceProvider

from .harness import PlainSandbox, make, unlock, works

DISK = 1 << 28


@dataclass
class Bench:
    root: Path
    state: Path
    provider: WorkspaceProvider
    kind: str
    opened: list[Workspace]

    def open(self, transaction_id: str = "t1") -> Workspace:
        workspace = self.provider.open(str(self.root), transaction_id, DISK)
        self.opened.append(workspace)
        return workspace

    def fill(self, script: str) -> None:
        make(self.root, script)


def provider_of(kind: str, tmp_path: Path) -> WorkspaceProvider:
    if kind == "copy":
        return CopyWorkspaceProvider(tmp_path / "state")
    return OverlayWorkspaceProvider(tmp_path / "state", PlainSandbox(tmp_path / "scratch"))


@pytest.fixture(scope="session")
def overlays() -> bool:
    return works()


PROVIDERS = ["overlay", "copy"]


@pytest.fixture(params=PROVIDERS)
def bench(request: pytest.FixtureRequest, tmp_path: Path, overlays: bool) -> Iterator[Bench]:
    if not overlays:
        pytest.skip("bwrap cannot mount overlays here")
    (tmp_path / "ws").mkdir()
    made = Bench(tmp_path / "ws", tmp_path / "state", provider_of(request.param, tmp_path), request.param, [])
    yield made
    for workspace in made.opened:
        workspace.close(keep_staged=False)
    unlock(tmp_path)
