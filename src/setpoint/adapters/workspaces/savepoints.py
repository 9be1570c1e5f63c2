"""The staged layer and its savepoints, durable and exactly reversible.

Directory of one transaction::

    staged/              the layer between base and attempt, in the overlay's own format
    save/<n>/            savepoint n: journal.json, new/ (empty once applied), old/ (what n replaced)
    restore.json         present only while a restore runs

``keep`` becomes durable by the rename that makes ``save/<n>``, ``restore`` by ``restore.json``; opening finishes
either, so after a crash the layer is at exactly one savepoint.
"""

from __future__ import annotations

import os
from typing import Any

from setpoint.adapters.workspaces import durable, merge, moves, objects
from setpoint.adapters.workspaces.moves import CrashPoint, Diverged, MoveSet
from setpoint.adapters.workspaces.objects import Ident
from setpoint.kernel.errors import WorkspaceFault

_BUILDING = b".building"
_JOURNAL = b"journal.json"
_RESTORE = b"restore.json"
NOT_SEEN = Ident(-1, 0, 0, 0, 0)  # matches nothing: the base object changed while the attempt ran


class StagedLayer:
    """Owns ``staged`` and ``save``; ``fd`` is the staged directory for views."""

    def __init__(self, transaction_fd: int, trash_fd: int, crash: CrashPoint) -> None:
        self._home_fd = os.dup(transaction_fd)
        self._trash_fd = os.dup(trash_fd)
        self._crash = crash
        self.fd = os.open(b"staged", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=transaction_fd)
        self._save_fd = durable.open_made(transaction_fd, b"save")
        self._finish()

    def close(self) -> None:
        for fd in (self._home_fd, self._trash_fd, self.fd, self._save_fd):
            os.close(fd)

    def savepoints(self) -> list[int]:
        return sorted(int(name) for name in objects.names(self._save_fd) if name.isdigit())

    @property
    def head(self) -> int:
        return max(self.savepoints(), default=0)

    def touched(self, after: int) -> dict[bytes, Ident | None]:
        """Base objects below ``.git`` as each was when a savepoint later than ``after`` first changed it."""
        first: dict[bytes, Ident | None] = {}
        for number in self.savepoints():
            if number <= after:
                continue
            for path, ident in self._journal(number)["touched"]:
                first.setdefault(os.fsencode(path), None if ident is None else Ident(*ident))
        return first

    def _journal(self, number: int) -> dict[str, Any]:
        with objects.opened_dir(self._save_fd, b"%d" % number, ours=True) as fd:
            return durable.require_json(fd, _JOURNAL)

    def _finish(self) -> None:
        """Complete what a crash interrupted."""
        durable.throw_away(self._save_fd, _BUILDING, self._trash_fd)
        target = durable.read_json(self._home_fd, _RESTORE)
        if target is not None:
            self._go_back(target["savepoint"])
        elif self.head:
            self._apply(self.head)

    # Keep.

    def keep(self, number: int, upper_fd: int, base_fd: int, since_ns: int) -> None:
        """Merge the attempt as savepoint ``number``. ``since_ns``: when the attempt began, by the kernel's clock."""
        if number <= self.head:
            raise WorkspaceFault(f"Savepoint {number} cannot be kept: the newest is {self.head}")
        durable.throw_away(self._save_fd, _BUILDING, self._trash_fd)
        os.mkdir(_BUILDING, 0o700, dir_fd=self._save_fd)
        try:
            self._write_journal(upper_fd, base_fd, since_ns)
        except BaseException:
            durable.throw_away(self._save_fd, _BUILDING, self._trash_fd)
            raise
        self._crash("keep: planned")
        durable.rename(self._save_fd, _BUILDING, self._save_fd, b"%d" % number)
        self._crash("keep: durable")
        self._apply(number)

    def _write_journal(self, upper_fd: int, base_fd: int, since_ns: int) -> None:
        with objects.opened_dir(self._save_fd, _BUILDING, ours=True) as home:
            moves.make_home(home)
            with objects.opened_dir(home, b"new", ours=True) as new:
                plan = merge.plan(upper_fd, self.fd, base_fd, new)
                self._crash("keep: built")
                objects.sync_tree(new)
            touched = [
                [os.fsdecode(path), NOT_SEEN if ident is not None and ident.ctime_ns > since_ns else ident]
                for path, ident in plan.touched.items()
            ]
            durable.write_json(home, _JOURNAL, {**plan.sealed().to_json(), "touched": touched})

    def _apply(self, number: int) -> None:
        with objects.opened_dir(self._save_fd, b"%d" % number, ours=True) as home:
            what = MoveSet.from_json(self._journal(number))
            try:
                moves.roll_forward(self.fd, home, what, self._crash)
            except Diverged as diverged:
                raise _damaged(diverged) from diverged

    # Restore.

    def restore(self, number: int) -> None:
        if number and number not in self.savepoints():
            raise WorkspaceFault(f"Savepoint {number} does not exist; there are {self.savepoints() or 'none'}")
        if number == self.head:
            return
        durable.write_json(self._home_fd, _RESTORE, {"savepoint": number})
        self._crash("restore: durable")
        self._go_back(number)

    def _go_back(self, number: int) -> None:
        while self.head > number:
            newest = self.head
            with objects.opened_dir(self._save_fd, b"%d" % newest, ours=True) as home:
                what = MoveSet.from_json(self._journal(newest))
                try:
                    moves.roll_back(self.fd, home, what, self._crash)
                except Diverged as diverged:
                    raise _damaged(diverged) from diverged
            durable.throw_away(self._save_fd, b"%d" % newest, self._trash_fd)
            self._crash("restore: one back")
        os.unlink(_RESTORE, dir_fd=self._home_fd)
        os.fsync(self._home_fd)
        self._crash("restore: done")


def _damaged(diverged: Diverged) -> WorkspaceFault:
    return WorkspaceFault(
        f"The staged layer was changed by somebody else at {objects.show(diverged.path)}",
        hint="Nothing but the runtime may write below its state directory; discard this transaction.",
    )
