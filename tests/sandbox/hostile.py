"""Runs INSIDE a sandbox and tries to get out; prints one JSON list of {name, escaped, detail}.

Each attack returns something true when it got what it must not get; an exception is containment. Targets are the
sandbox's own world and decoys the test planted: never the host's files, processes or sockets. Nothing is written to a
place whose being writable would already be the escape: such files are only opened.

Argument: the port of a decoy server on the host's loopback.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import json
import os
import platform
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

DECOY_PORT = int(sys.argv[1])
X86 = platform.machine() == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
results: list[dict[str, Any]] = []

# (x86_64, aarch64)
NUMBERS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "kcmp": (312, 272), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "fsopen": (430, 430), "open_tree": (428, 428), "unshare": (272, 97),
    "clone": (56, 220), "clone3": (435, 435), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "keyctl": (250, 219), "open_by_handle_at": (304, 265),
    "syslog": (103, 116), "reboot": (169, 142), "clock_settime": (227, 112), "personality": (135, 92),
    "add_key": (248, 217), "finit_module": (313, 273), "kexec_load": (246, 104), "swapon": (167, 224),
    "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "fanotify_init": (300, 262), "quotactl": (179, 60), "acct": (163, 89), "memfd_secret": (447, 447),
}  # fmt: skip
ATTACH, TRACE_ME = 16, 0
NEWNS, NEWUSER, NEWNET, NEWPID = 0x20000, 0x10000000, 0x40000000, 0x20000000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C


def attack(name: str, attempt: Callable[[], Any]) -> None:
    try:
        got = attempt()
    except OSError as error:
        results.append({"name": name, "escaped": False, "detail": errno.errorcode.get(error.errno or 0, str(error))})
    except Exception as error:  # noqa: BLE001 - any failure of the attempt is containment
        results.append({"name": name, "escaped": False, "detail": type(error).__name__})
    else:
        results.append({"name": name, "escaped": bool(got), "detail": str(got)[:200]})


def call(name: str, *arguments: Any) -> int:
    result = libc.syscall(NUMBERS[name][0 if X86 else 1], *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def succeeds(name: str, *arguments: Any) -> Callable[[], bool]:
    return lambda: call(name, *arguments) >= 0


def in_a_child(attempt: Callable[[], Any]) -> Callable[[], bool]:
    """For attempts that change the calling process; given three seconds."""

    def run() -> bool:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(3)
            try:
                os.write(write, b"yes" if attempt() else b"no")
            except OSError as error:
                os.write(write, struct.pack("i", error.errno or 0))
            os._exit(0)
        os.close(write)
        answer = os.read(read, 9)
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if len(answer) == 4:
            raise OSError(struct.unpack("i", answer)[0], "refused")
        return answer == b"yes"

    return run


def content(path: str) -> Callable[[], Any]:
    def read() -> Any:
        if os.path.isdir(path):
            return beside_the_interpreter(path)
        with open(path, "rb") as file:
            return file.read(200)

    return read


def beside_the_interpreter(folder: str) -> list[str]:
    """What is seen below a folder that is not a step down to the interpreter, which is shown wherever it lies."""
    steps = set()
    for shown in (sys.executable, sys.prefix, sys.base_prefix, os.path.realpath(sys.executable)):
        parts = shown.split("/")
        steps |= {"/".join(parts[:length]) for length in range(2, len(parts) + 1)}
    ends = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(sys.executable))}
    found = []
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if path not in steps:
            found.append(path)
        elif path not in ends and os.path.isdir(path):
            found += beside_the_interpreter(path)
    return found


def opens(path: str, flags: int = os.O_WRONLY) -> Callable[[], bool]:
    return lambda: os.open(path, flags) >= 0


def reading_what_is_outside() -> None:
    for path in (
        "/etc/shadow", "../../../../../../etc/shadow", "/proc/1/root/etc/shadow", "/proc/self/root/etc/shadow",
        "/proc/1/cwd/../etc/shadow", "/proc/self/cwd/../../etc/shadow", "/root/.ssh/id_rsa", "/root/.bashrc",
        sys.argv[2], "/home", "/var/lib", "/run", "/sys/kernel", "/srv", "/boot", "/mnt", "/etc/hostname",
        "/etc/machine-id", "/proc/kcore", "/proc/1/mem", "/proc/1/environ", "/oldroot", "/newroot",
    ):  # fmt: skip
        attack(f"read {path if path != sys.argv[2] else 'the decoy secret'}", content(path))
    attack("see host processes", lambda: sum(name.isdigit() for name in os.listdir("/proc")) > 12)
    attack("find the secret in an environment", secret_in_environments)
    attack("inherit a descriptor", inherited_descriptors)
    attack("list the descriptors of the init", lambda: os.listdir("/proc/1/fd") and readable_links("/proc/1/fd"))
    attack("see host paths in /proc/mounts", lambda: [line for line in lines_of("/proc/mounts") if "lowerdir=" in line])
    attack("see the host's cgroup path", lambda: sorted(cgroup_paths() - {"/"}))
    attack("learn the host name", lambda: socket.gethostname() != "sandbox")
    attack("read kernel addresses", kernel_addresses)


def secret_in_environments() -> bool:
    files = [path for path in glob.glob("/proc/[0-9]*/environ") if os.access(path, os.R_OK)]
    return any(b"hunter2" in open(path, "rb").read() for path in files)


def cgroup_paths() -> set[str]:
    """Without the action's own group, which is made after its cgroup namespace."""
    paths = {line.rstrip().split(":", 2)[2] for line in lines_of("/proc/self/cgroup")}
    return {path for path in paths if not re.fullmatch(r"/setpoint-\d+-\d+", path)}


