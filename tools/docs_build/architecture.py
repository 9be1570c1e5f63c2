"""The drawn parts of ARCHITECTURE.md, between ``<!-- drawn: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

from pathlib import Path

from docs_build.kernel import state_table

PAGE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"


def architecture() -> str:
    return drawn(PAGE, {"states": state_table()})


def drawn(path: Path, blocks: dict[str, str]) -> str:
    """The page with each named block replaced; ValueError when it has no such block."""
    text = path.read_text(encoding="utf-8")
    for name, block in blocks.items():
        start, end = f"<!-- drawn: {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{path} has no block `drawn: {name}`")
        text = f"{before}{start}{block}\n{end}{after}"
    return text
