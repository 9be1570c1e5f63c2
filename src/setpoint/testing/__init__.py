"""The public test kit: a model by script or on loopback, a clock by hand, a crash at any event, ports in memory.

An outside world with a ledger and troubles is in memory, too.

Each name is fetched when it is first used, so a test that needs a clock loads no server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setpoint.testing.apps import AppKit, crash_everywhere
    from setpoint.testing.clock import FakeClock
    from setpoint.testing.crash import Crash, CrashingLog, DiaryLog
    from setpoint.testing.effector import Deed, FakeEffector, Trouble
    from setpoint.testing.memory_workspace import MemoryWorkspace
    from setpoint.testing.model_server import Bytes, Drop, Fail, Hang, ModelServer, Received, Say, Step, ToolCall
    from setpoint.testing.probes import ProbeFacts, probe_problems
    from setpoint.testing.purity import ImpureStep, pure
    from setpoint.testing.replies import ScriptedReplies, call, claim, raw, reply
    from setpoint.testing.stubs import EndlessProposer, FixedVerifier, ReplyProposer, StillWorkspace
    from setpoint.testing.tasks import criterion, invariant, make_task
    from setpoint.testing.trees import TreeSandbox, TreeVerifier

__all__ = [
    "AppKit",
    "Bytes",
    "Crash",
    "CrashingLog",
    "Deed",
    "DiaryLog",
    "Drop",
    "EndlessProposer",
    "Fail",
    "FakeClock",
    "FakeEffector",
    "FixedVerifier",
    "Hang",
    "ImpureStep",
    "MemoryWorkspace",
    "ModelServer",
    "ProbeFacts",
    "Received",
    "ReplyProposer",
    "Say",
    "ScriptedReplies",
    "Step",
    "StillWorkspace",
    "ToolCall",
    "TreeSandbox",
    "TreeVerifier",
    "Trouble",
    "call",
    "claim",
    "crash_everywhere",
    "criterion",
    "invariant",
    "make_task",
    "probe_problems",
    "pure",
    "raw",
    "reply",
]

_NAMES = {
    "apps": ("AppKit", "crash_everywhere"),
    "purity": ("ImpureStep", "pure"),
    "clock": ("FakeClock",),
    "crash": ("Crash", "CrashingLog", "DiaryLog"),
    "effector": ("Deed", "FakeEffector", "Trouble"),
    "memory_workspace": ("MemoryWorkspace",),
    "model_server": ("Bytes", "Drop", "Fail", "Hang", "ModelServer", "Received", "Say", "Step", "ToolCall"),
    "probes": ("ProbeFacts", "probe_problems"),
    "replies": ("ScriptedReplies", "call", "claim", "raw", "reply"),
    "stubs": ("EndlessProposer", "FixedVerifier", "ReplyProposer", "StillWorkspace"),
    "tasks": ("criterion", "invariant", "make_task"),
    "trees": ("TreeSandbox", "TreeVerifier"),
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'setpoint.testing' has no attribute {name!r}")
    value = getattr(import_module(f"setpoint.testing.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
