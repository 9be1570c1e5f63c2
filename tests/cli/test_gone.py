"""What a trajectory was accepted with may change or vanish; then it ends plainly, and can still be ended and read."""

from __future__ import annotations

import shutil

from .conftest import ASK, CALC, FIX, TASK, TOUCH, Shell


def test_a_trajectory_whose_workspace_and_script_are_gone_can_be_cancelled_and_read(shell: Shell):
    """R226, L11"""
    shell.lay(TASK, TOUCH, ASK)
    shell.run("converge", code=13)
    shutil.rmtree(shell.directory / "ws")
    (shell.directory / "script.yaml").unlink()
    assert shell.json("cancel")["state"] == "CANCELLED"
    assert shell.json("why")["status"] == "cancelled"
    shell.run("replay")


def test_resuming_one_whose_workspace_is_gone_is_drift_17(shell: Shell):
    shell.lay(TASK, ASK, FIX)
    shell.run("converge", code=13)
    shell.run("answer", "go on")
    shutil.rmtree(shell.directory / "ws")
    assert "there is no directory" in shell.run("resume", code=17).stdout


def test_one_whose_work_somebody_else_did_meanwhile_ends_converged(shell: Shell):
    """L4: before it fails, the tree that is there now is judged."""
    wait = """\
  - {sleep: 2s, calls: [{name: shell_exec, arguments: {command: "true"}}]}
"""
    shell.lay(TASK, wait)
    process = shell.start("converge", "--json")
    assert process.stdout is not None
    for line in process.stdout:
        if '"ContextBuilt"' in line:
            shell.write("ws/src/calc.py", CALC.replace("a - b", "a + b"))
            break
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert shell.json("why")["status"] == "converged"
