"""Level proof: the runtime runs every input of a declared finite domain, and one wrong input refutes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from setpoint.adapters.verifiers import exhaustive
from setpoint.adapters.verifiers.exhaustive import INPUTS_MAX, enumerate_domain
from setpoint.adapters.verifiers.oracle import NoEvidence
from setpoint.adapters.verifiers.sealed_files import digest_directory
from setpoint.app.keys import public_file
from setpoint.app.manifest import load_task
from setpoint.app.places import find_places
from setpoint.app.runtime import Runtime
from setpoint.kernel.contract import Criterion, Level, OracleCheck
from setpoint.kernel.evidence import Counts

JUDGE = """
call = "calc:clamp"

def domain():
    return [list(range(-20, 20)), [0, 1, 5]]

def judge(arguments, outcome):
    value, low = arguments
    return None if outcome == {"value": max(value, low)} else f"clamp({value}, {low}) gave {outcome}"
"""
RIGHT = "def clamp(value, low):\n    return value if value > low else low\n"
WRONG_ON_ONE = "def clamp(value, low):\n    return max(value, low) if (value, low) != (-7, 5) else -7\n"
TOTAL = 40 * 3


@pytest.fixture
def prove(bench):
    def judge(candidate: str, judge_file: str = JUDGE, baseline: Counts | None = None, **changes):
        bench.write({"calc.py": candidate})
        bench.seal({"judge.py": judge_file})
        check = Criterion("c", OracleCheck("judge.py"), Level.PROOF, str(bench.sealed))
        return bench.judge(replace(check, files_digest=digest_directory(str(bench.sealed)), **changes), baseline)

    return judge


def test_a_right_implementation_is_proven_over_the_whole_domain(prove):
    """R156"""
    evidence = prove(RIGHT)
    assert evidence.passed and evidence.level is Level.PROOF, evidence
    assert evidence.reason == f"exhaustive: {TOTAL} of {TOTAL} inputs of the declared domain"
    assert evidence.counts == Counts(TOTAL, TOTAL, 0, 0, 0)


def test_an_implementation_wrong_on_one_input_is_refuted_by_that_input(prove):
    """R156"""
    evidence = prove(WRONG_ON_ONE)
    assert (evidence.verdict, evidence.distance) == ("fail", 1)
    (counterexample,) = evidence.failures
    assert counterexample.name == "calc:clamp(-7, 5)" and "gave {'value': -7}" in counterexample.message
    assert evidence.reason == f"refuted: 1 of {TOTAL} inputs of the declared domain are wrong"


def test_the_number_refuted_is_the_distance_since_it_is_not_chance(prove):
    """R156, R003"""
    assert prove("def clamp(value, low):\n    return value\n").distance == 20 + 21 + 25


def test_every_input_is_run_in_batches_too(prove, monkeypatch):
    """R156: no batch border loses an input."""
    monkeypatch.setattr(exhaustive, "BATCH", 50)
    assert prove(RIGHT).counts == Counts(TOTAL, TOTAL, 0, 0, 0)
    assert [f.name for f in prove(WRONG_ON_ONE).failures] == ["calc:clamp(-7, 5)"]


def test_a_stateful_answer_is_named_as_such(prove):
    """R156"""
    counting = """
n = 0
def clamp(value, low):
    global n
    n += 1
    return max(value, low) + (n == 3 and value == -20)
