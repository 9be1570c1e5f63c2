"""Every provider keeps the promises of ``setpoint.ports.workspace``."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.kernel.errors import WorkspaceFault
from setpoint.ports.workspace import WorkspaceProvider
from setpoint.testing.conformance import WorkspaceSuite

from .conftest import provider_of


class Ours(WorkspaceSuite):
    kind: str

    @pytest.fixture
    def provider(self, tmp_path: Path) -> WorkspaceProvider:
        return provider_of(self.kind, tmp_path)

    def test_a_state_directory_inside_the_workspace_is_refused(
        self, provider: WorkspaceProvider, tmp_path: Path
    ) -> None:
        with pytest.raises(WorkspaceFault):
            provider.open(str(tmp_path), "t", 1 << 20)


class TestOverlay(Ours):
    kind = "overlay"


class TestCopy(Ours):
    kind = "copy"
