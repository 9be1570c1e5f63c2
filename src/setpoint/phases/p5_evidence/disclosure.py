"""How much of a check's outcome may reach a prompt. Pure.

The verifier has already taken the paths and the lines of sealed files out of what it recorded; this decides which of
the rest is said.
"""

from __future__ import annotations

from typing import assert_never

from setpoint.kernel.contract import Disclosure
from setpoint.kernel.evidence import Evidence


def disclose(evidence: Evidence, policy: Disclosure) -> str:
    """Text for a prompt: nothing, the bare verdict, the failing names, or names with messages.

    A held-out check is not even named: its address is known to the contract's author only.
    """
    match policy:
        case "none":
            return ""
        case "verdict":
            return f"held-out check: {evidence.verdict}"
        case "names":
            names = "".join(f"\n- {failure.name}" for failure in evidence.failures)
            return f"{evidence.address}: {evidence.verdict}{_score(evidence)}{names}{_more(evidence)}"
        case "full":
            reason = f" ({evidence.reason})" if evidence.reason else ""
            items = "".join(f"\n- {_item(f.name, f.message)}" for f in evidence.failures)
            return f"{evidence.address}: {evidence.verdict}{reason}{items}{_more(evidence)}"
        case _:
            assert_never(policy)


def _score(evidence: Evidence) -> str:
    if evidence.counts is None:
        return ""
    return f", {evidence.counts.passed} of {evidence.counts.collected} passed"


def _item(name: str, message: str) -> str:
    return f"{name}: " + message.replace("\n", "\n  ") if message else name


def _more(evidence: Evidence) -> str:
    if not evidence.failures:
        return ""
    left_out = evidence.distance - len(evidence.failures)
    return f"\n- and {left_out} more" if left_out > 0 else ""
