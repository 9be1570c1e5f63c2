"""doctor."""

from __future__ import annotations

import json
import stat

from .conftest import TASK, Shell


def test_doctor_tells_tier_limits_domains_store_and_extras(shell: Shell):
    """R067: the four trust domains and what keeps them apart."""
    told = shell.json("doctor")
    assert told["isolation"]["tier"] == "namespaces"
    assert set(told["isolation"]["limits"]) == {"wall", "cpu", "memory", "pids", "output", "disk"}
    assert [d["domain"] for d in told["trust_domains"]] == ["model proposer", "supervisor", "sandbox", "verifier"]
    assert all(d["kept_by"] for d in told["trust_domains"])
    assert told["store"]["durability"] == "power"
    assert {extra["name"] for extra in told["extras"]} == {"openai", "anthropic", "http", "postgres", "pytest"}
    assert told["state"] == {"home": str(shell.home), "mode": "0700"}
    assert stat.S_IMODE(shell.home.stat().st_mode) == 0o700
    text = shell.run("doctor").stdout
    assert "tasks of tier namespaces can run here" in text
    assert "verifier" in text


def test_what_doctor_says_of_a_programs_environment_is_so(shell: Shell):
    shell.lay(TASK)
    shell.write("program.py", "import os, pathlib\npathlib.Path('seen').write_text(os.environ.get('MY_SECRET', ''))\n")
    shell.run("converge", "--model", "command:python3 program.py", code=11, MY_SECRET="s3")
    seen = shell.read("seen")
    (proposer,) = (d for d in shell.json("doctor")["trust_domains"] if d["domain"] == "model proposer")
    assert (seen == "s3") == ("with the whole environment of this process" in proposer["kept_by"])


def test_a_machine_that_cannot_isolate_is_told_so_with_12(shell: Shell):
    """The probe's own answer, weakened: doctor judges by what was found, not by what is installed."""
    cache = shell.home / "cache" / "sandbox-probe.json"
    document = json.loads(cache.read_text())
    document["found"] |= {"rung": "none", "bwrap": "", "hints": ["do this"], "unenforced": ["pids", "disk"]}
    cache.write_text(json.dumps(document))
    told = shell.json("doctor", code=12)
    assert told["isolation"]["tier"] == "none"
    assert not told["isolation"]["limits"]["disk"]
    text = shell.run("doctor", code=12).stdout
    assert "refused here" in text
    assert "hint: do this" in text
    assert shell.json("doctor", "--fresh")["isolation"]["tier"] == "namespaces"


def test_a_store_that_cannot_be_used_is_named(shell: Shell):
    told = shell.json("doctor", "--store", f"postgresql://me:s3cret@/x?host={shell.home}")["store"]
    assert (told["usable"], told["url"].partition("?")[0]) == (False, "postgresql://me:***@/x")
    assert "cannot be reached" in told["problem"] and "s3cret" not in told["problem"]


def test_doctor_tells_who_may_approve_and_which_tests_a_postgres_server_is_there_for(shell: Shell):
    told = shell.json("doctor")
    assert (told["approvals"]["found"], told["approvals"]["own_key"]) == (False, None)
    assert "nobody can approve" in shell.inside("doctor")
    shell.run("approvers", "add", "anna", "--role", "ops")
    told = shell.json("doctor")["approvals"]
    assert (told["approvers"], told["problem"]) == (1, None)
    (shell.home / "approvers.yaml").write_text("approvers: []\n")
    assert "at least one" in shell.json("doctor")["approvals"]["problem"]
    server = shell.json("doctor")["postgres_server"]
    assert (server["programs"] is None) == (server["problem"] is not None)
