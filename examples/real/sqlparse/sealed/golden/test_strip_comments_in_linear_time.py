"""Stripping a comment full of line breaks takes no time, and keeps the line breaks after it (GHSA-p5w8-wqhj-9hhf)."""

import os
import signal
import sys

import pytest

sys.path.append(os.getcwd())  # last: the candidate must not shadow the standard library or pytest

import sqlparse

CPU_SECONDS = 1.0  # a linear search needs about a millisecond; the fault needs centuries


@pytest.fixture(autouse=True)
def bounded_cpu():
    """Ends a test that burns processor time; the regular expression engine looks for signals while it works."""

    def stop(number, frame):
        pytest.fail(f"still searching after {CPU_SECONDS} s of processor time", pytrace=False)

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def stripped(sql):
    return sqlparse.format(sql, strip_comments=True)


def test_the_candidate_is_what_is_tested():
    assert os.path.realpath(sqlparse.__file__).startswith(os.path.realpath(os.getcwd()) + os.sep)


def test_a_block_comment_full_of_windows_line_breaks():
    assert stripped("select 1 /* a" + "\r\n" * 200 + "*/ from b") == "select 1  from b"


def test_a_hint_full_of_windows_line_breaks():
    assert stripped("select /*+ full(b)" + "\r\n" * 200 + "*/ 1 from b") == "select  1 from b"


def test_many_line_breaks_after_a_comment_are_all_kept():
    assert stripped("select a -- c" + "\n" * 40 + "from b") == "select a" + "\n" * 40 + "from b"


def test_many_windows_line_breaks_after_a_comment_are_all_kept():
    assert stripped("select a -- c" + "\r\n" * 40 + "from b") == "select a" + "\n" * 40 + "from b"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select * -- a comment\r\nfrom foo", "select *\nfrom foo"),
        ("select * -- a comment\nfrom foo", "select *\nfrom foo"),
        ("select * -- a comment\r\n\r\nfrom foo", "select *\n\nfrom foo"),
        ("select * -- a comment\n\nfrom foo", "select *\n\nfrom foo"),
        ("select a /* c */\n  from b", "select a\nfrom b"),
        ("select a /* c */ from b", "select a  from b"),
    ],
)
def test_short_comments_are_stripped_as_before(sql, expected):
    assert stripped(sql) == expected
