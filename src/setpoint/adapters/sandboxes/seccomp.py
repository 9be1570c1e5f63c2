"""The system-call filter of every sandboxed action, assembled as classic BPF without a library.

A deny list, because the namespaces already decide what can be *reached*; the filter closes what namespaces do not
cover: kernel attack surface (bpf, io_uring, userfaultfd, perf, keyrings), debugging (ptrace and its cousins),
anything that mounts or makes namespaces, terminal injection, and socket families without a network namespace of
their own (AF_VSOCK reaches the hypervisor from an otherwise empty network).

A foreign architecture kills the process: 32-bit calls have other numbers, so the list would not apply to them.
``clone3`` answers ENOSYS because its flags lie behind a pointer that a filter cannot read; C libraries then fall
back to ``clone``, whose flags are checked.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

# Numbers shared by every architecture since the tables were unified (Linux 5.1).
_COMMON = {
    "pidfd_getfd": 438,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "statmount": 457,
    "listmount": 458,
    "lsm_set_self_attr": 460,
    "open_tree_attr": 467,
}

_X86_64 = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
    "add_key": 248, "request_key": 249, "keyctl": 250,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "setns": 308, "unshare": 272,
    "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "quotactl": 179, "syslog": 103,
    "iopl": 172, "ioperm": 173, "modify_ldt": 154, "personality": 135,
    "name_to_handle_at": 303, "open_by_handle_at": 304,
    "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305,
    "sethostname": 170, "setdomainname": 171, "vhangup": 153, "fanotify_init": 300,
    "move_pages": 279, "mbind": 237, "migrate_pages": 256, "set_mempolicy": 238,
    "uselib": 134, "ustat": 136, "sysfs": 139, "_sysctl": 156, "nfsservctl": 180, "lookup_dcookie": 212,
}  # fmt: skip

_AARCH64 = {
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
    "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
    "add_key": 217, "request_key": 218, "keyctl": 219,
    "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "setns": 268, "unshare": 97,
    "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273, "delete_module": 106,
    "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89, "quotactl": 60, "syslog": 116,
    "personality": 92, "name_to_handle_at": 264, "open_by_handle_at": 265,
    "settimeofday": 170, "clock_settime": 112, "adjtimex": 171, "clock_adjtime": 266,
    "sethostname": 161, "setdomainname": 162, "vhangup": 58, "fanotify_init": 262,
    "move_pages": 239, "mbind": 235, "migrate_pages": 238, "set_mempolicy": 237,
    "nfsservctl": 42, "lookup_dcookie": 18,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Architecture:
    """What differs between machines: the audit id, the denied numbers and the four calls looked into."""

    audit: int
    denied: dict[str, int]
    clone: int
    clone3: int
    ioctl: int
    socket: int
    has_x32: bool  # x86_64 has a second table behind bit 30 of the number


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, {**_COMMON, **_X86_64}, 56, 435, 16, 41, has_x32=True),
    "aarch64": Architecture(0xC00000B7, {**_COMMON, **_AARCH64}, 220, 435, 29, 198, has_x32=False),
}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_AT_NUMBER, _AT_ARCH, _AT_ARG0, _AT_ARG1 = 0, 4, 16, 24  # offsets in struct seccomp_data, low words
_X32_BIT = 0x40000000
_NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}; NEWTIME is only legal in unshare/clone3
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16  # netlink: getifaddrs, own network namespace only


def program(machine: str | None = None, *, internet: bool = True) -> bytes:
    """The filter as ``struct sock_filter[]``, ready for ``bwrap --seccomp`` or ``PR_SET_SECCOMP``.

    ``internet`` False also refuses AF_INET and AF_INET6, for rungs without a network namespace.
    Raises KeyError for a machine that has no table: without the filter there is no sandbox.
    """
    arch = ARCHITECTURES[machine or platform.machine()]
    out: list[tuple[int, int, int, int]] = []

    def emit(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> None:
        out.append((code, jump_true, jump_false, k))

    def answer(error: int) -> None:
        emit(_RETURN, _ERRNO | error)

    emit(_LOAD, _AT_ARCH)
    emit(_EQUAL, arch.audit, 1, 0)
    emit(_RETURN, _KILL_PROCESS)
    emit(_LOAD, _AT_NUMBER)
    if arch.has_x32:
        emit(_AT_LEAST, _X32_BIT, 0, 1)
        answer(errno.ENOSYS)
    for number in sorted(arch.denied.values()):
        emit(_EQUAL, number, 0, 1)
        answer(errno.EPERM)
    emit(_EQUAL, arch.clone3, 0, 1)
    answer(errno.ENOSYS)

    emit(_EQUAL, arch.clone, 0, 4)
    emit(_LOAD, _AT_ARG0)
    emit(_ANY_BIT, _NAMESPACE_FLAGS, 0, 1)
    answer(errno.EPERM)
    emit(_RETURN, _ALLOW)

    emit(_EQUAL, arch.ioctl, 0, 5)
    emit(_LOAD, _AT_ARG1)
    emit(_EQUAL, _TIOCSTI, 1, 0)
    emit(_EQUAL, _TIOCLINUX, 0, 1)
    answer(errno.EPERM)
    emit(_RETURN, _ALLOW)

    families = (_AF_UNIX, _AF_NETLINK, _AF_INET, _AF_INET6) if internet else (_AF_UNIX,)
    emit(_EQUAL, arch.socket, 0, len(families) + 3)
    emit(_LOAD, _AT_ARG0)
    for position, family in enumerate(families):
        emit(_EQUAL, family, len(families) - position, 0)
    answer(errno.EAFNOSUPPORT)
    emit(_RETURN, _ALLOW)

    emit(_RETURN, _ALLOW)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in out)
