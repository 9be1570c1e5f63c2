"""A command judged in a sandbox: what passes, what fails, and what is no evidence at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from setpoint.adapters.verifiers.judge import check_digest
from setpoint.adapters.verifiers.parsers import JSON_FORM, parse_json
from setpoint.adapters.verifiers.sealed_files import digest_directory
from setpoint.app.explain import explain
from setpoint.kernel.contract import Level, RunCheck
from setpoint.kernel.errors import SandboxFault
from setpoint.kernel.evidence import Counts

GOOD = "def add(a, b):\n    return a + b\n"
BAD = "def add(a, b):\n    return a - b\n"
TESTS = """import calc

def test_small():
    assert calc.add(2, 3) == 5

def test_zero():
    assert calc.add(0, 0) == 0
"""


def test_exit_code_zero_is_a_pass_bound_to_the_state(bench):
    """R144"""
    evidence = bench.run("test -d .")
    assert evidence.passed and evidence.distance == 0
    assert evidence.fingerprint == "sha256:state" and evidence.address == "done/c"
    assert len(evidence.output_sha256) == 64 and evidence.check_digest.startswith("sha256:")


def test_another_exit_code_is_a_fail_with_the_end_of_the_output(bench):
    evidence = bench.run("echo something is wrong; exit 3")
    assert (evidence.verdict, evidence.distance, evidence.reason) == ("fail", 1, "exit code 3")
    assert "something is wrong" in evidence.failures[0].message


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("kill -SEGV $$", "SIGSEGV"),
        ("sh -c 'kill -KILL $$'", "SIGKILL"),
        ("no-such-program", "not found"),
        ("./locked", "cannot be executed"),
    ],
)
def test_a_check_that_crashes_or_cannot_start_is_missing(bench, command, says):
    """CASES G5"""
    bench.write({"locked": "text"})
    evidence = bench.run(command)
    assert evidence.verdict == "missing" and says in evidence.reason and evidence.distance == 1


@pytest.mark.parametrize("parse", ["exit", "pytest", "junit", "tap", "json"])
def test_a_check_that_times_out_is_missing_under_every_parser(bench, parse):
    """CASES G5"""
    evidence = bench.run("sleep 30", parse, timeout_ms=300)
    assert evidence.verdict == "missing" and "300 ms" in evidence.reason


@pytest.mark.parametrize("level", [Level.VISIBLE, Level.SEALED])
def test_correct_code_passes_pytest_with_counts(bench, level):
    bench.write({"calc.py": GOOD, "test_calc.py": TESTS})
    bench.seal({"test_calc.py": TESTS})
    where = "$SEALED" if level == Level.SEALED else "."
    evidence = bench.run(f"python -m pytest -q {where}", "pytest", level)
    assert evidence.passed, evidence
    assert evidence.counts == Counts(2, 2, 0, 0, 0)


@pytest.mark.parametrize("level", [Level.VISIBLE, Level.SEALED])
def test_a_failing_test_is_named_and_counted(bench, level):
    bench.write({"calc.py": BAD, "test_calc.py": TESTS})
    bench.seal({"test_calc.py": TESTS})
    where = "$SEALED" if level == Level.SEALED else "."
    evidence = bench.run(f"python -m pytest -q {where}", "pytest", level)
    assert (evidence.verdict, evidence.distance) == ("fail", 1)
    assert evidence.failures[0].name == "test_calc::test_small" and "assert -1 == 5" in evidence.failures[0].message


def test_a_src_layout_is_importable_in_a_sealed_check(bench):
    bench.write({"src/calc.py": GOOD})
    bench.seal({"golden/test_calc.py": TESTS})
    assert bench.run("pytest -q $SEALED/golden", "pytest", Level.SEALED).passed


def test_the_tasks_own_python_path_still_works_in_a_sealed_check(bench):
    bench.environment = replace(bench.environment, env=(("PYTHONPATH", "lib:/workspace/other"),))
    bench.write({"lib/calc.py": GOOD})
    bench.seal({"test_calc.py": TESTS})
    assert bench.run("pytest -q $SEALED", "pytest", Level.SEALED).passed


def test_sealed_helpers_win_over_the_candidates_package_of_the_same_name(bench):
    """R140"""
    bench.write({"calc.py": BAD, "helpers/__init__.py": "", "helpers/expected.py": "SUM = -1\n"})
    bench.seal(
        {
            "helpers/expected.py": "SUM = 5\n",
            "test_calc.py": (
                "import calc\nfrom helpers.expected import SUM\ndef test_sum():\n    assert calc.add(2, 3) == SUM\n"
            ),
        }
    )
    evidence = bench.run("pytest -q $SEALED", "pytest", Level.SEALED)
    assert evidence.verdict == "fail" and "-1 == 5" in evidence.failures[0].message


def test_sealed_tests_may_bring_their_own_conftest_and_ini(bench):
    bench.write({"calc.py": GOOD})
    bench.seal(
        {
            "pytest.ini": "[pytest]\nmarkers = golden\naddopts = --strict-markers\n",
            "conftest.py": "import pytest\n@pytest.fixture\ndef five():\n    return 5\n",
            "test_calc.py": (
                "import calc, pytest\n@pytest.mark.golden\ndef test_sum(five):\n    assert calc.add(2, 3) == five\n"
            ),
        }
    )
    assert bench.run("pytest -q $SEALED", "pytest", Level.SEALED).passed


def test_lost_tests_fail_although_every_other_test_passes(bench):
    """CASES G1, G2"""
    bench.write({"calc.py": GOOD, "test_calc.py": TESTS})
    evidence = bench.run("pytest -q", "pytest", baseline=Counts(5, 3, 2, 0, 0))
    assert (evidence.verdict, evidence.distance) == ("fail", 3)
    assert evidence.reason.startswith("collected 2 of 5 tests: tests were lost")


def test_skipping_a_test_that_ran_before_fails(bench):
    """CASES G2"""
    skipped = TESTS.replace("def test_small", "import pytest\n@pytest.mark.skip\ndef test_small")
    bench.write({"calc.py": BAD, "test_calc.py": skipped})
    evidence = bench.run("pytest -q", "pytest", baseline=Counts(2, 1, 1, 0, 0))
    assert evidence.verdict == "fail" and "ran 1 of 2" in evidence.reason


def test_a_suite_in_which_everything_is_skipped_is_no_evidence(bench):
    bench.write({"test_calc.py": "import pytest\n@pytest.mark.skip\ndef test_one():\n    pass\n"})
    evidence = bench.run("pytest -q", "pytest")
    assert evidence.verdict == "missing" and "skipped" in evidence.reason


def test_an_empty_suite_is_no_evidence(bench):
    evidence = bench.run("pytest -q", "pytest", baseline=Counts(2, 2, 0, 0, 0))
    assert evidence.verdict == "missing" and "collected no test and the baseline had 2" in evidence.reason


def test_candidate_code_that_cannot_be_imported_is_a_failure_not_a_missing_check(bench):
    bench.write({"calc.py": "def add(:\n"})
    bench.seal({"test_calc.py": TESTS})
    evidence = bench.run("pytest -q $SEALED", "pytest", Level.SEALED, baseline=Counts(2, 1, 1, 0, 0))
    assert evidence.verdict == "fail" and evidence.counts == Counts(0, 0, 0, 1, 0)
    assert "SyntaxError" in evidence.failures[0].message and "lost" in evidence.reason


def test_a_wrong_call_of_pytest_is_missing(bench):
    evidence = bench.run("pytest --no-such-option", "pytest")
    assert evidence.verdict == "missing" and "called wrongly" in evidence.reason


def test_a_sealed_pytest_runs_sealed_tests_only(bench):
    """R140"""
    bench.write({"calc.py": BAD, "test_calc.py": "def test_nothing():\n    pass\n"})
    bench.seal({"test_calc.py": TESTS})
    for command in ("pytest -q", "pytest -q test_calc.py", "pytest -q $SEALED test_calc.py"):
        evidence = bench.run(command, "pytest", Level.SEALED)
        assert evidence.verdict == "missing" and "below $SEALED only" in evidence.reason


def test_text_on_stdout_has_no_say(bench):
    """CASES G1"""
    bench.write({"pytest_says": "#!/bin/sh\necho '2 passed in 0.01s'\n"})
    assert bench.run("./pytest_says", "pytest").verdict == "missing"


def test_junit_of_another_tool_is_read_from_out(bench):
    report = '<testsuite><testcase name="a"/><testcase name="b"><failure message="no"/></testcase></testsuite>'
    bench.write({"report.xml": report})
    evidence = bench.run("cp report.xml $OUT/junit.xml; exit 1", "junit")
    assert (evidence.verdict, evidence.counts) == ("fail", Counts(2, 1, 1, 0, 0))
    missing = bench.run("true", "junit")
    assert missing.verdict == "missing" and "no junit report was left at $OUT/junit.xml" in missing.reason


def test_exit_code_zero_with_failures_in_the_report_is_a_fail(bench):
    report = '<testsuite><testcase name="a"/><testcase name="b"><failure message="no"/></testcase></testsuite>'
    bench.write({"report.xml": report})
    assert bench.run("cp report.xml $OUT/junit.xml", "junit").verdict == "fail"


def test_a_clean_report_with_another_exit_code_is_a_fail(bench):
    bench.write({"report.xml": '<testsuite><testcase name="a"/></testsuite>'})
    assert bench.run("cp report.xml $OUT/junit.xml; exit 1", "junit").verdict == "fail"


def test_tap_and_json_pass_and_fail(bench):
    assert bench.run("printf 'TAP version 14\\n1..2\\nok 1\\nok 2\\n'", "tap").passed
    assert bench.run("printf '1..2\\nok 1\\nnot ok 2 - b\\n'; exit 1", "tap").failures[0].name == "b"
    assert bench.run("printf '1..3\\nok 1\\nok 2\\n'", "tap").verdict == "missing"
    assert bench.run("""echo hello; echo '{"passed": 2, "failed": 0}'""", "json").passed
    assert bench.run("""echo '{"passed": 1, "failed": 1}' > $OUT/report.json; exit 1""", "json").verdict == "fail"
    for report in ('{"passed": 2}', '{"tests": 2}'):
        unfit = bench.run(f"echo '{report}'", "json")
        assert unfit.verdict == "missing" and JSON_FORM in unfit.reason
    missing = bench.run("true", "json")
    assert missing.verdict == "missing" and "$OUT/report.json or as the last line" in missing.reason
    assert JSON_FORM in missing.reason
    assert parse_json(JSON_FORM.encode()).failing == 1
    assert JSON_FORM in " ".join(explain("Task.spec.done.parse").split())


def test_sealed_files_that_changed_or_were_never_pinned_are_missing_evidence(bench):
    """R140"""
    bench.write({"calc.py": GOOD})
    bench.seal({"test_calc.py": TESTS})
    check = bench.criterion(RunCheck("pytest -q $SEALED", "pytest"), Level.SEALED)
    assert bench.judge(check).passed
    assert "never pinned" in bench.judge(replace(check, files_digest=None)).reason
    bench.seal({"test_calc.py": "def test_nothing():\n    pass\n"})
    evidence = bench.judge(check)
    assert evidence.verdict == "missing" and "changed since the task was accepted" in evidence.reason
    (bench.sealed / "test_calc.py").unlink()
    bench.sealed.rmdir()
    assert bench.judge(check).verdict == "missing"


def test_the_check_digest_changes_with_command_parser_and_sealed_files(bench):
    """R144"""
    bench.seal({"a": "1"})
    check = bench.criterion(RunCheck("true"), Level.SEALED)
    first = check_digest(check)
    assert check_digest(replace(check, disclose="full", id="other")) == first
    assert check_digest(replace(check, predicate=RunCheck("false"))) != first
    assert check_digest(replace(check, predicate=RunCheck("true", "tap"))) != first
    bench.seal({"a": "2"})
    assert check_digest(replace(check, files_digest=digest_directory(str(bench.sealed)))) != first


def test_without_a_sandbox_the_evidence_is_missing(bench):
    """L10: no isolation is a no, with a reason."""

    class Broken:
        async def run(self, action):
            raise SandboxFault("bwrap: out of namespaces")

    bench.sandbox = Broken()
    evidence = bench.run("true")
    assert evidence.verdict == "missing" and "out of namespaces" in evidence.reason


def test_a_pytest_started_by_a_sealed_test_does_not_overwrite_the_report(bench):
    nested = (
        "import subprocess, sys, calc\n"
        "def test_nested(tmp_path):\n"
        "    (tmp_path / 'test_x.py').write_text('def test_x(): assert 0')\n"
        "    done = subprocess.run([sys.executable, '-m', 'pytest', '-q', str(tmp_path)], stdin=subprocess.DEVNULL)\n"
        "    assert done.returncode == 1 and calc.add(1, 1) == 2\n"
    )
    bench.write({"calc.py": GOOD})
    bench.seal({"test_nested.py": nested})
    evidence = bench.run("pytest -q $SEALED", "pytest", Level.SEALED)
    assert evidence.passed and evidence.counts == Counts(1, 1, 0, 0, 0)
