"""The drawn parts of ARCHITECTURE.md, between ``<!-- drawn: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import ast
from pathlib import Path

from docs_build.kernel import state_table
from docs_build.markdown import code, prose, table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
PACKAGE = ROOT / "src" / "setpoint"


def architecture() -> str:
    return drawn(PAGE, {"modules": modules(), "states": state_table()})


def modules() -> str:
    """Each module of the folders that hold the ideas, with the first line of its docstring."""
    rows: list[tuple[str, str]] = []
    for folder in ("kernel", "ports", "engine", "engine/runs", "engine/sessions"):
        for path in sorted((PACKAGE / folder).glob("*.py")):
            if path.stem != "__init__":
                said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
                rows.append((code(f"{folder}/{path.stem}"), prose(said.split("\n\n")[0], "docs")))
    return table(("module", "is"), rows)


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
