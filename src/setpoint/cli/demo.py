"""``setpoint demo``: the offline tour. Everything it says was run, and compared, while it was said."""

from __future__ import annotations

import importlib.util
import shlex
import time
from argparse import Namespace
from pathlib import Path

from setpoint.app.runtime import Runtime
from setpoint.cli.live import run as run_to_the_end
from setpoint.cli.terminal import printable, say, styled
from setpoint.cli.tour import crash, greatest_hits, open_loop, proof, three_turns
from setpoint.cli.tour.ground import Ground, opened
from setpoint.cli.tour.narration import Narrator, Untold
from setpoint.kernel.errors import IsolationUnavailable, UsageFault

STORY = "parse-timeout"
TURNS = 3


def run(arguments: Namespace) -> int:
    """0 when every fact of every scene was as expected, else 1; 12 when this machine cannot isolate. UsageFault."""
    _refuse_what_is_not_there(arguments)
    started = time.monotonic()
    narrator = Narrator()
    with opened(arguments.workdir) as root:
        run_to_the_end(_play(arguments, narrator, root))
        if arguments.workdir is not None:
            _tell_what_stays(root)
    return _verdict(narrator, time.monotonic() - started)


def _refuse_what_is_not_there(arguments: Namespace) -> None:
    if arguments.story != STORY:
        raise UsageFault(f"there is no demo {arguments.story!r} in this release", hint=f"There is {STORY}.")
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


def _require_isolation(runtime: Runtime) -> None:
    """The models of this demo misbehave for real: without a sandbox that holds, none of them is run."""
    try:
        runtime.equipment.sandbox("namespaces")
    except IsolationUnavailable as fault:
        raise IsolationUnavailable(
            f"{fault.message}. The demo runs models that misbehave, so it is not played without a sandbox",
            hint=f"{fault.hint or ''}\n  `setpoint doctor` says what this machine can isolate.".lstrip(),
        ) from fault


def _tell_what_stays(root: Path) -> None:
    say("")
    say(printable(f"Everything is in {root}. Look around, for example:"))
    for words in ("get", "why", "certificate show"):
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
