"""One filesystem object at a time: look at it, read it, copy it, digest it, never through a symlink.

Everything takes a directory descriptor and one name, so nobody can swap a parent. Paths and names are bytes.
"Ours" marks directories that belong to the transaction (attempt, staged layer): there a mode that locks us out
(an action ran ``chmod 000``) is lifted for the moment of reading and put back. The user's own tree is never
touched for that; what cannot be read there is a fault.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from setpoint.adapters.workspaces import kernelcalls
from setpoint.kernel.errors import ChangeRejected, WorkspaceFault

DEPTH_MAX = 128  # directories; keeps walks within Python's stack and the descriptor limit
OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")
_WHITEOUT = "user.overlay.whiteout"
_CHUNK = 1 << 20


class Ident(NamedTuple):
    """What tells one version of an object from another without reading it; times in nanoseconds."""

    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int

    @classmethod
    def of(cls, st: os.stat_result) -> Ident:
        return cls(st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_mode)


def show(path: bytes) -> str:
    """``path`` as the ports spell it: text, odd bytes surrogate-escaped, the root as a dot."""
    return os.fsdecode(path) or "."


def join(parent: bytes, name: bytes) -> bytes:
    return parent + b"/" + name if parent else name


def split(path: bytes) -> tuple[bytes, bytes]:
    parent, _, name = path.rpartition(b"/")
    return parent, name


def lstat(dir_fd: int, name: bytes) -> os.stat_result | None:
    """The object itself, None when absent (also when a parent is no directory or the name is too long)."""
    try:
        return os.stat(name or b".", dir_fd=dir_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return None
        raise


def names(dir_fd: int) -> list[bytes]:
    """The names in a directory, sorted by bytes."""
    return sorted(os.fsencode(name) for name in os.listdir(dir_fd))


def is_special(mode: int) -> bool:
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))


def refuse_forbidden(path: bytes, st: os.stat_result) -> None:
    """Raise ChangeRejected for what no savepoint may carry."""
    if stat.S_ISREG(st.st_mode) and st.st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise ChangeRejected(
            f"{show(path)} is setuid or setgid (mode {stat.S_IMODE(st.st_mode):04o}), which no savepoint may carry",
            hint="Drop the setuid/setgid bits; the attempt is rolled back otherwise.",
        )
    needed = {stat.S_IFREG: 0o400, stat.S_IFDIR: 0o500}.get(stat.S_IFMT(st.st_mode), 0)
    if st.st_mode & needed != needed:  # no ordinary user could compare or take back what was committed
        raise ChangeRejected(
            f"{show(path)} got mode {stat.S_IMODE(st.st_mode):04o}, which hides it from its owner",
            hint="Leave files readable, and directories readable and searchable, for their owner.",
        )
    if is_special(st.st_mode):
        kinds = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "character device"}
        kind = kinds.get(stat.S_IFMT(st.st_mode), "block device")
        raise ChangeRejected(
            f"{show(path)} is a {kind}; a savepoint holds only files, directories and symlinks",
            hint="Create it under /tmp instead, or remove it before the action ends.",
        )


def refuse_depth(path: bytes, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ChangeRejected(f"{show(path)[:80]}... lies deeper than {DEPTH_MAX} directories")


# Whiteouts and opaque directories: the overlay's own notation for "removed" and "hides what is below".


def is_whiteout(dir_fd: int, name: bytes, st: os.stat_result) -> bool:
    if stat.S_ISCHR(st.st_mode):
        return st.st_rdev == 0
    if stat.S_ISREG(st.st_mode) and st.st_size == 0:
        return _has_xattr(dir_fd, name, _WHITEOUT)
    return False


def _has_xattr(dir_fd: int, name: bytes, attribute: str) -> bool:
    try:
        fd = os.open(name, _OPEN_FILE, dir_fd=dir_fd)
    except OSError:
        return False
    try:
        os.getxattr(fd, attribute)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def make_whiteout(dir_fd: int, name: bytes) -> None:
    """Mark ``name`` as removed. Falls back to the attribute form where device nodes are refused."""
    try:
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    else:
        return
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        os.setxattr(fd, _WHITEOUT, b"y")
        if not is_opaque(dir_fd):
            os.setxattr(dir_fd, _OPAQUE[0], b"x")  # tells the kernel to look for the attribute form here
    finally:
        os.close(fd)


def is_opaque(dir_fd: int) -> bool:
    for attribute in _OPAQUE:
        try:
            if os.getxattr(dir_fd, attribute) == b"y":
                return True
        except OSError:
            continue
    return False


def set_opaque(dir_fd: int) -> None:
    os.setxattr(dir_fd, _OPAQUE[0], b"y")


# Reading what may be locked.


def chmod_nofollow(dir_fd: int, name: bytes, mode: int) -> None:
    """Set the permission bits of a file or directory; a symlink in its place is left alone."""
    fd = os.open(name or b".", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode))
    finally:
        os.close(fd)


def open_dir(dir_fd: int, name: bytes, *, ours: bool) -> tuple[int, int | None]:
    """(descriptor, mode to put back or None). The caller passes both to ``close_dir``."""
    try:
        fd = os.open(name, OPEN_DIR, dir_fd=dir_fd)
    except PermissionError:
        if not ours:
            raise
        if name == b".":  # not even "." is found in a directory that may not be searched
            mode = os.fstat(dir_fd).st_mode
            os.chmod(f"/proc/self/fd/{dir_fd}", stat.S_IMODE(mode) | 0o700)
        else:
            mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
            chmod_nofollow(dir_fd, name, mode | 0o700)
        return os.open(name, OPEN_DIR, dir_fd=dir_fd), stat.S_IMODE(mode)
    if ours and os.geteuid() != 0:
        mode = os.fstat(fd).st_mode
        if mode & 0o700 != 0o700:  # readable but not searchable or writable
            os.fchmod(fd, stat.S_IMODE(mode) | 0o700)
            return fd, stat.S_IMODE(mode)
    return fd, None


def close_dir(fd: int, mode: int | None) -> None:
    if mode is not None:
        os.fchmod(fd, mode)
    os.close(fd)


@contextmanager
def opened_dir(dir_fd: int, name: bytes, *, ours: bool) -> Iterator[int]:
    fd, mode = open_dir(dir_fd, name, ours=ours)
    try:
        yield fd
    finally:
        close_dir(fd, mode)


@contextmanager
def opened_file(dir_fd: int, name: bytes, *, ours: bool) -> Iterator[int]:
    """A read descriptor of a regular file; OSError EINVAL when it is something else by now."""
    try:
        fd = os.open(name, _OPEN_FILE, dir_fd=dir_fd)
    except PermissionError:
        if not ours:
            raise
        mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
        chmod_nofollow(dir_fd, name, mode | 0o400)
        try:
            fd = os.open(name, _OPEN_FILE, dir_fd=dir_fd)
        finally:
            chmod_nofollow(dir_fd, name, mode)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(name))
        yield fd
    finally:
        os.close(fd)


def user_xattrs(fd: int) -> dict[str, bytes]:
    """The ``user.*`` attributes that belong to the content (the overlay's own are notation, not content)."""
    try:
        found = os.listxattr(fd)
        return {
            name: os.getxattr(fd, name)
            for name in sorted(found)
            if name.startswith("user.") and not name.startswith("user.overlay.")
        }
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENODATA):
            return {}
        raise