"""
    evidence = prove(counting)
    assert evidence.verdict == "fail"
    assert "depends on more than the arguments" in evidence.failures[0].message


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (
            "import os\ndef clamp(value, low):\n    os._exit(0) if value == 3 else None\n    return max(value, low)\n",
            "fail",
        ),
        ("def clamp(value, low):\n    return {1} if value == 3 else max(value, low)\n", "fail"),
        ("raise RuntimeError('no')\n", "fail"),
        ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n", "missing"),
    ],
    ids=["dies-on-one", "no-json-on-one", "cannot-be-imported", "ends-its-harness"],
)
def test_what_is_lost_is_never_counted_as_right(prove, body, verdict):
    """R156, L4"""
    evidence = prove(body)
    assert evidence.verdict == verdict and not evidence.passed, evidence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("def domain", "def cases"), "level proof needs the judge to declare its whole finite domain"),
        (('call = "calc:clamp"', 'call = "calc"'), "it has the form"),
        (("list(range(-20, 20))", "[]"), "argument 1 has no value"),
        (("[0, 1, 5]", "[0, 1, 0]"), "argument 2 has a value twice"),
        (("list(range(-20, 20))", "list(range(50000))"), f"the domain has 150000 inputs; up to {INPUTS_MAX}"),
        (
            ("list(range(-20, 20))", "sorted({__import__('random').randrange(10**9) for _ in range(9)})"),
            "a random domain is a sample",
        ),
    ],
    ids=["no-domain", "no-call", "empty", "twice", "too-large", "random"],
)
def test_a_domain_that_is_none_leaves_no_evidence(prove, change, said):
    """R156: missing, with the reason."""
    assert JUDGE.count(change[0]) == 1
    evidence = prove(RIGHT, JUDGE.replace(*change))
    assert evidence.verdict == "missing" and said in evidence.reason, evidence.reason


def test_ten_thousand_inputs_are_proven_in_seconds(prove):
    """R156: a measured size, well below the bound."""
    wide = JUDGE.replace("range(-20, 20)", "range(-1700, 1700)")
    evidence = prove(RIGHT, wide)
    assert evidence.counts == Counts(10_200, 10_200, 0, 0, 0) and evidence.duration_ms < 60_000


def test_a_domain_that_shrank_since_the_baseline_is_missing(prove):
    assert "had 121 for the baseline" in prove(RIGHT, baseline=Counts(121, 0, 121, 0, 0)).reason


def test_the_bound_itself_is_still_enumerated():
    assert len(enumerate_domain([list(range(1000)), list(range(100))])) == INPUTS_MAX
    with pytest.raises(NoEvidence):
        enumerate_domain([list(range(1000)), list(range(101))])
    assert enumerate_domain([[1, 1.0, True], ["a"]]) == [(1, "a"), (1.0, "a"), (True, "a")]


TASK = """\
apiVersion: setpoint.dev/v1
kind: Task
metadata: {name: clamp}
spec:
  goal: {text: clamp returns the larger}
  environment: {workspace: ./work}
  actions: [{tool: file_write}, {tool: complete_task}]
  observe: {}
  done: [{id: rule, oracle: judge.py, files: ./sealed, level: proof}]
  budget: {turns: 4}
  models: ["scripted:script.yaml"]
"""


def test_the_certificate_of_a_proven_task_says_proof_and_verifies_alone(tmp_path: Path, sandbox, monkeypatch):
    """R156, R145: from manifest to the standalone verifier."""
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))
    for name in ("work", "sealed"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "calc.py").write_text(WRONG_ON_ONE)
    (tmp_path / "sealed" / "judge.py").write_text(JUDGE)
    (tmp_path / "task.yaml").write_text(TASK)
    calls = [{"name": "file_write", "arguments": {"path": "calc.py", "content": RIGHT}}, {"name": "complete_task"}]
    (tmp_path / "script.yaml").write_text(json.dumps({"proposals": [{"calls": calls}]}))

    async def pursue():
        async with Runtime.open() as runtime:
            outcome = await runtime.converge(load_task(str(tmp_path / "task.yaml")))
            assert outcome.record.certificate is not None, outcome.record.finished_message
            return outcome, runtime.log.payload(outcome.record.certificate.ref)

    outcome, certificate = asyncio.run(pursue())
    assert outcome.exit_code == 0 and outcome.record.turn == 1
    (line,) = [line for line in outcome.record.evidence.values() if line.check == "done/rule"]
    assert (line.level, line.reason) == ("proof", f"exhaustive: {TOTAL} of {TOTAL} inputs of the declared domain")
    (tmp_path / "cert.json").write_bytes(certificate)
    key = public_file(find_places(None).keys)
    verify = [sys.executable, "-m", "setpoint.certificate", "verify", str(tmp_path / "cert.json"), "--key", str(key)]
    said = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "criteria/rule: pass at proof" in said.stdout and "level proof" in said.stdout
