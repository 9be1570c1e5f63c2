"""Where Setpoint keeps its state: never inside a workspace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from setpoint.kernel.errors import UsageFault


@dataclass(frozen=True, slots=True)
class Places:
    """Directories of one installation, all below ``home`` (mode 0700)."""

    home: Path
    store_url: str

    @property
    def keys(self) -> Path:
        return self.home / "keys"

    @property
    def workspaces(self) -> Path:
        return self.home / "workspaces"

    @property
    def approvers(self) -> Path:
        """The roster, a file of the user's (``app.approvers``); the other places are Setpoint's own."""
        return self.home / "approvers.yaml"

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    def refuse_inside(self, workspace: str) -> None:
        """UsageFault when state and workspace would contain each other: an action could see the log and the keys."""
        root = Path(workspace).resolve()
        for what, place in (("state directory", self.home), ("log", self._log_file())):
            real = place.resolve() if place is not None else None
            if real is not None and (real == root or root in real.parents or real in root.parents):
                raise UsageFault(
                    f"the {what} {real} and the workspace {root} contain each other: an action could reach the log",
                    hint="Set SETPOINT_HOME, and --store, to a place outside the workspace.",
                )

    def _log_file(self) -> Path | None:
        scheme, colon, path = self.store_url.partition("sqlite:///")
        return Path(path) if colon and not scheme else None

    def make(self) -> None:
        """Create what is missing. UsageFault when that cannot be."""
        for directory in (self.home, self.keys, self.workspaces, self.cache):
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as fault:
                raise UsageFault(
                    f"cannot make the state directory {directory}: {fault.strerror}",
                    hint="Set SETPOINT_HOME to a directory you can write to.",
                ) from fault


def find_places(store: str | None = None) -> Places:
    """From ``SETPOINT_HOME``, else the user's state directory; the log from ``store``, else ``SETPOINT_STORE``."""
    environment = os.environ
    if environment.get("SETPOINT_HOME"):
        home = Path(environment["SETPOINT_HOME"])
    else:
        state = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        home = Path(state) / "setpoint"
    home = home.absolute()
    url = store or environment.get("SETPOINT_STORE") or f"sqlite:///{home / 'setpoint.db'}"
    return Places(home, url)
