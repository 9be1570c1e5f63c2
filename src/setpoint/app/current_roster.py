"""The roster as the file says it now: a worker that runs for weeks knows who was named, and who was removed, since.

The file is looked at before every verification and read again when it is another. One that cannot be read any more
trusts nobody of it until it is mended (law L10): a decision that comes meanwhile does not count.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from setpoint.adapters.approvers.roster import Approver, Roster
from setpoint.app.approvers import read_approvers
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.quorum import Entitled
from setpoint.kernel.ticket import SignedDecision, Ticket
from setpoint.ports.approver import Rejected
from setpoint.ports.clock import Clock


class CurrentRoster:
    """Keeps the promises of ``ports.approver`` over the file at ``path`` and those an application declares.

    Raises UsageFault, as ``read_approvers`` does, when the file cannot be used at the start; ValueError when a key
    stands twice.
    """

    def __init__(self, path: Path, declared: Sequence[Approver], clock: Clock) -> None:
        self._path = path
        self._declared = tuple(declared)
        self._clock = clock
        self._seen = self._mark()
        self._roster = self._read()

    def verify(self, signed: SignedDecision, ticket: Ticket) -> Entitled | Rejected:
        mark = self._mark()
        if mark != self._seen:
            try:
                self._roster = self._read()
            except (UsageFault, ValueError):
                self._roster = Roster(self._declared, self._clock)
            self._seen = mark
        return self._roster.verify(signed, ticket)

    def _read(self) -> Roster:
        installed = read_approvers(self._path) if self._path.exists() else ()
        return Roster([*installed, *self._declared], self._clock)

    def _mark(self) -> tuple[int, int, int, int] | None:
        """What changes when the file, or who may write it, does."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size, found.st_ctime_ns
