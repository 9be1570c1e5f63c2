"""approvals, approve, deny, approvers: people decide from the log alone; what would not count is not delivered."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from .shop import Shop, until


@pytest.fixture
def asked(shop: Shop) -> Shop:
    """A run of a customer's that waits for ops; anna of ops signs with the installation's own key."""
    shop.run_order("big", "A-1", "--as", "customer:17", code=13)
    shop.run("approvers", "add", "anna", "--role", "ops")
    return shop


def key_of(shop: Shop, name: str) -> Path:
    """An own key of another person's: that of another installation."""
    home = shop.home.parent / name
    line = json.loads(shop.run("approvers", "key", "--json", SETPOINT_HOME=str(home)).stdout)
    return Path(line["private_key"])


def public_of(shop: Shop, name: str) -> str:
    return json.loads(shop.run("approvers", "key", "--json", SETPOINT_HOME=str(shop.home.parent / name)).stdout)["key"]


def inbox_is_empty(shop: Shop) -> bool:
    from setpoint.adapters.stores import open_log

    log = open_log(f"sqlite:///{shop.home}/setpoint.db", lambda: 0)
    try:
        return log.inbox("A-1") == []
    finally:
        asyncio.run(log.close())


def test_a_ticket_is_listed_shown_approved_and_the_run_goes_on(asked: Shop):
    """R123, R125, D1"""
    (one,) = asked.json("approvals")["approvals"]
    assert (one["stream"], one["requester"], one["roles"]) == ("A-1", "customer:17", ["ops"])
    assert one["standing"] == "still needs 1 of ops"
    text = asked.run("approvals").stdout.splitlines()
    assert text[0].split()[0] == "TICKET" and "pay 500 for A-1" in text[1]
    shown = asked.inside("approvals", "show", one["ticket_id"])
    for label in ("Action", "Arguments", "Target", "Authority", "Preview", "Preconditions", "Requested by", "For",
                  "Budget", "Needs", "Requested at", "Expires", "Decided on", "Rules", "Ticket", "Digest"):  # fmt: skip
        assert f"\n{label} " in f"\n{shown}", label
    assert asked.inside("approvals", one["ticket_id"][:12]) == shown
    done = asked.run("approve", one["ticket_id"][3:])
    assert done.stdout == f"{one['ticket_id']} approved by anna: granted by anna\n"
    assert "Digest" in done.stderr and "setpoint resume A-1" in done.stderr, "it shows what it signs"
    assert not inbox_is_empty(asked)
    (after,) = asked.json("approvals")["approvals"]
    assert after["standing"] == "granted by anna", "delivered, and not read by a worker yet"
    asked.run("resume", "A-1")
    assert asked.json("approvals") == {"approvals": []}
    assert asked.ledger() == [("pay", "refund:A-1")]
    again = asked.run("approve", one["ticket_id"], code=12)
    assert "is decided already: granted by anna" in again.stderr
    assert asked.json("approvals", "show", one["ticket_id"])["outcome"] == "granted"


def test_people_decide_without_the_application(asked: Shop):
    (asked.directory / "shop.py").unlink()
    asked.environment.clear()
    assert "granted by anna" in asked.run("approve", asked.ticket()).stdout


def test_an_application_that_cannot_be_loaded_is_told_and_the_roster_still_counts(asked: Shop):
    asked.write("shop.py", "import nothing_of_that_name\n")
    done = asked.run("approve", asked.ticket())
    assert "granted by anna" in done.stdout
    assert "approvers of the application are left out" in done.stderr and "shop.py:1" in done.stderr


def test_approvers_that_the_application_declares_count(asked: Shop):
    key, line = key_of(asked, "bob"), public_of(asked, "bob")
    asked.write("shop.py", asked.read("shop.py") + f'app.approver("bob", roles=["ops"], key={line!r})\n')
    assert "granted by bob" in asked.run("approve", asked.ticket(), "--key", str(key)).stdout
    asked.run("resume", "A-1")
    assert asked.ledger() == [("pay", "refund:A-1")]


def test_an_unknown_key_is_told_before_anything_is_delivered(asked: Shop):
    """R124"""
    key, line = key_of(asked, "eve"), public_of(asked, "eve")
    refused = asked.run("approve", asked.ticket(), "--key", str(key), "--as", "eve", code=12)
    assert f"nobody's in the roster {asked.home}/approvers.yaml" in refused.stderr
    assert f"- {{name: eve, roles: [ops], key: {line}}}" in refused.stderr
    assert inbox_is_empty(asked)
    # The line is one that the roster takes, and the command is one that adds it.
    asked.run("approvers", "add", "eve", "--role", "ops", "--key", line)
    assert "granted by eve" in asked.run("approve", asked.ticket(), "--key", str(key)).stdout


@pytest.mark.parametrize(
    ("name", "role", "options", "said"),
    [
        ("customer:17", "ops", (), "customer:17 asked for this; somebody else has to decide"),
        ("carl", "finance", (), "carl is not one of ops"),
        ("carl", "ops", ("--as", "anna"), "the key is that of carl, the decision says anna"),
    ],
)
def test_a_decision_that_would_not_count_is_refused_with_12(
    asked: Shop, name: str, role: str, options: tuple[str, ...], said: str
):
    key, line = key_of(asked, "carl"), public_of(asked, "carl")
    asked.run("approvers", "add", name, "--role", role, "--key", line)
    refused = asked.run("approve", asked.ticket(), "--key", str(key), *options, code=12)
    assert said in refused.stderr and refused.stdout == ""
    assert inbox_is_empty(asked)


