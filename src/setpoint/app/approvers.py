"""Who may approve, from a file: ``$SETPOINT_HOME/approvers.yaml``.

```yaml
approvers:
  - name: anna                          # as she would be named as a requester
    roles: [ops, finance]
    key: ssh-ed25519 AAAAC3Nza...       # her .pub line; one entry for each key
    valid_after: 2026-01-01             # optional, UTC: a date, or 2026-01-01T09:30:00Z
    valid_before: 2027-01-01
```

Strict like a manifest, and refused when anybody else could have written it: whoever writes this file approves.
"""

from __future__ import annotations

import os
import re
import stat
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from setpoint.adapters.approvers.roster import Approver, refuse_shared
from setpoint.adapters.keyfile import refuse_exposed_directory
from setpoint.app import document
from setpoint.app.document import Document, Problem, parse_documents
from setpoint.kernel.errors import UsageFault

_KEYS: Final = ("name", "roles", "key", "valid_after", "valid_before")
_REQUIRED: Final = ("name", "roles", "key")
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)?")
_EXAMPLE: Final = "approvers: [{name: anna, roles: [ops], key: ssh-ed25519 AAAA...}]"


def read_approvers(path: Path) -> tuple[Approver, ...]:
    """Everybody in the file at ``path``. UsageFault names every problem with its line, or who else could write it."""
    documents, problems = parse_documents(_read(path), str(path))
    approvers: tuple[Approver, ...] = ()
    if not problems and len(documents) != 1:
        problems = [documents[1].problem((), "a roster is one document", "remove the line ---")]
    if not problems:
        approvers = _Reader(documents[0], problems).approvers()
    if problems:
        raise UsageFault(
            "\n".join(str(problem) for problem in problems) + "\nnobody can approve until the roster is right",
            hint=f"A roster reads: {_EXAMPLE}",
        )
    return approvers


def _read(path: Path) -> bytes:
    """The bytes, from a file that only its owner, who is this user or root, can write or replace."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            _refuse_exposed(path, os.fstat(file.fileno()))
            # Whoever can write to the directory of the file, or of a link to it, can put another in its place.
            for directory in {path.absolute().parent, path.resolve().parent}:
                refuse_exposed_directory(directory, f"the roster {path}")
            return file.read(document.BYTES_MAX + 1)
    except OSError as fault:
        raise UsageFault(
            f"the roster {path} cannot be read: {fault.strerror or fault}; nobody can approve without it",
            hint=f"Write one, mode 600: {_EXAMPLE}",
        ) from fault


def _refuse_exposed(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UsageFault(f"the roster {path} is not a regular file", hint=f"Write one, mode 600: {_EXAMPLE}")
    if found.st_uid not in (os.geteuid(), 0):
        raise UsageFault(
            f"the roster {path} belongs to user {found.st_uid}, not to you ({os.geteuid()}): they decide who approves",
            hint="Check what it says, then write a file of your own.",
        )
    if found.st_mode & 0o022:
        raise UsageFault(
            f"the roster {path} has mode {stat.S_IMODE(found.st_mode):04o}: other users can name themselves approvers",
            hint=f"Check what it says, then: chmod go-w {path}",
        )


class _Reader:
    """Turns the document into approvers; what is wrong goes to ``problems``."""

    def __init__(self, source: Document, problems: list[Problem]) -> None:
        self._source = source
        self._problems = problems

    def approvers(self) -> tuple[Approver, ...]:
        top = self._source.value
        if not isinstance(top, dict) or not isinstance(top.get("approvers"), list) or not top["approvers"]:
            self._complain((), "a roster is a list of approvers, at least one", "start with `approvers:`")
            return ()
        self._refuse_unknown((), top, ("approvers",))
        found: list[Approver] = []
        for index, entry in enumerate(top["approvers"]):
            approver = self._approver(("approvers", index), entry)
            if approver is None:
                continue
            try:
                refuse_shared((*found, approver))
                found.append(approver)
            except ValueError as fault:
                self._complain(("approvers", index, "key"), str(fault))
        return tuple(found)

    def _approver(self, path: document.Path, entry: Any) -> Approver | None:
        before = len(self._problems)
        if not isinstance(entry, dict):
            self._complain(path, "an approver is an object", "with name, roles and key")
            return None
        self._refuse_unknown(path, entry, _KEYS)
        for name in _REQUIRED:
            if name not in entry:
                self._complain(path, f"{name} is missing")
        for name in ("name", "key"):
            if name in entry and not isinstance(entry[name], str):
                self._complain((*path, name), f"{name} must be a text", "quote it")
        roles = entry.get("roles", [])
        if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
            self._complain((*path, "roles"), "roles is a list of texts", "for example [ops]")
        after, until = (self._time((*path, name), entry.get(name)) for name in ("valid_after", "valid_before"))
        if len(self._problems) > before:
            return None
        try:
            return Approver(entry["name"], tuple(roles), entry["key"], after, until)
        except ValueError as fault:
            self._complain(path, str(fault))
            return None

    def _time(self, path: document.Path, value: Any) -> int | None:
        if value is None and path not in self._source.marks:
            return None
        try:
            if not isinstance(value, str) or not _TIME.fullmatch(value):
                raise ValueError
            return int(datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp()) * 1000
        except ValueError:
            self._complain(path, f"{value!r} is not a time", "write 2026-01-01 or 2026-01-01T09:30:00Z (UTC)")
            return None

    def _refuse_unknown(self, path: document.Path, entry: dict[str, Any], known: tuple[str, ...]) -> None:
        for name in entry:
            if name not in known:
                near = get_close_matches(name, known, n=1) or known
                self._complain((*path, name), f"unknown key {name!r}", f"valid: {', '.join(near)}", at_key=True)

    def _complain(self, path: document.Path, message: str, suggestion: str = "", *, at_key: bool = False) -> None:
        self._problems.append(self._source.problem(path, message, suggestion, at_key=at_key))
