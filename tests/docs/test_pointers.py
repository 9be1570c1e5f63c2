"""What a docstring points to lies in the repository: a reader has nothing else."""

from __future__ import annotations

import re

import pytest

from .repository import ROOT

SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py"), ROOT / "docs" / "generate.py"])
OUTSIDE = re.compile(
    r"\b(INTERFACE|CASES|DEFINITIONS|SANDBOX|DESIGN|NUMBERS|SCALE|MODELS|REQUIREMENTS)(\.md|\s+section)?\s+[A-Z]?\d"
    r"|\b(INTERFACE|CASES|DEFINITIONS|SANDBOX|DESIGN|NUMBERS|SCALE|MODELS|REQUIREMENTS)\.md"
)
PAGE = re.compile(r"\b(docs/[\w./-]+\.(?:md|py|toml))\b")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_source_points_to_pages_that_are_there(path):
    text = path.read_text(encoding="utf-8")
    assert not OUTSIDE.search(text), OUTSIDE.search(text)
    missing = [page for page in PAGE.findall(text) if not (ROOT / page).exists()]
    assert not missing
