"""What no action may see: the manifest and sealed files inside the workspace (law L9)."""

from __future__ import annotations

from pathlib import Path

from setpoint.ports.sandbox import OverlayView


def lay(base: Path) -> None:
    (base / "sealed" / "deep").mkdir(parents=True)
    (base / "sealed" / "deep" / "golden.py").write_text("SECRET = 42\n")
    (base / "task.yaml").write_text("kind: Task # SECRET\n")
    (base / "plain").write_text("visible\n")


SCRIPT = """
cat plain; cat task.yaml; cat sealed/deep/golden.py; ls -A sealed
echo x > sealed/mine; echo x > task.yaml; rm -rf sealed task.yaml; grep -r SECRET . 2>/dev/null; true
"""


def test_hidden_files_and_folders_cannot_be_read_written_or_removed(isolated):
    """L9, R140, R210"""
    lay(isolated.workspace)
    done = isolated.run(SCRIPT, hidden=("sealed", "task.yaml", "absent"))
    assert done.stdout.kept == b"visible\n"
    assert (isolated.workspace / "sealed" / "deep" / "golden.py").read_text() == "SECRET = 42\n"
    assert (isolated.workspace / "task.yaml").exists()


def test_without_hiding_the_same_script_reads_them(isolated):
    """The control: the check above can fail."""
    lay(isolated.workspace)
    assert b"SECRET" in isolated.run("cat task.yaml").stdout.kept


def test_hiding_leaves_nothing_in_the_upper_layer(overlay):
    """L5"""
    lay(overlay.workspace)
    scratch = overlay.sandbox.open_scratch(32 << 20)
    try:
        for part in ("up", "wk"):
            (Path(scratch.outside) / part).mkdir()
        view = OverlayView((str(overlay.workspace),), "up", "wk", scratch)
        assert overlay.run(SCRIPT, view=view, hidden=("sealed", "task.yaml")).stdout.kept == b"visible\n"
        assert list((Path(scratch.outside) / "up").rglob("*")) == []
    finally:
        scratch.close()
