"""What people and senders are told: who is missing, what came before, whose run it is, and a roster that shrinks."""

from __future__ import annotations

import json

from .shop import Shop
from .test_runs_approving import key_of, public_of


def test_a_signal_that_is_sent_again_after_the_end_is_no_fault(shop: Shop):
    """C3 of the list: a sender of webhooks repeats until it hears a yes."""
    shop.run_order("later", "A-1", code=13)
    shop.run("signal", "A-1", "go", "--key", "k-1")
    shop.run("resume", "A-1")
    again = shop.run("signal", "A-1", "go", "--key", "k-1")
    assert again.stdout == "a signal with the key k-1 came to A-1 before; nothing was added\n"
    assert not shop.json("signal", "A-1", "go", "--key", "k-1")["delivered"]
    assert "does not apply" in shop.run("signal", "A-1", "go", "--key", "k-2", code=2).stderr


def test_runs_of_another_application_are_listed_apart_and_break_nothing(shop: Shop):
    """C4 of the list"""
    shop.run_order("later", "A-1", code=13)
    shop.write("other.py", "from setpoint import App\napp = App('other')\n")
    told = shop.json("migrate", "--dry-run", "--app", "other.py")
    assert told["runs"] == []
    assert [(one["run_id"], one["workflow"]) for one in told["others"]] == [("A-1", "later")]
    said = shop.run("migrate", "--dry-run", "--app", "other.py").stderr
    assert "no run of other is open" in said and "not declared by other" in said and "later (1)" in said
    assert shop.json("migrate", "--dry-run")["others"] == []


def test_a_run_says_at_its_start_which_approvals_nobody_could_give(shop: Shop):
    """C5 of the list"""
    said = shop.run_order("big", "A-1", "--as", "anna", code=13).stderr
    assert "big/pay may ask people, and nobody in the roster has the role ops." in said
    assert "setpoint approvers add NAME --role ops" in said
    shop.run("approvers", "add", "anna", "--role", "ops")
    assert "the role ops beside anna, who asks" in shop.run_order("big", "A-2", "--as", "anna", code=13).stderr
    assert "nobody in the roster" not in shop.run_order("big", "A-3", "--as", "carl", code=13).stderr
    assert "nobody in the roster" not in shop.run_order("later", "A-4", code=13).stderr


def test_an_unknown_key_is_told_the_role_that_is_missing_and_the_other_key_of_somebody_known(shop: Shop):
    """C6 of the list"""
    shop.run_order("two", "A-1", "--as", "carl", code=13)
    shop.run("approvers", "add", "anna", "--role", "ops")
    ticket = shop.ticket()
    shop.run("approve", ticket)
    key, line = key_of(shop, "eve"), public_of(shop, "eve")
    refused = shop.run("approve", ticket, "--key", str(key), "--as", "eve", code=12).stderr
    assert "roles: [finance]" in refused and "--role ops" not in refused
    known = shop.run("approve", ticket, "--key", str(key), "--as", "anna", code=12).stderr
    assert "anna stands there with another key" in known and "sign with that one" in known
    assert "Still missing is a yes of finance, which anna is not." in known and line in known


def test_a_yes_again_is_short_and_says_that_it_was_said(shop: Shop):
    shop.run_order("two", "A-1", "--as", "carl", code=13)
    shop.run("approvers", "add", "anna", "--role", "ops")
    ticket = shop.ticket()
    assert "Arguments" in shop.run("approve", ticket).stderr
    again = shop.run("approve", ticket)
    assert again.stdout.startswith(f"{ticket} was approved by anna before, and nothing was added: ")
    assert again.stderr == ""


def test_somebody_is_taken_out_of_the_roster_and_the_rest_of_the_file_stays(shop: Shop):
    for name in ("anna", "bob", "carl"):
        shop.run("approvers", "add", name, "--role", "ops", "--key", public_of(shop, name))
    roster = shop.home / "approvers.yaml"
    roster.write_text(roster.read_text() + "# the end\n")
    shop.run("approvers", "add", "bob", "--role", "ops", "--key", public_of(shop, "bob-2"))
    before = roster.read_text()
    assert shop.json("approvers", "remove", "bob", "--key", public_of(shop, "bob"))["removed"][0]["name"] == "bob"
    assert [one["name"] for one in shop.json("approvers")["approvers"]] == ["anna", "carl", "bob"]
    shop.run("approvers", "remove", "bob")
    for key in ("bob", "bob-2"):
        before = before.replace(f"  - name: bob\n    roles: [ops]\n    key: {public_of(shop, key)}\n", "")
    assert roster.read_text() == before and "bob" not in before and before.endswith("# the end\n")
    assert "nobody called bob is in" in shop.run("approvers", "remove", "bob", code=2).stderr
    shop.run("approvers", "remove", "anna")
    standing = roster.read_text()
    assert "carl is the last one" in shop.run("approvers", "remove", "carl", code=2).stderr
    assert roster.read_text() == standing


def test_a_roster_on_one_line_cannot_lose_an_entry_and_stands_as_it_was(shop: Shop):
    entries = ", ".join(f"{{name: {name}, roles: [ops], key: {public_of(shop, name)}}}" for name in ("anna", "bob"))
    roster = shop.home / "approvers.yaml"
    roster.write_text(f"approvers: [{entries}]\n")
    roster.chmod(0o600)
    before = roster.read_text()
    assert "with an editor" in shop.run("approvers", "remove", "bob", code=2).stderr
    assert roster.read_text() == before


def test_a_workflow_whose_proof_is_broken_is_explained_with_12_and_as_json(shop: Shop):
    """C14 of the list"""
    told = json.loads(shop.inside("explain", "workflow", "refund", "--json"))
    assert told["proof"]["holds"] and "pay" in told["capabilities"]
    assert [one["path"] for one in told["nodes"]][:2] == ["refund/check", "refund/decision"]
    shop.write(
        "shop.py",
        shop.read("shop.py")
        + '@capability(effect="irreversible", key=lambda a: a.order_id, dedups=True)\n'
        + "async def burn(ctx: Context, order_id: str) -> None: ...\n"
        + 'bad = app.workflow("bad", input=Input, state=State).capability("burn", burn)\n',
    )
    assert "BROKEN" in shop.run("explain", "workflow", "bad", code=12).stdout
    broken = json.loads(shop.run("explain", "workflow", "bad", "--json", code=12).stdout)["proof"]
    assert not broken["holds"] and any(one["broken"] for one in broken["obligations"])
    assert "go with: setpoint explain workflow" in shop.run("explain", "tools", "--json", code=2).stderr
