"""Stand-ins for ports where a test or a benchmark is about something else.

They keep the ports' promises as far as they go and say what they leave out.
"""

from __future__ import annotations

from collections.abc import Sequence

from setpoint.kernel.contract import Criterion, Invariant
from setpoint.kernel.evidence import Counts, Evidence
from setpoint.kernel.keys import digest
from setpoint.kernel.proposal import RawCall, Reply, Usage
from setpoint.ports.proposer import Context, RouteLimits
from setpoint.ports.sandbox import BindView, View
from setpoint.ports.verifier import Candidate
from setpoint.ports.workspace import ChangeSet, CommitReceipt, Entry, ResolvedPath, Survey

STILL = "sha256:" + "0" * 64


class StillWorkspace:
    """A workspace in which nothing ever changes and nothing is on disk."""

    root = "/nonexistent"
    base_digest = STILL

    def savepoint(self) -> int:
        return 0

    def begin(self) -> None: ...

    def action_view(self) -> View:
        return BindView(self.root)

    def candidate_view(self) -> View:
        return BindView(self.root, readonly=True)

    def base_view(self) -> View:
        return BindView(self.root, readonly=True)

    def attempt_changes(self) -> ChangeSet:
        return ChangeSet((), STILL)

    def changes(self) -> ChangeSet:
        return ChangeSet((), STILL)

    def keep(self, savepoint: int) -> None: ...

    def discard(self) -> None: ...

    def restore(self, savepoint: int) -> None: ...

    def resolve(self, path: str) -> ResolvedPath | None:
        return None

    def read(self, path: ResolvedPath, max_bytes: int) -> bytes | None:
        return None

    def write(self, path: ResolvedPath, content: bytes) -> None: ...

    def listing(self, max_entries: int) -> tuple[list[Entry], bool]:
        return [], False

    def diff(self, max_bytes: int) -> str:
        return ""

    def state_digest(self) -> str:
        return STILL

    def survey(self) -> Survey:
        return Survey(STILL, STILL)

    def commit(self, commit_id: str) -> CommitReceipt:
        return CommitReceipt(commit_id, ())

    def close(self, *, keep_staged: bool) -> None: ...


class FixedVerifier:
    """Every check has the verdict of ``verdicts`` by address, ``fail`` where none is named."""

    def __init__(self, verdicts: dict[str, str] | None = None) -> None:
        self.verdicts = verdicts or {}
        self.judged: list[str] = []

    async def judge(
        self, check: Criterion | Invariant, candidate: Candidate, baseline_counts: Counts | None
    ) -> Evidence:
        self.judged.append(check.address)
        verdict = self.verdicts.get(check.address, "fail")
        distance = 0 if verdict == "pass" else 1
        return Evidence(
            check.address,
            check.level,
            verdict,  # type: ignore[arg-type]
            candidate.fingerprint,
            distance,
            digest(check.address),
        )

    async def close(self) -> None: ...


class EndlessProposer:
    """Proposes one call of ``tool`` every turn, each with other arguments, at once and for nothing."""

    def __init__(self, tool: str, message: str = "", usage: Usage | None = None) -> None:
        self.route = f"endless:{tool}"
        self.limits = RouteLimits()
        self._tool = tool
        self._message = message
        self._usage = usage or Usage()
        self.calls = 0

    async def propose(self, context: Context, deadline_ms: int) -> Reply:
        self.calls += 1
        arguments = f'{{"message":"{self._message}","n":{context.turn}}}'
        return Reply(calls=(RawCall(self._tool, arguments),), usage=self._usage)

    async def close(self) -> None: ...


class ReplyProposer:
    """Says the given replies in order by the context's cursor, then the last one again."""

    def __init__(self, replies: Sequence[Reply], route: str = "replies:1") -> None:
        self.route = route
        self.limits = RouteLimits()
        self._replies = tuple(replies)
        self.contexts: list[Context] = []

    async def propose(self, context: Context, deadline_ms: int) -> Reply:
        from dataclasses import replace

        self.contexts.append(context)
        index = min(context.cursor, len(self._replies) - 1)
        return replace(self._replies[index], cursor=context.cursor + 1)

    async def close(self) -> None: ...
