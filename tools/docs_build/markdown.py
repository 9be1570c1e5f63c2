"""Small pieces of Markdown."""

from __future__ import annotations

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


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: double back-quotes become single ones."""
    return (docstring or "").strip().replace("``", "`")
