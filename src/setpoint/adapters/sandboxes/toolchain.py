"""Language runtimes an action may use: host paths shown read-only at their own place."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from setpoint.kernel.errors import SandboxFault

KNOWN = ("python",)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """``paths`` are bound at themselves; ``search`` goes to the front of PATH."""

    paths: tuple[str, ...] = ()
    search: tuple[str, ...] = ()


def resolve(names: tuple[str, ...]) -> Toolchain:
    """What ``names`` need here. SandboxFault for an unknown name, or a path this user cannot read."""
    unknown = sorted(set(names) - set(KNOWN))
    if unknown:
        raise SandboxFault(f"toolchain {unknown[0]!r} is not known; known are: {', '.join(KNOWN)}")
    return _python() if "python" in names else Toolchain()


def _python() -> Toolchain:
    """The interpreter this runtime runs on, with its packages: a virtual environment and what it was made from."""
    wanted = [sys.prefix, sys.base_prefix]
    hop = os.path.join(sys.prefix, "bin", "python3")
    while os.path.islink(hop):  # a virtual environment's python is a chain of links, each must resolve inside too
        hop = os.path.normpath(os.path.join(os.path.dirname(hop), os.readlink(hop)))
        wanted.append(os.path.dirname(os.path.dirname(hop)))
    paths: list[str] = []
    for path in wanted:
        if path == "/":
            raise SandboxFault(f"the python at {sys.executable} is installed in /, which is never shown inside")
        if not any(_is_inside(path, other) for other in ("/usr", "/bin", *paths)):
            readable(path)
            paths.append(path)
    return Toolchain(tuple(paths), (os.path.join(sys.prefix, "bin"),))


def readable(path: str) -> None:
    """SandboxFault that names ``path`` unless this user can show it to an action."""
    try:
        mode = os.R_OK | (os.X_OK if os.path.isdir(path) else 0)
        os.stat(path)
    except OSError as error:
        raise SandboxFault(f"{path} cannot be shown inside the sandbox: {error.strerror}") from error
    if not os.access(path, mode):
        raise SandboxFault(
            f"{path} cannot be shown inside the sandbox: this user may not read it",
            hint="install it where this user can read it, or grant the permission",
        )


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
