"""42 golden invariants of the settings reader. Sealed: no action of the model can read or change this file."""

import pytest
from config.parser import (
    Config,
    ConfigError,
    parse_address,
    parse_bool,
    parse_config,
    parse_count,
    parse_list,
    parse_size,
    parse_timeout,
    strip_comment,
    unquote,
)

# The three that the task is about.


def seconds_are(text, wanted):
    found = parse_timeout(text)
    assert found == wanted, f"parse_timeout({text!r}) = {found} != {wanted}"


def test_negative_timeout_is_clamped_to_the_default():
    seconds_are("-1.0", 5.0)


def test_tiny_negative_timeout_is_clamped_to_the_default():
    seconds_are("-0.001", 5.0)


def test_huge_negative_timeout_is_clamped_to_the_default():
    seconds_are(" -1e9 ", 5.0)


# The 39 that must stay as they are.


@pytest.mark.parametrize(("text", "seconds"), [("2.5", 2.5), ("0", 0.0), ("0.25", 0.25), (" 7 ", 7.0), ("", 5.0)])
def test_timeout_is_read(text, seconds):
    seconds_are(text, seconds)


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "1,5"])
def test_timeout_is_refused(text):
    with pytest.raises(ConfigError):
        parse_timeout(text)


@pytest.mark.parametrize("text", ["on", "Yes", "TRUE", " 1 "])
def test_true_words(text):
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["off", "No", "FALSE", "0"])
def test_false_words(text):
    assert parse_bool(text) is False


def test_other_words_are_no_bool():
    with pytest.raises(ConfigError):
        parse_bool("perhaps")


@pytest.mark.parametrize(("text", "size"), [("512", 512), ("64k", 65536), ("10M", 10485760), ("1 g", 1073741824)])
def test_size(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "ten"])
def test_size_is_refused(text):
    with pytest.raises(ConfigError):
        parse_size(text)


def test_count():
    assert parse_count(" 42 ") == 42


def test_negative_count_is_refused():
    with pytest.raises(ConfigError):
        parse_count("-1")


def test_list():
    assert parse_list('example.org, "a, b.example",') == ["example.org", "a, b.example"]


def test_open_quote_in_a_list_is_refused():
    with pytest.raises(ConfigError):
        parse_list('"a, b')


def test_address():
    assert parse_address("localhost:8080") == ("localhost", 8080)


def test_address_without_host_is_every_interface():
    assert parse_address(":80") == ("0.0.0.0", 80)


@pytest.mark.parametrize("text", ["localhost", "localhost:0"])
def test_address_is_refused(text):
    with pytest.raises(ConfigError):
        parse_address(text)


def test_sections_and_keys():
    assert parse_config("name = w\n[HTTP]\nTimeout = 2\n").sections == {"": {"name": "w"}, "http": {"timeout": "2"}}


def test_last_of_two_equal_keys_wins():
    assert parse_config("a = 1\na = 2\n").get("", "a") == "2"


def test_comment_is_stripped_outside_quotes():
    assert strip_comment('a = "#1" # one') == 'a = "#1" '


def test_quotes_are_taken_off():
    assert unquote('"a b"') == "a b"


def test_line_that_is_no_setting_is_refused():
    with pytest.raises(ConfigError, match="line 1"):
        parse_config("nothing")


def test_missing_setting_is_refused():
    with pytest.raises(ConfigError):
        Config().get("http", "timeout")
