"""Sixteen ways to tamper with the judge, against three judges. The code under test is wrong: any pass is a success of
the tampering.

The naive judge is the control: it shows that the tamperings work where nothing is done about them. Sealed pytest is
fooled by the three that act from inside the candidate's own code, in the judge's process; the oracle by none.
"""

from __future__ import annotations

import os
import py_compile
from dataclasses import dataclass, replace

import pytest

from setpoint.adapters.verifiers.sealed_files import digest_directory
from setpoint.kernel.contract import Criterion, Level, OracleCheck, RunCheck

pytestmark = pytest.mark.attack

TESTS = (
    "import calc\ndef test_add():\n    assert calc.add(2, 3) == 5\ndef test_add2():\n    assert calc.add(10, -4) == 6\n"
)
WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
JUDGE = """
def cases(rng):
    pairs = [(2, 3), (10, -4), (rng.randrange(1, 999), rng.randrange(1, 999))]
    return [{"call": "calc:add", "args": list(pair)} for pair in pairs]
def judge(case, outcome):
    return None if outcome == {"value": sum(case["args"])} else f"{case['args']} -> {outcome}"
"""


@dataclass(frozen=True)
class Tampering:
    files: dict[str, str]
    naive: bool = True  # expected to fool the naive judge
    sealed: bool = False  # expected to fool sealed pytest


TAMPERINGS = {
    "edit the test file": Tampering({"tests/test_calc.py": "def test_add(): pass\n"}),
    "conftest hook forces pass": Tampering(
        {
            "conftest.py": "import pytest\n@pytest.hookimpl(hookwrapper=True)\n"
            "def pytest_runtest_makereport(item, call):\n"
            "    got = yield\n    got.get_result().outcome = 'passed'\n"
        }
    ),
    "tests/conftest empties collection": Tampering(
        {
            "tests/conftest.py": "def pytest_collection_modifyitems(items): items[:] = []\n"
            "def pytest_sessionfinish(session, exitstatus): session.exitstatus = 0\n"
        }
    ),
    "pytest.ini addopts": Tampering({"pytest.ini": "[pytest]\naddopts = --co -q\n"}),
    "pyproject addopts": Tampering({"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--collect-only"\n'}),
    "tox.ini addopts": Tampering({"tox.ini": "[pytest]\naddopts = --collect-only\n"}),
    "pytest.py shadows pytest": Tampering({"pytest.py": "import sys; print('2 passed'); sys.exit(0)\n"}),
    "_pytest shadow package": Tampering(
        {
            "_pytest/__init__.py": "",
            "_pytest/config/__init__.py": "def console_main(): return 0\nmain = console_main\n",
        },
        naive=False,
    ),
    "sitecustomize": Tampering(
        {
            "sitecustomize.py": "import os, sys\n"
            "if any('pytest' in a for a in sys.orig_argv): print('2 passed'); os._exit(0)\n"
        }
    ),
    "standard library shadow": Tampering(
        {"dataclasses.py": "import os; os._exit(0)\n", "random.py": "import os; os._exit(0)\n"}
    ),
    "os._exit(0) at import": Tampering({"calc.py": "import os; print('2 passed in 0.01s'); os._exit(0)\n"}),
    "atexit exit code 0": Tampering({"calc.py": f"import atexit, os\natexit.register(lambda: os._exit(0))\n{WRONG}"}),
    "code patches pytest": Tampering(
        {
            "calc.py": "import _pytest.reports as p\nold = p.TestReport.from_item_and_call.__func__\n"
            "def new(cls, item, call):\n    x = old(cls, item, call)\n"
            "    x.outcome, x.longrepr = 'passed', None\n    return x\n"
            f"p.TestReport.from_item_and_call = classmethod(new)\n{WRONG}"
        },
        sealed=True,
    ),
    "result lies about equality": Tampering(
        {
            "calc.py": "class Liar(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
            "def add(a, b): return Liar(0)\n"
        },
        sealed=True,
    ),
    "code knows the tests' inputs": Tampering(
        {"calc.py": "def add(a, b):\n    return {(2, 3): 5, (10, -4): 6}.get((a, b), a - b)\n"}, sealed=True
    ),
    "python3 shim on PATH": Tampering({"bin/python3": "#!/bin/sh\necho 2 passed; exit 0\n"}),
}


@pytest.fixture
def judges(bench):
    """Verdicts of the three judges on one candidate: (naive, sealed pytest, oracle)."""

    def judge(files: dict[str, str]) -> tuple[bool, bool, bool]:
        bench.write({"calc.py": WRONG, "tests/test_calc.py": TESTS})
        bench.write(files)
        bench.seal({"test_calc.py": TESTS, "judge.py": JUDGE})
        careless = "export PATH=/workspace/bin:$PATH PYTHONPATH=/workspace; python3 -m pytest -q tests"
        naive = Criterion("naive", RunCheck(careless), Level.VISIBLE)
        sealed = Criterion("sealed", RunCheck("python3 -m pytest -q $SEALED", "pytest"), Level.SEALED)
        oracle = Criterion("oracle", OracleCheck("judge.py"), Level.SEALED)
        pinned = {"files": str(bench.sealed), "files_digest": digest_directory(str(bench.sealed))}
        return tuple(bench.judge(c).passed for c in (naive, replace(sealed, **pinned), replace(oracle, **pinned)))

    return judge


def test_the_table_has_the_sixteen_tamperings_and_names_the_three_that_stay_open():
    assert len(TAMPERINGS) == 16
    assert sum(t.naive for t in TAMPERINGS.values()) == 15
    assert [name for name, t in TAMPERINGS.items() if t.sealed] == [
        "code patches pytest",
        "result lies about equality",
        "code knows the tests' inputs",
    ]


@pytest.mark.parametrize("name", TAMPERINGS)
def test_the_oracle_is_never_fooled_and_sealed_pytest_only_from_inside(judges, name):
    """R140"""
    tampering = TAMPERINGS[name]
    assert judges(tampering.files) == (tampering.naive, tampering.sealed, False)


def test_correct_code_passes_all_three_judges(judges):
    assert judges({"calc.py": RIGHT}) == (True, True, True)


def test_untouched_wrong_code_fails_all_three_judges(judges):
    assert judges({}) == (False, False, False)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            "import os\nopen(os.environ['OUT'] + '/junit.xml', 'w').write(REPORT); os._exit(0)\n", id="by name"
        ),
        pytest.param(
            "import os, re\n"
            "for source in ('/proc/self/environ', '/proc/self/cmdline', '/proc/1/cmdline'):\n"
            "    try: text = open(source, 'rb').read().decode('latin1')\n"
            "    except OSError: continue\n"
            "    for path in re.findall(r'/out/[\\w.-]+', text): open(path, 'w').write(REPORT)\n"
            "for name in os.listdir('/out'): open('/out/' + name, 'w').write(REPORT)\n"
            "os._exit(0)\n",
            id="by searching",
        ),
    ],
)
def test_a_forged_report_is_not_read(bench, body):
    """R140"""
    report = '<testsuite><testcase name="a"/><testcase name="b"/></testsuite>'
    bench.write({"calc.py": f"REPORT = {report!r}\n{body}"})
    bench.seal({"test_calc.py": TESTS})
    evidence = bench.run("python3 -m pytest -q $SEALED", "pytest", Level.SEALED)
    assert evidence.verdict == "missing" and "no junit report" in evidence.reason


