"""The command proposer, with real programs: lines in, lines out, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from setpoint.adapters.proposers.command import CommandProposer, context_document
from setpoint.adapters.proposers.opening import open_proposer
from setpoint.adapters.proposers.program import LINE_BYTES_MAX
from setpoint.kernel.errors import ProposerFault, UsageFault
from setpoint.kernel.proposal import Call, Malformed, Reply, Usage
from setpoint.phases.p2_proposal.parse import parse_reply

PRELUDE = """\
import json, os, subprocess, sys, time
def ask():
    line = sys.stdin.readline()
    if not line: sys.exit(0)
    return json.loads(line)["context"]
def say(value):
    print(value if isinstance(value, str) else json.dumps(value), flush=True)
"""


@pytest.fixture
def program(tmp_path: Path):
    def make(body: str) -> CommandProposer:
        (tmp_path / "agent.py").write_text(PRELUDE + textwrap.dedent(body))
        proposer = open_proposer(f"command:{sys.executable} agent.py", base_dir=tmp_path)
        assert isinstance(proposer, CommandProposer)
        return proposer

    return make


async def propose(proposer: CommandProposer, context: Any, deadline_ms: int = 20_000) -> Reply | ProposerFault:
    try:
        return await proposer.propose(context, deadline_ms)
    except ProposerFault as fault:
        return fault


def once(proposer: CommandProposer, context: Any, deadline_ms: int = 20_000) -> Any:
    """One proposal, then close."""

    async def run() -> Reply | ProposerFault:
        try:
            return await propose(proposer, context, deadline_ms)
        finally:
            await proposer.close()

    return asyncio.run(run())


def is_gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether the process no longer runs. A killed orphan is a zombie until init reaps it: that counts as gone."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False


def test_a_program_proposes_and_reports_what_was_billed(program: Any, context: Any) -> None:
    """R233: usage is a field of the program's, not of the model's text"""
    proposer = program("""
        ask()
        say({"thought": "t", "calls": [{"name": "file_read", "arguments": {"path": "a", "x": 1.5}}],
             "usage": {"input_tokens": 900, "output_tokens": 12, "cached_tokens": 800, "usd": 0.0031},
             "model": "m-1", "cursor": 4})
        ask()
    """)
    reply = once(proposer, context())
    assert isinstance(reply, Reply)
    assert (reply.text, reply.model, reply.cursor, reply.stop) == ("t", "m-1", 4, "tool_use")
    assert reply.usage == Usage(900, 12, 800, 3100)
    (call,) = parse_reply(reply).calls
    assert isinstance(call, Call) and call.arguments == {"path": "a", "x": 1.5}


def test_the_program_is_told_everything_the_model_is_told(program: Any, context: Any) -> None:
    told = context(items=({"address": "done.unit", "distance": 2},), notes=("note \ud800",), cursor=7)
    proposer = program("say({'text': json.dumps(ask())})\nask()")
    reply = once(proposer, told, 15_000)
    assert isinstance(reply, Reply), reply
    seen = json.loads(reply.text)
    assert seen == json.loads(json.dumps(context_document(told, 15_000)))
    assert seen["prompt"] == "ROOT RULES\n\nGOAL: clamp timeouts\n\nOBSERVED: nothing yet"
    assert seen["zones"] == {"root": "ROOT RULES", "trunk": "GOAL: clamp timeouts", "leaf": "OBSERVED: nothing yet"}
    assert [tool["name"] for tool in seen["tools"]] == ["complete_task", "file_read"]
    assert (seen["cursor"], seen["turn"], seen["deadline_ms"]) == (7, 3, 15_000)


def test_one_program_serves_many_proposals_and_runs_in_the_manifests_folder(
    program: Any, context: Any, tmp_path: Path
) -> None:
    proposer = program("""
        while True:
            say({"text": f"{os.getpid()} {os.getcwd()} {ask()['turn']}"})
    """)

    async def run() -> list[str]:
        try:
            answers = await asyncio.gather(*(propose(proposer, context(turn=n)) for n in range(5)))
            return [answer.text for answer in answers if isinstance(answer, Reply)]
        finally:
            await proposer.close()

    said = [text.split() for text in asyncio.run(run())]
    assert {pid for pid, _, _ in said} == {said[0][0]}
    assert {Path(cwd) for _, cwd, _ in said} == {tmp_path}
    assert [turn for _, _, turn in said] == ["0", "1", "2", "3", "4"]


def test_a_prompt_larger_than_a_pipe_passes(program: Any, context: Any) -> None:
    proposer = program("say({'text': str(len(ask()['prompt']))})\nask()")
    reply = once(proposer, context(trunk="x" * 1_000_000))
    assert isinstance(reply, Reply) and int(reply.text) > 1_000_000


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("ask(); sys.exit('no key: set FOO_KEY')", "broken_stream", "exited with 1 before it answered"),
        ("ask(); sys.exit('no key: set FOO_KEY')", "broken_stream", "no key: set FOO_KEY"),
        ("ask(); os.kill(os.getpid(), 15)", "broken_stream", "ended by SIGTERM"),
        ("ask(); os.close(1); os.close(2); time.sleep(600)", "broken_stream", "closed its output"),
        ('ask(); sys.stdout.write(\'{"text": "half\'); sys.stdout.flush()', "broken_stream", "exited with 0"),
        ("ask(); say('Loading model...'); time.sleep(600)", "invalid", "not JSON"),
        ("ask(); say([]); time.sleep(600)", "invalid", "not a JSON object"),
        ("ask(); say('[' * 100000); time.sleep(600)", "invalid", "not JSON"),
        ('ask(); say(\'{"text": "a", "text": "b"}\')', "invalid", "a key occurs twice"),
        (
            "ask(); sys.stdout.buffer.write(b'\\xff\\xfe\\n'); sys.stdout.flush(); time.sleep(600)",
            "invalid",
            "not JSON",
        ),
        ("ask(); say({'txt': 'a'})", "invalid", "unknown field 'txt'"),
        ("ask(); say({'text': 5})", "invalid", "'text' is not a text"),
        ("ask(); say({'stop': 'done'})", "invalid", "'stop' is 'done'"),
        ("ask(); say({'usage': {'input_tokens': -5}})", "invalid", "-5 is not a token count"),
        ("ask(); say({'usage': {'input_tokens': 1.5}})", "invalid", "1.5 is not a token count"),
        ("ask(); say({'usage': {'usd': -1}})", "invalid", "not between 0"),
        ("ask(); say({'usage': {'usd': 1e-9}})", "invalid", "finer than a micro-dollar"),
        ("ask(); say({'usage': 'free'})", "invalid", "'usage' is not an object"),
        ("ask(); say({'cursor': -1})", "invalid", "'cursor' is not a whole number"),
        ("ask(); say({'error': 'tired'})", "invalid", "'error' is 'tired'"),
        ("ask(); say({}); say({}); time.sleep(600)", "invalid", "more than one line"),
        ("ask(); sys.stdout.write('x' * (3 << 20)); sys.stdout.flush(); time.sleep(600)", "invalid", "more than"),
    ],
)
def test_a_program_that_fails_is_a_typed_fault(program: Any, context: Any, body: str, kind: str, words: str) -> None:
    if "say({}); say({})" in body:
        # Two lines at once, so that they cannot arrive as an answer and then a stray line.
        body = "ask(); sys.stdout.write('{}\\n{}\\n'); sys.stdout.flush(); time.sleep(600)"
    proposer = program(body)
    fault = once(proposer, context())
    assert isinstance(fault, ProposerFault), fault
    assert fault.kind == kind and words in str(fault)
    assert len(str(fault)) < 2_000


def test_the_bound_on_a_line_leaves_room_for_the_largest_reply() -> None:
    assert LINE_BYTES_MAX >= 2 << 20


@pytest.mark.parametrize("calls", [{"name": "a"}, ["a"], [{"name": "a", "args": {}}], None, [{"arguments": {}}]])
def test_calls_of_another_form_are_complaints_with_a_pointer(program: Any, context: Any, calls: Any) -> None:
    """CASES Q1: the model behind the program is malformed, the program is not"""
    reply = once(program(f"ask(); say({{'calls': {calls!r}}})"), context())
    assert isinstance(reply, Reply), reply
    (complaint,) = parse_reply(reply).calls
    assert isinstance(complaint, Malformed) and complaint.pointer.startswith(("/raw/calls", "/calls/0"))


def test_a_program_may_say_why_it_cannot_propose_and_stays(program: Any, context: Any) -> None:
    proposer = program("""
        ask()
        say({"error": "rate_limited", "message": "slow down", "retry_after_ms": 1500, "usage": {"input_tokens": 3}})
        ask(); say({"text": "again"})
        ask()
    """)

    async def run() -> list[Any]:
        try:
            return [await propose(proposer, context()), await propose(proposer, context())]
        finally:
            await proposer.close()

    fault, reply = asyncio.run(run())
    assert (fault.kind, fault.retry_after_ms, fault.usage) == ("rate_limited", 1500, Usage(3))
    assert "slow down" in str(fault)
    assert reply.text == "again"


def test_a_stray_line_is_never_taken_for_the_next_answer(program: Any, context: Any) -> None:
    proposer = program("""
        ask(); sys.stdout.write(json.dumps({"text": "first"}) + "\\n" + '{"text": "str'); sys.stdout.flush()
        ask(); say('ay"}')
        ask()
    """)

    async def run() -> list[Any]:
        try:
            return [await propose(proposer, context()) for _ in range(3)]
        finally:
            await proposer.close()

    first, second, third = asyncio.run(run())
    assert first.text == "first"
    assert isinstance(second, ProposerFault) and "before it was asked" in str(second)
    assert third.text == "first", "it was started anew"


def test_a_program_that_ended_is_started_anew_for_the_next_proposal(program: Any, context: Any) -> None:
    proposer = program("ask(); say({'text': str(os.getpid())})")

    async def run() -> list[Any]:
        try:
            first = await propose(proposer, context())
            return [first, *[await propose(proposer, context()) for _ in range(2)]]
        finally:
            await proposer.close()

    first, ended, again = asyncio.run(run())
    assert isinstance(first, Reply)
    assert isinstance(ended, ProposerFault) and ended.kind == "broken_stream"
    assert isinstance(again, Reply) and again.text != first.text


GROUP = """
    child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
    open("pids", "w").write(f"{os.getpid()} {child.pid}")
    os.rename("pids", "pids.done")
    while True:
        ask()
        {answer}
