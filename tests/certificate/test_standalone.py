"""The verifier works with its own folder and ``cryptography``, and nothing of the runtime."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import setpoint.certificate
from setpoint.app.keys import public_pem
from setpoint.certificate.canonical import canonical

from .factory import KEY, OTHER_KEY, document, history

PACKAGE = Path(setpoint.certificate.__file__).parent
HIDE_RUNTIME = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("setpoint", "msgspec", "yaml"):
            raise ModuleNotFoundError(f"{name} is hidden from this test")
sys.meta_path.insert(0, Hidden())
import runpy
runpy.run_module("certificate", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """A folder that holds a copy of the package, a certificate, keys and a task."""
    shutil.copytree(PACKAGE, tmp_path / "lib" / "certificate", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "good.cert.json").write_bytes(history().bundle())
    (tmp_path / "signing.pub").write_bytes(public_pem(KEY.public_key()))
    (tmp_path / "other.pub").write_bytes(public_pem(OTHER_KEY.public_key()))
    (tmp_path / "task.json").write_bytes(canonical(document()) + b"\n")
    return tmp_path


def run(bench: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(bench / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", HIDE_RUNTIME, "verify", *arguments]
    return subprocess.run(command, cwd=bench, env=environment, capture_output=True, text=True, timeout=60)


def test_a_copied_folder_verifies_without_the_runtime(bench: Path) -> None:
    """R020"""
    done = run(bench, "good.cert.json", "--key", "signing.pub", "--task", "task.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("  passed  ") == 7
    assert "criteria/golden: pass at sealed" in done.stdout
    assert "level sealed (required visible); every criterion at least visible" in done.stdout
    assert "it does not say correct" in done.stdout


def test_a_flipped_byte_or_another_key_exits_19(bench: Path) -> None:
    """R020"""
    data = bytearray((bench / "good.cert.json").read_bytes())
    data[len(data) // 2] ^= 1
    (bench / "bad.cert.json").write_bytes(data)
    assert run(bench, "bad.cert.json", "--key", "signing.pub").returncode == 19
    done = run(bench, "good.cert.json", "--key", "other.pub")
    assert done.returncode == 19
    assert "NOT VALID" in done.stdout and "not a trusted key" in done.stdout
    assert "criteria/golden: pass" not in done.stdout  # nothing is reported as a fact that was not shown
    assert run(bench, "good.cert.json", "--key", "other.pub", "--key", "signing.pub").returncode == 0


def test_drift_of_a_directory_is_reported_apart(bench: Path) -> None:
    done = run(bench, "good.cert.json", "--key", "signing.pub", "--workspace", str(bench))
    assert done.returncode == 17
    assert "failed  workspace" in done.stdout and "VALID  task clamp" in done.stdout


def test_wrong_usage_is_not_a_verdict(bench: Path) -> None:
    for arguments in (
        ("good.cert.json",),
        ("none.json", "--key", "signing.pub"),
        ("good.cert.json", "--key", "task.json"),
    ):
        done = run(bench, *arguments)
        assert done.returncode == 2, arguments
        assert done.stdout == ""


def test_it_runs_under_its_installed_name_too(bench: Path) -> None:
    command = [sys.executable, "-m", "setpoint.certificate", "verify", "good.cert.json", "--key", "signing.pub"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent.parent)}
    assert subprocess.run(command, cwd=bench, env=environment, capture_output=True, timeout=60).returncode == 0


def test_no_module_imports_anything_but_the_standard_library_and_cryptography() -> None:
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found = [node.module or ""]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1, f"{path.name} reaches outside its folder"
            for name in found:
                top = name.split(".")[0]
                assert top == "cryptography" or top in sys.stdlib_module_names, f"{path.name} imports {name}"
