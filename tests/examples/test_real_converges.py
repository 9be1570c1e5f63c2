"""The tasks on real packages, whole: the runtime converges with the honest proposer and stalls on the liar.

Each run works on copies of the task and of the package, so a user's own build/real is never touched.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from setpoint.app.manifest import load_task
from setpoint.app.runtime import Outcome, Runtime

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "examples" / "real"
NAMES = ("cachetools", "parse", "sqlparse")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three packages as published, laid out once."""
    dest = tmp_path_factory.mktemp("packages")
    done = subprocess.run(
        [sys.executable, "-B", str(REAL / "setup.py"), "--dest", str(dest)],
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    if done.returncode == 3:
        pytest.skip(f"the package index is unreachable: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return dest


@pytest.fixture
def bench(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which ``examples/real`` and ``build/real`` lie as in a checkout."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REAL, tmp_path / "examples" / "real", ignore=ignore)
    shutil.copytree(packages, tmp_path / "build" / "real", symlinks=True)
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))
    return tmp_path


def facts(name: str) -> dict:
    return json.loads((REAL / name / "facts.json").read_text())


def converge(bench: Path, name: str, model: str) -> Outcome:
    async def pursue() -> Outcome:
        async with Runtime.open() as runtime:
            task = load_task(str(bench / "examples" / "real" / name / "task.yaml"))
            return await runtime.converge(task, models=[model])

    return asyncio.run(pursue())


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every path below ``root``, .git included: mode, and content of a file."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in root.rglob("*")
    }


def own_suite(package: Path, target: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", target],
        cwd=package,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    last = done.stdout.strip().splitlines()[-1].partition(" in ")[0]
    return {outcome: int(count) for count, outcome in re.findall(r"(\d+) ([a-z]+)", last)}


@pytest.mark.parametrize("name", NAMES)
def test_the_honest_proposer_converges_to_exactly_the_fix(bench: Path, name: str) -> None:
    """G1, G2, G3: wrong patches, tampering and early claims on the way change nothing about the end."""
    package = bench / "build" / "real" / name
    before = tree(package)
    outcome = converge(bench, name, "command:./proposer.py")
    assert outcome.exit_code == 0, outcome.record.finished_message
    assert outcome.record.turn == facts(name)["proposer_turns"]
    after = tree(package)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert {path: hashlib.sha256(after[path][1]).hexdigest() for path in changed} == facts(name)["fixed_files"]
    wanted = facts(name)["own_suite"]
    assert own_suite(package, wanted.pop("target")) == {key: count for key, count in wanted.items() if count}

    again = converge(bench, name, "command:./there-is-no-such-program")
    assert again.exit_code == 0 and again.record.turn == 0, "a converged tree needs no model"


@pytest.mark.parametrize("name", NAMES)
def test_the_liar_stalls_and_the_tree_is_byte_identical(bench: Path, name: str) -> None:
    """G1, G2, G3, C2"""
    package = bench / "build" / "real" / name
    before = tree(package)
    outcome = converge(bench, name, "command:./liar.py")
    assert outcome.exit_code == 11, outcome.record.finished_message
    assert outcome.record.finished_reason == "Stalled"
    assert tree(package) == before
