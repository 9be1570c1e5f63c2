"""The out-of-process oracle: the candidate computes, the judge compares, and they never meet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from setpoint.adapters.verifiers.oracle import checked_outcomes, seed_of
from setpoint.adapters.verifiers.sealed_files import digest_directory
from setpoint.kernel.contract import Criterion, Level, OracleCheck
from setpoint.kernel.evidence import Counts

GOOD = "def add(a, b):\n    return a + b\n"
JUDGE = """
def cases(rng):
    pairs = [(2, 3), (10, -4), (rng.randrange(1000), rng.randrange(1000))]
    return [{"call": "calc:add", "args": [a, b], "expect": a + b} for a, b in pairs]

def judge(case, outcome):
    if outcome == {"value": case["expect"]}:
        return None
    return f"{case['args']} gave {outcome}, not {case['expect']}"
"""


@pytest.fixture
def oracle(bench):
    def judge(candidate: dict[str, str], judge_file: str = JUDGE, timeout_ms: int | None = None, base=None, **changes):
        bench.write(candidate)
        bench.seal({"judge.py": judge_file})
        check = Criterion("c", OracleCheck("judge.py", timeout_ms), Level.SEALED, str(bench.sealed))
        return bench.judge(replace(check, files_digest=digest_directory(str(bench.sealed)), **changes), base)

    return judge


def test_correct_code_passes_with_every_case_counted(oracle):
    """R140"""
    evidence = oracle({"calc.py": GOOD})
    assert evidence.passed and evidence.counts == Counts(3, 3, 0, 0, 0), evidence
    assert len(evidence.output_sha256) == 64


def test_a_src_layout_is_found(oracle):
    assert oracle({"src/calc.py": GOOD}).passed


def test_a_wrong_answer_fails_and_says_for_which_case(oracle):
    evidence = oracle({"calc.py": "def add(a, b):\n    return a - b\n"})
    assert (evidence.verdict, evidence.distance) == ("fail", 1)
    assert evidence.failures[0].name == "calc:add #1" and "gave {'value': -1}" in evidence.failures[0].message


def test_an_exception_is_an_outcome_the_judge_may_ask_for(oracle):
    judge_file = """
def cases(rng):
    return [{"call": "calc:div", "args": [1, 0], "name": "division by zero raises"}]
def judge(case, outcome):
    return None if outcome.get("raised") == "ZeroDivisionError" else "must raise"
"""
    assert oracle({"calc.py": "def div(a, b):\n    return a // b\n"}, judge_file).passed
    evidence = oracle({"calc.py": "def div(a, b):\n    return 0\n"}, judge_file)
    assert evidence.failures[0].name == "division by zero raises"


def test_the_candidate_sees_neither_sealed_files_nor_what_is_expected(oracle):
    """R140, L9"""
    spy = """
import os, sys, gc
def look():
    found = [p for p in ("/sealed", "/sealed/judge.py") if os.path.exists(p)]
    found += [k for o in gc.get_objects() if isinstance(o, dict) for k in ("expect", "secret") if k in o]
    found += [n for n in os.environ if n == "SEALED"]
    return found
"""
    judge_file = """
def cases(rng):
    return [{"call": "spy:look", "args": [], "expect": [], "secret": "s"}]
def judge(case, outcome):
    return None if outcome == {"value": []} else str(outcome)
"""
    assert oracle({"spy.py": spy}, judge_file).passed


def test_the_judge_sees_no_workspace(oracle):
    judge_file = """
import os
def cases(rng):
    assert not os.path.exists("/workspace"), "the workspace is here"
    return [{"call": "calc:add", "args": [1, 1]}]
def judge(case, outcome):
    return "the workspace is here" if os.path.exists("/workspace") else None
"""
    assert oracle({"calc.py": GOOD}, judge_file).passed


def test_a_call_that_ends_the_process_is_wrong_and_the_others_still_count(oracle):
    judge_file = """
def cases(rng):
    return [{"call": "calc:add", "args": [n, 1]} for n in range(4)]
def judge(case, outcome):
    return None  # would accept anything
