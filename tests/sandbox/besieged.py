"""Sets a sandbox up among decoys and lets ``hostile.py`` loose in it; run as a script by the user to be tested.

Arguments: a private directory, and the rung. Prints what hostile.py printed.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.adapters.sandboxes.running import ActionThreads
from setpoint.ports.sandbox import Action, BindView, Limits, Mount, OverlayView

HOSTILE = Path(__file__).with_name("hostile.py")


def serve(listener: socket.socket) -> None:
    listener.listen()

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.sendall(b"HOSTDATA")
            connection.close()

    threading.Thread(target=answer, daemon=True).start()


def main(place: Path, rung: str) -> None:
    workspace, attack = place / "workspace", place / "attack"
    workspace.mkdir()
    attack.mkdir()
    (attack / "hostile.py").write_text(HOSTILE.read_text())
    secret = place / "secret"
    secret.write_text("hunter2")
    os.environ["SECRET_TOKEN"] = "hunter2"
    os.set_inheritable(os.open(secret, os.O_RDONLY), True)

    tcp = socket.socket()
    tcp.bind(("127.0.0.1", 0))
    port = tcp.getsockname()[1]
    abstract, by_path = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0setpoint-decoy-{port}")
    by_path.bind(os.fspath(workspace / "decoy.sock"))
    for listener in (tcp, abstract, by_path):
        serve(listener)

    sandbox = open_sandbox("namespaces", cache_dir=place / "state", rung=rung)  # type: ignore[arg-type]
    assert isinstance(sandbox, ActionThreads)
    root = os.fspath(workspace)
    done = sandbox.run_blocking(
        Action(
            argv=("python3", "-I", "-S", "/attack/hostile.py", str(port), os.fspath(secret)),
            view=OverlayView((root,)) if rung == "overlay" else BindView(root),
            limits=Limits(wall_ms=60_000, memory_bytes=512 << 20, pids=32, disk_bytes=64 << 20, output_bytes=1 << 20),
            mounts=(Mount(os.fspath(attack), "/attack"),),
            toolchain=("python",),
        )
    )
    sandbox.close_blocking()
    sys.stdout.buffer.write(done.stdout.kept)
    sys.stderr.buffer.write(done.stderr.kept)
    if done.exit_code != 0:
        sys.exit(f"hostile.py ended with {done.exit_code}, {done.signal}, {done.reason}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
