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
    from setpoint.adapters.approvers.roster import Approver
    from setpoint.app.agent import Agent, AgentBudget
    from setpoint.app.application import App
    from setpoint.app.capability import Capability, capability
    from setpoint.app.declare import criterion, invariant
    from setpoint.app.manifest import ManifestFault
    from setpoint.app.runs import RunOutcome
    from setpoint.app.runtime import Outcome, Runtime, SyncRuntime, open_runtime
    from setpoint.app.session import Hydrating, HydrationFault, Session
    from setpoint.app.task import Task
    from setpoint.app.turn_reply import TurnReply
    from setpoint.app.typed import DefinitionFault
    from setpoint.app.workflow import Fragment, InputFault, Workflow, approval_terms
    from setpoint.engine.runs.hand import Fails
    from setpoint.kernel.effects import (
        CannotTell,
        DidNotHappen,
        EffectDeclined,
        EffectInDoubt,
        EffectNotSent,
        Happened,
    )
    from setpoint.kernel.errors import (
        CertificateInvalid,
        ChangeRejected,
        ClosureMissing,
        ConflictFault,
        DuplicateEffect,
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
        StatementRefused,
        StoreFault,
        UnknownTrajectory,
        UsageFault,
        WorkspaceFault,
    )
    from setpoint.kernel.retry import RatePolicy, RetryPolicy
    from setpoint.ports.effector import Context, Later
    from setpoint.ports.log import Statement

__version__ = VERSION

__all__ = [
    "VERSION",
    "Agent",
    "AgentBudget",
    "App",
    "Approver",
    "CannotTell",
    "Capability",
    "CertificateInvalid",
    "ChangeRejected",
    "ClosureMissing",
    "ConflictFault",
    "Context",
    "DefinitionFault",
    "DidNotHappen",
    "DuplicateEffect",
    "EffectDeclined",
    "EffectInDoubt",
    "EffectNotSent",
    "EvidenceMissing",
    "Fails",
    "Fault",
    "Fragment",
    "Happened",
    "HeadMoved",
    "Hydrating",
    "HydrationFault",
    "IllegalTransition",
    "InputFault",
    "IsolationUnavailable",
    "Later",
    "LeaseLost",
    "LogCorrupt",
    "ManifestFault",
    "Outcome",
    "ProposerFault",
    "RatePolicy",
    "ReplayDiverged",
    "RetryPolicy",
    "RunOutcome",
    "Runtime",
    "SandboxFault",
    "Session",
    "Statement",
    "StatementRefused",
    "StoreFault",
    "SyncRuntime",
    "Task",
    "TurnReply",
    "UnknownTrajectory",
    "UsageFault",
    "Workflow",
    "WorkspaceFault",
    "__version__",
    "approval_terms",
    "capability",
    "criterion",
    "invariant",
    "open_runtime",
]

_PLACES = {
    "Agent": "setpoint.app.agent",
    "AgentBudget": "setpoint.app.agent",
    "Hydrating": "setpoint.app.session",
    "HydrationFault": "setpoint.app.session",
    "Session": "setpoint.app.session",
    "TurnReply": "setpoint.app.turn_reply",
    "App": "setpoint.app.application",
    "Approver": "setpoint.adapters.approvers.roster",
    "CannotTell": "setpoint.kernel.effects",
    "Capability": "setpoint.app.capability",
    "Context": "setpoint.ports.effector",
    "DefinitionFault": "setpoint.app.typed",
    "DidNotHappen": "setpoint.kernel.effects",
    "EffectDeclined": "setpoint.kernel.effects",
    "EffectInDoubt": "setpoint.kernel.effects",
    "EffectNotSent": "setpoint.kernel.effects",
    "Fails": "setpoint.engine.runs.hand",
    "Fragment": "setpoint.app.workflow",
    "Happened": "setpoint.kernel.effects",
    "InputFault": "setpoint.app.workflow",
    "Later": "setpoint.ports.effector",
    "RatePolicy": "setpoint.kernel.retry",
    "RetryPolicy": "setpoint.kernel.retry",
    "RunOutcome": "setpoint.app.runs",
    "Statement": "setpoint.ports.log",
    "Workflow": "setpoint.app.workflow",
    "approval_terms": "setpoint.app.workflow",
    "capability": "setpoint.app.capability",
    "criterion": "setpoint.app.declare",
    "invariant": "setpoint.app.declare",
    "ManifestFault": "setpoint.app.manifest",
    "Outcome": "setpoint.app.runtime",
    "Runtime": "setpoint.app.runtime",
    "SyncRuntime": "setpoint.app.runtime",
    "Task": "setpoint.app.task",
    "open_runtime": "setpoint.app.runtime",
}
"""Where a name lies; every other name of ``__all__`` is a fault of ``setpoint.kernel.errors``."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'setpoint' has no attribute {name!r}")
    value = getattr(import_module(_PLACES.get(name, "setpoint.kernel.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
