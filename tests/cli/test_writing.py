"""init, schema, validate, lint, explain."""

from __future__ import annotations

import json

from .conftest import TASK, Shell


def test_init_writes_a_task_that_validates_and_never_overwrites(shell: Shell):
    shell.run("init", "--name", "first")
    assert "valid: task first" in shell.run("validate").stdout
    before = shell.read("task.yaml")
    refused = shell.run("init", code=2)
    assert "exists; it was left as it is" in refused.stderr
    assert shell.read("task.yaml") == before
    assert shell.run("init", "-o", "-", "--name", "first").stdout == before


def test_validate_names_each_problem_at_its_place(shell: Shell):
    shell.lay()
    shell.write("bad.yaml", TASK.replace("budget:", "budgte:"))
    done = shell.run("validate", "-f", "bad.yaml", code=2)
    assert done.stdout == ""
    assert "bad.yaml:19:3:" in done.stderr
    assert "budget" in done.stderr
    told = shell.json("validate", "-f", "bad.yaml", code=2)
    assert not told["valid"]
    assert told["problems"][0]["line"] == 19


def test_validate_reads_stdin_and_says_what_the_task_is(shell: Shell):
    shell.lay()
    done = shell.run("validate", "-f", "-", "--json", stdin=TASK)
    (task,) = json.loads(done.stdout)["tasks"]
    assert task["name"] == "fix-add"
    assert task["exposure"] == "H=10 S2 A1"
    assert (task["required_level"], task["reached_level"]) == ("visible", "sealed")
    assert task["digest"] == shell.json("validate")["tasks"][0]["digest"]


def test_lint_names_weaknesses_and_what_holds_each_rule(shell: Shell):
    """R081"""
    shell.lay()
    assert "paths-bypassed" in shell.run("lint").stdout
    told = shell.json("lint", "--closure")
    assert {"no-held-out-check", "paths-bypassed"} <= {one["code"] for one in told["findings"]}
    assert all(rule["mechanism"] for rule in told["rules"])
    shell.write("words.yaml", TASK.replace("add adds", "Never edit the vendored parser"))
    assert "nothing but the prompt" in shell.run("lint", "-f", "words.yaml", "--closure", code=12).stdout


def test_schema_and_explain_print_what_the_loader_uses(shell: Shell):
    assert json.loads(shell.run("schema", "Task").stdout)["title"] == "Task"
    assert "turns" in shell.inside("explain", "Task.spec.budget")
    assert "file_edit" in shell.inside("explain", "tools")


def test_a_file_of_several_tasks_needs_a_name(shell: Shell):
    shell.lay(TASK + "---\n" + TASK.replace("fix-add", "other"))
    assert "name the one you mean" in shell.run("diff", code=2).stderr
    assert shell.json("diff", "--task", "other")["task"] == "other"


def test_lint_and_validate_place_a_task_that_accepts_no_isolation_as_converge_does(shell: Shell):
    lines = TASK.replace("tier: namespaces", "tier: none").splitlines(keepends=True)
    shell.lay("".join(line for line in lines if "id: gold" not in line))
    told = shell.json("validate")["tasks"][0]
    assert (told["exposure"], told["required_level"]) == ("H=10 S2 A1", "visible")
    assert not {one["code"] for one in shell.json("lint")["findings"] if one["severity"] == "error"}
    assert "does not start" not in shell.run("converge", code=None).stderr
    cache = shell.home / "cache" / "sandbox-probe.json"
    document = json.loads(cache.read_text())
    document["found"] |= {"rung": "none", "bwrap": ""}
    cache.write_text(json.dumps(document))
    assert shell.json("validate")["tasks"][0]["exposure"] == "H=10 S3 A3"
    shell.run("lint", code=12)
    assert "does not start" in shell.run("converge", code=12).stderr