"""  # noqa: E501


def pids(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "pids.done").read_text().split()]


def test_a_late_program_is_killed_with_its_whole_group(program: Any, context: Any, tmp_path: Path) -> None:
    """CASES L1"""
    proposer = program(GROUP.replace("{answer}", "time.sleep(600)"))
    started = time.monotonic()
    fault = once(proposer, context(), deadline_ms=1_500)
    assert isinstance(fault, ProposerFault) and fault.kind == "timeout"
    assert time.monotonic() - started < 10
    assert all(is_gone(pid) for pid in pids(tmp_path))


def test_close_ends_the_whole_group_and_may_be_called_again(program: Any, context: Any, tmp_path: Path) -> None:
    proposer = program(GROUP.replace("{answer}", "say({'text': 'a'})"))

    async def run() -> None:
        await proposer.propose(context(), 20_000)
        assert all(Path(f"/proc/{pid}").exists() for pid in pids(tmp_path))
        await proposer.close()
        await proposer.close()

    asyncio.run(run())
    assert all(is_gone(pid) for pid in pids(tmp_path))


def test_cancelling_a_proposal_ends_the_program(program: Any, context: Any, tmp_path: Path) -> None:
    proposer = program(GROUP.replace("{answer}", "time.sleep(600)"))

    async def run() -> None:
        call = asyncio.create_task(proposer.propose(context(), 60_000))
        while not (tmp_path / "pids.done").exists():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert all(is_gone(pid) for pid in pids(tmp_path)), "before close"
        await proposer.close()

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_program_survives_its_event_loop(program: Any, context: Any) -> None:
    """A sync caller runs one loop after the other; the program of a closed loop is replaced, not leaked."""
    proposer = program("while True: ask(); say({'text': str(os.getpid())})")
    first = asyncio.run(propose(proposer, context()))
    second = asyncio.run(propose(proposer, context()))
    asyncio.run(proposer.close())
    assert isinstance(first, Reply) and isinstance(second, Reply)
    assert is_gone(int(first.text)) and is_gone(int(second.text))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on request only on Linux")
def test_a_program_does_not_outlive_a_setpoint_that_was_killed(tmp_path: Path) -> None:
    """Kill -9 of the runtime leaves no process behind, even one that reads nothing"""
    (tmp_path / "agent.py").write_text(
        PRELUDE + "open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'pid.done')\nask(); time.sleep(600)"
    )
    runtime = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from setpoint.adapters.proposers.opening import open_proposer
        from setpoint.ports.proposer import Context
        proposer = open_proposer("command:{sys.executable} agent.py", base_dir=Path({str(tmp_path)!r}))
        asyncio.run(proposer.propose(Context("t", 0, (), (), 0, ""), 600_000))
    """)
    with subprocess.Popen([sys.executable, "-c", runtime]) as process:
        pid_file = tmp_path / "pid.done"
        while not pid_file.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait(10)
    assert is_gone(int(pid_file.read_text()))