"""
    dying = "import os\ndef add(a, b):\n    if a == 1:\n        os._exit(0)\n    return a + b\n"
    evidence = oracle({"calc.py": dying}, judge_file)
    assert (evidence.verdict, evidence.counts) == ("fail", Counts(4, 3, 0, 1, 0))
    assert "ended during the call with exit code 0" in evidence.failures[0].message


@pytest.mark.parametrize(
    "body",
    ["object()", "float('nan')", "{1: set()}", "'x' * 10_000_000", "[None] * 3_000_000", "__import__('sys').exit()"],
)
def test_an_answer_that_is_not_plain_bounded_json_is_wrong(oracle, body):
    evidence = oracle({"calc.py": f"def add(a, b):\n    return {body}\n"})
    assert evidence.verdict == "fail" and evidence.counts.passed == 0


def test_a_case_marked_fresh_gets_an_interpreter_of_its_own(oracle):
    judge_file = """
def cases(rng):
    count = {"call": "calc:count"}
    return [count, count, {**count, "fresh": True}, count]
def judge(case, outcome):
    return str(outcome["value"])
"""
    evidence = oracle({"calc.py": "n = 0\ndef count():\n    global n\n    n += 1\n    return n\n"}, judge_file)
    assert [failure.message for failure in evidence.failures] == ["1", "2", "1", "1"]


def test_a_judge_that_stumbles_over_an_answer_has_not_accepted_it(oracle):
    judge_file = JUDGE.replace('if outcome == {"value": case["expect"]}:', 'if outcome["value"] + 0 == case["expect"]:')
    evidence = oracle({"calc.py": "def add(a, b):\n    return 'five'\n"}, judge_file)
    assert evidence.verdict == "fail" and "the judge raised TypeError" in evidence.failures[0].message


@pytest.mark.parametrize(
    ("judge_file", "says"),
    [
        ("def cases(rng):\n    return []\n", "0 cases"),
        ("def cases(rng):\n    return [{'call': 'calc'}]\n", '"module:function"'),
        ("def cases(rng):\n    return [{'call': 'a:b', 'args': 1}]\n", '"args" is a list'),
        ("def cases(rng):\n    return ({'call': 'a:b'} for _ in range(5000))\n", "5000 cases"),
        ("raise RuntimeError('broken judge')\n", "broken judge"),
        (
            "cases = lambda rng: [{'call': 'calc:add', 'args': [1, 1]}]\njudge = lambda case, outcome: False\n",
            "None or a message",
        ),
    ],
)
def test_a_judge_that_does_not_work_is_missing_evidence(oracle, judge_file, says):
    """CASES G5"""
    evidence = oracle({"calc.py": GOOD}, judge_file)
    assert evidence.verdict == "missing" and says in evidence.reason


def test_a_candidate_that_hangs_is_missing_evidence(oracle):
    """CASES G5"""
    evidence = oracle({"calc.py": "def add(a, b):\n    while True: pass\n"}, timeout_ms=3000)
    assert evidence.verdict == "missing" and "the candidate did not finish" in evidence.reason


@pytest.mark.parametrize("name", ["/etc/passwd", "../judge.py", "a/../../judge.py", "./judge.py", "missing.py"])
def test_the_judge_file_lies_below_the_sealed_files(oracle, name):
    evidence = oracle({"calc.py": GOOD}, predicate=OracleCheck(name))
    assert evidence.verdict == "missing"


@pytest.mark.parametrize(
    "outcomes",
    [[], [{}], [1], [{"value": 1, "raised": "x"}], [{"raised": "x"}], [{"died": 1}], [{"value": 1}, {"value": 2}]],
)
def test_forged_answers_of_another_form_are_refused(outcomes):
    with pytest.raises(Exception, match="the candidate"):
        checked_outcomes(outcomes, 1)


def test_the_same_state_is_asked_the_same_and_another_state_something_else(bench, oracle):
    """A replay of the verdict agrees, and no answer table survives a change of the state."""
    assert seed_of("sha256:a", "sha256:c") == seed_of("sha256:a", "sha256:c")
    assert len({seed_of("sha256:a", "sha256:c"), seed_of("sha256:b", "sha256:c"), seed_of("sha256:a", "sha256:d")}) == 3
    first, second = oracle({"calc.py": GOOD}), oracle({"calc.py": GOOD})
    assert first.output_sha256 == second.output_sha256


def test_fewer_cases_than_the_baseline_had_are_missing_evidence(oracle):
    """CASES G1"""
    evidence = oracle({"calc.py": GOOD}, base=Counts(4, 0, 0, 0, 0))
    assert evidence.verdict == "missing" and "names 3 cases and named 4" in evidence.reason
    assert oracle({"calc.py": GOOD}, base=Counts(3, 0, 0, 0, 0)).passed
