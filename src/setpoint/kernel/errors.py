"""The whole fault tree.

A fault is an exception whose class says whose it is (the caller's, the world's) and whose ``effect``
says what is known of the effect: ``not_sent``, ``settled`` or ``in_doubt``. Retry reads that field.
Answers (refusals, holds, truncated output) are values, not faults; bugs are failed assertions.

A message says what happened with its values, what it means for the task, and what to do next.
``exit_code`` is what the command line returns (docs/reference/exit-codes.md).
"""

from __future__ import annotations

from typing import ClassVar, Literal

Effect = Literal["not_sent", "settled", "in_doubt"]


class Fault(Exception):
    """Something outside the rules of the loop went wrong."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, effect: Effect = "not_sent", hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.effect: Effect = effect
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


# The caller's.


class UsageFault(Fault):
    """The command, the manifest or the arguments are wrong; nothing was started."""

    exit_code = 2


class UnknownTrajectory(UsageFault):
    """No trajectory of that id in this store."""


class IllegalTransition(UsageFault):
    """The request does not apply in the trajectory's present state."""


class ClosureMissing(Fault):
    """The task's exposure demands a bound, an isolation tier or evidence that is not there."""

    exit_code = 12


class ConflictFault(Fault):
    """The user's tree changed under the transaction; both versions are kept, nothing was overwritten."""

    exit_code = 15

    def __init__(self, message: str, paths: tuple[str, ...] = (), **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.paths = paths


# The world's.


class StoreFault(Fault):
    """The log cannot be read or written: locked, full, read-only, missing."""


class LeaseLost(StoreFault):
    """Another worker holds, or took over, this trajectory. Nothing was written."""


class HeadMoved(StoreFault):
    """The log is not at the position this append expected. Nothing was written."""


class DuplicateEffect(StoreFault):
    """Another run holds the key of this outside effect. Nothing was written."""

    exit_code = 15

    def __init__(self, message: str, *, key: str = "", holder: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key
        self.holder = holder


class StatementRefused(StoreFault):
    """The database refused a statement, or it would have changed other rows than it must. Nothing was written."""


class LogCorrupt(Fault):
    """The hash chain does not hold at a named position. Never repaired silently."""

    exit_code = 19

    def __init__(self, message: str, *, stream: str = "", seq: int = -1, hint: str | None = None) -> None:
        super().__init__(message, effect="settled", hint=hint)
        self.stream = stream
        self.seq = seq


class CertificateInvalid(Fault):
    """A certificate fails verification; the message names what failed."""

    exit_code = 19


class ReplayDiverged(Fault):
    """Replay produced another event than the log holds, at a named position."""

    exit_code = 19


class IsolationUnavailable(Fault):
    """This machine cannot isolate at the tier the task demands."""

    exit_code = 12


class SandboxFault(Fault):
    """The sandbox itself could not start or died; the action's own failure is an outcome, not a fault."""


class WorkspaceFault(Fault):
    """The workspace transaction cannot go on (special file, setuid, too many entries, disk full)."""


class ChangeRejected(WorkspaceFault):
    """The staged change holds something no commit may carry (setuid, device, fifo, socket, unreadable, too deep)."""


class ProposerFault(Fault):
    """A model could not be reached or did not answer; ``kind`` decides the route.

    kinds: overloaded | rate_limited | refused | broken_stream | timeout | exhausted | auth | invalid
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        retry_after_ms: int | None = None,
        usage: object | None = None,
        cursor: int | None = None,
    ) -> None:
        super().__init__(message, effect="settled")
        self.kind = kind
        self.retry_after_ms = retry_after_ms
        self.usage = usage
        self.cursor = cursor


class EvidenceMissing(Fault):
    """A check crashed, timed out or could not start: missing evidence is never a pass."""

    exit_code = 18
