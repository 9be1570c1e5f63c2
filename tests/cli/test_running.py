"""diff, plan, apply, converge: outcomes, exit codes, what is said where."""

from __future__ import annotations

import json
import os

from setpoint.adapters.stores.export import verify_lines

from .conftest import ASK, EXPLORE, FIX, PYTEST_TASK, TAMPER, TASK, TOUCH, Shell, script


def test_the_tour_converges_and_says_what_happened(toured: Shell):
    """R141: a claim over a weakened test is rejected and rolled back; the right fix is committed and certified."""
    out, err = toured.read("converge.out"), toured.read("converge.err")
    assert out.startswith("converged  fix-add: ")
    assert "src/calc.py" in out
    assert "\x1b" not in out + err
    assert [line.split()[:2] for line in err.splitlines() if line.startswith("turn ")] == [
        ["turn", "1"],
        ["turn", "2"],
        ["turn", "3"],
    ]
    assert "rolled back" in err
    assert "a + b" in toured.read("ws/src/calc.py")
    assert "add(2, 3) == 5" in toured.read("ws/tests/test_calc.py")


def test_diff_measures_without_a_model_and_without_a_trace(shell: Shell):
    """R002: what is in the files now is measured, whatever was measured before."""
    shell.lay()
    done = shell.run("diff")
    assert done.stdout.splitlines()[0].split() == ["ITEM", "DISTANCE", "LEVEL", "VERDICT", "REASON"]
    shell.run("diff", "--detailed-exitcode", code=10)
    told = shell.json("diff")
    assert told["progress"] == [0, 2, 2]
    assert told["distance"] == 2
    assert {(i["address"], i["level"], i["verdict"]) for i in told["items"]} == {
        ("done/unit", "visible", "fail"),
        ("done/gold", "sealed", "fail"),
    }
    assert told["fingerprint"].startswith("sha256:")
    assert shell.json("get")["trajectories"] == []
    shell.write("ws/src/calc.py", "def add(a, b):\n    return a + b\n")
    shell.run("diff", "--detailed-exitcode", code=0)


def test_converge_prints_one_chained_envelope_a_line(shell: Shell):
    shell.lay(TASK, FIX)
    done = shell.run("converge", "--json")
    lines = done.stdout.splitlines()
    envelopes = [json.loads(line) for line in lines]
    assert list(envelopes[0]) == ["stream", "seq", "turn", "type", "v", "at", "prev", "hash", "data"]
    assert [one["seq"] for one in envelopes] == list(range(1, len(lines) + 1))
    assert envelopes[0]["type"] == "TaskAccepted"
    assert envelopes[-1]["type"] == "Finished"
    assert verify_lines(lines).hash == envelopes[-1]["hash"]
    assert shell.run("events", "--json").stdout == done.stdout


def test_a_converged_tree_needs_no_model(shell: Shell):
    shell.lay(TASK, FIX)
    shell.write("ws/src/calc.py", "def add(a, b):\n    return a + b\n")
    shell.run("converge")
    assert shell.json("describe")["spent"]["turns"] == 0


def test_routes_of_the_command_line_are_relative_to_where_one_stands(shell: Shell):
    shell.lay(TASK, EXPLORE)
    shell.write("elsewhere/mine.yaml", script(FIX))
    below = shell.directory / "elsewhere"
    below.joinpath("deep").mkdir()
    inner = Shell(below, shell.home)
    inner.run("converge", "-f", "../task.yaml", "--model", "scripted:mine.yaml")
    assert shell.json("describe")["models"] == [f"scripted:{below / 'mine.yaml'}"]


def test_a_task_from_stdin_starts_where_one_stands(shell: Shell):
    shell.lay(TASK, FIX)
    shell.run("converge", "-f", "-", stdin=TASK)
    assert "a + b" in shell.read("ws/src/calc.py")


