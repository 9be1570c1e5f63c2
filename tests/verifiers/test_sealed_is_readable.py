"""The limit of a sealed command: what it runs can read what it reads. An oracle has no such limit."""

from __future__ import annotations

from dataclasses import replace

from setpoint.adapters.verifiers.sealed_files import digest_directory
from setpoint.kernel.contract import Criterion, Level, OracleCheck

CHECK = """out=$(sh ./run.sh 21); [ "$out" = "$(cat $SEALED/expected)" ]"""
CHEAT = """\
import glob, os

def double(n):
    found = glob.glob(os.environ.get("SEALED", "/sealed") + "/**/expected", recursive=True)
    return int(open(found[0]).read()) if found else 0
"""
JUDGE = """\
def cases(rng):
    return [{"call": "calc:double", "args": [n], "expect": 2 * n} for n in (3, 21)]


def judge(case, outcome):
    return None if outcome == {"value": case["expect"]} else "wrong"
"""
TEST = "import calc\n\ndef test_double():\n    assert calc.double(21) == 42\n"


def test_candidate_code_can_read_the_answers_of_a_sealed_command_that_runs_it(bench):
    """R140, L9: as seal-a-check.md says, and `lint` advises."""
    bench.seal({"chk.sh": CHECK, "expected": "42"})
    bench.write({"run.sh": "echo 41"})
    assert not bench.run("sh $SEALED/chk.sh", level=Level.SEALED).passed
    bench.write({"run.sh": 'cat "$SEALED/expected"'})
    assert bench.run("sh $SEALED/chk.sh", level=Level.SEALED).passed


def test_the_same_holds_for_code_that_a_sealed_pytest_imports(bench):
    bench.seal({"test_it.py": TEST, "expected": "42"})
    bench.write({"calc.py": CHEAT})
    assert bench.run("python -m pytest -q $SEALED", "pytest", Level.SEALED).passed


def test_an_oracle_keeps_its_answers_where_the_candidate_is_not(bench):
    bench.seal({"judge.py": JUDGE, "expected": "42"})
    check = Criterion("c", OracleCheck("judge.py"), Level.SEALED, str(bench.sealed))
    check = replace(check, files_digest=digest_directory(str(bench.sealed)))
    bench.write({"calc.py": CHEAT})
    assert not bench.judge(check).passed
    bench.write({"calc.py": "def double(n):\n    return 2 * n\n"})
    assert bench.judge(check).passed
