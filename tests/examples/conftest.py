"""Where a test of the refund application is played, and who may approve there."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.adapters.approvers.signing import own_key, own_public_line


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SETPOINT_STORE", raising=False)
    (tmp_path / "home").mkdir(mode=0o700)
    return tmp_path


@pytest.fixture
def people(place: Path) -> dict[str, Path]:
    """Who may approve, in the installation's roster, and a stranger who is not in it. Their keys are files."""
    keys = {name: own_key(place / "keys" / name) for name in ("anna", "omar", "stranger")}
    roles = {"anna": "[ops]", "omar": "[finance]"}
    lines = [f"- {{name: {name}, roles: {roles[name]}, key: {own_public_line(keys[name])}}}\n" for name in roles]
    roster = place / "home" / "approvers.yaml"
    roster.write_text("approvers:\n" + "".join(lines))
    roster.chmod(0o600)
    return keys