def test_a_liar_ends_with_11_and_the_tree_is_untouched(shell: Shell):
    """R157: claims alone never converge."""
    shell.lay(TASK, TAMPER)
    done = shell.run("converge", code=11)
    assert done.stdout.startswith("failed  fix-add: ")
    assert "setpoint why" in done.stderr
    assert "add(2, 3) == 5" in shell.read("ws/tests/test_calc.py")
    told = shell.json("why")
    assert (told["exit_code"], told["reason"]) == (11, "RoutesExhausted")
    assert told["tried"]["rolled_back"][0]["reason"] == "invariant"
    assert any("--model" in command for command in told["next"]["how"])


def test_a_question_waits_with_13_until_it_is_answered(shell: Shell):
    shell.lay(TASK, ASK, FIX)
    shell.run("converge", code=13)
    told = shell.json("why")
    assert told["status"] == "asks"
    assert "clamp, or refuse?" in told["next"]["what"]
    assert any("setpoint answer" in command for command in told["next"]["how"])
    shell.run("resume", code=13)
    answered = shell.json("answer", "clamp")
    assert answered["question_id"] == "q1"
    assert answered["next"] == f"setpoint resume {answered['trajectory_id']}"
    done = shell.run("resume", "--json")
    types = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert "TaskAccepted" not in types
    assert types.index("QuestionAnswered") < types.index("Finished")


def test_an_answer_of_unquoted_words_is_a_usage_error(shell: Shell):
    assert "is quoted" in shell.run("answer", "keep", "the", "default", code=2).stderr


def test_a_spent_budget_ends_with_14_and_says_which(shell: Shell):
    shell.lay(TASK.replace("turns: 10", "turns: 1"), EXPLORE, FIX)
    shell.run("converge", code=14)
    told = shell.json("why")
    assert told["reason"] == "Budget:turns"
    assert "spec.budget.turns" in told["next"]["what"]


def test_a_paused_budget_waits_with_14(shell: Shell):
    shell.lay(TASK.replace("turns: 10", "turns: 1").replace("wall: 5m", "wall: 5m, on_exceed: pause"), EXPLORE, FIX)
    shell.run("converge", code=14)
    assert shell.json("why")["status"] == "paused"


def test_isolation_that_is_not_there_is_refused_with_12_and_nothing_starts(shell: Shell):
    shell.lay(TASK.replace("tier: namespaces", "tier: container"))
    done = shell.run("converge", code=12)
    assert "container" in done.stderr
    assert shell.json("get")["trajectories"] == []


def test_a_check_without_a_verdict_ends_with_18(shell: Shell):
    shell.lay(TASK.replace("run: \"grep -q 'a + b' src/calc.py\"", 'run: "kill -9 $$"'), TOUCH)
    shell.run("converge", code=18)
    told = shell.json("why")
    assert told["reason"] == "EvidenceMissing"
    assert told["open"][0]["verdict"] == "missing"
    assert "no certificate" in shell.run("certificate", "show", code=18).stderr


def test_sealed_files_that_changed_meanwhile_are_drift_17(shell: Shell):
    shell.lay(TASK, ASK, FIX)
    shell.run("converge", code=13)
    shell.write("sealed/gold.sh", "true\n")
    shell.run("answer", "go on")
    shell.run("resume", code=17)
    assert shell.json("why")["exit_code"] == 17


def test_a_plan_writes_nothing_and_is_applied_exactly(shell: Shell):
    shell.lay(TASK, FIX)
    done = shell.run("plan", "-o", "fix.plan", "--detailed-exitcode", code=10)
    assert "+    return a + b" in done.stdout
    assert "a - b" in shell.read("ws/src/calc.py")
    assert json.loads(shell.read("fix.plan"))["outcome"] == "converges"
    shell.run("apply", "fix.plan")
    assert "a + b" in shell.read("ws/src/calc.py")


def test_a_stale_plan_is_refused_with_15(shell: Shell):
    shell.lay(TASK, FIX)
    told = shell.json("plan", "-o", "fix.plan")
    assert told["kind"] == "Plan"
    shell.write("ws/src/calc.py", "def add(a, b):\n    return a - b  # mine\n")
    done = shell.run("apply", "-", code=15, stdin=shell.read("fix.plan"))
    assert "plan again" in done.stdout
    assert "# mine" in shell.read("ws/src/calc.py")


