"""Linux calls that Python's ``os`` does not offer: openat2, renameat2 with flags, syncfs, FICLONE.

Paths are bytes. Errors are ``OSError`` with the kernel's errno, as ``os`` would raise them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform

_libc = ctypes.CDLL(None, use_errno=True)

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
_SYS_OPENAT2 = 437  # the same number on every architecture
_SYS_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276}.get(platform.machine(), -1)
_RESOLVE_STRICT = 0x08 | 0x04 | 0x02  # BENEATH | NO_SYMLINKS | NO_MAGICLINKS
_FICLONE = 0x40049409
_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _raise(path: bytes) -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), os.fsdecode(path))


def open_dir_beneath(root_fd: int, path: bytes) -> int:
    """A descriptor of the directory ``path`` below ``root_fd``; no component may be a link and none may lead out.

    Raises ELOOP when a component is a symlink, ENOTDIR when one is another file, EXDEV on ``..`` that leaves.
    """
    if path in (b"", b"."):
        return os.open(b".", _OPEN_DIR, dir_fd=root_fd)
    how = _OpenHow(os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, 0, _RESOLVE_STRICT)
    fd = _libc.syscall(_SYS_OPENAT2, root_fd, path, ctypes.byref(how), ctypes.sizeof(how))
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    if code not in (errno.ENOSYS, errno.EPERM):  # EPERM: an old seccomp profile that does not know openat2
        raise OSError(code, os.strerror(code), os.fsdecode(path))
    return _open_dir_by_component(root_fd, path)


def _open_dir_by_component(root_fd: int, path: bytes) -> int:
    """The same promise for kernels before 5.6: one O_NOFOLLOW step per component."""
    fd = os.open(b".", _OPEN_DIR, dir_fd=root_fd)
    for part in path.split(b"/"):
        if part in (b"", b".", b".."):
            os.close(fd)
            raise OSError(errno.EXDEV, "path is not canonical", os.fsdecode(path))
        try:
            below = os.open(part, _OPEN_DIR, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def rename(src_fd: int, src: bytes, dst_fd: int, dst: bytes, flags: int) -> None:
    """renameat2. EINVAL or ENOSYS mean that this filesystem or kernel does not know ``flags``."""
    if hasattr(_libc, "renameat2"):
        failed = _libc.renameat2(src_fd, src, dst_fd, dst, flags)
    else:  # musl
        failed = _libc.syscall(_SYS_RENAMEAT2, src_fd, src, dst_fd, dst, flags)
    if failed:
        _raise(src)


def syncfs(fd: int) -> None:
    """Flush the whole filesystem of ``fd``."""
    if _libc.syncfs(fd):
        _raise(b"syncfs")


def clone_content(src_fd: int, dst_fd: int) -> bool:
    """Share the blocks of ``src_fd`` with ``dst_fd`` (btrfs, XFS); False where that is impossible."""
    try:
        fcntl.ioctl(dst_fd, _FICLONE, src_fd)
    except OSError:
        return False
    return True