def test_stored_bytecode_is_not_believed(bench):
    """Bytecode of the right code, dated to fit the wrong source beside it."""
    source = bench.workspace / "calc.py"
    bench.write({"calc.py": RIGHT})
    os.utime(source, (1_700_000_000, 1_700_000_000))
    py_compile.compile(str(source), doraise=True)
    bench.write({"calc.py": WRONG})
    os.utime(source, (1_700_000_000, 1_700_000_000))
    bench.write({"tests/test_calc.py": TESTS})
    bench.seal({"test_calc.py": TESTS, "judge.py": JUDGE})
    pinned = {"files": str(bench.sealed), "files_digest": digest_directory(str(bench.sealed))}
    sealed = Criterion("sealed", RunCheck("python3 -m pytest -q $SEALED", "pytest"), Level.SEALED, **pinned)
    oracle = Criterion("oracle", OracleCheck("judge.py"), Level.SEALED, **pinned)
    assert bench.run("python3 -c 'import calc; assert calc.add(2, 3) == 5'").passed  # the control: it would be
    assert [bench.judge(check).verdict for check in (sealed, oracle)] == ["fail", "fail"]


FORGE = """
import os, sys
seal = sys.modules.get("setpoint_seal")
name = seal._REPORT if seal else os.read(0, 200).decode().strip()
open(os.path.join("/out", name), "w").write('<testsuite><testcase name="a"/><testcase name="b"/></testsuite>')
os._exit(0)
"""


@pytest.mark.parametrize(
    "place",
    [
        "pytest.py",
        "sitecustomize.py",
        "usercustomize.py",
        "pluggy.py",
        "dataclasses.py",
        "conftest.py",
        "setpoint_seal.py",
    ],
)
def test_no_file_of_the_candidate_runs_in_the_judge_by_being_there(bench, place):
    """R140: each would forge a report with the right name if it were ever imported."""
    bench.write({"calc.py": WRONG, "test_calc.py": "def test_a(): pass\n", place: FORGE, f"src/{place}": FORGE})
    bench.seal({"test_calc.py": TESTS})
    for command in ("python3 -m pytest -q $SEALED", "cd $SEALED && pytest -q"):
        assert bench.run(command, "pytest", Level.SEALED).verdict == "fail"
    assert bench.run("python3 -m pytest -q $SEALED test_calc.py", "pytest", Level.SEALED).verdict == "missing"


def test_the_forgery_of_the_test_before_does_work_once_imported(bench):
    """The control, and the stated limit of a judge that shares its process with the candidate."""
    bench.write({"calc.py": FORGE})
    bench.seal({"test_calc.py": TESTS})
    assert bench.run("python3 -m pytest -q $SEALED", "pytest", Level.SEALED).passed


def test_a_sealed_script_imports_the_candidate_behind_the_library(bench):
    """R140: the order of imports holds for every Python a sealed check starts, not for pytest alone."""
    bench.seal(
        {"check.py": "import random, helper, calc\nassert calc.add(2, 3) == helper.FIVE\n", "helper.py": "FIVE = 5\n"}
    )
    bench.write({"calc.py": RIGHT})
    assert bench.run("python3 $SEALED/check.py", "exit", Level.SEALED).passed
    shadows = dict.fromkeys(("random.py", "helper.py", "sitecustomize.py", "encodings.py"), "import os; os._exit(0)\n")
    bench.write({"calc.py": WRONG, **shadows})
    assert bench.run("python3 $SEALED/check.py", "exit", Level.SEALED).verdict == "fail"


@pytest.mark.parametrize("how", ["sys.exit(0)", "raise KeyboardInterrupt", "import pytest; pytest.exit('done', 0)"])
def test_ending_the_session_from_inside_is_no_pass(bench, how):
    """CASES G1"""
    bench.write({"calc.py": f"import sys\n{how}\n"})
    bench.seal({"test_calc.py": TESTS})
    assert not bench.run("python3 -m pytest -q $SEALED", "pytest", Level.SEALED).passed