def test_what_is_no_plan_is_a_usage_error(shell: Shell):
    shell.write("no.plan", "{}")
    assert "this is no plan" in shell.run("apply", "no.plan", code=2).stderr


def test_the_store_can_be_named_before_or_after_the_verb(shell: Shell):
    shell.lay(TASK, FIX)
    url = f"sqlite:///{shell.directory / 'other.db'}"
    shell.run("--store", url, "converge")
    assert len(shell.json("get", "--store", url)["trajectories"]) == 1
    assert shell.json("get")["trajectories"] == []
    assert json.loads(shell.run("get", "--json", SETPOINT_STORE=url).stdout)["trajectories"]


def test_the_runtime_leaves_nothing_in_the_workspace(shell: Shell):
    shell.lay(TASK, FIX)
    shell.run("converge")
    found = sorted(os.path.relpath(p, shell.directory / "ws") for p in (shell.directory / "ws").rglob("*"))
    assert found == ["src", "src/calc.py", "tests", "tests/test_calc.py"]


def test_the_tour_uses_pytest_as_its_judge():
    """The two tasks of this suite differ in their checks only."""
    assert "parse: pytest" in PYTEST_TASK
    assert "$SEALED/gold.sh" not in PYTEST_TASK


def test_a_route_that_cannot_be_opened_is_refused_before_anything_starts(shell: Shell):
    shell.lay(TASK, FIX)
    said = shell.run("converge", "--model", "scripted:nowhere.yaml", code=2).stderr
    assert "nowhere.yaml" in said
    assert shell.json("get")["trajectories"] == []


def test_a_plan_without_a_proposal_is_refused_before_anything_starts(shell: Shell):
    shell.lay(TASK, FIX)
    shell.write("ws/src/calc.py", "def add(a, b):\n    return a + b\n")
    assert shell.json("plan", "-o", "none.plan")["outcome"] == "converged_already"
    shell.run("apply", "none.plan", code=2)
    assert [one["reason"] for one in shell.json("get")["trajectories"]] == ["Planned"]


def test_a_conflicting_edit_ends_with_15_and_nothing_is_overwritten(shell: Shell):
    shell.lay(TASK, ASK, FIX)
    shell.run("converge", code=13)
    shell.write("ws/src/calc.py", "def add(a, b):\n    return a - b  # mine\n")
    shell.run("answer", "go on")
    shell.run("resume", code=15)
    assert "# mine" in shell.read("ws/src/calc.py")
    told = shell.json("why")
    assert (told["reason"], told["exit_code"]) == ("Conflict", 15)
    assert told["next"]["how"]
    assert "+    return a + b" in shell.run("diff", "--staged").stdout


def test_what_is_staged_can_be_looked_at_while_a_trajectory_waits(shell: Shell):
    shell.lay(TASK, TOUCH, ASK)
    shell.run("converge", code=13)
    told = shell.json("diff", "--staged", "--detailed-exitcode", code=10)
    assert told["changed"] == ["src/x.txt"]
    assert "+x" in told["diff"]
    assert not (shell.directory / "ws/src/x.txt").exists()
    shell.inside("cancel")
    assert "holds nothing staged" in shell.run("diff", "--staged", code=2).stderr


def test_the_next_model_is_named_on_its_turns(shell: Shell):
    shell.lay(TASK, EXPLORE)
    shell.write("second.yaml", script(FIX))
    routes = ("--model", "scripted:script.yaml", "--model", "scripted:second.yaml")
    done = shell.run("converge", *routes)
    turns = [line for line in done.stderr.splitlines() if line.startswith("turn ")]
    assert "script.yaml" in turns[0]
    assert "second.yaml" in turns[-1]
    told = shell.json("why")
    assert told["tried"]["routes"][0]["route"].endswith("second.yaml")
