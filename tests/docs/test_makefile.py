"""The Makefile: every target is told, and does what it says of the generated pages."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from .repository import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def commands_of(target: str) -> str:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    done = subprocess.run([make, "-n", target], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout


def test_every_target_is_told_by_help() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    told = re.findall(r'^\t@echo "make (\S+) ', MAKEFILE, re.MULTILINE)
    assert set(phony.split()) - {"help", "clean"} == set(told)
    for target in phony.split():
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_docs_writes_the_generated_pages_and_check_holds_them_to_the_code() -> None:
    assert re.search(r"python docs/generate\.py$", commands_of("docs"), re.MULTILINE)
    assert "docs/generate.py --check" in commands_of("check")
