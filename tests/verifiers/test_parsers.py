"""Reports are untrusted data: counted exactly, bounded, and refused when they cannot be taken literally."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.adapters.verifiers.parsers import (
    REPORT_BYTES_MAX,
    ReportUnreadable,
    parse_json,
    parse_junit,
    parse_tap,
)
from setpoint.kernel.evidence import Counts, Failure
from setpoint.kernel.limits import FAILURE_CHARS_MAX, FAILURES_RECORDED_MAX

LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12)).replace("&a0;", "&a;")
    + "]><testsuite><testcase name='&a11;'/></testsuite>"
)


def test_junit_counts_come_from_the_cases():
    report = parse_junit(
        b'<testsuites><testsuite name="s" tests="99" failures="0">'
        b'<testcase classname="m" name="ok"/>'
        b'<testcase classname="m" name="bad"><failure message="assert 1 == 2">body</failure></testcase>'
        b'<testcase classname="m" name="off"><skipped message="later"/></testcase>'
        b'<testcase classname="" name="m2"><error message="collection failure">x\nE   ImportError: no calc</error>'
        b"</testcase></testsuite></testsuites>"
    )
    assert report.counts == Counts(collected=3, passed=1, failed=1, errors=1, skipped=1)
    assert report.failures == (
        Failure("m::bad", "assert 1 == 2"),
        Failure("m2", "collection failure: ImportError: no calc"),
    )


def test_a_failing_teardown_does_not_count_a_test_twice():
    report = parse_junit(
        b'<testsuite><testcase classname="m" name="a"><failure message="f"/></testcase>'
        b'<testcase classname="m" name="a"><error message="teardown"/></testcase>'
        b'<testcase classname="m" name="b"/><testcase classname="m" name="b"><error message="t"/></testcase>'
        b"</testsuite>"
    )
    assert report.counts == Counts(2, 0, 1, 1, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not xml",
        b"<testsuite>",
        b"<html/>",
        b"<testsuite/><testsuite/>",
        b"<testsuite>" + b"<testsuite>" * 40 + b"</testsuite>" * 40 + b"</testsuite>",
        b'<!DOCTYPE t SYSTEM "file:///etc/passwd"><testsuite/>',
        b"<?xml version='1.0' encoding='no-such'?><testsuite/>",
        b"<testsuite>" + b" " * REPORT_BYTES_MAX + b"</testsuite>",
    ],
)
def test_a_junit_file_that_cannot_be_taken_literally_is_refused(data):
    with pytest.raises(ReportUnreadable):
        parse_junit(data)


def test_a_billion_laughs_are_refused_at_once():
    started = time.process_time()
    with pytest.raises(ReportUnreadable, match="document type"):
        parse_junit(LAUGHS.encode())
    assert time.process_time() - started < 0.5


def test_failures_are_bounded_in_number_and_length():
    case = f'<testcase name="n"><failure message="{"x" * 9000}"/></testcase>'
    report = parse_junit(f"<testsuite>{case * 300}</testsuite>".encode())
    assert report.counts.failed == 300 and len(report.failures) == FAILURES_RECORDED_MAX
    assert all(len(failure.message) <= FAILURE_CHARS_MAX for failure in report.failures)


def test_control_characters_never_reach_evidence():
    data = "<testsuite><testcase name='a'><failure message='&#9;\u009b31mred\u202e'/></testcase></testsuite>"
    assert "\u009b" not in parse_junit(data.encode()).failures[0].message


def test_tap_directives_and_subtests():
    report = parse_tap(
        b"TAP version 14\n# hello\n1..5\nok 1 - a\nnot ok 2 - b\n  ---\n  message: x\n  ...\n    ok 1 - inner\n"
        b"    not ok 2 - inner\nok 3 - c # SKIP no network\nnot ok 4 - d # TODO later\nok 5 - e # TODO done already\n"
    )
    assert report.counts == Counts(5, 2, 1, 0, 2) and report.failures == (Failure("b", ""),)


@pytest.mark.parametrize(
    "text",
    [
        "ok 1\nok 2\n",
        "1..3\nok 1\nok 2\n",
        "1..1\nok 1\nok 2\n",
        "1..2\nok 1\nok 1\n",
        "1..2\nok 0\nok 1\n",
        "1..2\nok 1\nok 3\n",
        "1..1\n1..1\nok 1\n",
        "1..2\nok 1\nBail out! disk full\nok 2\n",
        "1..999999999\nok 1\n",
        "",
    ],
)
def test_tap_without_a_matching_plan_is_refused(text):
    with pytest.raises(ReportUnreadable):
        parse_tap(text.encode())


def test_tap_points_without_numbers_are_counted_in_order():
    assert parse_tap(b"1..2\nok - a\nok - b\n").counts.passed == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"passed": 1}',
        '{"passed": 1, "failed": 0, "extra": 1}',
        '{"passed": true, "failed": 0}',
        '{"passed": "1", "failed": 0}',
        '{"passed": 1.5, "failed": 0}',
        '{"passed": -1, "failed": 2}',
        '{"passed": 1, "failed": 0, "failures": [{"name": "a"}]}',
        '{"passed": 1, "failed": 1, "failures": [{"message": "a"}]}',
        '{"passed": 1, "failed": 0} trailing',
        "[" * 100_000,
    ],
)
def test_json_of_another_form_is_refused(text):
    with pytest.raises(ReportUnreadable):
        parse_json(text.encode())


def test_json_of_the_right_form_is_counted():
    report = parse_json(b'{"passed": 2, "failed": 1, "failures": [{"name": "a", "message": "m"}]}')
    assert report.counts == Counts(3, 2, 1, 0, 0) and report.failures == (Failure("a", "m"),)


@given(st.binary(max_size=300))
def test_no_bytes_make_a_parser_raise_anything_else(data):
    for parse in (parse_junit, parse_tap, parse_json):
        try:
            parse(data)
        except ReportUnreadable:
            continue
