"""The models an application declares for its judge nodes: used where nobody gives others, by the command line, too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from setpoint import App, DefinitionFault, Runtime
from setpoint.cli.main import main
from setpoint.testing import ScriptedReplies, call, reply

PROGRAM = """
from pydantic import BaseModel
from setpoint import App

class Letter(BaseModel):
    text: str

class State(BaseModel):
    text: str
    mood: str = ""

app = App("letters", judges=["scripted:model.yaml"])
app.workflow("letter", input=Letter, state=State).judge(
    "mood", instructions="Which?", show=lambda state: state.text, into="mood", labels=["friendly", "angry"]
)
"""
SCRIPT = "proposals: [{calls: [{name: answer, arguments: {answer: angry}}]}]\n"


class Letter(BaseModel):
    text: str


class State(BaseModel):
    text: str
    mood: str = ""


def saying(label: str) -> ScriptedReplies:
    return ScriptedReplies([reply(call("answer", answer=label))])


def application(*judges: ScriptedReplies) -> App:
    app = App("letters", judges=judges)
    app.workflow("letter", input=Letter, state=State).judge(
        "mood", instructions="Which?", show=lambda state: state.text, into="mood", labels=["friendly", "angry"]
    )
    return app


@pytest.mark.parametrize(
    "given, mood", [({}, "angry"), ({"models": "friendly"}, "friendly"), ({"judges": "friendly"}, "friendly")]
)
def test_the_app_s_own_answer_unless_others_are_given(given, mood):
    async def story() -> None:
        others: Any = {name: [saying(label)] for name, label in given.items()}
        async with Runtime.open("memory:", application(saying("angry")), **others) as runtime:
            assert (await runtime.run("letter", {"text": "x"})).output["mood"] == mood

    asyncio.run(story())


def test_the_command_line_uses_them_too(tmp_path, monkeypatch, capsys):
    (tmp_path / "judged_letters.py").write_text(PROGRAM)
    (tmp_path / "model.yaml").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))
    assert main(["run", "letter", "--app", "judged_letters.py:app", "--input", '{"text": "x"}']) == 0
    assert '"mood": "angry"' in capsys.readouterr().out


def test_one_text_is_no_list_of_models():
    with pytest.raises(DefinitionFault, match="is a list of routes"):
        App("letters", judges="scripted:model.yaml")
