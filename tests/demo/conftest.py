"""An installation that an ordinary user can run, when root runs these tests from a place nobody else may read."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import setpoint


@dataclass(frozen=True, slots=True)
class Installation:
    """``argv`` starts Setpoint's command line as ``uid``; its directories must be below a folder of that user."""

    argv: tuple[str, ...]
    uid: int


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory outside pytest's own, which other users could not enter."""
    path = Path(tempfile.mkdtemp(prefix="setpoint-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def ordinary(place: Path) -> Installation:
    """Setpoint as an ordinary user runs it: as it is when we are one, else in an environment of that user's own."""
    if os.geteuid() != 0:
        return Installation((sys.executable, "-m", "setpoint"), os.geteuid())
    setpriv, python = shutil.which("setpriv"), Path("/usr/bin/python3")
    if setpriv is None:
        pytest.skip("setpriv is not installed, so root cannot become an ordinary user")
    code = f"import sys, venv; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    if not python.exists() or subprocess.run([python, "-c", code], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"no Python {sys.version_info[0]}.{sys.version_info[1]} in /usr that an ordinary user may run")
    try:
        uid = pwd.getpwnam("tester").pw_uid
    except KeyError:
        uid = 65534
    own = place / "venv"
    subprocess.run([python, "-m", "venv", "--without-pip", own], check=True)
    (packages,) = own.glob("lib/python3*/site-packages")
    _install(packages)
    become = (setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
    return Installation((*become, str(own / "bin" / "python3"), "-m", "setpoint"), uid)


def _install(packages: Path) -> None:
    """Copy Setpoint, what it needs, pytest and httpx into ``packages``."""
    waiting, seen = ["setpoint", "pytest", "httpx"], set[str]()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # needed on other platforms only
            continue
        needs = [need for need in found.requires or [] if "extra ==" not in need]
        waiting += [re.split(r"[^A-Za-z0-9._-]", need, maxsplit=1)[0] for need in needs]
        if name == "setpoint":
            continue
        for file in found.files or []:
            source = Path(str(found.locate_file(file)))
            if ".." not in file.parts and source.is_file() and "__pycache__" not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, packages / file)
    own = Path(setpoint.__file__).parent
    shutil.copytree(own, packages / "setpoint", ignore=shutil.ignore_patterns("__pycache__"))