def set_user_xattrs(fd: int, wanted: dict[str, bytes]) -> None:
    present = user_xattrs(fd)
    for name in present.keys() - wanted.keys():
        os.removexattr(fd, name)
    for name, value in wanted.items():
        if present.get(name) != value:
            os.setxattr(fd, name, value)


def digest_xattrs(found: dict[str, bytes]) -> str:
    """Hex digest of a set of attributes, "" for none."""
    if not found:
        return ""
    lines = (name.encode("utf-8", "surrogateescape") + b"=" + value.hex().encode() for name, value in found.items())
    return hashlib.sha256(b"\0".join(sorted(lines))).hexdigest()


def xattrs_of(dir_fd: int, name: bytes, st: os.stat_result, *, ours: bool) -> dict[str, bytes]:
    if stat.S_ISREG(st.st_mode):
        with opened_file(dir_fd, name, ours=ours) as fd:
            return user_xattrs(fd)
    if stat.S_ISDIR(st.st_mode):
        with opened_dir(dir_fd, name or b".", ours=ours) as fd:
            return user_xattrs(fd)
    return {}


def hash_fd(fd: int) -> str:
    """Hex sha256 of an open file's content from its start."""
    state = hashlib.sha256()
    offset = 0
    while chunk := os.pread(fd, _CHUNK, offset):
        state.update(chunk)
        offset += len(chunk)
    return state.hexdigest()


def hash_object(dir_fd: int, name: bytes, st: os.stat_result, *, ours: bool) -> str:
    """Hex sha256 of a file's content or a link's target; "" for every other type."""
    if stat.S_ISREG(st.st_mode):
        with opened_file(dir_fd, name, ours=ours) as fd:
            return hash_fd(fd)
    if stat.S_ISLNK(st.st_mode):
        return hashlib.sha256(os.readlink(name, dir_fd=dir_fd)).hexdigest()
    return ""


def digest_tree(dir_fd: int, name: bytes, *, ours: bool) -> str:
    """Hex digest of one object with everything below it: types, modes, content, links, attributes."""
    state = hashlib.sha256()
    _digest_into(state, dir_fd, name, b"", 0, ours=ours)
    return state.hexdigest()


