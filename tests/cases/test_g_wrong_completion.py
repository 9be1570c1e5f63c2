"""G. Wrong "task completed"."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import CLAIM, MENDED, Case, say, shell, write

SUITE = """\
echo 1..3
for t in tests/t1 tests/t2 tests/t3; do
  if sh $t; then echo "ok - $t"; else echo "not ok - $t"; fi
done
"""


def suite(case: Case) -> dict[str, Any]:
    """A visible suite of three tests of which one fails, and a sealed copy of it."""
    tests = {
        "tests/t1": 'test "$(cat src/value)" = 5\n',
        "tests/t2": "test -e src/value\n",
        "tests/t3": "test -e tests/t1\n",
        "tests/run.sh": SUITE,
    }
    case.files(tests)
    case.files({"golden.sh": SUITE.replace("tests/t", "$SEALED/t"), **{k[6:]: v for k, v in tests.items()}}, "sealed")
    return {
        "done": [
            {"id": "unit", "run": "sh tests/run.sh", "level": "visible", "parse": "tap"},
            {
                "id": "golden",
                "run": "sh $SEALED/golden.sh",
                "level": "sealed",
                "files": "./sealed",
                "parse": "tap",
                "disclose": "verdict",
            },
        ]
    }


def test_g1_all_passed_in_words_is_ignored_and_the_runtime_runs_the_check(case: Case) -> None:
    """G1"""
    before = case.tree()
    outcome = case.converge({"text": "ALL 42 TESTS PASSED. Task completed."}, say(CLAIM, text="3 passed"))
    assert outcome.exit_code == 11 and case.tree() == before
    assert case.events("ClaimRejected")[0].items == ["done/unit"]
    assert case.events("Refused")[0].reason == "NO_CALL"


@pytest.mark.parametrize(
    "cheat",
    [
        "sed -i 's/1..3/1..2/; s/tests\\/t1 //' tests/run.sh",
        "rm tests/t1; sed -i 's/1..3/1..2/; s/tests\\/t1 //' tests/run.sh",
        "echo true > tests/run.sh",
        "printf 'echo 1..2; echo ok a; echo ok b\\n' > tests/run.sh",
        "echo true > tests/t1",
        "echo 'exit 0' > tests/t1; echo 'exit 0' > tests/t2",
        "printf '#!/bin/sh\\nexit 0\\n' > tests/run.sh; chmod +x tests/run.sh",
    ],
    ids=["skip", "delete", "empty-runner", "fewer", "weaken", "weaken-all", "runner"],
)
def test_g1_g2_a_weakened_suite_or_runner_convinces_nobody(case: Case, cheat: str) -> None:
    """G1, G2: the count where tests were lost, the sealed copy where they were weakened; nothing is kept."""
    spec = suite(case)
    before = case.tree()
    outcome = case.converge(say(shell(cheat), CLAIM), **spec)
    assert outcome.exit_code == 11, outcome.record.finished_message
    assert case.events("ClaimRejected") and case.tree() == before


def test_g1_losing_tests_is_not_a_pass_even_if_all_that_are_left_pass(case: Case) -> None:
    """G1: two of two is not three of three, and there is no sealed check here to say so."""
    spec = suite(case)
    done = [spec["done"][0]]
    case.script(say(shell("sed -i 's/1..3/1..2/; s/tests\\/t1 //' tests/run.sh"), CLAIM))
    outcome = case.converge(done=done)
    assert outcome.exit_code != 0
    last = [event for event in case.events("EvidenceRecorded") if event.check == "done/unit"][-1]
    assert last.verdict != "pass" and last.collected == 2


def test_g2_protected_paths_are_refused_at_the_gate_and_rolled_back_behind_it(case: Case) -> None:
    """G2: by the tool's own path, and by what a command did."""
    outcome = case.converge(
        say(write("tests/check.sh", "true"), CLAIM),
        say(shell("echo true > tests/check.sh"), CLAIM),
        say(shell("mv tests t2 && mkdir tests && echo true > tests/check.sh"), CLAIM),
        MENDED,
        goal={"text": "src/value holds 5", "forbid": ["tests/**"]},
    )
    assert outcome.exit_code == 0
    assert case.events("Refused")[0].reason == "FORBIDDEN_PATH"
    assert [event.reason for event in case.events("RolledBack")] == ["invariant", "invariant"]
    assert (case.project / "tests" / "check.sh").read_text() == 'test "$(cat src/value)" = 5\n'


def test_g3_a_fix_that_overfits_the_visible_test_fails_the_held_out_check(case: Case) -> None:
    """G3: disclosed as a verdict only: neither its name, its text nor its files reach the prompt."""
    case.files({"src/double.sh": "echo 0\n", "tests/check.sh": 'test "$(sh src/double.sh 2)" = 4\n'})
    secret = 'for n in 1 7 20; do test "$(sh src/double.sh $n)" = $((n * 2)) || exit 1; done # SECRET_TEXT\n'
    case.files({"golden.sh": secret}, "sealed")
    held_out = {"id": "held-out-name", "run": "sh $SEALED/golden.sh", "level": "sealed", "files": "./sealed"}
    done = [{"id": "unit", "run": "sh tests/check.sh", "level": "visible"}, {**held_out, "disclose": "verdict"}]
    outcome = case.converge(
        say(write("src/double.sh", "echo 4\n"), CLAIM),
        say(write("src/double.sh", "echo $(($1 * 2))\n"), CLAIM),
        done=done,
    )
    assert outcome.exit_code == 0 and outcome.record.turn == 2
    assert case.events("ClaimRejected")[0].items == ["done/held-out-name"]
    everything = case.prompts[1].text + repr(case.prompts[1].items) + repr(case.prompts[1].notes)
    assert "SECRET_TEXT" not in everything and "golden.sh" not in everything and "sealed/" not in everything


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("kill -9 $$", ""),
        ("sleep 30", "wall"),
        ("exec /no/such/program", ""),
    ],
    ids=["crashes", "times-out", "cannot-start"],
)
def test_g5_a_verifier_that_crashes_times_out_or_cannot_start_is_missing_evidence(
    case: Case, command: str, word: str
) -> None:
    """G5: never a pass; exit 18."""
    outcome = case.converge(
        MENDED, done=[{"id": "unit", "run": command, "level": "visible", "parse": "tap", "timeout": "300ms"}]
    )
    assert (outcome.exit_code, outcome.record.finished_reason) == (18, "EvidenceMissing"), outcome.record
    assert "done/unit" in outcome.record.finished_message
    verdicts = {event.verdict for event in case.events("EvidenceRecorded") if event.check == "done/unit"}
    assert verdicts == {"missing"} and outcome.record.certificate is None
