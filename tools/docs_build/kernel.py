"""reference/limits.md, reference/refusals.md, reference/states.md, and the state table of ARCHITECTURE.md."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from docs_build.markdown import code, page, prose, table
from docs_build.words import REFUSALS
from setpoint.kernel import limits as bounds
from setpoint.kernel import ruling, transitions
from setpoint.kernel.conditions import CONDITION_TYPES
from setpoint.kernel.run_record import RUN_LEGAL


def limits() -> str:
    blocks = [
        (
            "Every loop, wait, queue, output, prompt and retry has a bound. Those a user may want to move are in the "
            "[manifest](manifest.md); these are the runtime's own."
        )
    ]
    section, rows = "", []
    tree = ast.parse(inspect.getsource(bounds))
    comments = {
        n: prose(line[2:]) for n, line in enumerate(inspect.getsource(bounds).splitlines(), 1) if line.startswith("# ")
    }
    starts = sorted(comments)
    for at, node in enumerate(tree.body):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        under = comments[max((n for n in starts if n < node.lineno), default=starts[0])]
        if under != section and rows:
            blocks.append(f"## {section}\n\n" + table(("name", "value", "why"), rows))
            rows = []
        section = under
        after = tree.body[at + 1] if at + 1 < len(tree.body) else None
        said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        rows.append((code(node.target.id), code(str(getattr(bounds, node.target.id))), prose(str(said))))
    blocks.append(f"## {section}\n\n" + table(("name", "value", "why"), rows))
    return page("Limits", "`src/setpoint/kernel/limits.py`", *blocks)


def refusals() -> str:
    reasons = get_args(ruling.RefusalReason)
    unsaid = set(reasons) ^ set(REFUSALS)
    if unsaid:
        raise ValueError(f"tools/docs_build/words.py and kernel/ruling.py disagree about {', '.join(sorted(unsaid))}")
    gates = _gates()
    blocks = [
        (
            "A refusal is an observation: it costs a turn, touches nothing, and tells the model what was wrong. The "
            "gates are asked in order, and the first no ends the matter. `Refused` events carry the reason."
        )
    ]
    for reason in reasons:
        blocks.append(f"## {reason}\n\nGate: {gates[reason]}. {REFUSALS[reason]}")
    return page("Refusal reasons", "`src/setpoint/kernel/ruling.py`", *blocks)


def _gates() -> dict[str, str]:
    """Reason -> gate, by the comment it stands under in the source."""
    found: dict[str, str] = {}
    gate = ""
    for line in inspect.getsource(ruling).splitlines():
        text = line.strip()
        if text in ("# syntactic", "# resource", "# isolation", "# progress"):
            gate = text[2:]
        elif gate and text.startswith('"'):
            found[text.strip('",')] = gate
        elif gate and text == "]":
            break
    return found


def state_table() -> str:
    """Every state with the states that may follow it."""
    rows = [
        (code(state), ", ".join(code(s) for s in transitions.STATES if s in after) or "none: it has ended")
        for state, after in transitions.LEGAL.items()
    ]
    return table(("state", "may become"), rows)


def state_graph(legal: Mapping[Any, Iterable[Any]]) -> str:
    """The table as a Mermaid diagram; what nothing follows has ended."""
    first = next(iter(legal))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    for state, after in legal.items():
        lines += [f"    {state} --> {target}" for target in legal if target in after]
    lines += [f"    {state} --> [*]" for state, after in legal.items() if not after]
    return "\n".join([*lines, "```"])


def states() -> str:
    conditions = "\n".join(f"- `{name}`" for name in CONDITION_TYPES)
    return page(
        "States and conditions",
        "`src/setpoint/kernel/transitions.py`, `conditions.py` and `run_record.py`",
        "A trajectory is in one state. The table is the only place that says which may follow which; the fold holds to "
        "it.",
        state_graph(transitions.LEGAL),
        state_table(),
        "## Runs of workflows\n\nA run that waits is RUNNING: what it waits for is in its record. It is PAUSED when "
        "only a person can say how to go on, and UNWINDING while what it did is taken back.",
        state_graph(RUN_LEGAL),
        "## Conditions\n\nPeople are shown conditions instead of a state: each has a status (`True`, `False`, "
        "`Unknown`), a reason, a message, the number of events it rests on and the time of the newest.\n\n"
        + conditions,
    )
