"""The voice of the demo: chapters, plain words, what programs printed, and facts that are compared.

Nothing is claimed that was not compared: ``fact`` prints what was found, and remembers it when it is not what was
expected. The demo succeeds only if every fact held.
"""

from __future__ import annotations

import textwrap
from typing import Any, Final

from setpoint.cli.terminal import flush, printable, say, styled

WIDTH: Final = 100
"""Columns of prose: readable on a terminal and in a log."""
_INDENT: Final = "  "
_LABEL: Final = 9


class Untold(Exception):
    """A scene could not be told: what it was to tell of did not happen."""


class Narrator:
    """Tells on stdout. ``quiet`` chapters are played and checked but not told, until ``aloud``."""

    def __init__(self) -> None:
        self.facts = 0
        self.wrong: list[str] = []
        self._silent = False

    def hush(self, silent: bool) -> None:
        """Whether what follows is only checked. A fact that does not hold is told all the same."""
        self._silent = silent

    def chapter(self, title: str) -> None:
        self._line("")
        self._line(styled(title, "bold"))
        self._line(styled("-" * len(title), "dim"))

    def scene(self, title: str) -> None:
        self._line("")
        self._line(styled(title, "cyan"))

    def tell(self, text: str) -> None:
        """A paragraph."""
        for line in textwrap.wrap(printable(" ".join(text.split())), WIDTH - len(_INDENT), break_on_hyphens=False):
            self._line(_INDENT + line)

    def row(self, label: str, text: str) -> None:
        """One labelled line of the record: what the model said, what the gate ruled, what came back."""
        words = textwrap.wrap(printable(text), WIDTH - len(_INDENT) - _LABEL, break_on_hyphens=False) or [""]
        self._line(_INDENT + styled(label.ljust(_LABEL), "dim") + words[0])
        for line in words[1:]:
            self._line(_INDENT + " " * _LABEL + line)

    def quote(self, text: str) -> None:
        """What a program printed, or a file holds, line by line."""
        for line in printable(text).rstrip("\n").split("\n"):
            self._line(f"{_INDENT}{' ' * _LABEL}{styled('|', 'dim')} {line}")

    def fact(self, what: str, found: Any, wanted: Any, shown: str | None = None) -> bool:
        """Compare, and say how it came out. ``shown`` is said in place of the value that was found."""
        self.facts += 1
        if found == wanted:
            value = str(found) if shown is None else shown
            said = what if found is True and shown is None else f"{what}: {value}"
            self._listed("ok", "green", printable(said))
            return True
        message = printable(f"{what}: found {found!r}, expected {wanted!r}")
        self.wrong.append(message)
        silent, self._silent = self._silent, False
        self._listed("WRONG", "red", message)
        self._silent = silent
        return False

    def _listed(self, mark: str, style: str, text: str) -> None:
        lines = textwrap.wrap(text, WIDTH - len(_INDENT) - 6, break_on_hyphens=False) or [""]
        self._line(f"{_INDENT}{styled(mark.ljust(5), style)} {lines[0]}")
        for line in lines[1:]:
            self._line(f"{_INDENT}      {line}")

    def _line(self, text: str) -> None:
        if not self._silent:
            say(text)
            flush()
