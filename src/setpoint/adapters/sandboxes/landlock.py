"""Landlock rules by direct system calls: what a process without namespaces may still be kept from.

Covers opening, creating, removing and executing files, TCP (ABI 4), abstract sockets and signals (ABI 6). It does not
cover UDP, ``stat``, ``chmod``, extended attributes or pathname sockets, which is why it is a fallback and counts as
tier "none".
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same number on every architecture
_VERSION_QUESTION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BITS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15}  # how many file rights an ABI knows; 16 from 5 on

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The Landlock ABI of this kernel; 0 when it has none or it is switched off."""
    return max(0, _libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_QUESTION))


def restrict(writable: Iterable[str], readable: Iterable[str], devices: Iterable[str]) -> None:
    """Confine this process and its children for ever: only these trees, no TCP, no signals to the outside.

    OSError when the kernel refuses; the process must then not go on.
    """
    version = abi()
    if version <= 0:
        raise OSError("this kernel has no Landlock")
    known = (1 << _BITS_OF_ABI.get(version, 16)) - 1
    # struct landlock_ruleset_attr: handled file rights, TCP bind and connect (ABI 4), scopes (ABI 6)
    attributes = struct.pack("QQQ", known, 3, 3)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = _call(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        for path in writable:
            _allow(ruleset, path, known & ~(_MAKE_CHAR | _MAKE_BLOCK))
        for path in readable:
            _allow(ruleset, path, known & (_READ_FILE | _READ_DIR | _EXECUTE))
        for path in devices:
            _allow(ruleset, path, known & (_READ_FILE | _WRITE_FILE | _IOCTL_DEV))
        if _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
        _call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _ON_FILES
        _call(_ADD, ruleset, _PATH_BENEATH, struct.pack("=QI", rights, fd), 0)
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    result = _libc.syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result
