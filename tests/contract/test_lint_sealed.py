"""What candidate code can do to a sealed check that runs it, and grants that can never be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.app.lint import Finding, lint
from setpoint.app.manifest import manifests_of

TASK = """\
apiVersion: setpoint.dev/v1
kind: Task
metadata: {name: t}
spec:
  goal: {text: g, forbid: ["tests/**", "docs/*.md"]}
  environment: {workspace: .}
  actions: [{tool: file_edit, paths: ["src/**"]}]
  observe: {}
  done: [{id: golden, run: 'sh $SEALED/golden/check.sh', files: ./sealed, disclose: verdict}]
"""

Codes = Callable[[str, str], list[str]]


@pytest.fixture
def codes(folder: Path) -> Codes:
    def of(old: str, new: str) -> list[str]:
        assert TASK.count(old) == 1
        text = TASK.replace(old, new)
        (manifest,) = manifests_of(text.encode(), file="t.yaml", directory=str(folder), source=str(folder / "t.yaml"))
        found: list[Finding] = lint(manifest.task, locate=manifest.locate)
        assert all(finding.line for finding in found)
        return [finding.code for finding in found]

    return of


@pytest.mark.parametrize(
    ("command", "warned"),
    [
        ("python $SEALED/check.py", True),
        ("cd src && python3 -m unittest $SEALED", True),
        ("python -m pytest -q $SEALED", True),
        ("python -m pytest -q $SEALED', parse: 'pytest", False),
        ("python -m compileall -q src", False),
        ("sh $SEALED/golden/check.sh", False),
        ("cargo test", False),
    ],
)
def test_an_exit_code_that_candidate_code_can_forge_is_warned_of(codes: Codes, command: str, warned: bool) -> None:
    """R140, R117"""
    assert ("exit-code-forgeable" in codes("sh $SEALED/golden/check.sh", command)) == warned


@pytest.mark.parametrize(
    ("disclose", "warned"), [("full", True), ("names", False), ("verdict", False), ("none", False)]
)
def test_messages_of_a_sealed_run_are_not_disclosed_in_full_unwarned(codes: Codes, disclose: str, warned: bool) -> None:
    """R140, L9"""
    assert ("sealed-content-disclosed" in codes("disclose: verdict", f"disclose: {disclose}")) == warned


def test_an_oracle_never_shares_a_process_with_the_candidate_and_is_not_warned_of(codes: Codes, folder: Path) -> None:
    """R140"""
    (folder / "sealed/judge.py").write_text("")
    found = codes(
        "run: 'sh $SEALED/golden/check.sh', files: ./sealed, disclose: verdict",
        "oracle: judge.py, files: ./sealed, disclose: full",
    )
    assert not {"exit-code-forgeable", "sealed-content-disclosed"} & set(found)


@pytest.mark.parametrize(
    ("paths", "warned"),
    [
        ('["tests/unit/**", "docs/a.md"]', True),
        ('["tests/**"]', True),
        ('["tests/**", "src/**"]', False),
        ('["docs/**"]', False),
    ],
)
def test_a_grant_that_can_never_be_used_is_pointed_out(codes: Codes, paths: str, warned: bool) -> None:
    """R237"""
    assert ("grant-forbidden" in codes('["src/**"]', paths)) == warned
