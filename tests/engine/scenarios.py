"""Stories that go through most of what a trajectory can do, light enough to be told hundreds of times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from setpoint.kernel.contract import Budget, Policy, ToolGrant
from setpoint.kernel.errors import ProposerFault
from setpoint.kernel.proposal import RawCall, Reply
from setpoint.testing.replies import ScriptedReplies, call, claim, raw, reply

from .harness import TOOLS, Rig, criterion, holds, invariant, make_task


def write(path: str, content: str, *more: RawCall, **rest: Any) -> Reply:
    return reply(call("file_write", path=path, content=content), *more, **rest)


def shell(command: str, *more: RawCall) -> Reply:
    return reply(call("shell_exec", command=command), *more)


@dataclass
class Scenario:
    """``code`` is how it ends; -1: it pauses with a question; -2: it pauses at its budget."""

    name: str
    script: list[Any]
    second: list[Any] = field(default_factory=list)
    task: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)
    code: int = 0

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def rig(self) -> Rig:
        proposers = [ScriptedReplies(self.script)]
        if self.second:
            proposers.append(ScriptedReplies(self.second, "replies:2"))
        return Rig(
            proposers,
            checks={"done/unit": holds("src/a", "1"), **self.checks},
            task=make_task(models=tuple(p.route for p in proposers), **self.task),
            commands={"false": lambda: (1, "no"), "look": lambda: (0, "seen"), "much": lambda: (0, "line\n" * 999)},
        )


TESTS_UNTOUCHED = {"invariants/tests": holds("tests/t", "assert a == 1")}
SCENARIOS = [
    Scenario("looks, then mends", [shell("look"), write("src/a", "1", claim())]),
    Scenario(
        "cheats, is rolled back, mends",
        [shell("much"), write("tests/t", "pass", claim()), write("src/a", "2"), write("src/a", "1", claim())],
        task={"invariants": (invariant("tests"),)},
        checks=TESTS_UNTOUCHED,
    ),
    Scenario(
        "stalls, and the next model mends",
        [write("src/a", "x"), write("src/a", "y"), write("src/a", "z")],
        [write("src/a", "1")],
        task={"policy": Policy(stall_after=3)},
    ),
    Scenario(
        "stalls for good",
        [write("src/a", str(n)) for n in range(2, 9)],
        task={"policy": Policy(stall_after=3)},
        code=11,
    ),
    Scenario("repeats itself", [shell("false")] * 9, [write("src/a", "1")]),
    Scenario(
        "fails to answer, answers badly",
        [
            ProposerFault("overloaded", "busy", retry_after_ms=700),
            raw('{"name": "shell_exec", "arguments": '),
            reply(text="I am done."),
            ProposerFault("refused", "no"),
        ],
        [write("src/a", "1")],
    ),
    Scenario(
        "uses up a bounded tool",
        [shell("look"), write("src/b", "1", call("shell_exec", command="false")), write("src/a", "1")],
        task={"actions": (ToolGrant("shell_exec", max_calls=2), *TOOLS[1:])},
    ),
    Scenario(
        "two criteria, one after the other",
        [write("src/a", "1"), write("src/b", "2", claim())],
        task={"done": (criterion("unit"), criterion("more"))},
        checks={"done/more": holds("src/b", "2")},
    ),
    Scenario("asks", [reply(call("ask_operator", question="which?")), write("src/a", "1")], code=-1),
    Scenario(
        "uses up its turns", [write("src/b", str(n)) for n in range(9)], task={"budget": Budget(turns=2)}, code=14
    ),
    Scenario(
        "breaks a postcondition",
        [shell("false"), write("src/a", "1")],
        task={"actions": (ToolGrant("shell_exec", ensure=("call.exit_code == 0",)), *TOOLS[1:])},
    ),
    Scenario(
        "a large edit and a small progress",
        [write("src/b", "2" * 5000), reply(RawCall("file_write", '{"path": "src/x", "content": 1.5}'))],
        task={"done": (criterion("unit"), criterion("more")), "policy": Policy(commit="progress")},
        checks={"done/more": lambda tree: 0 if "src/b" in tree else 1},
        code=11,
    ),
    Scenario("cannot afford the prompt", [write("src/a", "1")], task={"budget": Budget(tokens=600)}, code=14),
    Scenario(
        "pauses at its budget",
        [write("src/b", str(n)) for n in range(9)],
        task={"budget": Budget(turns=2, on_exceed="pause")},
        code=-2,
    ),
]
