"""The roster of approvers: ``approvers``, ``approvers add``, ``approvers remove``, ``approvers key``.

``add`` appends to the file, ``remove`` takes the lines of an entry out; every other byte stays as it is. The new file
is read back, by the rules that hold for every roster, before it takes the old one's place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from setpoint.adapters import keyfile
from setpoint.adapters.approvers.roster import Approver, refuse_shared
from setpoint.adapters.approvers.signatures import parse_key
from setpoint.adapters.approvers.signing import OWN_NAME, own_key, own_public_line
from setpoint.app.approvers import read_approvers
from setpoint.app.document import parse_documents
from setpoint.app.places import Places, find_places
from setpoint.cli.run_account import quoted
from setpoint.cli.terminal import printable, say, say_json, table, talk
from setpoint.cli.tickets import key_owner
from setpoint.engine.journal import timestamp
from setpoint.kernel.errors import StoreFault, UsageFault

MODE: Final = 0o600
HEAD: Final = "# Who may approve, by role. Whoever can write this file approves.\napprovers:\n"
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Plain words that YAML readers take for something else."""


def approvers(arguments: Namespace) -> int:
    """Everybody who may approve, and whether this installation's own key is among them."""
    places = find_places(arguments.store)
    known = read_approvers(places.approvers) if places.approvers.exists() else ()
    own = _own_line(places)
    owner = None if own is None else key_owner(known, own)
    if arguments.json:
        say_json(
            {
                "file": str(places.approvers),
                "approvers": [_entry(one) for one in known],
                "own_key": {"key": own, "name": None if owner is None else owner.name} if own else None,
            }
        )
        return 0
    rows = [(one.name, ", ".join(one.roles), _validity(one), one.key) for one in known]
    if rows:
        for line in table(("NAME", "ROLES", "VALID", "KEY"), rows):
            say(line)
    else:
        talk(f"nobody may approve: the roster {places.approvers} " + ("is empty" if known else "does not exist"))
    if owner is not None:
        talk(printable(f"this installation's own key stands there for {owner.name}"), "dim")
    else:
        talk("this installation's own key is in no roster; add it: setpoint approvers add NAME --role ROLE", "dim")
    return 0


def _own_line(places: Places) -> str | None:
    """The public half of the own key, where one was made; looking makes none."""
    path = places.keys / OWN_NAME
    return own_public_line(path) if path.exists() else None


def _entry(one: Approver) -> dict[str, Any]:
    return {
        "name": one.name,
        "roles": list(one.roles),
        "key": one.key,
        "valid_after": None if one.valid_after_ms is None else timestamp(one.valid_after_ms),
        "valid_before": None if one.valid_before_ms is None else timestamp(one.valid_before_ms),
    }


def _validity(one: Approver) -> str:
    ends = [
        "" if at is None else f"{word} {timestamp(at)[:10]}"
        for word, at in (("from", one.valid_after_ms), ("before", one.valid_before_ms))
    ]
    return " ".join(end for end in ends if end) or "always"


def key(arguments: Namespace) -> int:
    """The public line of this installation's own approver key, made at first use: for whoever keeps a roster."""
    places = find_places(arguments.store)
    places.make()
    path = own_key(places.keys)
    line = own_public_line(path)
    if arguments.json:
        say_json({"key": line, "private_key": str(path)})
    else:
        say(line)
        talk(f"the private half is {path}; the roster of whoever trusts it takes the line above", "dim")
    return 0


# Adding


def add(arguments: Namespace) -> int:
    """Name an approver in the roster, mode 600. The key is this installation's own, unless one is given."""
    places = find_places(arguments.store)
    places.make()
    line = own_public_line(own_key(places.keys)) if arguments.key is None else _given_line(arguments.key)
    try:
        approver = Approver(arguments.name, tuple(arguments.role), line)
    except ValueError as fault:
        raise UsageFault(f"this is no approver: {fault}; the roster is as it was") from fault
    path = places.approvers.resolve() if places.approvers.exists() else places.approvers
    with _alone(path.parent):
        known = read_approvers(places.approvers) if places.approvers.exists() else ()
        _refuse_known(known, approver)
        by_hand = UsageFault(
            f"{path} is not written so that an entry can be put at its end; it stands as it was",
            hint=f"Add with an editor: {{name: {_yaml(approver.name)}, roles: "
            f"[{', '.join(_yaml(role) for role in approver.roles)}], key: {approver.key}}}",
        )
        _write(path, _text(path, approver), (*known, approver), by_hand)
    if arguments.json:
        say_json({"file": str(path), "added": _entry(approver)})
    else:
        say(printable(f"{approver.name} may approve as {', '.join(approver.roles)}: {path}"))
        talk(f"  with the key {approver.key}", "dim")
    return 0


