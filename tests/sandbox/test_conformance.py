"""Every rung of ours keeps the promises of ``setpoint.ports.sandbox``; and says in its words what it refuses."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from setpoint.adapters.sandboxes.probe import Rung
from setpoint.kernel.errors import SandboxFault
from setpoint.ports.sandbox import BindView, Mount, OverlayView, Sandbox
from setpoint.testing.conformance import SandboxSuite

from .conftest import Bench, Sandboxes


class OfARung(SandboxSuite):
    rung: ClassVar[Rung]

    @pytest.fixture
    def sandbox(self, sandboxes: Sandboxes) -> Sandbox:
        return sandboxes(self.rung)


class TestOverlay(OfARung):
    rung = "overlay"


class TestCopy(OfARung):
    rung, has_overlays = "copy", False


class TestLandlock(OfARung):
    rung, has_overlays, is_isolated = "landlock", False, False


class TestNone(OfARung):
    rung, has_overlays, is_isolated, is_confined = "none", False, False, False


@pytest.mark.parametrize("path", ["/etc/passwd", "..", ".", "../beside", "a/../../beside"])
def test_only_paths_below_the_workspace_can_be_hidden(isolated: Bench, path: str) -> None:
    with pytest.raises(SandboxFault, match="cannot be hidden"):
        isolated.run("true", hidden=(path,))


def test_files_that_come_back_are_bounded(overlay: Bench) -> None:
    script = "i=0; while [ $i -lt 90 ]; do echo $i > /out/f$i; i=$((i+1)); done; head -c 9000000 /dev/zero > /out/a-big"
    done = overlay.run(script, out_at="/out")
    assert len(done.files) == 64 and "a-big" not in done.files


# --- what is ours to answer for


@pytest.mark.parametrize(
    "at", ["relative", "/", "/a/../b", "/workspace/inside", "/usr/lib/x", "/proc/x", "/etc/passwd"]
)
def test_a_mount_over_the_sandbox_itself_is_a_fault(isolated: Bench, tmp_path: Path, at: str) -> None:
    with pytest.raises(SandboxFault, match="cannot appear at"):
        isolated.run("true", mounts=(Mount(os.fspath(tmp_path), at),))


def test_a_missing_host_path_is_named(isolated: Bench) -> None:
    with pytest.raises(SandboxFault, match="/no/such/path"):
        isolated.run("true", mounts=(Mount("/no/such/path", "/x"),))
    with pytest.raises(SandboxFault, match="/no/such/root"):
        isolated.run("true", view=BindView("/no/such/root"))


def test_a_missing_lower_is_named(overlay: Bench) -> None:
    with pytest.raises(SandboxFault, match="/no/such/lower"):
        overlay.run("true", view=OverlayView(("/no/such/lower",)))


def test_the_whole_host_is_never_shown(isolated: Bench) -> None:
    with pytest.raises(SandboxFault, match="whole host"):
        isolated.run("true", mounts=(Mount("/", "/host"),))
    with pytest.raises(SandboxFault, match="whole host"):
        isolated.run("true", view=BindView("/"))


def test_an_unknown_toolchain_is_a_fault(bench: Bench) -> None:
    with pytest.raises(SandboxFault, match="cobol"):
        bench.run("true", toolchain=("cobol",))


def test_the_python_toolchain_is_the_runtimes_own(bench: Bench) -> None:

    done = bench.run("python3 -c 'import sys; print(sys.prefix, sys.version)'", toolchain=("python",))
    assert done.stdout.kept.decode().strip() == f"{sys.prefix} {sys.version}", done.stderr.kept


def test_a_sandbox_that_cannot_be_started_is_a_fault(isolated: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = isolated.sandbox._machine  # type: ignore[attr-defined]
    monkeypatch.setattr(isolated.sandbox, "_machine", replace(machine, bwrap="/no/such/bwrap"))
    with pytest.raises(SandboxFault, match="/no/such/bwrap"):
        isolated.run("true", view=None)
