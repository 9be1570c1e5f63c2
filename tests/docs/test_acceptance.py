"""The commands that show what was promised name what exists."""

from __future__ import annotations

import re

import pytest
from tests.docs.repository import DOCS, ROOT

PAGE = (DOCS / "acceptance.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"`([^`\n]+)`", "\n".join(line for line in PAGE.splitlines() if line.startswith("| ")))


def test_the_page_gives_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("place", sorted(set(re.findall(r"tests/[\w./-]+", " ".join(COMMANDS)))))
def test_every_named_test_exists(place: str) -> None:
    path = ROOT / place
    assert path.is_file() or any(path.rglob("test_*.py"))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([\w-]+)", " ".join(COMMANDS)))))
def test_every_named_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
