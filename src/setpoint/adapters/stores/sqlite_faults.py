"""What an SQLite error means for the log, said as a fault: what happened, to which file, what to do."""

from __future__ import annotations

import sqlite3

from setpoint.kernel.errors import Effect, Fault, LogCorrupt, StoreFault

_CORRUPT_HINT = "Nothing was repaired. Keep the file aside, and restore it from a backup."

# Primary result code -> (what happened, what to do).
_MEANINGS: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: (
        "is locked by another process",
        "Find it with `fuser` on the file; a backup tool or a stopped process may hold the lock. Then try again.",
    ),
    sqlite3.SQLITE_LOCKED: ("is locked by another connection", "Try again."),
    sqlite3.SQLITE_FULL: (
        "cannot grow: the disk or quota is full",
        "Free space on that file system, then resume; everything acknowledged so far is kept.",
    ),
    sqlite3.SQLITE_READONLY: (
        "is read-only",
        "Make the file, its -wal and -shm companions and their directory writable, or choose another --store.",
    ),
    sqlite3.SQLITE_IOERR: (
        "could not be read or written by the system",
        "Check the disk and the system's log (dmesg) before you resume.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened",
        "Check that its directory exists, is writable, and that the path is a file.",
    ),
    sqlite3.SQLITE_PERM: ("may not be accessed", "Check the owner and the mode of the file."),
    sqlite3.SQLITE_AUTH: ("may not be accessed", "Check the owner and the mode of the file."),
    sqlite3.SQLITE_NOTADB: (
        "is not an SQLite database",
        "Choose another --store, or restore the file if it once was a Setpoint store.",
    ),
    sqlite3.SQLITE_CONSTRAINT: (
        "contradicts itself: a row is there that must not be",
        "Run `setpoint events` on the trajectory to verify its log, and keep the file aside.",
    ),
    sqlite3.SQLITE_TOOBIG: ("refuses a value this large", "Store less in one event or payload."),
}


def fault_of(error: sqlite3.Error, path: str, doing: str, *, effect: Effect = "not_sent") -> Fault:
    """The fault to raise from ``error``; ``doing`` completes "while ..."."""
    code = getattr(error, "sqlite_errorcode", None)
    detail = f"{getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}"
    if is_undecodable(error) or (code is not None and code & 0xFF == sqlite3.SQLITE_CORRUPT):
        return LogCorrupt(f"{path} is damaged ({detail}), found while {doing}", hint=_CORRUPT_HINT)
    primary = code & 0xFF if code is not None else -1
    what, hint = _MEANINGS.get(primary, ("failed in an unexpected way", "See the error above; this may be a bug."))
    if effect == "in_doubt":
        tail = "whether it was written is not known: read the log before you repeat it"
    else:
        tail = "nothing of it was written"
    return StoreFault(f"{path} {what} ({detail}), found while {doing}; {tail}", effect=effect, hint=hint)


def is_undecodable(error: sqlite3.Error) -> bool:
    """A text column holds bytes that are not text; the module reports that without an error code."""
    return str(error).startswith("Could not decode to UTF-8")