def _given_line(text: str) -> str:
    """A public key: the line itself, or the file that holds it."""
    if not text.startswith(("ssh-", "sk-ssh-")):
        path = Path(text).expanduser()
        try:
            held = path.read_text(encoding="utf-8", errors="replace")
        except OSError as fault:
            raise UsageFault(f"the public key {text} cannot be read: {fault.strerror or fault}") from fault
        if "PRIVATE KEY" in held:
            raise UsageFault(f"{text} is a private key; the roster takes the public one", hint=f"--key {text}.pub")
        text = (held.splitlines() or [""])[0]
    try:
        return parse_key(text).text
    except ValueError as fault:
        raise UsageFault(f"this is no key that can approve: {fault}; the roster is as it was") from fault


def _refuse_known(known: tuple[Approver, ...], approver: Approver) -> None:
    try:
        refuse_shared((*known, approver))
    except ValueError as fault:
        raise UsageFault(
            f"{fault}; the roster is as it was", hint="Roles of somebody who is in it are changed with an editor."
        ) from fault


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Nobody else adds meanwhile: what two write at once would be lost for one of them."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _text(path: Path, approver: Approver) -> str:
    """The file with one entry more at its end, indented as those before it."""
    text = path.read_text(encoding="utf-8") if path.exists() else HEAD
    if text and not text.endswith("\n"):
        text += "\n"
    found = re.search(r"^( *)- ", text, re.MULTILINE)
    indent = found[1] if found else "  "
    roles = ", ".join(_yaml(role) for role in approver.roles)
    return text + (
        f"{indent}- name: {_yaml(approver.name)}\n{indent}  roles: [{roles}]\n{indent}  key: {approver.key}\n"
    )


def _yaml(word: str) -> str:
    return word if _PLAIN.fullmatch(word) and word.lower() not in _WORDS else json.dumps(word, ensure_ascii=False)


# Removing


def remove(arguments: Namespace) -> int:
    """Take somebody out of the roster, with every key or with one. What they said yes to, and was not done yet, is
    asked again."""
    places = find_places(arguments.store)
    key = None if arguments.key is None else _given_line(arguments.key)
    if not places.approvers.exists():
        raise UsageFault(f"there is no roster {places.approvers}; nobody was removed")
    path = places.approvers.resolve()
    with _alone(path.parent):
        known = read_approvers(places.approvers)
        gone = [
            place
            for place, one in enumerate(known)
            if one.name == arguments.name and (key is None or parse_key(one.key).text == key)
        ]
        if not gone:
            with_key = "" if key is None else " with that key"
            names = ", ".join(dict.fromkeys(one.name for one in known))
            raise UsageFault(
                f"nobody called {arguments.name}{with_key} is in {path}; it is as it was", hint=f"In it are: {names}."
            )
        if len(gone) == len(known):
            raise UsageFault(
                f"{arguments.name} is the last one in {path}, and a roster names at least one; it is as it was",
                hint=f"Nobody may approve any more when the file is gone: rm {quoted(str(path))}",
            )
        by_hand = UsageFault(
            f"{path} is not written so that an entry can be taken out; it stands as it was",
            hint="Take it out with an editor.",
        )
        left = tuple(one for place, one in enumerate(known) if place not in gone)
        _write(path, _text_without(path, gone), left, by_hand)
    if arguments.json:
        say_json({"file": str(path), "removed": [_entry(known[place]) for place in gone]})
    else:
        for place in gone:
            say(printable(f"{known[place].name} may not approve as {', '.join(known[place].roles)} any more: {path}"))
    return 0


def _text_without(path: Path, gone: list[int]) -> str:
    """The file without the lines of some entries, from the first of each to the last."""
    (document, *_), _ = parse_documents(path.read_bytes(), str(path))
    out: set[int] = set()
    for place in gone:
        lines = [mark.line for at, mark in document.marks.items() if at[:2] == ("approvers", place)]
        out.update(range(min(lines), max(lines) + 1))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for number, line in enumerate(lines, 1) if number not in out)


def _write(path: Path, text: str, expected: tuple[Approver, ...], unfit: UsageFault) -> None:
    """Replace the file, when it reads back as ``expected``. ``unfit`` else: it stands as it was."""
    try:
        fresh = keyfile.write_beside(path, text.encode(), MODE)
        try:
            try:
                is_right = read_approvers(fresh) == expected
            except UsageFault:
                is_right = False
            if not is_right:
                raise unfit
            os.replace(fresh, path)
            keyfile.sync_directory(path.parent)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as fault:
        raise StoreFault(f"the roster {path} cannot be written: {fault.strerror or fault}") from fault


__all__ = ["add", "approvers", "key", "remove"]
