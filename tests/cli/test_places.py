"""Setpoint's own state never lies in a workspace (law L9)."""

from __future__ import annotations

from cli.conftest import FIX, TASK, Shell


def test_a_store_inside_the_workspace_is_refused_before_it_is_made(shell: Shell):
    """L9: an action could read and change the log."""
    shell.lay(TASK, FIX)
    inside = shell.directory / "ws" / "x.db"
    refused = shell.run("converge", "--store", f"sqlite:///{inside}", code=2).stderr
    assert "contain each other" in refused
    assert not inside.exists()


def test_a_state_directory_inside_the_workspace_is_refused_before_it_is_made(shell: Shell):
    """L9"""
    shell.lay(TASK, FIX)
    state = shell.directory / "ws" / ".state"
    shell.environment["SETPOINT_HOME"] = str(state)
    assert "contain each other" in shell.run("converge", code=2).stderr
    assert not state.exists()
