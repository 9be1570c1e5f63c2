"""What ``goal.forbid`` and ``actions[].paths`` match."""

from __future__ import annotations

import fnmatch
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from setpoint.certificate import globs as verifiers
from setpoint.kernel.globs import BadGlob, check_glob, first_match, matches, reaches_below


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("tests/**", ["tests", "tests/a", "tests/a/b.py", "tests/.hidden"], ["testsuite/a", "src/tests/a", "Tests/a"]),
        ("**", ["a", "a/b/c", ".git/config"], []),
        ("**/conftest.py", ["conftest.py", "a/conftest.py", "a/b/conftest.py"], ["a/conftest.pyc", "conftest.py/x"]),
        ("src/*.py", ["src/a.py", "src/.py"], ["src/a/b.py", "a.py", "src/a.pyc"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a", "a/z/y"]),
        ("*", ["a", ".env"], ["a/b"]),
        ("?.txt", ["a.txt", "é.txt"], [".txt", "ab.txt"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x"]),
        ("[!a-c]x", ["dx", "-x"], ["ax"]),
        ("[]!]", ["]", "!"], ["a"]),
        ("[*]", ["*"], ["a"]),
        ("a*b*c", ["abc", "aXbYc", "abbcc"], ["acb", "abcd"]),
        ("file", ["file"], ["file/x", "xfile"]),
    ],
)
def test_a_pattern_matches_what_it_says(pattern: str, inside: list[str], outside: list[str]) -> None:
    """R237"""
    for path in inside:
        assert matches(pattern, path), path
    for path in outside:
        assert not matches(pattern, path), path


IMPOSSIBLE = "/a ~a ../a a/.. a//b a/ ./a a** **a/b [a [z-a] a\\b".split()  # noqa: SIM905


@pytest.mark.parametrize("pattern", ["", "x" * 1001, *IMPOSSIBLE])
def test_a_pattern_that_cannot_be_meant_is_refused(pattern: str) -> None:
    with pytest.raises(BadGlob):
        check_glob(pattern)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a/../b", "./a", "a//b", "a/"])
def test_only_resolved_paths_are_judged(path: str) -> None:
    """A path that was not followed says nothing about where it leads: refusing to answer is safer than a no."""
    with pytest.raises(ValueError, match="not a resolved"):
        matches("**", path)


def test_a_directory_above_a_protected_path_is_reached() -> None:
    assert reaches_below("a/b/**", "a")
    assert reaches_below("**/secret", "any")
    assert not reaches_below("a/b/**", "c")
    assert not reaches_below("a", "a/b")


def test_the_first_match_is_named() -> None:
    assert first_match(("src/**", "*.py"), "a.py") == "*.py"
    assert first_match(("src/**",), "a.py") is None


names = st.text(st.sampled_from("ab.*?[]!-é\n "), min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
patterns = st.lists(st.one_of(st.just("**"), names), min_size=1, max_size=4).map("/".join)


def _usable(pattern: str) -> bool:
    try:
        check_glob(pattern)
    except BadGlob:
        return False
    return True


def _reads(pattern: list[str], path: list[str]) -> bool:
    """An independent reading: recursion over components, each by the standard library."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_reads(pattern[1:], path[skipped:]) for skipped in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _reads(pattern[1:], path[1:])


@given(patterns, paths)
@settings(max_examples=1000)
def test_matching_agrees_with_an_independent_reading(pattern: str, path: str) -> None:
    assume(_usable(pattern) and "[" not in pattern)  # fnmatch is lenient about broken sets, where we refuse
    assert matches(pattern, path) == _reads(pattern.split("/"), path.split("/"))


@given(patterns, paths)
def test_the_certificate_verifier_matches_alike(pattern: str, path: str) -> None:
    """It imports nothing of the runtime, so it has its own matcher; a difference would let a forged history pass."""
    assume(_usable(pattern))
    assert verifiers.matches(pattern, path) == matches(pattern, path)


@given(patterns, paths)
def test_what_matches_is_reached_from_every_directory_above_it(pattern: str, path: str) -> None:
    assume(_usable(pattern) and matches(pattern, path))
    parts = path.split("/")
    assert all(reaches_below(pattern, "/".join(parts[:depth])) for depth in range(1, len(parts) + 1))


def test_no_path_makes_matching_slow() -> None:
    """The model chooses the path, so backtracking would be its weapon. Regular expressions need hours for these."""
    started = time.process_time()
    assert not matches("*a" * 40 + "b", "a" * 255)
    assert not matches("/".join(["**", "a"] * 20) + "/b", "/".join(["a"] * 200))
    assert time.process_time() - started < 2
