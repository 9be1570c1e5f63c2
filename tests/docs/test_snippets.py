"""Every page that shows commands is played, from its first file to its last output."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.repository import ROOT, handwritten_pages
from tests.docs.snippets import Command, File, agrees, steps_of

from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.kernel.errors import IsolationUnavailable

PAGES = [page for page in handwritten_pages() if any(isinstance(step, Command) for step in steps_of(page))]
SECONDS_MAX = 120


@pytest.fixture(scope="module")
def isolation(tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        asyncio.run(open_sandbox("namespaces", cache_dir=tmp_path_factory.mktemp("cache")).close())
    except IsolationUnavailable as fault:
        pytest.skip(f"the pages need a sandbox: {fault.message}")


@pytest.fixture
def stage(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """An empty directory, and an environment with this installation first on PATH and a state of its own."""
    here = tmp_path / "story"
    here.mkdir()
    environment = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "/usr/bin:/bin")]),
        "HOME": str(tmp_path),
        "SETPOINT_HOME": str(tmp_path / "state"),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }
    if "PYTHONPATH" in os.environ:  # the commands run on the same sources as the tests
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return here, environment


@pytest.mark.timeout(400)  # a page is a story of up to twenty commands
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_print_what_it_shows(
    page: Path, stage: tuple[Path, dict[str, str]], isolation: None
) -> None:
    here, environment = stage
    for step in steps_of(page):
        if isinstance(step, File):
            target = here / step.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("a" if step.more else "w", encoding="utf-8") as file:
                file.write(step.text)
            continue
        done = subprocess.run(
            ["sh", "-c", step.command],
            cwd=here,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        told = f"{page.name}:{step.line}: $ {step.command}\n{done.stdout}\n[exit {done.returncode}]\n{done.stderr}"
        assert done.returncode == step.exit_code, told
        assert agrees(step.output, done.stdout), told


def test_gaps_stand_for_what_differs_and_nothing_else() -> None:
    assert agrees(("one", "..."), "one\ntwo\nthree\n")
    assert agrees(("id …, kept",), "id tr-17, kept\n")
    assert agrees((), "")
    assert not agrees(("one",), "one\ntwo\n")
    assert not agrees(("id …, kept",), "id tr-17,\nkept\n")
    assert not agrees(("one", "...", "three"), "one\ntwo\n")


def test_a_page_becomes_its_steps(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text\n\n```yaml title=a/b.yaml\nx: 1\n```\n\n"
        "```console\n$ cat a/b.yaml\nx: 1\n$ false \\\n> now\n[exit 1]\n```\n"
        "\n```sh\nmake demo\n```\n"
    )
    assert steps_of(page) == [
        File(4, "a/b.yaml", "x: 1\n"),
        Command(8, "cat a/b.yaml", ("x: 1",)),
        Command(10, "false \\\nnow", (), 1),
    ]
