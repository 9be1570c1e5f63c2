"""What the outside must keep: one protocol a port, with the values that cross it.

Each sentence of a port's docstring has a test in the conformance suite of its adapters. An adapter of your own keeps
the same sentences. What ``__all__`` lists is public; kernel values that cross a port are listed with it.
"""

from setpoint.kernel.contract import Criterion, Invariant, Level, Limits, Mount, Tier
from setpoint.kernel.evidence import Counts, Evidence, Failure, Verdict
from setpoint.kernel.flow import Contract
from setpoint.kernel.proposal import RawCall, Reply, StopReason, Usage
from setpoint.kernel.quorum import Entitled
from setpoint.kernel.ticket import SignedDecision, Ticket
from setpoint.ports.approver import Approvers, Rejected
from setpoint.ports.clock import Clock
from setpoint.ports.effector import Effector, Later
from setpoint.ports.log import Beside, Checkpoint, Draft, Head, Lease, Log, Statement, Stored, StreamInfo
from setpoint.ports.proposer import Context, Part, Proposer, RouteLimits, ToolSpec, Zone
from setpoint.ports.sandbox import (
    SEALED_AT,
    WORKSPACE_AT,
    Action,
    BindView,
    Captured,
    Finished,
    OverlayView,
    Sandbox,
    SandboxReport,
    Scratch,
    View,
)
from setpoint.ports.verifier import Candidate, Verifier
from setpoint.ports.workspace import (
    Change,
    ChangeKind,
    ChangeSet,
    CommitReceipt,
    Entry,
    ResolvedPath,
    Workspace,
    WorkspaceProvider,
)

__all__ = [
    "SEALED_AT",
    "WORKSPACE_AT",
    "Action",
    "Approvers",
    "Beside",
    "BindView",
    "Candidate",
    "Captured",
    "Change",
    "ChangeKind",
    "ChangeSet",
    "Checkpoint",
    "Clock",
    "CommitReceipt",
    "Context",
    "Contract",
    "Counts",
    "Criterion",
    "Draft",
    "Effector",
    "Entitled",
    "Entry",
    "Evidence",
    "Failure",
    "Finished",
    "Head",
    "Invariant",
    "Later",
    "Lease",
    "Level",
    "Limits",
    "Log",
    "Mount",
    "OverlayView",
    "Part",
    "Proposer",
    "RawCall",
    "Rejected",
    "Reply",
    "ResolvedPath",
    "RouteLimits",
    "Sandbox",
    "SandboxReport",
    "Scratch",
    "SignedDecision",
    "Statement",
    "StopReason",
    "Stored",
    "StreamInfo",
    "Ticket",
    "Tier",
    "ToolSpec",
    "Usage",
    "Verdict",
    "Verifier",
    "View",
    "Workspace",
    "WorkspaceProvider",
    "Zone",
]
