"""What a run did outside, at its end: which effects were taken back, and which stand.

Told from the log, once: a record holds what is open, and what can be taken back, and not every effect ever made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from setpoint.engine.runs.calls import is_in_doubt
from setpoint.engine.runs.hand import Hand
from setpoint.kernel.errors import UnknownTrajectory
from setpoint.kernel.run_events import ChildStarted, Compensated, EffectDelivered, decode
from setpoint.kernel.run_record import undo_node
from setpoint.ports.log import Log

NAMES_MAX = 8
_TOLD = frozenset({"EffectDelivered", "Compensated", "ChildStarted"})


async def what_became(hand: Hand, *, is_unwound: bool) -> str:
    """The words for it, to be put behind those of the end; "" when nothing was done."""
    await hand.journal.flush()
    effects = effects_made(hand.journal.log, hand.run_id)
    back = [node for node, is_back in effects.items() if is_back]
    standing = [node for node, is_back in effects.items() if not is_back]
    unsure = [one.node for one in hand.record.effects.values() if is_in_doubt(one) or one.status == "unknown"]
    why = ", since nothing takes it back" if is_unwound and not hand.record.pivot else ""
    told = {
        "taken back": back,
        f"still stands{why}": standing,
        "nobody knows what became of": unsure,
    }
    return "".join(f"; {words}: {_named(nodes)}" for words, nodes in told.items() if nodes)


def effects_made(log: Log, run_id: str) -> dict[str, bool]:
    """By the node that made it, in that order, whether an effect was taken back. Effects of children are among them,
    as ``NODE>PATH``."""
    found: dict[str, bool] = {}
    for stored in log.read(run_id):
        if stored.type not in _TOLD:
            continue
        match decode(stored.type, stored.data):
            case EffectDelivered(node=node, status="done") if not node.endswith(undo_node("")):
                found.setdefault(node, False)
            case Compensated(node=node):
                found[node] = True
            case ChildStarted(node=node, run_id=child):
                with contextlib.suppress(UnknownTrajectory):  # its start may have come to nothing
                    found |= {f"{node}>{path}": is_back for path, is_back in effects_made(log, child).items()}
            case _:
                pass
    return found


def _named(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - NAMES_MAX} more" if len(nodes) > NAMES_MAX else ""
    return ", ".join(nodes[:NAMES_MAX]) + more
