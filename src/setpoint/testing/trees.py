"""Stand-ins that judge and act on a workspace in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256

from setpoint.kernel.contract import Criterion, Invariant
from setpoint.kernel.evidence import Counts, Evidence, Failure, Verdict
from setpoint.kernel.keys import digest
from setpoint.ports.sandbox import Action, Captured, Finished, SandboxReport, Scratch
from setpoint.ports.verifier import Candidate
from setpoint.testing.memory_workspace import MemoryWorkspace, Tree

Judgement = int | tuple[Verdict, int, tuple[Failure, ...]]
"""A number of failing items (0 passes), or a verdict with distance and failures."""


class TreeVerifier:
    """Judges by one Python function a check, given the candidate's files. ``judged`` holds every address in order."""

    def __init__(self, workspace: MemoryWorkspace, checks: Mapping[str, Callable[[Tree], Judgement]]) -> None:
        self._workspace = workspace
        self._checks = checks
        self.judged: list[str] = []

    async def judge(
        self, check: Criterion | Invariant, candidate: Candidate, baseline_counts: Counts | None
    ) -> Evidence:
        self.judged.append(check.address)
        tree = self._workspace.base if candidate.base else self._workspace.candidate
        found = self._checks[check.address](tree)
        failures: tuple[Failure, ...] = ()
        if isinstance(found, int):
            verdict, distance = ("fail", found) if found else ("pass", 0)
        else:
            verdict, distance, failures = found
        return Evidence(
            check.address,
            check.level,
            verdict,
            candidate.fingerprint,
            distance,
            digest(check.address),
            "" if verdict == "pass" else f"{distance} failing",
            None,
            failures,
        )

    async def close(self) -> None:
        """Nothing to release."""


class TreeSandbox:
    """Runs a command by calling the Python function registered for it; an unknown command exits with 127.

    ``ran`` holds every command that reached it. A function edits the workspace's attempt and returns (exit code,
    output).
    """

    report = SandboxReport("namespaces", "overlay", "in memory")

    def __init__(self, commands: Mapping[str, Callable[[], tuple[int, str]]]) -> None:
        self._commands = commands
        self.ran: list[str] = []

    def open_scratch(self, disk_bytes: int) -> Scratch:
        raise NotImplementedError("a sandbox in memory has no scratch")

    async def run(self, action: Action) -> Finished:
        command = action.argv[-1] if action.argv[:2] == ("/bin/sh", "-c") else " ".join(action.argv)
        self.ran.append(command)
        behaviour = self._commands.get(command)
        code, text = (127, f"{command}: not found") if behaviour is None else behaviour()
        data = text.encode()
        empty = Captured(b"", 0, sha256(b"").hexdigest(), False)
        return Finished(code, None, "", Captured(data, len(data), sha256(data).hexdigest(), False), empty, 1)

    async def close(self) -> None:
        """Nothing to release."""
