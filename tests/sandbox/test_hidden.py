"""What no action may see: the manifest and sealed files inside the workspace (law L9)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from setpoint.ports.sandbox import Action, BindView, Limits, OverlayView


def run(sandbox, view, script: str, hidden: tuple[str, ...]):
    action = Action(("/bin/sh", "-c", script), view, Limits(wall_ms=10_000), hidden=hidden)
    done = asyncio.run(sandbox.run(action))
    return done.stdout.kept.decode(), done


def lay(folder: Path) -> Path:
    base = folder / "base"
    (base / "sealed" / "deep").mkdir(parents=True)
    (base / "sealed" / "deep" / "golden.py").write_text("SECRET = 42\n")
    (base / "task.yaml").write_text("kind: Task # SECRET\n")
    (base / "plain").write_text("visible\n")
    return base


SCRIPT = """
cat plain; cat task.yaml; cat sealed/deep/golden.py; ls -A sealed
echo x > sealed/mine; echo x > task.yaml; rm -rf sealed task.yaml; grep -r SECRET . 2>/dev/null; true
"""


def test_hidden_files_and_folders_cannot_be_read_written_or_removed(namespaces, tmp_path):
    """L9, R140, R210"""
    base = lay(tmp_path)
    scratch = namespaces.open_scratch(64 << 20)
    try:
        for part in ("up", "wk"):
            (Path(scratch.outside) / part).mkdir()
        view = OverlayView((str(base),), "up", "wk", scratch)
        said, _ = run(namespaces, view, SCRIPT, ("sealed", "task.yaml", "absent"))
        assert said == "visible\n"
        assert list((Path(scratch.outside) / "up").rglob("*")) == []  # and leaves nothing behind
    finally:
        scratch.close()
    assert (base / "task.yaml").read_text() == "kind: Task # SECRET\n"


def test_they_are_hidden_in_a_bound_view_too(namespaces, tmp_path):
    """L9"""
    base = lay(tmp_path)
    said, _ = run(namespaces, BindView(str(base)), SCRIPT, ("sealed", "task.yaml"))
    assert said == "visible\n"
    assert (base / "sealed" / "deep" / "golden.py").exists()
