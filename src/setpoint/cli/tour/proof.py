"""What remains of the story: a certificate anyone can recheck, a replay, and a way back."""

from __future__ import annotations

import sys
from typing import Final

from setpoint.app.keys import public_file
from setpoint.cli.tour.ground import Ground, changed, program, tree
from setpoint.cli.tour.narration import Narrator
from setpoint.cli.tour.three_turns import PARSER, Played
from setpoint.kernel.errors import ReplayDiverged

EXIT_INVALID: Final = 19


async def play(narrator: Narrator, ground: Ground, story: Played) -> None:
    narrator.chapter("5. The evidence, and the way back")
    await _certificate(narrator, ground, story)
    await _replay(narrator, ground, story)
    await _undo(narrator, ground, story)


async def _certificate(narrator: Narrator, ground: Ground, story: Played) -> None:
    reference = story.account.record.certificate
    assert reference is not None
    data = ground.runtime.log.payload(reference.ref)
    good, bad = story.folder / "story.cert.json", story.folder / "altered.cert.json"
    good.write_bytes(data)
    key = public_file(ground.runtime.places.keys)
    narrator.scene("the certificate of the first story, rechecked by a program that knows only the file and the key")
    narrator.row("run", f"python -m setpoint.certificate verify {good.name} --key {key.name}")
    verify = [sys.executable, "-m", "setpoint.certificate", "verify"]
    code, text = await program([*verify, str(good), "--key", str(key)], cwd=story.folder)
    narrator.quote(text)
    narrator.fact("it holds, exit", code, 0)

    position = len(data) // 2
    bad.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    narrator.scene("the same file with one bit flipped")
    narrator.row("altered", f"byte {position} of {len(data)}: {data[position]:#04x} became {data[position] ^ 1:#04x}")
    code, text = await program([*verify, str(bad), "--key", str(key)], cwd=story.folder)
    narrator.row("says", text.strip().splitlines()[-1])
    narrator.fact("it does not hold, exit", code, EXIT_INVALID)


async def _replay(narrator: Narrator, ground: Ground, story: Played) -> None:
    narrator.scene("the whole story decided again from its log, with model and tools disconnected")
    try:
        replayed = await ground.runtime.replay(story.account.trajectory_id)
        came_to, compared = replayed.record.state_digest, replayed.compared
    except ReplayDiverged as fault:
        came_to, compared = str(fault), 0
    digest = story.account.record.state_digest
    narrator.fact(
        "the replay ends in the same state", came_to, digest, shown=f"{digest[:23]}, {compared} events compared"
    )


async def _undo(narrator: Narrator, ground: Ground, story: Played) -> None:
    narrator.scene("undo")
    narrator.tell("The project before the story was kept when the fix was committed.")
    receipt = await ground.runtime.undo(story.account.trajectory_id, by="demo")
    narrator.fact("paths restored", list(receipt.paths), [PARSER], shown=PARSER)
    narrator.fact("the project is byte-identical to its start", changed(story.before, tree(story.project)), [],
                  shown="yes")  # fmt: skip
