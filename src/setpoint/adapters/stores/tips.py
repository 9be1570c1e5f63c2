"""Where a stream stands inside the transaction that appends to it, and which appends follow from there."""

from __future__ import annotations

from setpoint.adapters.stores.group_commit import Job
from setpoint.adapters.stores.leases import head_moved, superseded, unknown_stream
from setpoint.kernel.errors import Fault
from setpoint.ports.log import Head


class Tip:
    """One stream; moves with each append that is admitted. ``head`` None: there is no such stream."""

    def __init__(self, stream: str, id: int = 0, head: Head | None = None, fence: int = 0, owner: str | None = None):
        self.stream = stream
        self.id = id
        self.head = head
        self.fence = fence
        self.owner = owner
        self.updated_at: str | None = None  # None: no event was admitted
        self._refused: dict[Head, Fault] = {}

    def fault(self, job: Job, where: str) -> Fault | None:
        """Why the job does not follow."""
        if self.head is None:
            return unknown_stream(self.stream, where)
        if job.fence != self.fence or self.owner is None:
            return superseded(self.stream, job.fence or 0, self.fence, self.owner)
        if job.expected != self.head:  # if it was to follow a refused one, that one's reason is the reason
            return self._refused.get(job.expected) or head_moved(self.stream, job.expected, self.head)
        return None

    def pass_over(self, job: Job, fault: Fault | None) -> None:
        """Move over an admitted job; remember the reason why another was not."""
        if fault is None:
            self.head = job.head
            if job.rows:
                self.updated_at = job.rows[-1][4]
        elif job.head != job.expected:
            self._refused[job.head] = fault
