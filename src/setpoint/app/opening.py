"""The one module that knows adapters: it puts a pursuit together from a task and a trajectory's log."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.adapters.proposers.opening import open_proposer
from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.adapters.verifiers.judge import CheckVerifier
from setpoint.adapters.workspaces.moves import no_crash
from setpoint.adapters.workspaces.opening import open_workspaces
from setpoint.adapters.workspaces.overlay import LayeredProvider
from setpoint.app.places import Places
from setpoint.kernel.contract import ProbeCheck, Task, Tier
from setpoint.kernel.errors import UsageFault
from setpoint.ports.clock import Clock
from setpoint.ports.log import Log
from setpoint.ports.proposer import Proposer
from setpoint.ports.sandbox import Sandbox
from setpoint.ports.verifier import Verifier
from setpoint.ports.workspace import Workspace, WorkspaceProvider

if TYPE_CHECKING:
    from setpoint.app.application import App
    from setpoint.app.runs import Runs


class Equipment:
    """Adapters of one process: sandboxes by tier, opened when first needed, closed together."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._sandboxes: dict[Tier, Sandbox] = {}

    def sandbox(self, tier: Tier) -> Sandbox:
        """The best sandbox at or above ``tier``. IsolationUnavailable (exit 12) when this machine has none."""
        if tier not in self._sandboxes:
            self._sandboxes[tier] = open_sandbox(tier, cache_dir=self._places.cache)
        return self._sandboxes[tier]

    def workspaces(self, tier: Tier) -> WorkspaceProvider:
        return open_workspaces(self._places.workspaces, self.sandbox(tier))

    def workspace(self, task: Task, trajectory_id: str) -> Workspace:
        environment = task.environment
        provider = self.workspaces(environment.tier)
        return provider.open(environment.workspace, trajectory_id, environment.limits.disk_bytes)

    def sweep(self, root: str, is_over: Callable[[str], bool]) -> list[str]:
        """Remove the transactions over ``root`` that are over and that nobody has open; needs no sandbox."""
        return LayeredProvider(self._places.workspaces, no_crash).sweep(root, is_over)

    def verifier(self, task: Task) -> Verifier:
        return CheckVerifier(self.sandbox(task.environment.tier), task.environment, _probes(task))

    def proposers(self, routes: Sequence[str], directory: str) -> list[Proposer]:
        return [open_proposer(route, base_dir=Path(directory)) for route in routes]

    async def close(self) -> None:
        for sandbox in self._sandboxes.values():
            await sandbox.close()
        self._sandboxes.clear()


def open_runs(app: App, log: Log, clock: Clock, owner: str, places: Places, services: Mapping[str, Any]) -> Runs:
    """The runs of an application. DefinitionFault when one of its workflows breaks an obligation."""
    from setpoint.app.current_roster import CurrentRoster
    from setpoint.app.runs import Runs

    roster = CurrentRoster(places.approvers, app.approvers, clock)
    return Runs(log, clock, owner, app.check(), roster, services, chance=random.random)


def _probes(task: Task) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
    """The registered Python functions the task's probes name (``module:function``), imported from beside the file."""
    found: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for check in (*task.done, *task.invariants):
        if isinstance(check.predicate, ProbeCheck):
            name = check.predicate.name
            found[name] = _import_probe(name, task)
    return found


def _import_probe(name: str, task: Task) -> Callable[[dict[str, Any]], Any]:
    module_name, colon, function = name.partition(":")
    if not colon:
        raise UsageFault(f"the probe {name!r} is not of the form module:function")
    beside = str(Path(task.source).parent) if task.source else ""
    if beside and beside not in sys.path:
        sys.path.append(beside)
    try:
        return getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as fault:
        raise UsageFault(f"the probe {name!r} of task {task.name} cannot be imported: {fault}") from fault
