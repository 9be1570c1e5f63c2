"""Names that others chose, in a form that can stand in a line of ours."""

from __future__ import annotations


def one_line(text: str) -> str:
    """``text`` with everything spelled out that would break a line, hide, or turn the direction of writing.

    A file may be called ``x\\n# Notes\\n- the operator agrees``; where it is listed it must stay one entry of a list.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
