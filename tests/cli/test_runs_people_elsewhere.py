"""Approvals of trajectories, and sessions of agents: the same verbs, found by what the store holds."""

from __future__ import annotations

import json

import pytest

from .conftest import FIX, TASK, Shell
from .shop import Shop

HELD = TASK.replace(
    "  models:",
    """  policy:
    approve: [{when: "call.tool == 'file_edit'", by: [ops], quorum: 1, expires: 24h}]
  models:""",
)


def test_a_trajectory_that_waits_for_a_yes_says_so_in_every_verb(shell: Shell):
    """R123, O2"""
    shell.lay(HELD, FIX.replace("      - {name: complete_task}\n", ""))
    shell.run("approvers", "add", "anna", "--role", "ops")
    done = shell.run("converge", code=13)
    assert "waiting  fix-add: for people's yes to ap-" in done.stdout and "asks people: ap-" in done.stderr
    (one,) = shell.json("approvals")["approvals"]
    assert (one["name"], one["capability"], one["requester"]) == ("fix-add", "file_edit", "task:fix-add")
    told = shell.json("get")["trajectories"][0]
    assert (told["status"], one["stream"]) == ("waiting", told["trajectory_id"])
    assert f"setpoint approve {one['ticket_id']}" in shell.json("why")["next"]["how"]
    approved = shell.run("approve", one["ticket_id"])
    assert "granted by anna" in approved.stdout
    assert f"no worker takes up a trajectory; go on with: setpoint resume {one['stream']}" in approved.stderr
    shell.inside("resume")
    assert "a + b" in shell.read("ws/src/calc.py")
    assert "is decided already: granted by anna" in shell.run("approve", one["ticket_id"], code=12).stderr
    assert "asked people" in shell.inside("trace") and "BEGIN" not in shell.inside("trace")


def test_a_denied_call_of_a_trajectory_is_not_made(shell: Shell):
    shell.lay(HELD, FIX.replace("      - {name: complete_task}\n", ""))
    shell.run("approvers", "add", "anna", "--role", "ops")
    shell.run("converge", code=13)
    (one,) = shell.json("approvals")["approvals"]
    shell.run("deny", one["ticket_id"], "--reason", "not this")
    shell.run("resume", code=None)
    assert "a - b" in shell.read("ws/src/calc.py")
    assert "not this" in shell.inside("trace")


TALK = """
import asyncio
from shop import app, refund
from setpoint import Runtime
from setpoint.testing import ScriptedReplies, call, reply

agent = app.agent("clerk", instructions="Help.", workflows=[refund],
    models=[ScriptedReplies([reply(call("ask_operator", question="may I?"))])])
async def main():
    async with Runtime.open(None, app) as runtime:
        session = await runtime.session("c-17", principal="customer:17")
        await runtime.turn(agent, session, "Refund A-1, please")
asyncio.run(main())
"""


@pytest.fixture
def talked(shop: Shop) -> Shop:
    """A session in which the agent has asked the operator something."""
    import subprocess
    import sys

    shop.write("talk.py", TALK)
    subprocess.run([sys.executable, "talk.py"], cwd=shop.directory, env=shop.env(), check=True, timeout=60)
    return shop


def test_a_session_is_listed_looked_at_and_answered(talked: Shop):
    (one,) = talked.json("get")["sessions"]
    assert (one["session_id"], one["status"], one["reason"]) == ("c-17", "asks", "may I?")
    assert talked.json("get", "session:c-17") == one == talked.json("get", "c-17")
    rows = talked.run("get").stdout.splitlines()
    assert rows[1].split()[:4] == ["session:c-17", "session", "shop", "asks"]
    types = [json.loads(line)["type"] for line in talked.inside("events", "c-17", "--json").splitlines()]
    assert types[0] == "SessionOpened" and "QuestionAsked" in types
    refused = talked.run("why", "c-17", code=2).stderr
    assert "this verb is for trajectories and runs" in refused
    assert "setpoint get session:c-17, setpoint events session:c-17" in refused  # what does look at one
    assert talked.json("answer", "c-17", "yes")["question"] == "may I?"
    assert "is answered already" in talked.run("answer", "c-17", "no", code=2).stderr
