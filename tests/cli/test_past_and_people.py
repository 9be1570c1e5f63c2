"""resume, recover, undo, rollback, fork, answer, pause, cancel, kill."""

from __future__ import annotations

import json
import signal

from .conftest import ASK, CALC, FIX, SLEEP, TASK, TOUCH, Shell, script


def test_undo_restores_what_was_there_and_is_recorded(shell: Shell):
    """R188"""
    shell.lay(TASK, FIX)
    shell.run("converge")
    assert shell.json("undo")["paths"] == ["src/calc.py"]
    assert shell.read("ws/src/calc.py") == CALC
    assert shell.json("describe")["undo"][0]["state"] == "undone"
    assert "nothing to undo" in shell.run("undo", code=2).stderr
    assert shell.json("why")["status"] == "undone"
    assert "undone already" in shell.run("undo", shell.newest(), code=2).stderr


def test_undo_never_reaches_for_an_older_trajectory(shell: Shell):
    """An older commit may be another project's; what writes does not guess."""
    shell.lay(TASK, FIX)
    shell.run("converge")
    first = shell.newest()
    shell.run("undo")
    shell.run("converge", "--model", "scripted:script.yaml")
    shell.lay(TASK, ASK)
    shell.write("ws/src/calc.py", CALC)
    shell.run("converge", code=13)
    refused = shell.run("undo", code=2).stderr
    assert "no commit that stands" in refused and first not in refused


def test_undo_passes_over_plans(shell: Shell):
    shell.lay(TASK, FIX)
    shell.run("converge")
    committed = shell.newest()
    shell.run("plan")
    assert shell.json("undo")["trajectory_id"] == committed


def test_undo_of_a_file_changed_since_is_a_conflict_15(shell: Shell):
    shell.lay(TASK, FIX)
    shell.run("converge")
    shell.write("ws/src/calc.py", "mine\n")
    assert "src/calc.py" in shell.run("undo", code=15).stderr
    assert shell.read("ws/src/calc.py") == "mine\n"


def test_rollback_goes_back_to_a_savepoint_and_resume_goes_on(shell: Shell):
    """R188"""
    shell.lay(TASK, TOUCH, ASK, FIX)
    shell.run("converge", code=13)
    assert shell.json("get", shell.newest())["savepoint"] == 1
    assert shell.json("rollback", "--to", "0")["savepoint"] == 0
    shell.run("answer", "go on")
    shell.run("resume")
    assert not (shell.directory / "ws/src/x.txt").exists()
    assert "a + b" in shell.read("ws/src/calc.py")


def test_fork_lives_again_from_a_past_turn_under_its_own_id(shell: Shell):
    """R185"""
    shell.lay(TASK, TOUCH, ASK)
    shell.run("converge", code=13)
    parent = shell.newest()
    shell.write("fix.yaml", script(FIX))
    told = shell.json("fork", "--turn", "1", "--model", "scripted:fix.yaml")
    assert (told["parent"], told["turn"]) == (parent, 1)
    assert told["trajectory_id"] != parent
    shell.run("resume", told["trajectory_id"])
    assert "a + b" in shell.read("ws/src/calc.py")
    assert (shell.directory / "ws/src/x.txt").exists()
    assert shell.json("get", told["trajectory_id"])["parent"] == parent


def test_fork_of_a_turn_that_never_was_is_a_usage_error(shell: Shell):
    shell.lay(TASK, ASK)
    shell.run("converge", code=13)
    assert "turn 7" in shell.run("fork", "--turn", "7", code=2).stderr


def test_pause_and_cancel_of_a_waiting_trajectory(shell: Shell):
    """R226"""
    shell.lay(TASK, ASK, FIX)
    shell.run("converge", code=13)
    assert "resumed" in shell.json("pause", "--reason", "lunch")["message"]
    assert shell.json("cancel")["state"] == "CANCELLED"
    told = shell.json("why")
    assert (told["status"], told["exit_code"]) == ("cancelled", 11)
    assert "does not apply" in shell.run("kill", code=2).stderr
    assert "is finished" in shell.run("answer", "late", code=2).stderr


def test_an_ambiguous_start_of_an_id_lists_the_candidates(shell: Shell):
    shell.lay(TASK, ASK)
    shell.run("converge", code=13)
    shell.run("converge", code=13)
    first, second = (one["trajectory_id"] for one in shell.json("get")["trajectories"])
    said = shell.run("get", "tr-", code=2).stderr
    assert first in said
    assert second in said


def wait_for(lines, name: str) -> list[str]:
    """Envelopes read until one of type ``name`` came."""
    seen: list[str] = []
    for line in lines:
        seen.append(json.loads(line)["type"])
        if seen[-1] == name:
            return seen
    raise AssertionError(f"{name} never came: {seen}")


def test_a_signal_during_an_action_ends_it_and_leaves_the_trajectory_to_resume(shell: Shell):
    """R226: the process tree of the action dies with the command; the log says where to go on."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        shell.lay(TASK, SLEEP)
        process = shell.start("converge", "--json")
        assert process.stdout is not None
        assert process.stderr is not None
        wait_for(process.stdout, "ToolIntent")
        process.send_signal(signum)
        rest, said = process.stdout.read(), process.stderr.read()
        assert process.wait(20) == 128 + signum
        name = shell.newest()
        assert said == (
            f"setpoint: interrupted; {name} stands where its log ends. Go on with: setpoint resume {name}\n"
        ), rest
        assert shell.json("why")["status"] == "interrupted"
        assert shell.json("top")["trajectories"][0]["trajectory_id"] == name


def test_resume_after_an_interruption_asks_no_model_again(shell: Shell):
    """R175, R178"""
    shell.lay(TASK, SLEEP.replace("sleep 613.25", "test -e /tmp/never || sleep 0.5; echo x > src/x.txt"), FIX)
    process = shell.start("converge", "--json")
    assert process.stdout is not None
    wait_for(process.stdout, "ToolIntent")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    assert shell.json("why")["status"] == "interrupted"
    told = shell.json("recover")
    assert [one["exit_code"] for one in told["recovered"]] == [0]
    events = [json.loads(line) for line in shell.run("events", "--json", "--type", "ModelReplied").stdout.splitlines()]
    assert [event["turn"] for event in events] == [1, 2]
    assert "nothing to recover" in shell.run("recover").stdout


def test_kill_reaches_a_running_trajectory_at_once(shell: Shell):
    """R226"""
    shell.lay(TASK, SLEEP)
    process = shell.start("converge", "--json")
    assert process.stdout is not None
    wait_for(process.stdout, "ToolIntent")
    assert "ends at once" in shell.json("kill")["message"]
    process.communicate(timeout=20)
    assert process.returncode == 11
    assert shell.json("why")["reason"] == "Killed"


def test_kill_of_a_trajectory_without_a_worker_runs_nothing_of_it(shell: Shell):
    """R226"""
    shell.lay(TASK, SLEEP.replace("sleep 613.25", "sleep 2; echo x > src/x.txt"))
    process = shell.start("converge", "--json")
    assert process.stdout is not None
    wait_for(process.stdout, "ToolIntent")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert shell.json("kill")["state"] == "CANCELLED"
    assert shell.inside("events", "--type", "ToolResult") == ""
