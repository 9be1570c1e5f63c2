"""E. Context overflow. F. Prompt cost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from setpoint.adapters.proposers.scripted import ScriptedProposer
from setpoint.kernel import limits
from setpoint.kernel.events import ContextBuilt
from setpoint.ports.proposer import RouteLimits

from .conftest import MENDED, Case, say, shell, write


def test_e1_an_observation_larger_than_the_window_enters_clamped(case: Case) -> None:
    """E1: head, tail and a marker; the whole output is hashed and counted, and the run goes on."""
    outcome = case.converge(say(shell("echo HEAD; head -c 3000000 /dev/zero | tr '\\0' x; echo TAIL")), MENDED)
    assert outcome.exit_code == 0
    seen = case.prompts[1]
    assert seen.tokens <= limits.PROMPT_TOKENS_MAX and "HEAD" in seen.text and "TAIL" in seen.text
    result = case.events("ToolResult")[0]
    assert result.status == "TRUNCATED" and result.output_bytes == 3_000_010 and result.output_sha256


def test_e1_a_route_whose_window_the_pinned_parts_exceed_ends_as_stalled_context_too_large(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1, E3, J3: no condensation for ever; the message names the part, its size, the limit and the remedy."""
    open_one = ScriptedProposer.__init__

    def small(self: ScriptedProposer, route: str, path: Path) -> None:
        open_one(self, route, path)
        if route.endswith("second.yaml"):
            self.limits = RouteLimits(context_tokens=700, output_tokens=100)

    monkeypatch.setattr(ScriptedProposer, "__init__", small)
    case.script({"error": "refused"})
    case.script(MENDED, name="second.yaml")
    outcome = case.converge(models=["scripted:script.yaml", "scripted:second.yaml"])
    record = outcome.record
    assert (outcome.exit_code, record.finished_reason) == (11, "ContextTooLarge")
    assert len(case.prompts) == 1, "the small model was never asked"
    for words in ("'instructions'", "limit is 600", "Shorten the goal", "larger window"):
        assert words in record.finished_message, record.finished_message


def test_e2_the_log_grows_linearly_and_holds_no_prompt(case: Case) -> None:
    """E2: steps of 5 KB; prompts are content-addressed parts, not copies."""
    turns = 30
    case.files({f"src/noise{n}": f"{n}" * 5000 for n in range(3)})
    outcome = case.converge(
        *[say(shell(f"head -c 5000 /dev/zero | tr '\\0' x; echo {n} > src/other")) for n in range(turns)],
        budget={"turns": turns, "tokens": 10**6, "usd": 5.0, "wall": "10m"},
        policy={"stall_after": 100},
    )
    assert outcome.record.turn == turns
    sizes: dict[int, int] = {}

    async def measure() -> None:
        async with case.runtime() as runtime:
            for stored in runtime.log.read(case.trajectory_id):
                sizes[stored.turn] = sizes.get(stored.turn, 0) + len(stored.data)

    asyncio.run(measure())
    early = sum(sizes[turn] for turn in range(8, 18))
    late = sum(sizes[turn] for turn in range(turns - 10, turns))
    assert late <= early * 1.1, sizes
    assert all(size < 8_000 for turn, size in sizes.items() if turn), sizes
    prompts = sum(context.tokens for context in case.prompts) * limits.CHARS_PER_TOKEN
    assert sum(sizes.values()) < prompts, "the events are smaller than the prompts they tell of"


def test_f1_only_actions_that_are_permitted_now_are_in_the_prompt(case: Case) -> None:
    """F1, R080: what is not granted does not exist for the model."""
    actions = [{"tool": "file_write", "paths": ["src/**"]}, {"tool": "complete_task"}]
    case.converge(MENDED, actions=actions)
    root = case.prompts[0].zone("root")
    assert "file_write" in root and "shell_exec" not in root and "ask_operator" not in root


def test_f2_the_prefix_is_byte_identical_across_turns_and_restarts(case: Case) -> None:
    """F2: canonical order, volatile parts last."""
    case.converge(
        say(shell("ls")),
        say(write("src/value", "4")),
        say(write("tests/check.sh", "true")),
        say(write("src/b", "1")),
        MENDED,
        goal={"text": "src/value holds 5", "forbid": ["tests/**"]},
    )
    assert len(case.prompts) >= 5
    assert len({context.zone("root") for context in case.prompts}) == 1
    digests = {
        part.digest
        for event in case.events("ContextBuilt")
        if isinstance(event, ContextBuilt)
        for part in event.parts
        if part.zone == "root"
    }
    assert len(digests) == 1
    prefix = [context.text[: len(context.zone("root"))] for context in case.prompts]
    assert len(set(prefix)) == 1, "and it is what a prompt begins with"


@pytest.mark.parametrize("order", [1, -1])
def test_f2_the_order_in_the_manifest_does_not_change_the_prefix(case: Case, order: int) -> None:
    """F2"""
    tools = ["complete_task", "file_read", "file_write", "shell_exec"][::order]
    case.converge(MENDED, actions=[{"tool": tool} for tool in tools])
    root = case.prompts[0].zone("root")
    places = [root.index(f'"name":"{tool}"') for tool in sorted(tools)]
    assert places == sorted(places)
