"""The public conformance function for probes finds each broken promise, and passes a sound one."""

from __future__ import annotations

import itertools
import threading

import pytest

from setpoint.testing import ProbeFacts, probe_problems

MET, UNMET = ProbeFacts(state={"orders": {"open": 0}}), ProbeFacts(state={"orders": {"open": 2}})


def sound(facts):
    return facts["state"].get("orders", {"open": 1})["open"]


def test_a_sound_probe_breaks_no_promise():
    """R148"""
    assert probe_problems(sound, met=MET, unmet=UNMET) == []


ticks = itertools.count()
hung = threading.Event()


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (lambda facts: True, "unmet: the verdict is pass, not fail"),
        (lambda facts: False, "met: the verdict is fail, not pass"),
        (lambda facts: facts["state"]["orders"]["open"], "the base: there is no evidence"),
        (lambda facts: "fine", "met: there is no evidence"),
        (lambda facts: next(ticks), "answered differently the second time"),
        (lambda facts: hung.wait(20), "did not answer within 200 ms"),
        (lambda facts: {"passed": False, "failures": [{"name": ""}]}, "a failing item has no name"),
        (lambda facts: {"passed": True, "value": next(ticks)}, "answered differently the second time"),
    ],
    ids=["always", "never", "raises-on-base", "odd-form", "counts", "hangs", "nameless", "unstable-value"],
)
def test_each_broken_promise_is_named(probe, said):
    """R148, CASES G5"""
    try:
        problems = probe_problems(probe, met=MET, unmet=UNMET, wall_ms=200)
    finally:
        hung.set() if "within" in said else None
    assert any(said in problem for problem in problems), problems
