"""The facts of a candidate as plain values, for expressions and probes."""

from __future__ import annotations

import copy
from typing import Any

from setpoint.ports.verifier import Candidate


def facts_of(candidate: Candidate) -> dict[str, Any]:
    """``changes, state, baseline, trajectory``: a deep copy, so that no check can alter what the next one sees."""
    return {
        "changes": [
            {
                "path": change.path,
                "kind": change.kind,
                "type": change.file_type,
                "mode": change.mode,
                "size": change.size,
                "lines_added": change.lines_added,
                "lines_removed": change.lines_removed,
                "renamed_from": change.renamed_from,
            }
            for change in candidate.changes.changes
        ],
        "state": copy.deepcopy(candidate.state),
        "baseline": copy.deepcopy(candidate.baseline),
        "trajectory": copy.deepcopy(candidate.trajectory),
    }
