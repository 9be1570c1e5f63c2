"""certificate show, export, verify."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Shell


def exported(toured: Shell, where: Path) -> tuple[Path, Path]:
    certificate, key = where / "fix.cert.json", where / "pub.pem"
    toured.run("certificate", "export", "-o", str(certificate), "--key-out", str(key))
    return certificate, key


def test_show_names_each_check_and_what_was_covered(toured: Shell):
    told = toured.json("certificate", "show")
    assert told["valid"]
    assert [c["outcome"] for c in told["checks"]] == ["passed"] * 7 + ["not made"] * 2
    assert told["certified"]["level"]["reached"] == "sealed"
    text = toured.run("certificate", "show").stdout
    assert "criteria/gold: pass at sealed" in text


def test_an_exported_certificate_verifies_elsewhere_with_file_and_key_alone(
    toured: Shell, shell: Shell, tmp_path: Path
):
    certificate, key = exported(toured, tmp_path)
    assert shell.json("certificate", "verify", str(certificate), "--key", str(key))["valid"]
    assert toured.json("certificate", "verify", str(certificate))["valid"]
    shell.run("certificate", "verify", "-", "--key", str(key), stdin=certificate.read_text())
    assert toured.run("certificate", "export").stdout == certificate.read_text()


def test_another_installations_key_does_not_do(toured: Shell, shell: Shell, tmp_path: Path):
    certificate, _ = exported(toured, tmp_path)
    done = shell.run("certificate", "verify", str(certificate), code=19)
    assert "NOT VALID" in done.stdout
    assert "not a trusted key" in done.stdout


def test_any_altered_byte_fails_with_19(toured: Shell, tmp_path: Path):
    certificate, key = exported(toured, tmp_path)
    text = certificate.read_text()
    for old, new in (('"events":[', '"events":[ '), ("rolled_back", "rolled_bacK"), ("fix-add", "fix-adf")):
        assert old in text
        certificate.write_text(text.replace(old, new, 1))
        toured.run("certificate", "verify", str(certificate), "--key", str(key), code=19)


def test_the_task_and_the_workspace_can_be_held_against_it(toured: Shell, shell: Shell, tmp_path: Path):
    certificate, key = exported(toured, tmp_path)
    verify = ["certificate", "verify", str(certificate), "--key", str(key)]
    workspace = str(toured.directory / "ws")
    told = json.loads(toured.run(*verify, "--task", "task.yaml", "--workspace", workspace, "--json").stdout)
    assert told["drift"] is None
    shell.lay()
    assert "is about the task" in shell.run(*verify, "--task", "task.yaml", code=19).stdout
    assert shell.run(*verify, "--workspace", "ws", code=17).stdout


def test_what_is_no_certificate_or_no_key_is_told_apart(toured: Shell, tmp_path: Path):
    certificate, _ = exported(toured, tmp_path)
    (tmp_path / "junk").write_text("junk\n")
    toured.run("certificate", "verify", str(tmp_path / "junk"), code=19)
    toured.run("certificate", "verify", str(tmp_path / "gone"), code=2)
    said = toured.run("certificate", "verify", str(certificate), "--key", str(tmp_path / "junk"), code=2).stderr
    assert "holds no public key" in said


def test_approvals_are_held_against_the_people_of_a_roster_in_json(toured: Shell, shell: Shell, tmp_path: Path):
    certificate, key = exported(toured, tmp_path)
    verify = ("certificate", "verify", str(certificate), "--key", str(key))
    shell.run("approvers", "add", "anna", "--role", "ops")
    shell.write("roster.json", shell.run("approvers", "--json").stdout)
    told = {one["name"]: one["outcome"] for one in shell.json(*verify, "--approvers", "roster.json")["checks"]}
    assert told["approvers"] == "passed"
    assert {one["name"]: one["outcome"] for one in shell.json(*verify)["checks"]}["approvers"] == "not made"
    shell.write("roster.json", "[]")
    assert "no roster in JSON" in shell.run(*verify, "--approvers", "roster.json", code=2).stderr
