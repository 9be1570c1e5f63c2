"""What a bad manifest is told: every problem, at its line and column, with what to write instead.

``refused.yaml`` holds the table: a change of the minimal manifest, and the exact messages it earns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from setpoint.app.document import DEPTH_MAX, NODES_MAX, Problem
from setpoint.app.manifest import ManifestFault, load_task, load_tasks
from setpoint.kernel.contract import Task

from .conftest import MINIMAL

Problems = Callable[[str], list[Problem]]

DONE = "{id: a, run: pytest}"

ROWS = yaml.safe_load((Path(__file__).parent / "refused.yaml").read_text())


@pytest.mark.parametrize("row", ROWS, ids=[row["new"][:50] for row in ROWS])
def test_every_fault_is_named_at_its_place(problems: Problems, folder: Path, row: dict[str, Any]) -> None:
    """R001, R236, R240"""
    assert MINIMAL.count(row["old"]) == 1
    text = MINIMAL.replace(row["old"], row["new"])
    found = problems(text)
    assert [str(problem).removeprefix(f"{folder}/task.yaml:") for problem in found] == [
        said["problem"] for said in row["says"]
    ]
    for problem, said in zip(found, row["says"], strict=True):
        assert text.splitlines()[problem.line - 1][problem.column - 1 :].startswith(said["at"])


@pytest.mark.parametrize("part", ["goal", "environment", "actions", "observe", "done"])
def test_each_of_the_five_parts_is_required(problems: Problems, part: str) -> None:
    """R236: a contract without one of its parts is refused."""
    lines = [line for line in MINIMAL.splitlines(keepends=True) if not line.startswith(f"  {part}:")]
    (problem,) = problems("".join(lines))
    assert problem.message.startswith(f"'{part}' is missing")
    assert problem.suggestion.startswith(f"for example {part}: ")


def test_all_problems_of_all_documents_come_at_once(problems: Problems) -> None:
    text = MINIMAL.replace("text: g", "txt: g") + "---\n" + MINIMAL.replace("run: pytest", "rn: pytest")
    places = [(problem.line, problem.path) for problem in problems(text)]
    assert places == [
        (5, "spec.goal"),
        (5, "spec.goal.txt"),
        (19, "spec.done[0]"),
        (19, "spec.done[0].rn"),
    ]


def test_the_fault_prints_like_a_compiler_and_is_a_usage_error(folder: Path) -> None:
    path = folder / "task.yaml"
    path.write_text(MINIMAL.replace("text: g", "txt: g"))
    with pytest.raises(ManifestFault) as fault:
        load_task(str(path))
    assert fault.value.exit_code == 2
    lines = str(fault.value).splitlines()
    assert lines[1] == f"{path}:5:10: spec.goal.txt: unknown key; did you mean 'text'?"


def test_positions_inside_block_texts_are_found(problems: Problems) -> None:
    text = MINIMAL.replace(
        "done: [{id: a, run: pytest}]",
        "done:\n    - id: a\n      expr: |\n        changes.all(c,\n          c.path ==* 'x')",
    )
    (problem,) = problems(text)
    assert (problem.line, problem.column) == (13, 20)


# Folders and files.


def test_a_workspace_that_is_not_there_is_named(problems: Problems, folder: Path) -> None:
    (problem,) = problems(MINIMAL.replace("workspace: .", "workspace: nowhere"))
    assert str(problem).endswith(f":6:28: spec.environment.workspace: there is no directory {folder}/nowhere")


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ("{host: ./none}", "there is no"),
        ("{host: ./vendor, at: /workspace/v}", "belongs to the sandbox itself"),
        ("{host: ./vendor, at: /usr}", "belongs to the sandbox itself"),
        ("{host: ./vendor, at: /a/../proc/x}", "belongs to the sandbox itself"),
        ("{host: ., at: /all}", "holds this manifest"),
        ("{host: ./vendor, at: vendor}", "is not an absolute path"),
        ("{host: ./vendor, at: /v}, {host: ./src, at: /v/}", "a second mount at /v"),
    ],
)
def test_mounts_must_exist_and_keep_clear_of_the_sandbox(problems: Problems, mount: str, message: str) -> None:
    """L9"""
    found = problems(MINIMAL.replace("workspace: .", f"workspace: ., mounts: [{mount}]"))
    assert any(message in problem.message for problem in found), found


def test_sealed_files_cannot_lie_under_a_mount_or_hold_the_workspace(problems: Problems) -> None:
    """L9: what is mounted is read by every action."""
    sealed = MINIMAL.replace(DONE, "{id: a, run: x, files: ./sealed}")
    found = problems(sealed.replace("workspace: .", "workspace: ., mounts: [{host: ./sealed/golden, at: /g}]"))
    assert "would show the sealed files" in found[0].message
    found = problems(sealed.replace("files: ./sealed", "files: ."))
    assert any("hold the workspace itself" in problem.message for problem in found)


def test_sealed_files_must_be_there(problems: Problems) -> None:
    (problem,) = problems(MINIMAL.replace(DONE, "{id: a, run: x, files: ./seeled}"))
    assert problem.message.endswith("/seeled does not exist")
    (problem,) = problems(MINIMAL.replace(DONE, "{id: a, run: x, files: ./task.yaml}"))
    assert problem.message.endswith("/task.yaml is not a directory")
    (problem,) = problems(MINIMAL.replace(DONE, "{id: a, oracle: judge.py, files: ./sealed}"))
    assert problem.message.startswith("there is no file 'judge.py'")


@pytest.mark.parametrize("target", ["../src", "/etc/hostname", "golden/../../src"])
def test_a_link_that_leads_out_of_the_sealed_files_is_refused(problems: Problems, folder: Path, target: str) -> None:
    """L9: the files are mounted alone; such a link would dangle there, or lead where the candidate writes."""
    os.symlink(target, folder / "sealed/link")
    (problem,) = problems(MINIMAL.replace(DONE, "{id: a, run: x, files: ./sealed}"))
    assert "leads out of the sealed files" in problem.message


def test_a_link_inside_the_sealed_files_is_fine(load: Callable[[str], Task], folder: Path) -> None:
    os.symlink("golden/test_golden.py", folder / "sealed/link")
    assert load(MINIMAL.replace(DONE, "{id: a, run: x, files: ./sealed}"))


def test_a_pin_that_no_longer_fits_is_refused(problems: Problems) -> None:
    """R084"""
    pin = "sha256:" + "0" * 64
    (problem,) = problems(MINIMAL.replace(DONE, f"{{id: a, run: x, files: ./sealed, files_digest: '{pin}'}}"))
    assert problem.path == "spec.done[0].files_digest"
    assert problem.message.startswith("the sealed files have changed")


# YAML itself.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"kind: Task\nkind: Task\n", "2:1: kind: the key 'kind' stands here twice; first written in line 1"),
        (b"a: {b: 1\n", "2:1: not YAML: expected ',' or '}', but got '<stream end>'"),
        (b"a: b: c\n", "1:5: not YAML: mapping values are not allowed here; quote a text that holds ': '"),
        (b"a:\n\t- b\n", "2:1: not YAML: found character '\\t' that cannot start any token; indent with spaces"),
        (b"a: *nowhere\n", "1:4: not YAML: found undefined alias 'nowhere'"),
        (b"a: \xff\n", "1:4: byte 0xff is not UTF-8; save the file as UTF-8"),
        (b"a: b\x07\n", "1:5: the character U+0007 may not stand in YAML; remove it"),
        (b'a: "x\\0y"\n', "1:4: a: a text may hold no NUL and no lone surrogate"),
        (b'a: "\\ud800"\n', "1:4: a: a text may hold no NUL and no lone surrogate"),
        (b"a: !!python/name:a.b x\n", "1:4: a: the tag '!!python/name:a.b' is not understood here; remove it"),
        (b"a: !secret x\n", "1:4: a: the tag '!secret' is not understood here; remove it"),
        (b"a: &x {b: 1}\nc:\n  <<: *x\n", "3:3: c: merge keys (<<) are not understood here; write the keys out"),
        (b"a: &x [*x]\n", "1:4: a[0]: an alias that holds itself"),
        (b"? [a]\n: b\n", "1:3: a key must be a plain word"),
        (b"", "1:1: the file holds no document; start with `setpoint init`"),
        (b"---\n---\n", "1:1: the file holds no document; start with `setpoint init`"),
        (b"- a\n", "1:1: a manifest is a mapping that starts with apiVersion and kind"),
        (b"a: " + b"[" * (DEPTH_MAX + 1) + b"\n", f"1:35: nested deeper than {DEPTH_MAX} levels"),
        (b"a: " + b"[" * 100_000 + b"\n", f"1:35: nested deeper than {DEPTH_MAX} levels"),
        (b"x" * 300_000, "1:1: the file has 262145 bytes, above the bound of 262144"),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else "",
)  # fmt: skip
def test_what_is_not_a_plain_document_is_refused_at_its_place(folder: Path, text: bytes, expected: str) -> None:
    path = folder / "task.yaml"
    path.write_bytes(text)
    with pytest.raises(ManifestFault) as fault:
        load_tasks(str(path))
    assert expected in [str(problem).removeprefix(f"{path}:") for problem in fault.value.problems]


def test_aliases_that_expand_without_bound_are_cut_off(folder: Path) -> None:
    """Nine levels of ten aliases would be 10^9 values."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    path = folder / "task.yaml"
    path.write_text("\n".join(levels))
    with pytest.raises(ManifestFault, match=f"more than {NODES_MAX} values"):
        load_tasks(str(path))


def test_an_alias_used_within_reason_is_understood(load: Callable[[str], Task]) -> None:
    text = MINIMAL.replace("text: g", "text: g, forbid: &f [a/**]").replace(
        "tool: file_read", "tool: file_edit, paths: *f"
    )
    assert load(text).actions[0].paths == ("a/**",)
