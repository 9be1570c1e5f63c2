"""The reference says what the code says, and no page points at nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.repository import DOCS, ROOT, generator, handwritten_pages

import setpoint
from setpoint.cli.grammar import EXIT_CODES, VERBS
from setpoint.kernel import errors
from setpoint.kernel.events import EVENT_TYPES
from setpoint.kernel.ruling import RefusalReason

REFERENCE = DOCS / "reference"
ENTRANCES = (ROOT / "README.md", DOCS / "README.md", DOCS / "decisions" / "README.md")


def headings(path: Path) -> set[str]:
    """The headings of a page, without their code marks."""
    return {line.lstrip("# ").replace("`", "") for line in path.read_text().splitlines() if line.startswith("#")}


@pytest.mark.parametrize("path", sorted(generator().WRITERS), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_generated_page_is_fresh(path: Path) -> None:
    assert path.is_file(), f"run `make docs`: {path} is missing"
    assert path.read_text(encoding="utf-8") == generator().text_of(path), f"run `make docs`: {path} is stale"


def test_every_event_has_its_heading() -> None:
    assert set(EVENT_TYPES) <= headings(REFERENCE / "events.md")


def test_every_fault_has_its_heading() -> None:
    faults = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert faults | {"ManifestFault"} <= headings(REFERENCE / "faults.md")


def test_every_exit_code_has_its_heading() -> None:
    assert {str(code) for code in EXIT_CODES} <= headings(REFERENCE / "exit-codes.md")


def test_every_verb_has_its_heading_and_every_flag_its_row() -> None:
    generator()
    from docs_build.commands import arguments_of

    page = (REFERENCE / "cli.md").read_text()
    sections = dict(re.findall(r"^### setpoint (.+?)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    for verb in VERBS:
        assert verb.name in sections
        for argument in arguments_of(verb):
            for option in argument.option_strings:
                assert option in sections[verb.name], f"setpoint {verb.name} {option} has no row"


def test_every_refusal_reason_has_its_heading() -> None:
    assert set(RefusalReason.__args__) <= headings(REFERENCE / "refusals.md")  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["setpoint", "setpoint.ports", "setpoint.testing"])
def test_every_public_name_has_its_heading_and_nothing_else_has(module: str) -> None:
    import importlib

    promised = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
    documented = {name for name in headings(REFERENCE / "python.md") if name.rpartition(".")[0] == module}
    documented -= {"setpoint.ports", "setpoint.testing"}
    assert documented == promised


def test_an_altered_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("old")
    monkeypatch.setattr(generator(), "WRITERS", {page: "kernel:limits"})
    assert generator().stale() == [page]
    page.write_text(generator().text_of(page))
    assert generator().stale() == []


def links_of(path: Path) -> list[str]:
    """Relative link targets of a page, code blocks left out."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text))
    return [target for target in found if "://" not in target]


@pytest.mark.parametrize(
    "path", [*handwritten_pages(), *generator().WRITERS], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_every_link_of_a_page_leads_somewhere(path: Path) -> None:
    dead = []
    for target in links_of(path):
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        if not place.exists() or (anchor and anchor not in anchors(place)):
            dead.append(target)
    assert not dead


def anchors(path: Path) -> set[str]:
    """The anchors GitHub gives to the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(path)}


@pytest.mark.parametrize("path", handwritten_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_page_can_be_reached(path: Path) -> None:
    """From the README or the list of pages, in one step."""
    listed = {(page.parent / link.partition("#")[0]).resolve() for page in ENTRANCES for link in links_of(page)}
    assert path in listed | set(ENTRANCES)


def test_the_map_of_folders_names_every_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    drawn = re.search(r"^## Folders\n.*?```\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    assert drawn
    words = set(re.findall(r"\w+", drawn[1]))
    package = ROOT / "src" / "setpoint"
    folders = {path.name for path in [*package.glob("*/"), *package.glob("phases/*/"), *package.glob("adapters/*/")]}
    assert {name for name in folders if not name.startswith("_")} <= words


def test_the_package_says_its_version_in_the_changelog() -> None:
    assert f"## {setpoint.VERSION}" in (ROOT / "CHANGELOG.md").read_text()
