"""``setpoint demo``: the offline tour. Everything it says was run, and compared, while it was said."""

from __future__ import annotations

import importlib.util
import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from setpoint.app.runtime import Runtime
from setpoint.cli.live import run as run_to_the_end
from setpoint.cli.terminal import printable, say, styled
from setpoint.cli.tour import crash, greatest_hits, open_loop, proof, three_turns
from setpoint.cli.tour.ground import Ground, opened
from setpoint.cli.tour.narration import Narrator, Untold
from setpoint.kernel.errors import IsolationUnavailable, UsageFault

TURNS = 3


def run(arguments: Namespace) -> int:
    """0 when every fact of every scene was as expected, else 1; 12 when this machine cannot isolate. UsageFault."""
    is_refund = arguments.story == "refund"
    if is_refund:
        _refuse_refund(arguments)
    else:
        _refuse_parse_timeout(arguments)
    started = time.monotonic()
    narrator = Narrator()
    with opened(arguments.workdir) as root:
        run_to_the_end((_play_refund if is_refund else _play)(arguments, narrator, root))
        if arguments.workdir is not None:
            _tell_what_stays(
                root, ("get", "why", "effects list --all") if is_refund else ("get", "why", "certificate show")
            )
    return _verdict(narrator, time.monotonic() - started)


def _refuse_refund(arguments: Namespace) -> None:
    if arguments.turn is not None or arguments.open_loop:
        raise UsageFault("--turn and --open-loop belong to the story parse-timeout", hint="setpoint demo refund")
    if importlib.util.find_spec("httpx") is None:
        raise UsageFault(
            "the refund story talks to a bank over HTTP, and httpx is not installed beside Setpoint",
            hint="Install it: pip install 'setpoint[http]'",
        )
    if arguments.order is not None:
        from setpoint.cli.tour.refund import order_of

        order_of(arguments.order)


def _refuse_parse_timeout(arguments: Namespace) -> None:
    if arguments.order is not None:
        raise UsageFault("--order belongs to the story refund", hint="setpoint demo refund --order late")
    if arguments.turn is not None and not 0 <= arguments.turn < TURNS:
        raise UsageFault(f"the story has no turn {arguments.turn}; it has turns 0 to {TURNS - 1}")
    if arguments.turn is not None and arguments.open_loop:
        raise UsageFault("--turn shows one turn of the story, --open-loop the run without it; give one of them")
    if importlib.util.find_spec("pytest") is None:
        raise UsageFault(
            "the demo runs the tests of a small project, and pytest is not installed beside Setpoint",
            hint="Install it: pip install 'setpoint[pytest]'",
        )


async def _play(arguments: Namespace, narrator: Narrator, root: Path) -> None:
    async with Runtime.open() as runtime:
        _require_isolation(runtime)
        ground = Ground(root, runtime)
        try:
            await _scenes(arguments, narrator, ground)
        except (Untold, LookupError, ValueError) as missing:  # the log lacks what a scene was to tell
            narrator.hush(False)
            narrator.fact("what the next scene was to tell", repr(missing), "in the log")


async def _scenes(arguments: Namespace, narrator: Narrator, ground: Ground) -> None:
    if arguments.open_loop:
        await open_loop.play(narrator, ground)
        return
    played = await three_turns.play(ground)
    three_turns.tell(narrator, played, arguments.turn)
    if arguments.turn is not None:
        return
    await three_turns.stricter(narrator, ground)
    await open_loop.play(narrator, ground)
    await greatest_hits.play(narrator, ground)
    await crash.play(narrator, ground, played)
    await proof.play(narrator, ground, played)


async def _play_refund(arguments: Namespace, narrator: Narrator, root: Path) -> None:
    from setpoint.cli.tour import refund  # loads pydantic and httpx, which the other story has no use for

    try:
        await refund.play(narrator, root, arguments.order)
    except (Untold, LookupError, ValueError) as missing:  # the log lacks what a scene was to tell
        narrator.fact("what the next scene was to tell", repr(missing), "in the log")


def _require_isolation(runtime: Runtime) -> None:
    """The models of this demo misbehave for real: without a sandbox that holds, none of them is run."""
    try:
        runtime.equipment.sandbox("namespaces")
    except IsolationUnavailable as fault:
        raise IsolationUnavailable(
            f"{fault.message}. The demo runs models that misbehave, so it is not played without a sandbox",
            hint=f"{fault.hint or ''}\n  `setpoint doctor` says what this machine can isolate.".lstrip(),
        ) from fault


def _tell_what_stays(root: Path, verbs: Sequence[str]) -> None:
    say("")
    say(printable(f"Everything is in {root}. Look around, for example:"))
    for words in verbs:
        say(printable(f"  SETPOINT_HOME={shlex.quote(str(root / 'home'))} setpoint {words}"))


def _verdict(narrator: Narrator, seconds: float) -> int:
    say("")
    if not narrator.wrong:
        say(styled(f"{narrator.facts} facts checked, all as told ({seconds:.0f} s)", "green"))
        return 0
    say(styled(f"{len(narrator.wrong)} of {narrator.facts} facts were not as expected:", "red"))
    for message in narrator.wrong:
        say(printable(f"  {message}"))
    return 1
