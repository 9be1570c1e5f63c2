"""Setpoint: a control loop that brings a workspace to a declared state, on evidence it gathers itself.

    from setpoint import Runtime, Task

    async with Runtime.open() as runtime:
        outcome = await runtime.converge(Task.load("fix.yaml"))
    raise SystemExit(outcome.exit_code)

Importing this loads nothing else: each name below is fetched when it is first used. What ``__all__`` lists here, in
``setpoint.ports`` and in ``setpoint.testing`` is promised; every other module may change between releases.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from setpoint.version import VERSION

if TYPE_CHECKING:
    from setpoint.app.manifest import ManifestFault
    from setpoint.app.runtime import Outcome, Runtime, SyncRuntime, open_runtime
    from setpoint.app.task import Task
    from setpoint.kernel.errors import (
        CertificateInvalid,
        ChangeRejected,
        ClosureMissing,
        ConflictFault,
        EvidenceMissing,
        Fault,
        HeadMoved,
        IllegalTransition,
        IsolationUnavailable,
        LeaseLost,
        LogCorrupt,
        ProposerFault,
        ReplayDiverged,
        SandboxFault,
        StoreFault,
        UnknownTrajectory,
        UsageFault,
        WorkspaceFault,
    )

__version__ = VERSION

__all__ = [
    "VERSION",
    "CertificateInvalid",
    "ChangeRejected",
    "ClosureMissing",
    "ConflictFault",
    "EvidenceMissing",
    "Fault",
    "HeadMoved",
    "IllegalTransition",
    "IsolationUnavailable",
    "LeaseLost",
    "LogCorrupt",
    "ManifestFault",
    "Outcome",
    "ProposerFault",
    "ReplayDiverged",
    "Runtime",
    "SandboxFault",
    "StoreFault",
    "SyncRuntime",
    "Task",
    "UnknownTrajectory",
    "UsageFault",
    "WorkspaceFault",
    "__version__",
    "open_runtime",
]

_PLACES = {
    "ManifestFault": "setpoint.app.manifest",
    "Outcome": "setpoint.app.runtime",
    "Runtime": "setpoint.app.runtime",
    "SyncRuntime": "setpoint.app.runtime",
    "Task": "setpoint.app.task",
    "open_runtime": "setpoint.app.runtime",
}
"""Where a name lies; every other name of ``__all__`` is a fault of ``setpoint.kernel.errors``."""

_LATER = {
    "App": "workflows, agents and sessions",
    "capability": "capabilities with outside effects",
    "criterion": "criteria written in Python; in a manifest, `probe: module:function` calls a Python function",
    "invariant": "invariants written in Python; in a manifest, `expr` and `probe` say them",
}
"""Promised for a later release, and what they belong to."""


def __getattr__(name: str) -> object:
    if name in _LATER:
        # ImportError, because `from setpoint import App` replaces the words of an AttributeError by its own.
        raise ImportError(f"setpoint.{name} is not in release {VERSION} ({_LATER[name]})", name="setpoint")
    if name not in __all__:
        raise AttributeError(f"module 'setpoint' has no attribute {name!r}")
    value = getattr(import_module(_PLACES.get(name, "setpoint.kernel.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
