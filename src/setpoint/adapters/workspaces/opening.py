"""Which transaction a machine can have: on overlays where the sandbox has them, on copies elsewhere."""

from __future__ import annotations

from pathlib import Path

from setpoint.adapters.workspaces.copy import CopyWorkspaceProvider
from setpoint.adapters.workspaces.overlay import OverlayWorkspaceProvider
from setpoint.ports.sandbox import Sandbox
from setpoint.ports.workspace import WorkspaceProvider


def open_workspaces(state_dir: Path, sandbox: Sandbox) -> WorkspaceProvider:
    """The provider that fits the sandbox's rung."""
    if sandbox.report.rung == "overlay":
        return OverlayWorkspaceProvider(state_dir, sandbox)
    return CopyWorkspaceProvider(state_dir)