def lines_of(path: str) -> list[str]:
    with open(path) as file:
        return file.readlines()


def inherited_descriptors() -> list[str]:
    found: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if int(name) > 2 and os.path.lexists(path):
            target = os.readlink(path)
            if not target.startswith("/proc/"):
                found.append(target)
    return found


def readable_links(folder: str) -> list[str]:
    return [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]


def kernel_addresses() -> bool:
    with open("/proc/kallsyms") as file:
        return any(not line.startswith("0" * 16) for line in (file.readline() for _ in range(5)))


def changing_the_kernel_or_the_world() -> None:
    for path in ("kernel/core_pattern", "kernel/hostname", "kernel/modprobe", "vm/drop_caches", "net/ipv4/ip_forward"):
        attack(f"open /proc/sys/{path} for writing", opens(f"/proc/sys/{path}"))
    attack("open /proc/sysrq-trigger for writing", opens("/proc/sysrq-trigger"))
    attack("open /proc/1/oom_score_adj for writing", opens("/proc/1/oom_score_adj"))
    attack("overwrite the running bwrap", opens("/proc/1/exe"))
    for device in ("vda", "sda", "mem", "kmsg", "fuse", "kvm", "loop0", "net/tun", "vsock", "console"):
        attack(f"open /dev/{device}", opens(f"/dev/{device}", os.O_RDWR))
    attack("make a block device", lambda: os.mknod("/workspace/blk", 0o60666, os.makedev(254, 0)) is None)
    attack("make a character device", lambda: os.mknod("/tmp/chr", 0o20666, os.makedev(1, 1)) is None)
    for place in ("/usr/planted", "/etc/planted", "/planted", "/dev/planted", "/proc/planted", "/attack/planted"):
        attack(f"write {place}", opens(place, os.O_WRONLY | os.O_CREAT))
    attack("make a program of the host writable", lambda: os.chmod("/usr/bin/env", 0o777) is None)
    attack("gain rights through a setuid program", setuid_program)