def test_who_starts_a_run_at_the_terminal_is_who_asks(shop: Shop):
    """R129: nobody approves what they asked for themselves, also when they forget to say who they are."""
    from setpoint.cli.finding import me

    shop.run_order("big", "A-1", code=13)
    shop.run("approvers", "add", me(), "--role", "ops")
    assert "somebody else has to decide" in shop.run("approve", shop.ticket(), code=12).stderr


def test_a_denial_ends_the_run_with_12_and_nothing_is_paid(asked: Shop):
    told = asked.json("deny", asked.ticket(), "--reason", "not our customer")
    assert (told["ruling"]["outcome"], told["ruling"]["by"]) == ("denied", ["anna"])
    done = asked.run("resume", "A-1", code=12)
    assert "denied by anna: not our customer" in done.stderr
    assert asked.ledger() == []


def test_a_ticket_that_expired_is_gone_from_the_list_and_refused_with_12(shop: Shop):
    """D4, R127"""
    shop.run("approvers", "add", "anna", "--role", "ops")
    done = shop.run_order("brief", "A-1", "--as", "customer:17", code=None)  # it may wait for the expiry itself
    ticket = next(word for word in done.stderr.split() if word.startswith("ap-")).rstrip(",:")
    until(lambda: shop.json("approvals") == {"approvals": []})
    assert "expired" in shop.run("approve", ticket, code=12).stderr
    assert shop.json("approvals", "show", ticket)["outcome"] == "expired"
    assert shop.ledger() == []


def test_two_roles_need_two_people_and_saying_it_twice_adds_nothing(asked: Shop):
    """R129"""
    asked.run("deny", asked.ticket())
    asked.run_order("two", "B-1", "--as", "customer:17", code=13)
    (ticket,) = [one["ticket_id"] for one in asked.json("approvals")["approvals"] if one["stream"] == "B-1"]
    told = asked.json("approve", ticket)
    assert (told["ruling"]["outcome"], told["ruling"]["missing"], told["next"]) == ("waiting", [["finance"]], None)
    assert not asked.json("approve", ticket)["delivered"]
    key, line = key_of(asked, "fred"), public_of(asked, "fred")
    asked.run("approvers", "add", "fred", "--role", "finance", "--role", "ops", "--key", line)
    assert "granted by anna, fred" in asked.run("approve", ticket, "--key", str(key)).stdout
    asked.run("resume", "B-1")
    assert ("pay", "refund:B-1") in asked.ledger()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_an_ssh_key_signs(asked: Shop):
    path = asked.directory / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    refused = asked.run("approve", asked.ticket(), "--key", "id", code=12)
    assert "nobody's in the roster" in refused.stderr
    asked.run("approvers", "add", "dora", "--role", "ops", "--key", "id.pub")
    assert "granted by dora" in asked.run("approve", asked.ticket(), "--key", "id").stdout
    asked.run("resume", "A-1")
    assert asked.ledger() == [("pay", "refund:A-1")]
    assert "is a private key" in asked.run("approvers", "add", "x", "--role", "y", "--key", "id", code=2).stderr


def test_what_there_is_not_is_said(shop: Shop):
    assert shop.run("approvals").stderr == "no approval is asked for\n"
    assert "there is no ticket 'ap-nope'" in shop.run("approve", "ap-nope", code=2).stderr


# The roster


def test_adding_an_approver_keeps_the_file_as_it_was_but_for_the_new_entry(shop: Shop):
    first = public_of(shop, "one")
    roster = shop.home / "approvers.yaml"
    roster.write_text(f"# ours\napprovers:\n- name: one  # the first\n  roles: [ops]\n  key: {first}")
    roster.chmod(0o600)
    shop.run("approvers", "add", "no", "--role", "on call", "--key", public_of(shop, "two"))
    text = roster.read_text()
    assert text.startswith(f"# ours\napprovers:\n- name: one  # the first\n  roles: [ops]\n  key: {first}\n- name: ")
    assert stat.S_IMODE(roster.stat().st_mode) == 0o600
    assert [(one["name"], one["roles"]) for one in shop.json("approvers")["approvers"]] == [
        ("one", ["ops"]),
        ("no", ["on call"]),
    ]
    assert sorted(path.name for path in shop.home.iterdir() if "approvers" in path.name) == ["approvers.yaml"]


def test_a_roster_that_cannot_take_an_entry_at_its_end_stands_as_it_was(shop: Shop):
    roster = shop.home / "approvers.yaml"
    before = f"approvers: [{{name: one, roles: [ops], key: {public_of(shop, 'one')}}}]\n"
    roster.write_text(before)
    roster.chmod(0o600)
    refused = shop.run("approvers", "add", "two", "--role", "ops", "--key", public_of(shop, "two"), code=2)
    assert "Add with an editor" in refused.stderr
    assert roster.read_text() == before
    same = shop.run("approvers", "add", "two", "--role", "ops", "--key", public_of(shop, "one"), code=2)
    assert "has the key of one" in same.stderr


def test_approvers_added_at_once_are_all_there(shop: Shop):
    keys = {name: public_of(shop, name) for name in ("a", "b", "c", "d")}
    adding = [shop.start("approvers", "add", name, "--role", "ops", "--key", key) for name, key in keys.items()]
    for process in adding:
        process.communicate(timeout=30)
    assert {one["name"] for one in shop.json("approvers")["approvers"]} == set(keys)


def test_looking_at_the_roster_makes_no_key(shop: Shop):
    assert "nobody may approve" in shop.run("approvers").stderr
    assert shop.json("approvers")["own_key"] is None
    assert not (shop.home / "keys").exists() or not os.listdir(shop.home / "keys")
