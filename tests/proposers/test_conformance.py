"""Every proposer keeps the promises of ``setpoint.ports.proposer``."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from setpoint.adapters.proposers.opening import open_proposer
from setpoint.adapters.proposers.wire import raw_call_text
from setpoint.kernel import events
from setpoint.kernel.proposal import Reply
from setpoint.testing.conformance.proposer import ARGUMENTS, Act, Play, Played, ProposerSuite
from setpoint.testing.model_server import Drop, Fail, Hang, ModelServer, Say, Step, ToolCall

pytestmark = pytest.mark.usefixtures("clean_environment")


# How each adapter is made to play the acts


def play_scripted(acts: Sequence[Act], folder: Path, _: ExitStack) -> Played:
    calls = {"call": [{"name": "file_read", "arguments": ARGUMENTS}], "claim": [{"name": "complete_task"}]}
    usage = {"input_tokens": 120, "output_tokens": 30, "cached_tokens": 10}
    proposals: list[dict[str, Any]] = []
    for act in acts:
        match act.does:
            case "call" | "claim":
                proposals.append({"thought": act.text, "calls": calls[act.does]})
            case "text":
                proposals.append({"text": act.text})
            case "length":
                proposals.append({"stop": "length", "calls": calls["claim"]})
            case "broken":
                proposals.append({"error": "broken_stream", "usage": {"input_tokens": 120}})
            case "overloaded":
                proposals.append({"error": "overloaded"})
            case "rate_limited":
                proposals.append({"error": "rate_limited", "retry_after": "2s"})
            case "slow":
                proposals.append({"sleep": "1h", "text": "late"})
    (folder / "script.yaml").write_text(json.dumps({"usage": usage, "proposals": proposals}))
    return Played(open_proposer("scripted:script.yaml", base_dir=folder))


def play_replay(acts: Sequence[Act], folder: Path, _: ExitStack) -> Played:
    lines: list[dict[str, Any]] = []

    def add(event: events.Event) -> None:
        data = json.loads(events.encode(event))
        lines.append({"stream": "t-1", "seq": len(lines) + 1, "type": type(event).__name__, "v": 1, "data": data})

    spent = {"input_tokens": 120, "output_tokens": 30, "cached_tokens": 10}
    for act in acts:
        add(events.TurnStarted(elapsed_ms=0))
        match act.does:
            case "call":
                calls: Any = (raw_call_text("file_read", json.dumps(ARGUMENTS)),)
                reply = Reply(act.text, calls)
            case "claim":
                reply = Reply(act.text, (raw_call_text("complete_task", "{}"),))
            case "text":
                reply = Reply(act.text, stop="end_turn")
            case "length":
                reply = Reply(calls=(raw_call_text("complete_task", "{}"),), stop="length")
            case "broken":
                add(events.ModelFailed(route="r", kind="broken_stream", message="cut", input_tokens=120))
                continue
            case "rate_limited":
                add(events.ModelFailed(route="r", kind="rate_limited", message="429", retry_after_ms=2000))
                continue
            case other:
                add(events.ModelFailed(route="r", kind={"slow": "timeout"}.get(other, other), message="recorded"))
                continue
        add(events.ModelReplied(route="r", stop=reply.stop, reply=reply.document(), model="m", **spent))
    (folder / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Played(open_proposer("replay:run.jsonl", base_dir=folder))


PROGRAM = """
import json, sys, time
acts = json.load(open("acts.json"))
usage = {"input_tokens": 120, "output_tokens": 30, "cached_tokens": 10}
call = {"name": "file_read", "arguments": {"path": "a.py", "start": 1}}
claim = {"name": "complete_task"}
for line in sys.stdin:
    with open("asked", "a") as asked: asked.write("x")
    cursor = json.loads(line)["context"]["cursor"]
    if cursor >= len(acts):
        print(json.dumps({"error": "exhausted", "cursor": cursor}), flush=True)
        continue
    does, text = acts[cursor]
    say = {
        "call": {"thought": text, "calls": [call], "usage": usage},
        "claim": {"thought": text, "calls": [claim], "usage": usage},
        "text": {"text": text, "usage": usage},
        "length": {"stop": "length", "calls": [claim], "usage": usage},
        "overloaded": {"error": "overloaded"},
        "rate_limited": {"error": "rate_limited", "retry_after_ms": 2000},
    }.get(does)
    if does == "broken":
        sys.stdout.write('{"thought": "I was about to'); sys.stdout.flush(); sys.exit(1)
    if does == "slow":
        time.sleep(3600)
    print(json.dumps({**say, "cursor": cursor + 1}), flush=True)
"""


def play_command(acts: Sequence[Act], folder: Path, _: ExitStack) -> Played:
    (folder / "agent.py").write_text(PROGRAM)
    (folder / "acts.json").write_text(json.dumps([[act.does, act.text] for act in acts]))
    asked = folder / "asked"
    proposer = open_proposer(f"command:{sys.executable} agent.py", base_dir=folder)
    return Played(proposer, lambda: len(asked.read_text()) if asked.exists() else 0)


def play_provider(provider: str) -> Callable[[Sequence[Act], Path, ExitStack], Played]:
    metered = {"input_tokens": 120, "output_tokens": 30, "cached_tokens": 10}
    steps: dict[str, Callable[[Act], Step]] = {
        "call": lambda act: Say(act.text, [ToolCall("file_read", json.dumps(ARGUMENTS))], **metered),
        "claim": lambda act: Say(act.text, [ToolCall("complete_task")], **metered),
        "text": lambda act: Say(act.text, **metered),
        "length": lambda _: Say(calls=[ToolCall("complete_task")], stop="length", **metered),
        "broken": lambda _: Say("one two three four", cut_after=1, **metered),
        "overloaded": lambda _: Fail(529, "overloaded_error"),
        "rate_limited": lambda _: Fail(429, "rate_limit_error", headers={"retry-after": "2"}),
        "slow": lambda _: Hang(),
    }

    def play(acts: Sequence[Act], folder: Path, cleanup: ExitStack) -> Played:
        server = cleanup.enter_context(ModelServer([steps[act.does](act) for act in acts] or [Drop()]))
        base = server.openai_url if provider == "openai" else server.url
        proposer = open_proposer(f"{provider}:m?base_url={base}", base_dir=folder)
        return Played(proposer, lambda: len(server.requests))

    return play


class Ours(ProposerSuite):
    kind: ClassVar[str]
    player: ClassVar[Callable[[Sequence[Act], Path, ExitStack], Played]]

    @pytest.fixture
    def play(self, tmp_path: Path) -> Iterator[Play]:
        with ExitStack() as cleanup:
            yield lambda acts: type(self).player(acts, tmp_path, cleanup)

    def test_its_route_is_as_written_in_the_manifest(self, play: Play) -> None:
        proposer = play([Act("text", "a")]).proposer
        assert proposer.route.startswith(f"{self.kind}:")
        asyncio.run(proposer.close())


class TestScripted(Ours):
    kind, player, has_script = "scripted", staticmethod(play_scripted), True


class TestReplay(Ours):
    kind, player, has_script = "replay", staticmethod(play_replay), True


class TestCommand(Ours):
    """A program that died has not moved its cursor: the loop's next call hears the same again."""

    kind, player, has_script, repeats_broken = "command", staticmethod(play_command), True, True


class TestOpenai(Ours):
    kind, player = "openai", staticmethod(play_provider("openai"))


class TestAnthropic(Ours):
    kind, player = "anthropic", staticmethod(play_provider("anthropic"))
