"""Every way a command can end, crossed with every report, meets exactly one verdict."""

from __future__ import annotations

import itertools

import pytest

from setpoint.adapters.verifiers.sealed_command import judge_command
from setpoint.kernel.contract import Limits
from setpoint.kernel.evidence import Counts
from setpoint.ports.sandbox import Captured, Finished

CLEAN = b'<testsuite><testcase name="a"/><testcase name="b"/></testsuite>'
FAILED = b'<testsuite><testcase name="a"/><testcase name="b"><failure message="no"/></testcase></testsuite>'
BROKEN = (
    b'<testsuite><testcase name="m"><error message="collection failure">E   SyntaxError: x</error></testcase>'
    b"</testsuite>"
)
EMPTY = b"<testsuite/>"
TORN = CLEAN[:-5]
REPORTS = {"clean": CLEAN, "failed": FAILED, "broken": BROKEN, "empty": EMPTY, "torn": TORN, "none": None}
REASONS = ("wall", "cpu", "memory", "output", "cancelled", "killed", "start", "some later reason")


def finished(code: int | None, report: bytes | None, *, reason: str = "", signal: int | None = None) -> Finished:
    stream = Captured(b"2 passed\n", 9, "00", truncated=False)
    files = {} if report is None else {"junit.xml": report}
    return Finished(code, signal, reason, stream, stream, 1, files)


def verdict(parse: str, code: int | None, report: str, **how) -> str:
    done = finished(code, REPORTS[report], **how)
    return judge_command(parse, "junit.xml", done, Limits(), Counts(1, 1, 0, 0, 0)).verdict  # type: ignore[arg-type]


@pytest.mark.parametrize("parse", ["pytest", "junit"])
def test_the_only_way_to_pass_is_code_zero_with_a_clean_report(parse):
    """R145"""
    for code, report in itertools.product(range(256), REPORTS):
        expected = code == 0 and report == "clean"
        assert (verdict(parse, code, report) == "pass") == expected, (code, report)


@pytest.mark.parametrize("parse", ["exit", "pytest", "junit", "tap", "json"])
def test_what_was_ended_or_crashed_is_missing_whatever_it_left_behind(parse):
    """CASES G5"""
    for report in REPORTS:
        for reason in REASONS:
            assert verdict(parse, None, report, reason=reason) == "missing"
        for signal in (6, 9, 11):
            assert verdict(parse, None, report, signal=signal) == "missing"
            assert verdict(parse, 128 + signal, report) == "missing"
        for code in (126, 127, None):
            assert verdict(parse, code, report) == "missing"


@pytest.mark.parametrize(
    ("code", "report", "expected"),
    [
        (1, "failed", "fail"),
        (0, "failed", "fail"),
        (1, "clean", "fail"),
        (2, "broken", "fail"),
        (1, "broken", "fail"),
        (2, "clean", "missing"),  # interrupted
        (3, "failed", "missing"),  # internal error
        (4, "failed", "missing"),  # usage
        (5, "empty", "missing"),  # nothing collected
        (0, "empty", "fail"),  # tests were lost
        (0, "torn", "missing"),
        (1, "none", "missing"),
        (4, "none", "missing"),
    ],
)
def test_pytests_exit_codes(code, report, expected):
    assert verdict("pytest", code, report) == expected


def test_every_judgement_that_is_not_a_pass_has_a_distance_and_a_reason():
    """L11"""
    for parse, code, report in itertools.product(("exit", "pytest", "junit", "tap", "json"), range(256), REPORTS):
        done = finished(code, REPORTS[report])
        judged = judge_command(parse, "junit.xml", done, Limits(), None)  # type: ignore[arg-type]
        assert (judged.verdict == "pass") == (judged.distance == 0) == (judged.reason == "")


def test_a_baseline_of_which_only_the_number_is_known_says_nothing_of_skips():
    skipped = b'<testsuite><testcase name="a"/><testcase name="b"><skipped/></testcase></testsuite>'
    done = finished(0, skipped)
    only_number = judge_command("junit", "junit.xml", done, Limits(), Counts(2, 0, 0, 0, 0))
    whole = judge_command("junit", "junit.xml", done, Limits(), Counts(2, 2, 0, 0, 0))
    same = judge_command("junit", "junit.xml", done, Limits(), Counts(2, 1, 0, 0, 1))
    assert (only_number.verdict, whole.verdict, same.verdict) == ("pass", "fail", "pass")
