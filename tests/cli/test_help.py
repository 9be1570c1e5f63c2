"""What the command line promises, and what it costs to ask."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from setpoint.cli.grammar import ABSENT, EXIT_CODES, VERBS, help_text
from setpoint.cli.main import main

PROMISED = (
    *("demo", "doctor", "init", "schema", "validate", "lint", "explain", "diff", "plan", "apply", "converge"),
    *("get", "describe", "why", "events", "trace", "show", "top"),
    *("resume", "recover", "undo", "rollback", "fork", "replay"),
    *("approvals", "approve", "deny", "answer", "pause", "cancel", "kill", "certificate", "effects"),
    *("signal", "migrate", "approvers"),
    *("wrap", "run", "serve", "worker", "mcp", "goodput", "cost", "report", "calc", "sim", "place", "conformance"),
)
HEAVY = ("asyncio", "yaml", "msgspec", "cryptography", "sqlite3", "jsonschema_rs", "cel", "setpoint.app")


def test_every_promised_verb_is_there_or_is_said_to_be_absent():
    known = {verb.name.split()[0] for verb in VERBS}
    absent = {name.split()[0] for name in ABSENT}
    assert known | absent == set(PROMISED)
    assert not known & absent


def test_help_names_every_verb_and_every_exit_code():
    text = help_text()
    for name in PROMISED:
        assert re.search(rf"\b{name}\b", text), name
    for code in EXIT_CODES:
        assert re.search(rf"^ +{code} ", text, re.MULTILINE), code
    assert sorted(EXIT_CODES) == [0, 1, 2, *range(10, 20)]


def test_help_loads_nothing_that_does_the_work():
    """The import graph, not time: what help does not load cannot slow it down."""
    probe = (
        "import sys\nfrom setpoint.cli.main import main\nassert main(['--help']) == 0\n"
        f"print([m for m in sys.modules if m.startswith({HEAVY!r})], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_explains_itself(verb, capsys):
    assert main([*verb.name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: setpoint {verb.name} ")
    assert "--store" in text


@pytest.mark.parametrize("name", sorted({name.split()[0] for name in ABSENT}))
def test_an_absent_verb_says_so_and_exits_2(name, capsys):
    assert main([name, "anything"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "not in this release" in said.err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["convrge"], "Did you mean `setpoint converge`?"),
        (["certificate"], "setpoint certificate verify"),
        (["certificate", "exprt"], "there is no `certificate exprt`"),
        (["get", "--jsn"], "did you mean --json?"),
        (["get", "a", "b"], "takes no 'b'"),
        (["show"], "--turn"),
        (["rollback", "--to", "x"], "invalid int value"),
        (["converge", "--watch"], "not in this release"),
        (["demo", "drift"], "not in this release"),
        (["demo", "elsewhere"], "no story"),
        (["events", "--type", "Nope"], "there is no event type 'Nope'"),
        (["schema", "Tsk"], "did you mean 'Task'?"),
        (["explain", "Task.spec.budgt"], "did you mean Task.spec.budget?"),
        (["converge", "-f", "nowhere.yaml"], "cannot read the manifest nowhere.yaml"),
        (["converge"], "no task file was named"),
        (["apply", "nowhere.plan"], "cannot read the plan nowhere.plan"),
        (["get", "nobody"], "there is no trajectory 'nobody'"),
        (["why"], "holds no trajectory yet"),
        (["get", "--store", "sqlite:"], "is not understood"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_says_what_would_be_right_and_exits_2(words, part, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SETPOINT_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("setpoint: ")
    assert part in said.err


def test_version_is_the_packages():
    from setpoint.version import VERSION

    done = subprocess.run([sys.executable, "-m", "setpoint", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"setpoint {VERSION}\n"


def test_a_bug_is_a_message_and_a_file_and_exit_1(capsys, monkeypatch, tmp_path):
    def broken(_):
        raise RuntimeError("surprise \x1b[2J")

    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path))
    monkeypatch.setattr("setpoint.cli.main._doer", lambda verb: broken)
    assert main(["get"]) == 1
    said = capsys.readouterr().err
    assert "unexpected RuntimeError: surprise \\x1b[2J" in said
    assert "Traceback" not in said
    (written,) = tmp_path.glob("crash-*.txt")
    assert str(written) in said
    assert "RuntimeError: surprise" in written.read_text()
    monkeypatch.setenv("SETPOINT_DEBUG", "1")
    assert main(["get"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_store_of_a_kind_there_is_not_is_a_usage_error(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path))
    assert main(["get", "--store", "mysql://localhost/x"]) == 2
    assert "Write sqlite:///relative/path.db" in capsys.readouterr().err


def test_a_store_that_cannot_be_reached_is_said_without_its_password(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path))
    assert main(["get", "--store", f"postgresql://me:s3cret@/x?host={tmp_path}"]) == 1
    said = capsys.readouterr().err
    assert "cannot be reached" in said and "s3cret" not in said
