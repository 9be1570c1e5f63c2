"""What went wrong is said where it is read: in the final message, in `why`, in the form it really has."""

from __future__ import annotations

import pytest

from setpoint.testing.model_server import Fail, ModelServer

from .conftest import FIX, TASK, Shell


@pytest.mark.parametrize(
    ("status", "kind", "remedy"), [(401, "auth", "check the key"), (404, "invalid", "a model name it does not know")]
)
def test_a_refused_key_and_an_unknown_model_are_named_in_the_end_and_in_why(
    shell: Shell, status: int, kind: str, remedy: str
):
    pytest.importorskip("openai")
    shell.lay(TASK)
    with ModelServer([Fail(status, message="the server said no")], repeat_last=True) as server:
        route = f"openai:any?base_url={server.openai_url}"
        done = shell.run("converge", "--model", route, code=11, OPENAI_API_KEY="sk-none")
    assert f"failed ({kind}): " in done.stdout
    assert "the server said no" in done.stdout
    told = shell.json("why")
    assert "the server said no" in told["message"]
    assert remedy in told["next"]["what"]


def test_events_show_the_arguments_of_a_call_to_the_letter(shell: Shell):
    """An edit that is shown with its indentation collapsed is not the edit that was made."""
    edit = """\
  - calls:
      - name: file_edit
        arguments: {path: src/calc.py, old_str: "\\n    return a - b", new_str: "\\n\\treturn  a + b"}
      - {name: shell_exec, arguments: {command: "printf 'a\\\\n'\\nls"}}
"""
    shell.lay(TASK, edit)
    shell.run("converge")
    said = shell.inside("events", "--type", "ToolIntent")
    assert r"'old_str': '\n    return a - b'" in said
    assert r"'new_str': '\n\treturn  a + b'" in said
    assert r"""printf 'a\\n'\nls""" in said
    assert len(said.splitlines()) == 2


MOVER = """\
import json, os, sys
sys.stdin.readline()
os.rename("ws", "elsewhere")
print(json.dumps({"calls": [{"name": "shell_exec", "arguments": {"command": "echo x > src/x.txt"}}]}), flush=True)
sys.stdin.readline()
"""


def test_a_workspace_that_went_away_during_a_run_is_said_and_the_run_goes_on_when_it_is_back(shell: Shell):
    shell.lay(TASK, FIX)
    shell.write("mover.py", MOVER)
    done = shell.run("converge", "--model", "command:python3 mover.py", "--model", "scripted:script.yaml", code=1)
    assert "ws is gone" in done.stderr
    assert "Put it back, then resume" in done.stderr
    assert "bug" not in done.stderr
    assert shell.json("why")["status"] == "interrupted"
    (shell.directory / "elsewhere").rename(shell.directory / "ws")
    shell.write("mover.py", "")  # it has nothing further to say, so the script is next
    shell.run("resume")
    assert "a + b" in shell.read("ws/src/calc.py")
