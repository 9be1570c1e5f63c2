"""The promises of ``setpoint.ports.verifier``: a candidate state judged where no agent can reach."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from setpoint.adapters.verifiers.sealed_files import digest_directory
from setpoint.kernel.contract import Criterion, Invariant, Level, RunCheck
from setpoint.kernel.evidence import Counts, Evidence
from setpoint.ports.sandbox import BindView, OverlayView, View
from setpoint.ports.verifier import Candidate, Verifier
from setpoint.ports.workspace import ChangeSet

FINGERPRINT = "sha256:" + "7" * 64
GOOD = "def add(a, b):\n    return a + b\n"
BAD = "def add(a, b):\n    return a - b\n"
TESTS = """import calc

def test_small():
    assert calc.add(2, 3) == 5

def test_zero():
    assert calc.add(0, 0) == 0
"""


@dataclass
class VerifierBench:
    """A candidate tree, a directory of sealed files beside it, and one call that judges a check."""

    verifier: Verifier
    workspace: Path
    sealed: Path
    has_overlays: bool

    def write(self, files: Mapping[str, str], where: Path | None = None) -> None:
        for name, content in files.items():
            path = (where or self.workspace) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    def seal(self, files: Mapping[str, str]) -> None:
        self.write(files, self.sealed)

    def criterion(self, check: RunCheck, level: Level = Level.VISIBLE) -> Criterion:
        criterion = Criterion("c", check, level)
        if level < Level.SEALED:
            return criterion
        return replace(criterion, files=str(self.sealed), files_digest=digest_directory(str(self.sealed)))

    def view(self) -> View:
        root = os.fspath(self.workspace)
        return OverlayView((root,)) if self.has_overlays else BindView(root)

    def judge(self, check: Criterion | Invariant, baseline: Counts | None = None, **changes: Any) -> Evidence:
        given = {"view": self.view(), "changes": ChangeSet((), FINGERPRINT), "fingerprint": FINGERPRINT} | changes
        return asyncio.run(self.verifier.judge(check, Candidate(**given), baseline))

    def run(
        self,
        command: str,
        parse: Any = "exit",
        level: Level = Level.VISIBLE,
        baseline: Counts | None = None,
        **rest: Any,
    ) -> Evidence:
        return self.judge(self.criterion(RunCheck(command, parse, **rest), level), baseline)


Open = Callable[[Path], Verifier]


class VerifierSuite:
    """Everything that judges commands keeps these. Override ``open_verifier``.

        class TestMyJudge(VerifierSuite):
            @pytest.fixture
            def open_verifier(self):
                return lambda workspace: MyJudge(workspace)

    Checks have Python and pytest at hand, in ``sh``. For a probe in Python, see ``setpoint.testing.probe_problems``.
    That code of the candidate, run by a sealed command, can read what that command reads is no broken promise of the
    port but the limit of a sealed command; an oracle is for that.
    """

    has_overlays: ClassVar[bool] = True
    """Whether it judges an ``OverlayView``; else the candidate is a writable directory."""

    @pytest.fixture
    def open_verifier(self) -> Open:
        """``open_verifier(workspace)``: a verifier for candidates below that directory; the suite closes it."""
        raise NotImplementedError("Override the fixture open_verifier: it returns a function that opens your verifier.")

    @pytest.fixture
    def bench(self, open_verifier: Open, tmp_path: Path):
        for name in ("workspace", "sealed"):
            (tmp_path / name).mkdir()
        verifier = open_verifier(tmp_path / "workspace")
        yield VerifierBench(verifier, tmp_path / "workspace", tmp_path / "sealed", self.has_overlays)
        asyncio.run(verifier.close())

    def test_a_command_that_succeeds_passes_and_one_that_fails_does_not(self, bench: VerifierBench) -> None:
        good, bad = bench.run("test -d ."), bench.run("echo something is wrong; exit 3")
        assert good.passed and good.distance == 0
        assert bad.verdict == "fail" and bad.distance >= 1 and bad.reason

    def test_counts_are_those_of_the_report(self, bench: VerifierBench) -> None:
        bench.write({"calc.py": BAD, "test_calc.py": TESTS})
        evidence = bench.run("python -m pytest -q", "pytest")
        assert (evidence.verdict, evidence.distance, evidence.counts) == ("fail", 1, Counts(2, 1, 1, 0, 0))
        assert any("test_small" in failure.name for failure in evidence.failures)

    @pytest.mark.parametrize(
        "command", ["kill -SEGV $$", "sh -c 'kill -KILL $$'", "no-such-program", "./locked", "sleep 30"]
    )
    @pytest.mark.parametrize("parse", ["exit", "json"])
    def test_a_check_that_crashes_times_out_or_cannot_start_never_passes(
        self, bench: VerifierBench, command: str, parse: str
    ) -> None:
        """``judge`` never raises for it; a check that crashes, times out or cannot start is never "pass". G5"""
        bench.write({"locked": "text"})
        evidence = bench.run(command, parse, timeout_ms=1_000)
        assert evidence.verdict in ("missing", "fail") and evidence.distance >= 1 and evidence.reason

    @pytest.mark.parametrize("parse", ["pytest", "junit", "tap", "json"])
    def test_a_check_that_loses_its_report_never_passes(self, bench: VerifierBench, parse: str) -> None:
        """A check that loses its report is never "pass", whatever its exit code. G5"""
        assert not bench.run("exit 0", parse).passed

    def test_a_check_that_collects_fewer_tests_than_the_baseline_never_passes(self, bench: VerifierBench) -> None:
        """A check that collects fewer tests than the baseline is never "pass". G1"""
        bench.write({"calc.py": GOOD, "test_calc.py": TESTS})
        assert bench.run("pytest -q", "pytest", baseline=Counts(2, 2, 0, 0, 0)).passed
        assert not bench.run("pytest -q", "pytest", baseline=Counts(5, 3, 2, 0, 0)).passed

    def test_what_a_check_writes_reaches_nobody(self, bench: VerifierBench) -> None:
        """Nothing a check writes reaches the candidate. R141"""
        bench.write({"a.txt": "a"})
        script = "echo x > a.txt; rm -f a.txt; echo y > b.txt; true"
        for view in (bench.view(), BindView(os.fspath(bench.workspace))):
            bench.judge(bench.criterion(RunCheck(script)), view=view)
            assert sorted(path.name for path in bench.workspace.iterdir()) == ["a.txt"]
            assert (bench.workspace / "a.txt").read_text() == "a"

    def test_sealed_files_are_shown_to_the_check_and_written_by_nobody(self, bench: VerifierBench) -> None:
        """The candidate cannot write sealed files. R140"""
        bench.seal({"secret": "s"})
        assert bench.run("test -r $SEALED/secret", level=Level.SEALED).passed
        bench.run("echo x > $SEALED/secret; touch $SEALED/new; rm -f $SEALED/secret; true", level=Level.SEALED)
        assert [path.name for path in bench.sealed.iterdir()] == ["secret"]
        assert (bench.sealed / "secret").read_text() == "s"

    def test_sealed_files_are_not_there_for_a_check_that_names_none(self, bench: VerifierBench) -> None:
        """The candidate cannot read sealed files. R140"""
        bench.seal({"secret": "s"})
        assert not bench.run(f'cat {bench.sealed}/secret || cat "$SEALED"/secret || cat /sealed/secret').passed

    def test_sealed_files_that_changed_since_they_were_pinned_never_pass(self, bench: VerifierBench) -> None:
        """R140"""
        bench.seal({"check.sh": "exit 0\n"})
        check = bench.criterion(RunCheck("sh $SEALED/check.sh"), Level.SEALED)
        assert bench.judge(check).passed
        bench.seal({"check.sh": "true\n"})
        assert bench.judge(check).verdict == "missing"

    def test_the_network_is_off(self, bench: VerifierBench) -> None:
        """Network is off, the machine's own included."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            call = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 2)\""
            assert bench.run('python3 -c "import socket"').passed
            assert not bench.run(call).passed
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()

    def test_evidence_is_bound_to_the_state_and_to_the_check(self, bench: VerifierBench) -> None:
        """Evidence carries the fingerprint it was given, and a check digest that changes with the check. R144"""
        bench.seal({"a": "1"})
        digests = [
            bench.run("true").check_digest,
            bench.run("true ").check_digest,
            bench.run("true", "tap").check_digest,
        ]
        digests.append(bench.run("true", level=Level.SEALED).check_digest)
        bench.seal({"a": "2"})
        digests.append(bench.run("true", level=Level.SEALED).check_digest)
        assert len(set(digests)) == len(digests) and all(digests)
        evidence = bench.judge(bench.criterion(RunCheck("true")), fingerprint="sha256:" + "8" * 64)
        assert (evidence.fingerprint, evidence.address) == ("sha256:" + "8" * 64, "done/c")
        assert bench.run("true").check_digest == digests[0] == evidence.check_digest
