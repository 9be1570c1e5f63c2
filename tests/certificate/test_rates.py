"""The rate of a grant is checked again from the dispatches in the log."""

from __future__ import annotations

from typing import Any

import pytest

from setpoint.certificate import contract
from setpoint.certificate.replay import Replay

from .factory import document, history, loaded


@pytest.mark.parametrize(
    ("rate", "broken"),
    [
        ({"calls": 1, "per": "20m"}, True),
        ({"calls": 1, "per": "1s"}, False),  # the turns of the factory are a second apart
        ({"calls": 1, "per": "1001ms"}, True),
        ({"calls": 2, "per": "20m"}, False),
        (None, False),
    ],
)
def test_calls_beyond_the_rate_contradict_the_contract(rate: dict[str, Any] | None, broken: bool) -> None:
    """R074, R145"""
    changed = document()
    if rate is not None:
        changed["spec"]["actions"][1]["rate"] = rate
    told = loaded(history().bundle())
    replay = Replay(contract.read(changed), {})
    replay.run(told["events"])
    said = [problem for problem in replay.problems if "of active time" in problem]
    assert bool(said) == broken, replay.problems
