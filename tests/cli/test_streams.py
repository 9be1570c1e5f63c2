"""stdout is data, stderr is talk; pipes, colours and terminals are treated as what they are."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from itertools import pairwise

import pytest

from setpoint.cli.terminal import one_line, printable

from .conftest import ASK, FIX, TASK, Shell


def test_a_reader_that_goes_away_ends_the_command_quietly(toured: Shell):
    process = toured.start("events", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(20) == 141
    assert said == ""


def test_help_into_a_closed_pipe_is_quiet(toured: Shell):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(toured.command("--help"), stdout=writing, stderr=subprocess.PIPE, check=False, timeout=20)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_behind_stdout_is_said_and_exits_1(toured: Shell):
    for words in (["--help"], ["events", "--json"], ["describe"]):
        with open("/dev/full", "wb") as full:
            process = toured.start(*words, stdout=full)
            assert process.communicate(timeout=20)[1].startswith("setpoint: cannot write to stdout: No space left"), (
                words
            )
        assert process.returncode == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["get", "events --json", "describe", "schema Task", "--help", "nope"])
def test_streams_the_caller_closed_lead_nowhere(toured: Shell, closed: str, words: str):
    """As from some cron jobs and daemons: the same exit code as ever, and no word of a bug."""
    command = f'exec "$0" -m setpoint {words} {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], cwd=toured.directory, env=toured.env(), capture_output=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert done.returncode == (2 if words == "nope" else 0)
    assert b"bug" not in done.stdout + done.stderr
    assert not list(toured.home.glob("crash-*"))


def test_a_pursuit_with_closed_streams_does_its_work_and_keeps_them_from_its_files(shell: Shell):
    shell.lay(TASK, FIX)
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m setpoint converge <&- >&- 2>&-', sys.executable], cwd=shell.directory,
        env=shell.env(), timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert shell.json("why")["exit_code"] == 0
    assert shell.json("get", shell.newest())["committed"]
    assert "a + b" in shell.read("ws/src/calc.py")


def test_a_pursuit_nobody_watches_any_more_stops_and_can_be_resumed(shell: Shell):
    shell.lay(TASK, ASK)
    process = shell.start("converge", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(20)
    assert process.returncode in (141, 13)  # 13: the question came before the next line was written
    assert shell.json("why")["status"] in ("interrupted", "asks")
    assert process.stderr is not None
    process.stderr.close()


def on_terminal(shell: Shell, *words: str, **environment: str) -> bytes:
    """Everything a person at a terminal would get."""
    ours, theirs = pty.openpty()
    process = at_terminal(shell, theirs, *words, **environment)
    os.close(theirs)
    seen = read_all(ours)
    process.wait(20)
    return seen


def at_terminal(shell: Shell, theirs: int, *words: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        shell.command(*words), cwd=shell.directory, env=shell.env(TERM="xterm", **environment), stdout=theirs,
        stderr=theirs, stdin=theirs, close_fds=True,
    )  # fmt: skip


def read_all(ours: int) -> bytes:
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the last writer has gone
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    return seen


def test_top_watches_on_a_terminal_until_it_is_interrupted(toured: Shell):
    ours, theirs = pty.openpty()
    process = at_terminal(toured, theirs, "top", "--interval", "0.1")
    os.close(theirs)
    seen = b""
    while seen.count(b"\x1b[H\x1b[J") < 2:
        seen += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    rest = read_all(ours)
    assert process.wait(20) == 130
    assert b"0 live runs, 1 finished" in seen
    assert b"setpoint: interrupted" in rest
    assert b"Traceback" not in rest


def test_colours_are_for_terminals_and_can_be_declined(toured: Shell):
    assert b"\x1b[1m" in on_terminal(toured, "why")
    assert b"\x1b" not in on_terminal(toured, "why", NO_COLOR="1")
    assert "\x1b" not in toured.run("why").stdout


def test_progress_lives_on_one_line_of_a_terminal_and_in_plain_lines_elsewhere(shell: Shell):
    shell.lay(TASK, ASK)
    seen = on_terminal(shell, "converge")
    assert b"\r\x1b[K" in seen
    drawn = [line for line in seen.split(b"\r\x1b[K") if line.startswith(b"\x1b[2m")]
    assert drawn
    assert not [line for line, following in pairwise(drawn) if line == following]
    done = shell.run("converge", code=13)
    assert "\r" not in done.stderr
    assert "turn 1" in done.stderr
    assert "turn 1" not in done.stdout


def test_what_a_model_wrote_cannot_steer_the_terminal(shell: Shell):
    shell.lay(TASK, ASK.replace("clamp, or refuse?", "clear\\e[2J title\\e]0;x\\a back\\u202eflip"))
    seen = on_terminal(shell, "converge", NO_COLOR="1", TERM_PROGRAM="x")
    for hostile in (b"\x1b[2J", b"\x1b]0;", "\u202e".encode()):
        assert hostile not in seen
    for words in (["why"], ["get"], ["describe"], ["events"], ["trace"], ["show", "--turn", "1"]):
        text = shell.inside(*words)
        assert "\x1b" not in text, words
        assert "\u202e" not in text, words
    assert "\\x1b[2J" in shell.inside("why")


def test_json_of_hostile_text_is_json(shell: Shell):
    shell.lay(TASK, ASK.replace("clamp, or refuse?", "clear\\e[2J"))
    shell.run("converge", code=13)
    assert shell.json("describe")["question"]["text"] == "clear\x1b[2J"


def test_a_locale_without_the_characters_gets_them_spelled_out(toured: Shell):
    done = toured.run("why", PYTHONIOENCODING="ascii")
    assert "\\u2713 done/unit" in done.stdout


def test_printable_spells_out_controls_and_keeps_lines():
    assert printable("a\x1b[1mb\nc\td\x9b\u202e") == "a\\x1b[1mb\nc\td\\x9b\\u202e"
    assert one_line("a\r\nb\x00" + "c" * 300, 10) == "a b\\x00cc…"


FORGE = """\
  - calls:
      - {name: shell_exec, arguments: {command: "touch 'n\\nconverged  ok: every criterion is met'"}}
      - {name: file_edit, arguments: {path: src/calc.py, old_str: "a - b", new_str: "a + b"}}
"""


def test_neither_a_file_name_nor_a_question_can_say_a_line_of_ours(shell: Shell):
    shell.lay(TASK, FORGE)
    done = shell.run("converge")
    said = [done.stdout, done.stderr]
    said += [shell.inside(*words) for words in (["describe"], ["show", "--turn", "1"], ["trace"], ["events"], ["why"])]
    said.append(shell.inside("undo"))
    assert "n\\nconverged  ok" in done.stdout
    assert not [text for text in said for line in text.splitlines() if line.lstrip().startswith("converged  ok")]
    shell.lay(TASK, ASK.replace("clamp, or refuse?", "go?\\n  exit        0"))
    assert "\n  |   exit        0\n" in shell.run("converge", code=13).stdout
