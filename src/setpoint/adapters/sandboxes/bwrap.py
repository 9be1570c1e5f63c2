"""The argument list that makes one action's world. Pure apart from looking at which system paths exist.

Order matters to bwrap: later operations go over earlier ones. First the system, then empty places (/proc, /dev, /tmp),
then what this action was given, last everything that need not be writable is made read-only.
"""

from __future__ import annotations

import functools
import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from setpoint.kernel.errors import SandboxFault
from setpoint.ports.sandbox import WORKSPACE_AT, Mount

SHM_BYTES = 64 << 20
"""What containers give to /dev/shm; more is asked for by databases, not by builds and tests."""
TMP_BYTES_MAX = 512 << 20
"""/tmp lies in memory, so one action's share of it stays small whatever its disk limit is."""

FIXED_ENV = (("HOME", "/tmp"), ("LANG", "C.UTF-8"), ("TERM", "dumb"), ("TMPDIR", "/tmp"))
SEARCH = "/usr/local/bin:/usr/bin:/bin"
INSIDE_ID = 1000
"""User and group id inside, the same for everyone: results must not depend on who runs the runtime."""

_ETC = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl/certs",
    "ssl/openssl.cnf",
    "localtime",
)
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SYNTHETIC = (
    ("/etc/passwd", b"agent:x:1000:1000::/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"),
    ("/etc/group", b"agent:x:1000:\nnogroup:x:65534:\n"),
    ("/etc/hosts", b"127.0.0.1 localhost\n::1 localhost\n"),
)
_RESERVED = (
    "/proc",
    "/dev",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/sys",
    WORKSPACE_AT,
)


@dataclass(frozen=True, slots=True)
class Overlay:
    """Lowers bottom first; every path as seen where bwrap starts (after ``Scratch.enter``)."""

    lowers: tuple[str, ...]
    upper: str
    work: str


@dataclass(frozen=True, slots=True)
class World:
    """Everything one action will see, with host paths already checked."""

    workspace: Overlay | Mount | None
    workspace_readonly: bool
    readonly: tuple[Mount, ...]
    out: Mount | None  # writable; host side chosen by us
    env: tuple[tuple[str, str], ...]
    search: tuple[str, ...]
    cwd: str
    tmp_bytes: int
    drop_capabilities: bool
    hidden: tuple[tuple[str, bool], ...] = ()  # path inside, and whether it is a directory
    pinned: tuple[Mount, ...] = ()  # directories of the workspace that must keep their names, outermost first


def arguments(world: World, data_fd: Sequence[int], seccomp: int, status: int, gate: tuple[int, int]) -> list[str]:
    """Options for ``bwrap --args``.

    ``data_fd`` holds one descriptor per ``synthetic_files`` entry, in order; ``gate`` is a pipe, both ends of it.
    """
    args = [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--hostname", "sandbox", "--clearenv"),
    ]
    if world.drop_capabilities:
        args += ["--cap-drop", "ALL"]  # bwrap keeps them when its caller is uid 0
    for name, value in environment(world):
        args += ["--setenv", name, value]
    args += _system()
    for (path, _), fd in zip(_SYNTHETIC, data_fd, strict=True):
        args += ["--perms", "0444", "--ro-bind-data", str(fd), path]
    args += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--size",
        str(SHM_BYTES),
        "--perms",
        "1777",
        "--tmpfs",
        "/dev/shm",
    ]
    args += ["--size", str(world.tmp_bytes), "--perms", "1777", "--tmpfs", "/tmp"]
    for mount in world.readonly:
        args += ["--ro-bind", mount.host, mount.at]
    args += _workspace(world)
    for mount in world.pinned:
        args += ["--bind", mount.host, mount.at]
    for at, is_directory in world.hidden:
        # An empty, read-only place over it; a device node on a nodev mount cannot be opened.
        args += (
            ["--perms", "0555", "--tmpfs", at, "--remount-ro", at] if is_directory else ["--ro-bind", "/dev/null", at]
        )
    if world.out is not None:
        args += ["--bind", world.out.host, world.out.at]
    # For uid 0 bwrap leaves /proc/sys writable, and core_pattern there means code on the host.
    args += ["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]
    args += ["--chdir", world.cwd, "--seccomp", str(seccomp), "--json-status-fd", str(status)]
    # bwrap takes the gate's end of file for the permission to start, so the init itself keeps the writing end open.
    return [*args, "--block-fd", str(gate[0]), "--sync-fd", str(gate[1])]


def environment(world: World) -> list[tuple[str, str]]:
    """The fixed minimum, overridden and extended by what the action asked for."""
    path = ":".join((*world.search, SEARCH))
    return list({"PATH": path, **dict(FIXED_ENV), **dict(world.env)}.items())


def synthetic_files() -> tuple[bytes, ...]:
    """Contents of the files that are made up, because the host's would name its users and networks."""
    return tuple(content for _, content in _SYNTHETIC)


def check_place(at: str) -> None:
    """SandboxFault unless a mount may appear at ``at``: absolute, plain, and not over what makes the sandbox."""
    if not at.startswith("/") or posixpath.normpath(at) != at or at == "/" or "\0" in at:
        raise SandboxFault(f"a mount cannot appear at {at!r}: the place must be an absolute, normalised path below /")
    for reserved in _RESERVED:
        if at == reserved or at.startswith(reserved + "/"):
            raise SandboxFault(
                f"a mount cannot appear at {at!r}: {reserved} belongs to the sandbox itself",
                hint="choose another place, for example /inputs",
            )


@functools.cache
def _system() -> tuple[str, ...]:
    """The programs and libraries of the host; its configuration only as far as the loader and TLS need it."""
    args: list[str] = ["--ro-bind", "/usr", "/usr"]
    for name in _MERGED:
        path = f"/{name}"
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path).lstrip("/"), path]
        elif os.path.isdir(path):  # a system that has not merged /usr
            args += ["--ro-bind", path, path]
    for name in _ETC:
        path = f"/etc/{name}"
        if os.access(path, os.R_OK):  # --ro-bind-try would still fail on EACCES
            args += ["--ro-bind", path, path]
    return tuple(args)


def _workspace(world: World) -> list[str]:
    match world.workspace:
        case None:
            return []
        case Mount(host, at):
            return ["--ro-bind" if world.workspace_readonly else "--bind", host, at]
        case Overlay(lowers, upper, work):
            args: list[str] = []
            for lower in lowers:
                args += ["--overlay-src", lower]
            return [*args, "--overlay", upper, work, WORKSPACE_AT]
