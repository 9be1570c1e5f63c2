"""Copy objects with mode, attributes, times and holes; the overlay's notation is left out."""

from __future__ import annotations

import errno
import os
import stat

from setpoint.adapters.workspaces import kernelcalls, objects

_CHUNK = 1 << 20


def copy_content(src_fd: int, dst_fd: int, size: int) -> None:
    """Copy bytes, sharing blocks where the filesystem can and keeping holes."""
    if size == 0 or kernelcalls.clone_content(src_fd, dst_fd):
        return
    os.ftruncate(dst_fd, size)
    position = 0
    while position < size:
        try:
            start = os.lseek(src_fd, position, os.SEEK_DATA)
            end = os.lseek(src_fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            start, end = position, size
        _copy_range(src_fd, dst_fd, start, min(end, size))
        position = end


def _copy_range(src_fd: int, dst_fd: int, start: int, end: int) -> None:
    while start < end:
        try:
            copied = os.copy_file_range(src_fd, dst_fd, min(end - start, 1 << 30), start, start)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                raise
            copied = os.pwrite(dst_fd, os.pread(src_fd, min(end - start, _CHUNK), start), start)
        if copied == 0:
            return  # the source shrank; the digest taken of the copy is what counts
        start += copied


def copy_leaf(src_fd: int, name: bytes, dst_fd: int, new: bytes, st: os.stat_result, *, ours: bool) -> None:
    """Copy a file, symlink or special file with mode, attributes and mtime (owner too when we are root)."""
    if stat.S_ISREG(st.st_mode):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with objects.opened_file(src_fd, name, ours=ours) as source:
            target = os.open(new, flags, 0o600, dir_fd=dst_fd)
            try:
                copy_content(source, target, st.st_size)
                objects.set_user_xattrs(target, objects.user_xattrs(source))
                _own(target, st)
                os.fchmod(target, stat.S_IMODE(st.st_mode))
                os.utime(target, ns=(st.st_atime_ns, st.st_mtime_ns))
            finally:
                os.close(target)
        return
    if stat.S_ISLNK(st.st_mode):
        os.symlink(os.readlink(name, dir_fd=src_fd), new, dir_fd=dst_fd)
    else:
        os.mknod(new, st.st_mode, st.st_rdev, dir_fd=dst_fd)
        objects.chmod_nofollow(dst_fd, new, st.st_mode)
    if os.geteuid() == 0:
        os.chown(new, st.st_uid, st.st_gid, dir_fd=dst_fd, follow_symlinks=False)
    os.utime(new, ns=(st.st_atime_ns, st.st_mtime_ns), dir_fd=dst_fd, follow_symlinks=False)


def _own(fd: int, st: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.fchown(fd, st.st_uid, st.st_gid)


def dress_dir(fd: int, st: os.stat_result, attributes: dict[str, bytes]) -> None:
    """Give a directory the mode, attributes and times of another."""
    objects.set_user_xattrs(fd, attributes)
    _own(fd, st)
    os.fchmod(fd, stat.S_IMODE(st.st_mode))
    os.utime(fd, ns=(st.st_atime_ns, st.st_mtime_ns))


def copy_tree(src_fd: int, name: bytes, dst_fd: int, new: bytes, *, ours: bool, depth: int = 0) -> None:
    """Copy one object with everything below it, whiteouts left out, the overlay's notation removed."""
    objects.refuse_depth(name, depth)
    st = os.stat(name, dir_fd=src_fd, follow_symlinks=False)
    if not stat.S_ISDIR(st.st_mode):
        copy_leaf(src_fd, name, dst_fd, new, st, ours=ours)
        return
    os.mkdir(new, 0o700, dir_fd=dst_fd)
    with objects.opened_dir(src_fd, name, ours=ours) as source, objects.opened_dir(dst_fd, new, ours=True) as target:
        for child in objects.names(source):
            child_st = os.stat(child, dir_fd=source, follow_symlinks=False)
            if not (ours and objects.is_whiteout(source, child, child_st)):
                copy_tree(source, child, target, child, ours=ours, depth=depth + 1)
        dress_dir(target, st, objects.user_xattrs(source))