def _digest_into(state: hashlib._Hash, dir_fd: int, name: bytes, path: bytes, depth: int, *, ours: bool) -> None:
    refuse_depth(path, depth)
    st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    rdev = st.st_rdev if is_special(st.st_mode) else 0
    content = hash_object(dir_fd, name, st, ours=ours)
    attributes = digest_xattrs(xattrs_of(dir_fd, name, st, ours=ours))
    state.update(b"%o %d %s %s %s\0" % (st.st_mode, rdev, content.encode(), attributes.encode(), path))
    if stat.S_ISDIR(st.st_mode):
        with opened_dir(dir_fd, name, ours=ours) as fd:
            for child in names(fd):
                _digest_into(state, fd, child, join(path, child), depth + 1, ours=ours)


def same_content(
    a_fd: int,
    a: bytes,
    a_st: os.stat_result,
    b_fd: int,
    b: bytes,
    b_st: os.stat_result,
    *,
    ours: tuple[bool, bool],
) -> bool:
    """Equal type and bytes (or link target); modes and attributes are not looked at."""
    if stat.S_IFMT(a_st.st_mode) != stat.S_IFMT(b_st.st_mode):
        return False
    if stat.S_ISLNK(a_st.st_mode):
        return os.readlink(a, dir_fd=a_fd) == os.readlink(b, dir_fd=b_fd)
    if not stat.S_ISREG(a_st.st_mode):
        return a_st.st_rdev == b_st.st_rdev
    if a_st.st_size != b_st.st_size:
        return False
    with opened_file(a_fd, a, ours=ours[0]) as x, opened_file(b_fd, b, ours=ours[1]) as y:
        while True:
            left, right = os.read(x, _CHUNK), os.read(y, _CHUNK)
            if left != right:
                return False
            if not left:
                return True


# Durability and removal.


def sync_tree(dir_fd: int, *, files_max: int = 64) -> None:
    """Make everything below ``dir_fd`` (ours) durable: each object, or the filesystem at once when there are many."""
    todo = [os.dup(dir_fd)]
    synced = 0
    try:
        while todo:
            fd = todo.pop()
            try:
                for name in names(fd):
                    st = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if synced >= files_max:
                        kernelcalls.syncfs(dir_fd)
                        return
                    if stat.S_ISREG(st.st_mode):
                        with opened_file(fd, name, ours=True) as file:
                            os.fsync(file)
                        synced += 1
                    elif stat.S_ISDIR(st.st_mode):
                        try:
                            todo.append(os.open(name, OPEN_DIR, dir_fd=fd))
                        except PermissionError:  # locked by its mode: let the kernel flush it
                            kernelcalls.syncfs(dir_fd)
                            return
                        synced += 1
                os.fsync(fd)
            finally:
                os.close(fd)
    finally:
        for fd in todo:
            os.close(fd)


def remove_tree(dir_fd: int, name: bytes) -> None:
    """Remove an object of ours with everything below, whatever its depth and modes.

    Deep directories are first renamed up beside their ancestor, so neither stack nor descriptors grow.
    """
    st = lstat(dir_fd, name)
    if st is None:
        return
    if not stat.S_ISDIR(st.st_mode):
        os.unlink(name, dir_fd=dir_fd)
        return
    todo = [name]
    serial = 0
    while todo:
        present = todo.pop()
        fd, _ = open_dir(dir_fd, present, ours=True)
        try:
            with os.scandir(fd) as entries:
                found = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
            for child, is_dir in found:
                if not is_dir:
                    os.unlink(child, dir_fd=fd)
                    continue
                try:
                    os.rmdir(child, dir_fd=fd)
                except OSError:
                    serial += 1
                    moved = b"%s.%d" % (name, serial)
                    if os.geteuid() != 0:  # moving a directory to another parent writes its ".."
                        chmod_nofollow(fd, child, 0o700)
                    os.rename(child, moved, src_dir_fd=fd, dst_dir_fd=dir_fd)
                    todo.append(moved)
        finally:
            os.close(fd)
        os.rmdir(present, dir_fd=dir_fd)


@contextmanager
def world_faults(what: str) -> Iterator[None]:
    """Turn an operating-system error while ``what`` into a WorkspaceFault that says what to do."""
    try:
        yield
    except OSError as error:
        hints = {
            errno.ENOSPC: "Free disk space, or raise the task's disk limit.",
            errno.EDQUOT: "Free disk space, or raise the quota.",
            errno.EROFS: "The filesystem is read-only; remount it or move the workspace.",
            errno.EACCES: "Give the runtime's user access to it.",
            errno.EPERM: "Give the runtime's user access to it.",
        }
        named = error.filename if isinstance(error.filename, (str, bytes)) else ""
        where = f" ({os.fsdecode(named)!r})" if named else ""
        raise WorkspaceFault(
            f"{what} failed: {error.strerror}{where}",
            hint=hints.get(error.errno or 0),
        ) from error
