"""The requirement map: known ids only, found where they stand."""

from __future__ import annotations

from pathlib import Path

from tests.docs.repository import DOCS, ROOT, generator

generator()
from docs_build.requirements import SUITES, carriers, ids_in, load  # noqa: E402


def test_every_id_that_a_test_names_exists() -> None:
    known = {requirement.id for requirement in load(DOCS)[1]}
    named = carriers(ROOT / "tests", ROOT / SUITES)
    assert set(named) <= known, {name: named[name] for name in set(named) - known}


def test_the_table_holds_every_number_once_in_order() -> None:
    sections, found = load(DOCS)
    assert [requirement.id for requirement in found] == [f"R{number:03d}" for number in range(1, len(found) + 1)]
    assert {requirement.section for requirement in found} == set(sections)
    assert {requirement.tag for requirement in found} <= set("SNBP")
    assert {requirement.release for requirement in found} <= {"0.1", "0.2", "later"}


def test_an_id_belongs_to_the_test_it_stands_in(tmp_path: Path) -> None:
    (tmp_path / "area").mkdir()
    (tmp_path / "area" / "test_one.py").write_text(
        '"""R001"""\n\n\n# R002\ndef test_two():\n    pass\n\n\nasync def test_three():\n    """R003-R005, R007."""\n'
        "\n\ndef helper():\n    # R006\n    pass\n"
    )
    assert carriers(tmp_path) == {
        "R001": ["area/test_one.py"],
        "R002": ["area/test_one.py::test_two"],
        "R003": ["area/test_one.py::test_three"],
        "R004": ["area/test_one.py::test_three"],
        "R005": ["area/test_one.py::test_three"],
        "R006": ["area/test_one.py"],
        "R007": ["area/test_one.py::test_three"],
    }


def test_an_id_in_a_suite_that_adapters_inherit_counts(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / "log.py").write_text(
        'class LogSuite:\n    def test_one(self):\n        """It holds. R180"""\n'
    )
    assert carriers(tmp_path / "tests", tmp_path / "conformance") == {"R180": ["conformance/log.py::test_one"]}


def test_only_whole_ids_count() -> None:
    assert ids_in("R0011 XR002 R03 R004a R005_x R006") == ["R006"]
