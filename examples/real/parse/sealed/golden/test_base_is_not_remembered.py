"""A compiled parser finds the base of every number anew (parse issue 121)."""

import os
import sys

import pytest

sys.path.append(os.getcwd())  # last: the candidate must not shadow the standard library or pytest

import parse


def numbers(format, *texts):
    """Each text parsed by one and the same compiled parser."""
    parser = parse.compile(format)
    return [parser.parse(text)[0] for text in texts]


def test_the_candidate_is_what_is_tested():
    assert os.path.realpath(parse.__file__).startswith(os.path.realpath(os.getcwd()) + os.sep)


def test_the_reported_example_hexadecimal_then_decimal():
    assert numbers("{:d}", "0x12", "12") == [18, 12]


def test_decimal_then_binary():
    assert numbers("{:d}", "1234", "0b1011") == [1234, 0b1011]


def test_octal_then_hexadecimal_then_decimal():
    assert numbers("{:d}", "0o17", "0xff", "17") == [0o17, 0xFF, 17]


def test_signs_do_not_hide_the_prefix():
    assert numbers("{:d}", "-0x10", "-10", "+0b11", "+11") == [-16, -10, 3, 11]


def test_fields_of_one_pattern_do_not_influence_each_other():
    parser = parse.compile("{a:d} to {b:d}")
    assert parser.parse("0x10 to 0b11").named == {"a": 16, "b": 3}
    assert parser.parse("0b11 to 10").named == {"a": 3, "b": 10}


@pytest.mark.parametrize(
    ("format", "text", "value"),
    [
        ("{:x}", "0b1", 0xB1),
        ("{:x}", "-ff", -255),
        ("{:b}", "101", 5),
        ("{:o}", "17", 15),
        ("{:d}", "007", 7),
    ],
)
def test_a_single_use_of_every_format_is_as_before(format, text, value):
    assert numbers(format, text) == [value]
