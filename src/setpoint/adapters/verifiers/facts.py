"""The facts of a candidate as plain values, for expressions and probes."""

from __future__ import annotations

import copy
from typing import Any

from setpoint.ports.verifier import Candidate
from setpoint.ports.workspace import change_facts


def facts_of(candidate: Candidate) -> dict[str, Any]:
    """``changes, state, baseline, trajectory``: a deep copy, so that no check can alter what the next one sees."""
    return {
        "changes": change_facts(candidate.changes),
        "state": copy.deepcopy(candidate.state),
        "baseline": copy.deepcopy(candidate.baseline),
        "trajectory": copy.deepcopy(candidate.trajectory),
    }
