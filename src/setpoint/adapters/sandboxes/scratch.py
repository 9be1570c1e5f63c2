"""Quota-bound places to write: a tmpfs in a mount namespace of its own.

A *holder* process keeps the namespace of one transaction. It blocks reading a pipe whose other end only the
supervisor has, so it ends with the supervisor whatever ends that (also SIGKILL), and the kernel frees the tmpfs: no
mount is ever visible to, or left on, the host. A *throw-away* tmpfs needs no holder: the same script mounts it and
becomes the bwrap whose death frees it.

tmpfs because unmounting an overlay with its upper layer on a disk syncs that whole disk, and because its size and
inode count are hard limits (ENOSPC inside) without any cgroup.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field

from setpoint.kernel.errors import SandboxFault

TOOLS = "/usr/bin:/bin:/usr/sbin:/sbin"
READY_S = 5.0
"""Making two namespaces and one mount takes milliseconds."""
_CLOSE_S = 5.0

# Arguments: mount options, mount point, then the command to become. Constant text; nothing is ever spliced in.
# PATH stays unexported: the environment of bwrap's init can be read inside.
_MOUNT = f"""
PATH={TOOLS}
mount -n -t tmpfs -o "$1" setpoint "$2" && mkdir "$2/.upper" "$2/.work" "$2/.out" || exit 1
shift 2
unset PWD OLDPWD SHLVL
exec "$@"
"""


def _options(disk_bytes: int) -> str:
    # One inode per 8 KiB of quota: enough for source trees, and it bounds the kernel memory of empty files.
    inodes = min(1_000_000, max(4096, disk_bytes // 8192))
    return f"size={disk_bytes},nr_inodes={inodes},mode=0700,nosuid,nodev"


@dataclass(frozen=True, slots=True)
class Namespaces:
    """How this user makes a private mount namespace, and where in it the tmpfs goes.

    ``mount_point`` is an existing empty directory, the same for all: each namespace mounts its own tmpfs there.
    """

    mount_point: str
    unshare: str
    nsenter: str

    @classmethod
    def at(cls, mount_point: str) -> Namespaces:
        """SandboxFault when util-linux is not there."""
        tools = {name: shutil.which(name, path=TOOLS) for name in ("unshare", "nsenter", "mount", "sh")}
        missing = sorted(name for name, path in tools.items() if path is None)
        if missing:
            raise SandboxFault(f"scratch space needs {', '.join(missing)} in {TOOLS}", hint="install util-linux")
        return cls(mount_point, str(tools["unshare"]), str(tools["nsenter"]))

    def throw_away(self, disk_bytes: int) -> tuple[str, ...]:
        """argv prefix: run the rest beside a fresh tmpfs with ``.upper``, ``.work`` and ``.out``, gone when it ends."""
        flags = ("-m",) if os.geteuid() == 0 else ("-U", "-r", "-m")
        return (
            self.unshare,
            *flags,
            "--",
            "/bin/sh",
            "-c",
            _MOUNT,
            "sh",
            _options(disk_bytes),
            self.mount_point,
        )

    def enter(self, holder: int) -> tuple[str, ...]:
        """argv prefix that runs the rest inside the namespaces of a living child ``holder``."""
        user = () if os.geteuid() == 0 else (f"--user=/proc/{holder}/ns/user", "--preserve-credentials")
        return (self.nsenter, *user, f"--mount=/proc/{holder}/ns/mnt", "--")


@dataclass(slots=True)
class HeldScratch:
    """A sized tmpfs kept by a holder process."""

    outside: str
    inside: str
    enter: tuple[str, ...]
    disk_bytes: int
    _holder: subprocess.Popen[bytes]
    _root: int  # O_PATH descriptor of the tmpfs; ``outside`` goes through it, so no recycled pid can be meant

    def close(self) -> None:
        """Idempotent; the tmpfs and everything in it is gone when it returns."""
        if self._root < 0:
            return
        os.close(self._root)
        self._root = -1
        _end_holder(self._holder)


@dataclass(slots=True)
class PlainScratch:
    """A directory on disk, for machines where no private mount is possible; its size is not bounded."""

    outside: str
    inside: str
    enter: tuple[str, ...] = field(default=())
    disk_bytes: int = 0

    def close(self) -> None:
        if os.path.isdir(self.outside):
            remove_tree(self.outside)


def hold(namespaces: Namespaces, disk_bytes: int) -> HeldScratch:
    """Start a holder and wait until its tmpfs is mounted. SandboxFault with the tools' own words otherwise."""
    holder = subprocess.Popen(
        [*namespaces.throw_away(disk_bytes), "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={},
        cwd="/",
        bufsize=0,
    )
    root = -1
    try:
        if not _echoes(holder):
            raise SandboxFault(f"no private tmpfs could be mounted: {_last_words(holder)}")
        root = os.open(f"/proc/{holder.pid}/root{namespaces.mount_point}", os.O_PATH | os.O_DIRECTORY)
    except (OSError, SandboxFault) as error:
        _end_holder(holder)
        if isinstance(error, SandboxFault):
            raise
        raise SandboxFault(f"the private tmpfs cannot be reached: {error}") from error
    return HeldScratch(
        outside=f"/proc/{os.getpid()}/fd/{root}",
        inside=namespaces.mount_point,
        enter=namespaces.enter(holder.pid),
        disk_bytes=disk_bytes,
        _holder=holder,
        _root=root,
    )


def plain(parent: str | None) -> PlainScratch:
    path = tempfile.mkdtemp(prefix="scratch-", dir=parent)
    for name in (".upper", ".work", ".out"):
        os.mkdir(os.path.join(path, name))
    return PlainScratch(path, path)


def remove_tree(path: str) -> None:
    """Delete ``path`` whatever an action left in it: modes 000, names of any bytes, directories thousands deep."""
    # coreutils walk without recursion and never follow links; overlayfs leaves a directory of mode 000 behind
    for tool in (("chmod", "-R", "u+rwx"), ("rm", "-rf")):
        subprocess.run(
            [*tool, "--", path],
            check=False,
            env={"PATH": TOOLS},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _echoes(holder: subprocess.Popen[bytes]) -> bool:
    """``cat`` answers only once the mount is there and the script has become it."""
    assert holder.stdin is not None and holder.stdout is not None
    try:
        os.write(holder.stdin.fileno(), b"\n")
    except BrokenPipeError:
        return False
    ready, _, _ = select.select([holder.stdout], [], [], READY_S)
    return bool(ready) and os.read(holder.stdout.fileno(), 1) == b"\n"


def _last_words(holder: subprocess.Popen[bytes]) -> str:
    holder.kill()
    holder.wait()
    assert holder.stderr is not None
    return (holder.stderr.read() or b"").decode(errors="replace").strip()[-500:] or "no answer in time"


def _end_holder(holder: subprocess.Popen[bytes]) -> None:
    for stream in (holder.stdin, holder.stdout, holder.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        holder.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.wait()