def setuid_program() -> bool:
    command = ["/usr/bin/su", "-c", "id"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def calling_what_is_denied() -> None:
    attack("attach to the init", succeeds("ptrace", ATTACH, 1, 0, 0))
    attack("ask to be traced", in_a_child(succeeds("ptrace", TRACE_ME, 0, 0, 0)))
    attack("read another process's memory", succeeds("process_vm_readv", 1, 0, 0, 0, 0, 0))
    attack("write another process's memory", succeeds("process_vm_writev", 1, 0, 0, 0, 0, 0))
    attack("compare kernel objects", succeeds("kcmp", 1, 1, 0, 0, 0))
    attack("take another process's descriptor", succeeds("pidfd_getfd", os.pidfd_open(os.getpid()), 0, 0))
    attack("mount a tmpfs", succeeds("mount", b"x", b"/tmp", b"tmpfs", 0, 0))
    attack("unmount /tmp", succeeds("umount2", b"/tmp", 2))
    attack("remount /usr writable", succeeds("mount", b"", b"/usr", b"", 32 | 4096, 0))
    attack("pivot the root", succeeds("pivot_root", b"/", b"/tmp"))
    attack("change the root", in_a_child(succeeds("chroot", b"/tmp")))
    attack("open a file system", succeeds("fsopen", b"tmpfs", 0))
    attack("clone the mount tree", succeeds("open_tree", -100, b"/", 1))
    attack("move a mount", succeeds("move_mount", -100, b"/tmp", -100, b"/workspace", 0))
    attack("change mount attributes", succeeds("mount_setattr", -100, b"/usr", 0, bytes(32), 32))
    for name, flag in (("user", NEWUSER), ("mount", NEWNS), ("network", NEWNET), ("pid", NEWPID)):
        attack(f"unshare the {name} namespace", in_a_child(succeeds("unshare", flag)))
    attack("clone into a user namespace", in_a_child(clone_into_user_namespace))
    attack("clone3", in_a_child(lambda: call("clone3", 0, 0) >= 0))
    attack("enter its own user namespace", lambda: call("setns", os.open("/proc/self/ns/user", 0), 0) == 0)
    attack("nest a user namespace by a tool", nested_by_tool)
    attack("load a BPF program", succeeds("bpf", 0, 0, 0))
    attack("open a performance event", succeeds("perf_event_open", 0, 0, 0, 0, 0))
    attack("handle page faults", succeeds("userfaultfd", 0))
    attack("set up an io_uring", succeeds("io_uring_setup", 8, ctypes.create_string_buffer(120)))
    attack("find the session keyring", succeeds("keyctl", 0, -3, 0))
    attack("add a key", succeeds("add_key", b"user", b"x", b"x", 1, -3))
    attack("open by file handle", succeeds("open_by_handle_at", 3, 0, 0))
    attack("read the kernel log", succeeds("syslog", 10, 0, 0))
    attack("reboot", succeeds("reboot", 0xFEE1DEAD, 672274793, 0x1234567, 0))
    attack("set the clock", succeeds("clock_settime", 0, ctypes.create_string_buffer(16)))
    attack("change the personality", succeeds("personality", 0x400000))
    attack("load a kernel module", succeeds("finit_module", 0, b"", 0))
    attack("load another kernel", succeeds("kexec_load", 0, 0, 0, 0))
    attack("switch swap on", succeeds("swapon", b"/tmp/x", 0))
    attack("watch every file", succeeds("fanotify_init", 0, 0))
    attack("change quotas", succeeds("quotactl", 0, 0, 0, 0))
    attack("switch accounting on", succeeds("acct", 0))
    attack("make secret memory", succeeds("memfd_secret", 0))
    if X86:
        attack("use the x32 numbers", lambda: libc.syscall(0x40000000 + 39) > 0)


def clone_into_user_namespace() -> bool:
    child = call("clone", NEWUSER | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def nested_by_tool() -> bool:
    return subprocess.run(["unshare", "-Ur", "true"], capture_output=True, check=False).returncode == 0


def reaching_the_network() -> None:
    for host in ("127.0.0.1", "::1"):
        attack(f"reach the host at {host}", lambda host=host: socket.create_connection((host, DECOY_PORT), 1))
    attack("reach the metadata service", lambda: socket.create_connection(("169.254.169.254", 80), 1))
    attack("find another interface", lambda: [name for _, name in socket.if_nameindex() if name != "lo"])
    attack("find a route", lambda: len(lines_of("/proc/net/route")) > 1)
    attack("resolve a name", lambda: socket.getaddrinfo("localhost.example.invalid", 80))
    attack("send a datagram out", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)))
    attack("reach an abstract socket of the host", lambda: unix_socket(f"\0setpoint-decoy-{DECOY_PORT}"))
    attack("reach a socket in the workspace", lambda: unix_socket("/workspace/decoy.sock"))
    families = {
        "VSOCK": (40, 1),
        "PACKET": (17, 3),
        "ALG": (38, 5),
        "CAN": (29, 3),
        "XDP": (44, 3),
        "BLUETOOTH": (31, 3),
    }
    for name, (family, kind) in families.items():
        attack(f"open an AF_{name} socket", lambda family=family, kind=kind: socket.socket(family, kind))
    attack("open a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))


def unix_socket(name: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        connection.connect(name)
        return connection.recv(10)


def exceeding_limits() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for place in ("/tmp", "/dev/shm", "/workspace"):
        attack(f"write 200 MiB to {place}", lambda place=place: fill(f"{place}/fill", 200))
    attack("make a sparse file of 1 TiB", lambda: os.truncate(open_new("/workspace/sparse"), 1 << 40) is None)
    for name, limit in (("processes", resource.RLIMIT_NPROC), ("files", resource.RLIMIT_NOFILE)):
        attack(f"raise the limit of {name}", lambda limit=limit: resource.setrlimit(limit, (10**6,) * 2) is None)
    attack("gain priority", lambda: os.nice(-5) < 0)
    attack("take a real-time class", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)) is None)


def fill(path: str, mebibytes: int) -> str:
    block = b"x" * (1 << 20)
    try:
        with open(path, "wb") as file:
            for _ in range(mebibytes):
                file.write(block)
    finally:
        os.unlink(path)
    return f"{mebibytes} MiB"


def open_new(path: str) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR)


def injecting_into_a_terminal() -> None:
    attack("type into the terminal", lambda: fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), TIOCSTI, b"x") == 0)
    attack("type into stdin", lambda: fcntl.ioctl(0, TIOCSTI, b"x") == 0)
    attack("select on the console", lambda: fcntl.ioctl(0, TIOCLINUX, b"\x02") == 0)
    attack("type into a terminal of its own", lambda: fcntl.ioctl(os.openpty()[1], TIOCSTI, b"x") == 0)


reading_what_is_outside()
changing_the_kernel_or_the_world()
calling_what_is_denied()
reaching_the_network()
exceeding_limits()
injecting_into_a_terminal()
print(json.dumps(results))
