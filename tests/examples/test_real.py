"""The tasks on real packages: their promises hold in plain Python, before any engine is involved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "examples" / "real"
NAMES = ("cachetools", "parse", "sqlparse")
PROGRAMS = ("proposer.py", "liar.py")


def facts(name: str) -> dict:
    return json.loads((REAL / name / "facts.json").read_text())


def answers(name: str, program: str, turns: list[int]) -> list[dict]:
    """What one process answers to these turns."""
    done = subprocess.run(
        [sys.executable, "-B", str(REAL / name / program)],
        input="".join(json.dumps({"context": {"turn": turn}}) + "\n" for turn in turns),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_there_are_three_tasks():
    assert sorted(path.parent.name for path in REAL.glob("*/task.yaml")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_requires_the_commit_that_setup_lays_out(name):
    spec = yaml.safe_load((REAL / name / "task.yaml").read_text())["spec"]
    assert spec["environment"]["base"] == facts(name)["commit"]
    assert (REAL / name / spec["environment"]["workspace"]).resolve() == ROOT / "build" / "real" / name


@pytest.mark.parametrize("name", NAMES)
def test_a_task_has_sealed_and_held_out_checks_and_protects_the_tests(name):
    spec = yaml.safe_load((REAL / name / "task.yaml").read_text())["spec"]
    done = {check["id"]: check for check in spec["done"]}
    assert done["golden"]["level"] == done["heldout"]["level"] == "sealed"
    assert done["heldout"]["oracle"] and done["heldout"]["disclose"] == "verdict"
    assert done["own-suite"]["parse"] == "pytest"
    assert facts(name)["own_suite"]["target"] in {pattern.removesuffix("/**") for pattern in spec["goal"]["forbid"]}
    assert "tests-untouched" in {invariant["id"] for invariant in spec["invariants"]}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_proposer_that_is_started_again_gives_the_same_answers(name, program):
    turns = list(range(1, 11))
    in_one_life = answers(name, program, turns)
    assert len(in_one_life) == len(turns)
    assert [answers(name, program, [turn])[0] for turn in (1, 4, 7, 10)] == [in_one_life[i] for i in (0, 3, 6, 9)]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_proposer_says_only_what_the_manifest_allows(name, program):
    spec = yaml.safe_load((REAL / name / "task.yaml").read_text())["spec"]
    allowed = {action["tool"] for action in spec["actions"]}
    for reply in answers(name, program, list(range(1, 13))):
        assert reply.keys() == {"thought", "calls", "usage"}
        assert {call["name"] for call in reply["calls"]} <= allowed


def lay_out_offline(dest: Path, archives: Path) -> subprocess.CompletedProcess[str]:
    """Run setup.py with pip confined to a local folder instead of the package index."""
    confined = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(archives), "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(
        [sys.executable, "-B", str(REAL / "setup.py"), "--dest", str(dest), "parse"],
        env={key: value for key, value in os.environ.items() if not key.startswith("PIP_")} | confined,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_an_archive_that_cannot_be_had_is_exit_3_and_lays_out_nothing(tmp_path):
    (tmp_path / "archives").mkdir()
    done = lay_out_offline(tmp_path / "real", tmp_path / "archives")
    assert done.returncode == 3, done.stderr
    assert "parse-1.17.0.tar.gz could not be downloaded" in done.stderr
    assert not (tmp_path / "real" / "parse").exists()


def test_an_archive_with_other_bytes_than_pinned_is_refused(tmp_path):
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / "parse-1.17.0.tar.gz").write_bytes(b"not the published archive")
    done = lay_out_offline(tmp_path / "real", tmp_path / "archives")
    assert done.returncode == 1, done.stderr
    assert "is not the pinned one" in done.stderr
    assert not (tmp_path / "real" / "parse").exists()


def test_a_folder_that_setup_did_not_lay_out_is_left_alone(tmp_path):
    (tmp_path / "real" / "parse").mkdir(parents=True)
    (tmp_path / "real" / "parse" / "mine.txt").write_text("keep me")
    done = lay_out_offline(tmp_path / "real", tmp_path)
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "real" / "parse" / "mine.txt").read_text() == "keep me"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_the_fix_is_told_from_the_published_version_and_from_every_wrong_patch(name):
    """G1, G2, G3: own suite, sealed and held-out checks, proposer and liar, all in plain Python."""
    done = subprocess.run(
        [sys.executable, "-B", str(REAL / "check.py"), name],
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    if done.returncode == 3:
        pytest.skip(f"the package index is unreachable: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 4, done.stdout
