"""One output stream: everything is counted and hashed, only head and tail are kept."""

from __future__ import annotations

import hashlib

from setpoint.ports.sandbox import Captured


class Capture:
    """Bounded memory whatever arrives: at most ``keep`` bytes plus one tail's worth of slack.

    When something was dropped, ``kept`` is a head and a tail of equal length, so the cut lies at
    ``len(kept) // 2``. Nothing is inserted there: ``kept`` holds only bytes the action wrote.
    """

    __slots__ = ("_digest", "_half", "_head", "_keep", "_tail", "total")

    def __init__(self, keep: int) -> None:
        self._half = max(1, keep // 2)
        self._keep = max(keep, 2)  # at least a byte of head and a byte of tail
        self._head = bytearray()  # up to ``keep`` bytes, so short outputs are never cut
        self._tail = bytearray()
        self._digest = hashlib.sha256()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        self._digest.update(chunk)
        room = self._keep - len(self._head)
        if room > 0:
            self._head += chunk[:room]
        self._tail += chunk[-self._half :]
        if len(self._tail) > 4 * self._half:
            del self._tail[: -self._half]

    def captured(self) -> Captured:
        truncated = self.total > self._keep
        kept = bytes(self._head[: self._half] + self._tail[-self._half :]) if truncated else bytes(self._head)
        return Captured(kept, self.total, self._digest.hexdigest(), truncated)
