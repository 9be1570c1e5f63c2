"""One bench a test: a workspace, a state directory beside it, and a provider."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from setpoint.adapters.workspaces.copy import CopyWorkspaceProvider
from setpoint.adapters.workspaces.overlay import OverlayWorkspaceProvider
from setpoint.ports.workspace import WorkspaceProvider
from setpoint.testing.conformance.workspace import DISK_BYTES, WorkspaceBench

from .harness import PlainSandbox, unlock, works

DISK = DISK_BYTES


@dataclass
class Bench(WorkspaceBench):
    kind: str = ""
    state: Path = Path()


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
    provider = provider_of(request.param, tmp_path)
    made = Bench(tmp_path / "ws", provider, kind=request.param, state=tmp_path / "state")
    yield made
    made.close()
    unlock(tmp_path)
