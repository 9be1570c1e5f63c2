"""requirements.md: each numbered mechanism with the tests that carry its id."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from docs_build.markdown import cell, page

ID = re.compile(r"\bR(\d{3})\b")
_RANGE = re.compile(r"\bR(\d{3})\s*(?:-|\.\.|to)\s*R(\d{3})\b")


@dataclass(frozen=True, slots=True)
class Requirement:
    id: str
    section: str
    tag: str
    release: str
    title: str
    note: str = ""
    """Where it is narrower than the mechanism's name says."""


def load(docs: Path) -> tuple[dict[str, str], list[Requirement]]:
    """Section titles, and every requirement in order."""
    document = tomllib.loads((docs / "requirements.toml").read_text())
    found = [Requirement(id=name, **facts) for name, facts in document["requirements"].items()]
    return document["sections"], found


SUITES = "src/setpoint/testing/conformance"
"""Tests that adapters inherit; the classes in tests/ that run them over our own adapters hold none of their text."""


def carriers(tests: Path, suites: Path | None = None) -> dict[str, list[str]]:
    """Id -> tests that carry it, as ``folder/test_file.py::test_name``; the file alone when it stands outside any.

    Those of ``suites`` are named ``conformance/file.py::test_name``.
    """
    found: dict[str, set[str]] = defaultdict(set)
    files = [(path, path.relative_to(tests)) for path in sorted(tests.rglob("test_*.py"))]
    if suites is not None:
        files += [(path, path.relative_to(suites.parent)) for path in sorted(suites.glob("*.py"))]
    for path, shown in files:
        if path == tests / "docs" / "test_requirements.py":
            continue  # ids stand there as examples
        text = path.read_text(encoding="utf-8")
        spans = _test_functions(text)
        where = shown.as_posix()
        for number, line in enumerate(text.splitlines(), 1):
            for name in ids_in(line):
                owner = next((test for test, first, last in spans if first <= number <= last), "")
                found[name].add(f"{where}::{owner}" if owner else where)
    return {name: sorted(tests) for name, tests in found.items()}


def ids_in(text: str) -> list[str]:
    """Every id a text names; ``R157-R164`` names all between."""
    names = [f"R{found}" for found in ID.findall(text)]
    for first, last in _RANGE.findall(text):
        names += [f"R{number:03d}" for number in range(int(first), int(last) + 1)]
    return list(dict.fromkeys(names))


def _test_functions(text: str) -> list[tuple[str, int, int]]:
    """Name, first line (decorators and a comment directly above included) and last line of each test."""
    lines = text.splitlines()
    spans: list[tuple[str, int, int]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            while first > 1 and lines[first - 2].lstrip().startswith("#"):
                first -= 1
            spans.append((node.name, first, node.end_lineno or node.lineno))
    return spans


ROOT = Path(__file__).resolve().parents[2]


def requirements() -> str:
    sections, known = load(ROOT / "docs")
    carried = carriers(ROOT / "tests", ROOT / SUITES)
    status = {r.id: _status(r, carried) for r in known}
    counts = {word: list(status.values()).count(word) for word in ("tested", "missing", "not in this release")}
    blocks = [
        (
            "Every mechanism of Setpoint has a number. A test that covers one carries its id. *tested*: at least "
            "one test carries the id; how far it goes, the test says. *missing*: meant for this release, and no "
            "test carries it. *not in this release*: neither promised now nor tested. A line in italics says where "
            "a mechanism is narrower than its name."
        ),
        (
            f"{len(known)} mechanisms: {counts['tested']} tested, {counts['missing']} missing, "
            f"{counts['not in this release']} not in this release."
        ),
    ]
    for letter, title in sections.items():
        rows = [r for r in known if r.section == letter]
        lines = [f"## {letter}. {title}", "", "| id | mechanism | status | tests |", "|---|---|---|---|"]
        for r in rows:
            tests_said = "<br>".join(f"`{name}`" for name in carried.get(r.id, ()))
            mark = f"**{status[r.id]}**" if status[r.id] == "missing" else status[r.id]
            name = f"{cell(r.title)}<br>*{cell(r.note)}*" if r.note else cell(r.title)
            lines.append(f"| {r.id} | {name} | {mark} | {tests_said} |")
        blocks.append("\n".join(lines))
    return page("Requirements and their tests", f"`docs/requirements.toml`, `tests/` and `{SUITES}/`", *blocks)


def _status(r: Requirement, carried: dict[str, list[str]]) -> str:
    if r.id in carried:
        return "tested"
    return "not in this release" if r.release == "later" else "missing"
