"""What workspace tests share: a plain scratch, and what the suite uses to act in a view and to look at a tree."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from setpoint.testing.conformance.views import BWRAP, act, make, mount_of, picture, seen, unlock, works

__all__ = ["BWRAP", "PlainSandbox", "PlainScratch", "act", "make", "mount_of", "picture", "seen", "unlock", "works"]


class PlainScratch:
    """An ordinary directory; no quota."""

    enter: tuple[str, ...] = ()

    def __init__(self, parent: Path) -> None:
        self.outside = self.inside = tempfile.mkdtemp(prefix="scratch-", dir=parent)

    def close(self) -> None:
        unlock(Path(self.outside))
        shutil.rmtree(self.outside, ignore_errors=True)


class PlainSandbox:
    """The double for the part of a sandbox that a workspace uses."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        parent.mkdir(exist_ok=True)

    def open_scratch(self, disk_bytes: int) -> PlainScratch:
        del disk_bytes
        return PlainScratch(self._parent)
