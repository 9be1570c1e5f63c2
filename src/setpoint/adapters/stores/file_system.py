"""What the file system under a store can promise: a sync that survives a power cut, one host, or neither.

Linux tells in /proc/self/mountinfo; where it cannot be read, the usual is assumed.
"""

from __future__ import annotations

import os
from pathlib import Path

VOLATILE = frozenset({"tmpfs", "ramfs"})
# The write-ahead log is coordinated through shared memory, which two hosts do not share: both would write.
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "ceph", "glusterfs", "afs"})

_MOUNTS = Path("/proc/self/mountinfo")


def file_system_of(path: str) -> str:
    """The type of the file system that holds ``path`` (which need not exist yet), "" when unknown."""
    try:
        return type_in(_MOUNTS.read_text(errors="surrogateescape"), os.path.realpath(path))
    except OSError:
        return ""


def type_in(mountinfo: str, path: str) -> str:
    """The type of the innermost mount over ``path``; of two at one place, the later hides the earlier."""
    best, found = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, source = before.split(" "), after.split(" ")
        if len(fields) < 5 or not source[0]:
            continue
        at = _unescaped(fields[4])
        if len(at) >= best and (path == at or path.startswith(at.rstrip("/") + "/")):
            best, found = len(at), source[0]
    return found


def _unescaped(field: str) -> str:
    r"""The kernel writes blank, tab, newline and backslash as \040 and the like."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
