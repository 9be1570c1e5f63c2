"""Which commands count as reading only: every doubt is a no (R072)."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.phases.p3_gate.tools import READ_ONLY_COMMANDS, is_read_only

READING = [
    "grep -rn 'parse_timeout' src/",
    'grep -n "a b" src/a.py',
    "grep -n 'a;b|c' src/a.py",
    "ls -la",
    "cat src/a.py",
    "find . -name '*.py'",
    "sort -k 2 x",
    "uniq -c x",
    "wc -l a b c",
    "diff a b",
    "env",
    "rg --pretty x",
    "echo hello",
    "tree -L 2",
]
WRITING = [
    "grep x; rm y",
    "grep x && rm y",
    "grep x || rm y",
    "grep x | tee y",
    "grep x > y",
    "grep x >> y",
    "cat < y",
    "grep x\nrm y",
    "grep x\rrm y",
    "grep x & rm y",
    "grep $(rm y)",
    "grep `rm y`",
    "grep ${IFS}x",
    "grep $x",
    'grep "$(rm y)"',
    'grep "`rm y`"',
    'grep "a\\"; rm y; \\""',
    'echo "\'" ; rm x "\'"',
    'echo "\'"\nrm x\n"\'"',
    "echo '\"' ; rm x '\"'",
    "echo 'a' ; 'rm' x",
    "echo \\; rm",
    "echo 'unbalanced",
    'echo "unbalanced',
    "ls *",
    "ls [a-z]",
    "ls ?",
    "ls ~",
    "ls {a,b}",
    "ls # comment",
    "! ls",
    "(ls)",
    "FOO=1 ls",
    "env rm x",
    "env -S 'rm x'",
    "env -i sh -c x",
    "find . -delete",
    "find . -exec rm {} +",
    "find . -name x -execdir sh -c x",
    "find . -fprint out",
    "find . -fprintf out %p",
    "find . -ok rm",
    "sort -o out x",
    "sort -oout x",
    "sort -uo out x",
    "sort --output=out x",
    "sort --output out x",
    "sort --outp=out x",
    "sort --o=out x",
    "sort --compress-program=sh x",
    "sort --comp=sh x",
    "uniq in out",
    "uniq -c in out",
    "tree -o out",
    "tree -oout",
    "tree -R -L 1",
    "rg --pre=sh x",
    "rg --pre sh x",
    "rg --hostname-bin=sh x",
    "file -C -m x",
    "file --compile",
    "/bin/ls",
    "./ls",
    "sudo ls",
    "sh -c ls",
    "bash -c 'ls'",
    "python -c 1",
    "sed -n 1p x",
    "sed -i s/a/b/ x",
    "awk 1 x",
    "xargs rm",
    "tee x",
    "touch x",
    "git status",
    "time ls",
    "exec ls",
    "eval ls",
    "",
    "   ",
]


@pytest.mark.parametrize("command", READING)
def test_a_plain_reading_command_is_one(command: str) -> None:
    """R072"""
    assert is_read_only({"command": command})
    assert is_read_only({"argv": shlex.split(command)})


@pytest.mark.parametrize("command", WRITING)
def test_anything_that_may_do_more_is_none(command: str) -> None:
    """R072, H5"""
    assert not is_read_only({"command": command})


@pytest.mark.parametrize(
    "argv", [["sort", "-o", "x"], ["find", ".", "-delete"], ["env", "rm"], ["uniq", "a", "b"], ["sh", "-c", "ls"], []]
)
def test_argument_lists_are_judged_by_the_same_rules(argv: list[str]) -> None:
    """R072"""
    assert not is_read_only({"argv": argv})


def test_without_a_shell_metacharacters_are_only_characters() -> None:
    """R072"""
    assert is_read_only({"argv": ["grep", "a;b|c>$(d)", "x y"]})


PIECES = st.sampled_from(
    ["'", '"', ";", "\\", "\n", " ", "$(", ")", "`", "touch", "PWNED", "echo", "a", "|", "&", ">", "\r", "\t", "#"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=14))
def test_what_counts_as_plain_is_read_by_the_shell_as_exactly_those_words(pieces: list[str]) -> None:
    """R072: whatever the quoting, the shell and we agree on the words, so no second command can hide in them."""
    command = "echo " + "".join(pieces)
    if not is_read_only({"command": command}):
        return
    words = shlex.split(command)
    quoted = " ".join(shlex.quote(word) for word in words)
    assert _words_of_shell(command) == _words_of_shell(quoted) == words[1:]


def _words_of_shell(command: str) -> list[str]:
    """What `sh` would pass to the command, one a line; the command itself is replaced by a function."""
    script = 'echo() { for word; do printf "%s\\0" "$word"; done; }; PATH=/nonexistent; ' + command
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, timeout=5, cwd="/", check=False)
    assert done.returncode == 0 and not done.stderr, (command, done.stderr)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("command", sorted(READ_ONLY_COMMANDS))
def test_no_program_of_the_list_writes_into_its_folder_when_called_plainly(command: str, tmp_path: Path) -> None:
    """R072: with two file arguments, as far as the rules let them through."""
    (tmp_path / "in").write_text("b\na\n")
    (tmp_path / "other").write_text("z\n")
    for argv in ([command], [command, "in"], [command, "in", "other"], [command, "-r", "in", "other"]):
        if not is_read_only({"argv": argv}):
            continue
        try:
            subprocess.run(argv, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False)
        except (FileNotFoundError, PermissionError):
            pytest.skip(f"{command} is not installed, or not for us")
        names = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert names == {"in": "b\na\n", "other": "z\n"}, argv
