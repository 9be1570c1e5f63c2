"""Small pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

WRITTEN = "<!-- Written by `make docs` from {source}. Change the source, not this page. -->"


def page(title: str, source: str, *blocks: str) -> str:
    """A whole page: title, note of its origin, blocks separated by one empty line."""
    return "\n\n".join([f"# {title}", WRITTEN.format(source=source), *(block.strip("\n") for block in blocks)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text that may stand in a table: one line, no bar that ends the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


_PAGE = re.compile(r"\bdocs/([\w/-]+/)?([\w-]+)\.md")


def prose(docstring: str | None, docs: str = "..") -> str:
    """A docstring as Markdown: double back-quotes become single ones, pages become links.

    ``docs`` is where that folder lies, seen from the page; by default from a page of the reference.
    """
    text = (docstring or "").strip().replace("``", "`")
    return _PAGE.sub(lambda found: f"[{found[2].replace('-', ' ')}]({docs}/{found[1] or ''}{found[2]}.md)", text)
