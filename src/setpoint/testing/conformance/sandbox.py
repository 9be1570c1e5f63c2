"""The promises of ``setpoint.ports.sandbox``: one action that can only touch what it was given."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from setpoint.ports.sandbox import Action, BindView, Finished, Limits, Mount, OverlayView, Sandbox, View

QUICK = Limits(wall_ms=20_000, memory_bytes=128 << 20, pids=24, disk_bytes=32 << 20)
Alive = Callable[[str], list[int]]

# What a stubborn action leaves behind: signals ignored, own sessions, a daemon whose parent is gone.
STUBBORN = """
trap '' TERM HUP INT
setsid sh -c 'trap "" TERM HUP INT; sleep MARK & sleep MARK' &
(setsid sleep MARK &)
"""
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class SandboxBench:
    """One sandbox, one workspace, and shorthand to run shell scripts in it."""

    sandbox: Sandbox
    workspace: Path
    has_overlays: bool

    def view(self) -> View:
        root = os.fspath(self.workspace)
        return OverlayView((root,)) if self.has_overlays else BindView(root)

    def action(self, script: str, **fields: object) -> Action:
        fields.setdefault("view", self.view())
        fields.setdefault("limits", QUICK)
        return Action(("/bin/sh", "-c", script), **fields)  # type: ignore[arg-type]

    def run(self, script: str, **fields: object) -> Finished:
        return self.execute(self.action(script, **fields))

    def execute(self, action: Action) -> Finished:
        return asyncio.run(self.sandbox.run(action))


def lines(output: bytes) -> list[str]:
    return output.decode().splitlines()


def odd_number_of_seconds() -> str:
    """A number of seconds nobody else sleeps for, to recognise processes by."""
    return f"{random.randint(100_000, 999_999)}.{os.getpid()}{next(_serial)}"


def processes_with(text: str) -> list[int]:
    """Processes of this machine whose command line holds a text."""
    pids: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids


class SandboxSuite:
    """Every sandbox keeps these, as far as its tier goes. Override ``sandbox`` and the three words below.

        class TestMySandbox(SandboxSuite):
            has_overlays = False

            @pytest.fixture
            def sandbox(self, tmp_path):
                return MySandbox(tmp_path / "scratch")

    The suite does not close the sandbox: a fixture of a wider scope may hold one for many tests.
    """

    is_isolated: ClassVar[bool] = True
    """Tier "namespaces" or better: nothing else of the host is there."""
    has_overlays: ClassVar[bool] = True
    """Whether it shows an ``OverlayView``."""
    is_confined: ClassVar[bool] = True
    """Whether a read-only view is kept from being written at all."""

    @pytest.fixture
    def sandbox(self) -> Sandbox:
        raise NotImplementedError("Override the fixture sandbox: it returns your sandbox.")

    @pytest.fixture
    def bench(self, sandbox: Sandbox, tmp_path: Path) -> SandboxBench:
        workspace = tmp_path / "workspace"
        workspace.mkdir()
        (workspace / "file").write_text("content\n")
        return SandboxBench(sandbox, workspace, self.has_overlays)

    @pytest.fixture
    def isolated(self, bench: SandboxBench) -> SandboxBench:
        if not self.is_isolated:
            pytest.skip("it isolates nothing")
        return bench

    @pytest.fixture
    def overlay(self, bench: SandboxBench) -> SandboxBench:
        if not self.has_overlays:
            pytest.skip("it has no overlays")
        return bench

    @pytest.fixture
    def marker(self) -> str:
        return odd_number_of_seconds()

    @pytest.fixture
    def alive(self) -> Alive:
        return processes_with

    # --- what the action sees

    def test_the_action_sees_the_workspace_and_runs_in_it(self, bench: SandboxBench) -> None:
        done = bench.run("cat file; pwd; ls")
        where = "/workspace" if self.is_isolated else os.fspath(bench.workspace)
        assert lines(done.stdout.kept) == ["content", where, "file"]
        assert (done.exit_code, done.signal, done.reason) == (0, None, "")

    def test_the_environment_is_exactly_the_fixed_minimum_plus_env(
        self, bench: SandboxBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R207"""
        monkeypatch.setenv("SECRET_TOKEN", "hunter2")
        done = bench.run("env", env=(("ASKED", "yes"), ("LANG", "C")))
        seen = dict(line.split("=", 1) for line in lines(done.stdout.kept))
        if not self.is_isolated:  # here /tmp is everyone's, so home is a private directory instead
            home = seen.pop("HOME")
            assert home == seen.pop("TMPDIR") and not os.path.exists(home)
            seen |= {"HOME": "/tmp", "TMPDIR": "/tmp"}
        seen.pop("PWD", None)  # the shell's own
        for name in ("_", "SHLVL", "OLDPWD"):
            seen.pop(name, None)
        assert seen == {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            "TERM": "dumb",
            "LANG": "C",
            "ASKED": "yes",
        }

    def test_nothing_else_of_the_host_is_there(self, isolated: SandboxBench) -> None:
        """The action sees the view, the mounts, the system and nothing else of the host. R198"""
        outside = isolated.workspace.parent / "outside"
        outside.write_text("secret")
        done = isolated.run(
            f"cat {outside} 2>&1; ls -A /; ls -A /etc; ls -A /tmp; ls /root /home /var /run /sys 2>/dev/null"
        )
        seen = set(lines(done.stdout.kept))
        assert not any("secret" in line for line in seen)
        assert seen & {"root", "home", "var", "run", "sys", "srv", "boot", "shadow", "hostname", "machine-id"} == set()
        assert {"workspace", "usr", "tmp", "proc", "dev"} <= seen

    def test_process_mount_and_network_namespaces_are_its_own(self, isolated: SandboxBench) -> None:
        """R067, R198"""
        kinds = ("pid", "mnt", "net", "user", "ipc", "uts", "cgroup")
        done = isolated.run("for n in pid mnt net user ipc uts cgroup; do readlink /proc/self/ns/$n; done")
        inside = lines(done.stdout.kept)
        assert len(inside) == len(kinds)
        for kind, namespace in zip(kinds, inside, strict=True):
            assert namespace != os.readlink(f"/proc/self/ns/{kind}")

    def test_only_given_descriptors_are_open(self, bench: SandboxBench) -> None:
        leak = os.open("/dev/null", os.O_RDONLY)
        os.set_inheritable(leak, True)
        try:
            done = bench.run("ls /proc/self/fd")
        finally:
            os.close(leak)
        assert lines(done.stdout.kept) == ["0", "1", "2", "3"]  # 3 is ls reading the directory

    def test_writes_to_a_view_without_upper_are_thrown_away(self, overlay: SandboxBench) -> None:
        first = overlay.run("echo changed > file; echo new > other; cat file")
        second = overlay.run("cat file; ls")
        assert first.stdout.kept == b"changed\n"
        assert lines(second.stdout.kept) == ["content", "file"]
        assert (overlay.workspace / "file").read_text() == "content\n"

    def test_a_bound_directory_is_written_or_refused_as_asked(self, bench: SandboxBench) -> None:
        """R206"""
        root = os.fspath(bench.workspace)
        assert bench.run("echo x > written", view=BindView(root)).exit_code == 0
        assert (bench.workspace / "written").read_text() == "x\n"
        if not self.is_confined:
            pytest.skip("it confines nothing")
        done = bench.run("echo x > refused", view=BindView(root, readonly=True))
        assert done.exit_code != 0 and not (bench.workspace / "refused").exists()

    def test_mounts_are_shown_read_only_at_their_place(self, isolated: SandboxBench, tmp_path: Path) -> None:
        """R210"""
        (tmp_path / "sealed").mkdir()
        (tmp_path / "sealed" / "test").write_text("hidden\n")
        mounts = (Mount(os.fspath(tmp_path / "sealed"), "/sealed"),)
        done = isolated.run("cat /sealed/test; echo x > /sealed/new; rm -f /sealed/test; ls /sealed", mounts=mounts)
        assert lines(done.stdout.kept) == ["hidden", "test"]
        assert os.listdir(tmp_path / "sealed") == ["test"]

    def test_what_is_hidden_stays_hidden_when_its_folder_is_renamed(self, isolated: SandboxBench) -> None:
        """R210"""
        secret = isolated.workspace / "a" / "b" / "golden.py"
        secret.parent.mkdir(parents=True)
        secret.write_text("SECRET\n")
        (secret.parent / "plain").write_text("plain\n")
        hidden = ("a/b/golden.py",)
        first = isolated.run("mv a moved; mv a/b a/c; cat a/b/plain; echo x > a/b/new; cat a/b/new", hidden=hidden)
        assert first.stdout.kept == b"plain\nx\n", first.stderr.kept
        assert isolated.run("grep -r SECRET . 2>/dev/null", hidden=hidden).stdout.kept == b""
        assert secret.read_text() == "SECRET\n"

    def test_without_a_view_there_is_no_workspace(self, isolated: SandboxBench) -> None:
        done = isolated.run("pwd; ls -d /workspace", view=None)
        assert done.stdout.kept == b"/tmp\n" and done.exit_code != 0

    @pytest.mark.parametrize("name", ["plain", "co:lon", "com,ma", "back\\slash", "new\nline", 'quo"te', "ünï", "a b"])
    def test_lower_paths_may_hold_any_character(self, overlay: SandboxBench, tmp_path: Path, name: str) -> None:
        lower = tmp_path / name
        lower.mkdir()
        (lower / "low").write_text("low\n")
        view = OverlayView((os.fspath(overlay.workspace), os.fspath(lower)))
        assert overlay.run("cat low file", view=view).stdout.kept == b"low\ncontent\n"

    def test_lower_paths_may_hold_any_bytes(self, overlay: SandboxBench, tmp_path: Path) -> None:
        lower = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
        os.mkdir(lower)
        assert overlay.run("ls", view=OverlayView((os.fspath(overlay.workspace), lower))).stdout.kept == b"file\n"

    def test_the_last_lower_lies_on_top(self, overlay: SandboxBench, tmp_path: Path) -> None:
        (tmp_path / "staged").mkdir()
        (tmp_path / "staged" / "file").write_text("staged\n")
        view = OverlayView((os.fspath(overlay.workspace), os.fspath(tmp_path / "staged")))
        assert overlay.run("cat file", view=view).stdout.kept == b"staged\n"

    def test_cwd_is_honoured_below_the_workspace(self, bench: SandboxBench) -> None:
        (bench.workspace / "sub").mkdir()
        (bench.workspace / "sub" / "here").touch()
        assert bench.run("ls", cwd="/workspace/sub").stdout.kept == b"here\n"

    def test_stdin_arrives_whole_and_ends(self, bench: SandboxBench) -> None:
        text = os.urandom(3 << 20)
        done = bench.run("sha256sum", stdin=text)
        assert done.stdout.kept.split()[0].decode() == hashlib.sha256(text).hexdigest()
        assert bench.run("cat").stdout.kept == b""

    def test_an_action_that_ignores_its_stdin_is_not_held_up(self, bench: SandboxBench) -> None:
        assert bench.run("exit 4", stdin=bytes(4 << 20)).exit_code == 4

    # --- how it ends

    def test_exit_codes_and_signals_are_told_apart(self, bench: SandboxBench) -> None:
        """R200"""
        assert bench.run("exit 3").exit_code == 3
        killed = bench.run("kill -SEGV $$")
        assert (killed.exit_code, killed.signal, killed.reason) == (None, 11, "")

    @pytest.mark.parametrize(
        "argv",
        [("/no/such/program",), ("no-such-program",), ("/etc/localtime",), ("bad\0name",), ("",), (), ("\ud800",)],
    )
    def test_a_program_that_cannot_start_is_an_outcome(self, bench: SandboxBench, argv: tuple[str, ...]) -> None:
        """``run`` never raises for what the action did."""
        done = bench.execute(Action(argv, bench.view(), QUICK))
        assert (done.exit_code, done.reason) == (None, "start") and done.stderr.kept

    def test_a_directory_that_is_not_there_is_an_outcome(self, bench: SandboxBench) -> None:
        assert bench.run("pwd", cwd="/workspace/nowhere").reason == "start"

    def test_an_argument_list_beyond_the_kernels_limit_is_an_outcome(self, isolated: SandboxBench) -> None:
        done = isolated.execute(Action(("/bin/echo", "x" * (1 << 20)), isolated.view(), QUICK))
        assert done.reason == "start"

    def test_output_is_clamped_to_head_and_tail_and_hashed_whole(self, bench: SandboxBench) -> None:
        """Output beyond the limit is counted, hashed and clamped to head and tail. R099"""
        limits = Limits(wall_ms=20_000, output_bytes=1000)
        done = bench.run("seq 1 20000; seq 1 20000 >&2", limits=limits)
        whole = "".join(f"{number}\n" for number in range(1, 20001)).encode()
        for stream in (done.stdout, done.stderr):
            assert stream.truncated and stream.total_bytes == len(whole)
            assert stream.sha256 == hashlib.sha256(whole).hexdigest()
            assert stream.kept == whole[:500] + whole[-500:]

    def test_no_output_need_be_kept(self, bench: SandboxBench) -> None:
        done = bench.run("echo output", limits=Limits(output_bytes=0))
        assert done.stdout.truncated and done.stdout.total_bytes == 7 and len(done.stdout.kept) <= 2

    def test_short_output_is_kept_whole_with_any_bytes(self, bench: SandboxBench) -> None:
        done = bench.run(r"printf '\000\377\033]0;x\007'")
        assert done.stdout.kept == b"\0\xff\x1b]0;x\x07" and not done.stdout.truncated
        assert done.stdout.sha256 == hashlib.sha256(done.stdout.kept).hexdigest()

    def test_a_flood_of_output_ends_the_action(self, bench: SandboxBench) -> None:
        """R199"""
        limits = Limits(wall_ms=20_000, output_kill_bytes=4 << 20)
        done = bench.run("yes", limits=limits)
        assert done.reason == "output" and done.exit_code is None
        assert done.stdout.total_bytes > 4 << 20 and len(done.stdout.kept) <= limits.output_bytes

    def test_the_wall_clock_ends_grandchildren_that_ignore_signals(
        self, bench: SandboxBench, alive: Alive, marker: str
    ) -> None:
        """R096 R199"""
        script = STUBBORN.replace("MARK", marker) + f"sleep {marker}"
        started = time.monotonic()
        done = bench.run(script, limits=Limits(wall_ms=600))
        assert (done.reason, done.exit_code) == ("wall", None)
        assert alive(marker) == []
        assert time.monotonic() - started < 10

    def test_daemons_of_an_action_that_ended_are_dead_when_run_returns(
        self, bench: SandboxBench, alive: Alive, marker: str
    ) -> None:
        """``run`` returns only after every process the action started is dead. R096"""
        done = bench.run(STUBBORN.replace("MARK", marker) + "exit 0")
        assert done.exit_code == 0
        assert alive(marker) == []

    def test_cancelling_kills_the_tree_before_the_cancellation_completes(
        self, bench: SandboxBench, alive: Alive, marker: str
    ) -> None:
        """``cancel`` of the awaiting task kills the action's whole process tree before the cancellation completes."""
        script = STUBBORN.replace("MARK", marker) + f"sleep {marker}"

        async def start_then_cancel() -> None:
            task = asyncio.create_task(bench.sandbox.run(bench.action(script)))
            while len(alive(marker)) < 4:
                await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # an impatient caller changes nothing
            with pytest.raises(asyncio.CancelledError):
                await task
            assert alive(marker) == []

        asyncio.run(start_then_cancel())

    @pytest.mark.parametrize("delay_ms", [0, 1, 3, 6, 10, 20])
    def test_cancelling_while_it_is_being_set_up_leaves_nothing(
        self, bench: SandboxBench, alive: Alive, marker: str, delay_ms: int
    ) -> None:
        async def start_then_cancel() -> None:
            task = asyncio.create_task(bench.sandbox.run(bench.action(f"sleep {marker}")))
            await asyncio.sleep(delay_ms / 1000)
            cancelled_at = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert alive(marker) == []
            assert time.monotonic() - cancelled_at < 5  # by a kill, not by running into the bound of dying

        asyncio.run(start_then_cancel())

    def test_several_actions_run_at_once(self, bench: SandboxBench) -> None:
        async def together() -> list[bytes]:
            actions = [bench.action(f"sleep 0.2; echo {number}") for number in range(8)]
            return [done.stdout.kept for done in await asyncio.gather(*map(bench.sandbox.run, actions))]

        started = time.monotonic()
        assert asyncio.run(together()) == [f"{number}\n".encode() for number in range(8)]
        assert time.monotonic() - started < 1.6

    # --- limits

    def test_more_memory_than_allowed_ends_the_action(self, bench: SandboxBench) -> None:
        """R199"""
        if "memory" in bench.sandbox.report.unenforced:
            pytest.skip("the report says so")
        limits = Limits(wall_ms=20_000, memory_bytes=64 << 20, disk_bytes=16 << 20)
        done = bench.run("head -c 400000000 /dev/zero | tail -c 400000000 | wc -c; sleep 20", limits=limits)
        assert done.reason == "memory"

    def test_a_tree_of_small_processes_cannot_exceed_the_memory_limit(self, bench: SandboxBench) -> None:
        """R199"""
        limits = Limits(wall_ms=20_000, memory_bytes=96 << 20, disk_bytes=16 << 20)
        one = "(head -c 40000000 /dev/zero | tail -c 40000000; sleep 20) | (sleep 20; wc -c) &"
        assert bench.run(one * 8 + " wait", limits=limits).reason == "memory"

    def test_more_processes_than_allowed_cannot_be_started(self, bench: SandboxBench) -> None:
        """R199"""
        done = bench.run("i=0; while [ $i -lt 80 ]; do sleep 20 & i=$((i+1)); done; sleep 20")
        if "pids" in bench.sandbox.report.unenforced:
            assert done.reason == "killed"  # noticed late, by sampling
        else:
            assert done.exit_code != 0 and b"ork" in done.stderr.kept

    def test_cpu_time_ends_a_busy_loop(self, bench: SandboxBench) -> None:
        """R199"""
        assert bench.run("while :; do :; done", limits=Limits(cpu_ms=1000)).reason == "cpu"

    def test_cpu_time_counts_the_whole_tree(self, bench: SandboxBench) -> None:
        """R199"""
        busy = "while :; do timeout 0.3 sh -c 'while :; do :; done'; done"
        assert bench.run(busy, limits=Limits(cpu_ms=1500)).reason == "cpu"

    @pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm"])
    def test_the_disk_quota_holds_in_every_writable_place(self, overlay: SandboxBench, place: str) -> None:
        """R199"""
        if "disk" in overlay.sandbox.report.unenforced:
            pytest.skip("the report says so")
        script = f"i=0; while [ $i -lt 12 ]; do head -c 8388608 /dev/zero > {place}/f$i || exit 9; i=$((i+1)); done"
        done = overlay.run(script)
        assert done.exit_code == 9 and b"No space left" in done.stderr.kept

    def test_the_number_of_files_is_bounded_too(self, overlay: SandboxBench) -> None:
        limits = Limits(wall_ms=20_000, disk_bytes=1 << 20)
        done = overlay.run("i=0; while : > f$i; do i=$((i+1)); [ $i -gt 9000 ] && exit 0; done; exit 9", limits=limits)
        assert done.exit_code != 0

    def test_a_single_file_cannot_exceed_the_disk_limit(self, bench: SandboxBench) -> None:
        assert bench.run("truncate -s 1T sparse").exit_code != 0

    def test_no_other_place_is_writable(self, isolated: SandboxBench) -> None:
        done = isolated.run(
            "for d in / /usr /etc /dev /proc /proc/sys/kernel; do : > $d/x && echo $d; done 2>/dev/null"
        )
        assert done.stdout.kept == b""

    # --- scratch and out

    def test_an_upper_layer_in_a_scratch_survives_the_action(self, overlay: SandboxBench) -> None:
        """R201"""
        scratch = overlay.sandbox.open_scratch(16 << 20)
        try:
            for name in ("upper", "work"):
                os.mkdir(os.path.join(scratch.outside, name))
            view = OverlayView((os.fspath(overlay.workspace),), "upper", "work", scratch)
            overlay.run("echo changed > file; mkdir dir; echo new > dir/new", view=view)
            assert sorted(os.listdir(os.path.join(scratch.outside, "upper"))) == ["dir", "file"]
            assert overlay.run("cat file dir/new", view=view).stdout.kept == b"changed\nnew\n"
            on_top = OverlayView((*view.lowers, os.path.join(scratch.inside, "upper")), None, None, scratch)
            assert overlay.run("cat file; echo again > file", view=on_top).stdout.kept == b"changed\n"
            assert Path(scratch.outside, "upper", "file").read_text() == "changed\n"
            assert sorted(name for name in os.listdir(scratch.outside) if not name.startswith(".")) == ["upper", "work"]
            full = overlay.run("head -c 30000000 /dev/zero > big", view=view)
            assert b"No space left" in full.stderr.kept
        finally:
            scratch.close()
        assert (overlay.workspace / "file").read_text() == "content\n"
        assert not os.path.exists(scratch.outside)

    def test_a_directory_replaced_in_an_upper_layer_stays_replaced(self, overlay: SandboxBench) -> None:
        (overlay.workspace / "dir").mkdir()
        (overlay.workspace / "dir" / "old").touch()
        scratch = overlay.sandbox.open_scratch(16 << 20)
        try:
            for name in ("upper", "work"):
                os.mkdir(os.path.join(scratch.outside, name))
            view = OverlayView((os.fspath(overlay.workspace),), "upper", "work", scratch)
            overlay.run("rm -r dir; mkdir dir; rm file", view=view)
            assert overlay.run("ls -A . dir", view=view).stdout.kept == b".:\ndir\n\ndir:\n"
        finally:
            scratch.close()

    @pytest.mark.parametrize("kind", ["no view", "throw-away", "scratch", "bind"])
    def test_small_files_come_back_from_out_at(self, isolated: SandboxBench, kind: str) -> None:
        if not self.has_overlays and kind in ("throw-away", "scratch"):
            pytest.skip("it has no overlays")
        scratch = isolated.sandbox.open_scratch(16 << 20) if kind == "scratch" else None
        try:
            lowers = (os.fspath(isolated.workspace),)
            view = {
                "no view": None,
                "throw-away": OverlayView(lowers),
                "scratch": OverlayView(lowers, None, None, scratch),
                "bind": BindView(lowers[0]),
            }[kind]
            script = """
            echo report > /out/report.xml; : > /out/empty
            ln -s /etc/passwd /out/link; ln /out/report.xml /out/hard; mkfifo /out/fifo; mkdir /out/dir
            echo x > /out/dir/below; chmod 000 /out/empty
        """
            done = isolated.run(script, view=view, out_at="/out", cwd="/tmp")
            assert done.exit_code == 0, done.stderr.kept
            files = dict(done.files)
            files.pop("empty", None)  # mode 000: root can still read it
            assert files == {"report.xml": b"report\n", "hard": b"report\n"}
        finally:
            if scratch is not None:
                scratch.close()

    def test_no_descriptor_is_left_open(self, bench: SandboxBench) -> None:
        bench.run("true")
        before = sorted(os.listdir("/proc/self/fd"))
        for _ in range(3):
            bench.run("true")
            bench.run("sleep 9", limits=Limits(wall_ms=50))
            bench.execute(Action(("/no/such",), bench.view(), QUICK))
        assert sorted(os.listdir("/proc/self/fd")) == before