def test_a_program_that_is_no_program_says_so(context: Any, tmp_path: Path) -> None:
    (tmp_path / "agent").write_bytes(b"\x00not an executable")
    (tmp_path / "agent").chmod(0o755)
    fault = once(CommandProposer("command:x", "./agent", tmp_path), context())
    assert isinstance(fault, ProposerFault) and "agent" in str(fault)
    assert fault.kind in ("broken_stream", "invalid")
    (tmp_path / "agent").chmod(0o644)
    fault = once(CommandProposer("command:x", "./agent", tmp_path), context())
    assert isinstance(fault, ProposerFault) and fault.kind == "invalid" and "cannot be started" in str(fault)


def test_noise_on_stderr_neither_blocks_nor_fills_memory(program: Any, context: Any) -> None:
    proposer = program("""
        ask()
        for _ in range(2000): sys.stderr.write("noise " * 500)
        sys.stderr.write("\\x1b[31mlast words"); sys.stderr.flush()
        sys.exit(3)
    """)
    fault = once(proposer, context())
    assert isinstance(fault, ProposerFault)
    assert "exited with 3" in str(fault) and "\x1b" not in str(fault) and len(str(fault)) < 2_000


def test_a_missing_program_is_a_fault_of_that_route(context: Any, tmp_path: Path) -> None:
    fault = once(CommandProposer("command:x", "./no-such-program --flag", tmp_path), context())
    assert isinstance(fault, ProposerFault) and fault.kind == "invalid"
    assert "no-such-program" in str(fault) and "cannot be started" in str(fault)


def test_a_command_that_is_no_command_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="No closing quotation"):
        open_proposer("command:agent 'unclosed", base_dir=tmp_path)


def test_nothing_runs_before_the_first_proposal(tmp_path: Path, context: Any) -> None:
    proposer = open_proposer(f'command:{sys.executable} -c \'open("ran", "w")\'', base_dir=tmp_path)
    asyncio.run(proposer.close())
    assert not (tmp_path / "ran").exists()
    assert os.listdir(tmp_path) == []
