"""effects list, effects settle: what nobody could tell is told by a person, in words the workflow can take."""

from __future__ import annotations

import json

import pytest

from .shop import Shop


@pytest.fixture
def unknown(shop: Shop) -> Shop:
    """A gift of which nobody knows whether it was given: there is no probe, and the reply was lost."""
    done = shop.run_order("gift", "A-1", code=16)
    assert "setpoint effects settle gift:A-1 --happened --result JSON" in done.stderr
    return shop


def test_effects_of_open_runs_are_listed_with_what_is_known(unknown: Shop):
    """B5"""
    unknown.run_order("refund", "B-1")
    unknown.run_order("waits", "C-1", code=13)
    listed = {one["key"]: one for one in unknown.json("effects", "list")["effects"]}
    assert {key: one["status"] for key, one in listed.items()} == {"gift:A-1": "unknown", "refund:C-1": "done"}
    gift = listed["gift:A-1"]
    assert (gift["capability"], gift["node"], gift["run_id"], gift["attempts"]) == ("give", "gift/send", "A-1", 1)
    assert (gift["arguments"], gift["result"]) == ({"order_id": "A-1"}, None)
    assert [one["key"] for one in unknown.json("effects", "list", "--open")["effects"]] == ["gift:A-1"]
    everything = {one["key"]: one["status"] for one in unknown.json("effects", "list", "--all")["effects"]}
    assert everything == {"gift:A-1": "unknown", "refund:B-1": "done", "refund:C-1": "done"}
    head, *rows = unknown.run("effects", "list", "--open").stdout.splitlines()
    assert head.split() == ["KEY", "CAPABILITY", "NODE", "RUN", "STATUS", "ATTEMPTS", "AGE", "SAID"]
    assert rows[0].split()[:6] == ["gift:A-1", "give", "gift/send", "A-1", "unknown", "1"]


def test_what_was_taken_back_is_listed_as_undone(shop: Shop):
    shop.run_order("sold-out", "A-1", code=11)
    listed = {
        one["key"]: (one["status"], one["compensates"]) for one in shop.json("effects", "list", "--all")["effects"]
    }
    assert listed == {"refund:A-1": ("undone", None), "undo:refund:A-1": ("done", "sold-out/pay")}


def test_a_person_who_looked_says_it_happened_and_the_run_goes_on_with_the_receipt(unknown: Shop):
    """B5"""
    misfit = unknown.run("effects", "settle", "gift:A-1", "--happened", code=2)
    assert "no --result was given" in misfit.stderr and '"id"' in misfit.stderr.replace("'", '"')
    assert "does not fit" in unknown.run("effects", "settle", "gift:A-1", "--happened", "--result", "7", code=2).stderr
    done = unknown.run("effects", "settle", "gift:A-1", "--happened", "--result", '{"id": "g-9"}')
    assert "the run goes on" in done.stdout and "setpoint resume A-1" in done.stderr
    out = json.loads(unknown.run("resume", "A-1").stdout)
    assert out["receipt"] == {"id": "g-9"}
    assert unknown.ledger() == [("give", "gift:A-1")]
    (made,) = unknown.json("effects", "list", "--all")["effects"]
    assert (made["status"], made["how"]) == ("done", "person")


def test_what_did_not_happen_is_sent_again(unknown: Shop):
    told = unknown.json("effects", "settle", "give:gift:A-1", "--not-happened", "--reason", "not in the ledger")
    assert (told["verdict"], told["next"]) == ("not_happened", "setpoint resume A-1")
    unknown.run("resume", "A-1", code=16)  # it loses its reply again
    assert unknown.ledger() == [("give", "gift:A-1")] * 2


def test_a_key_of_two_effects_is_not_guessed(unknown: Shop):
    unknown.run("run", "loan", "--input", '{"order_id": "A-1"}', "--id", "L-1", code=16)
    refused = unknown.run("effects", "settle", "gift:A-1", "--not-happened", code=2)
    assert "give:gift:A-1 of A-1" in refused.stderr and "lend:gift:A-1 of L-1" in refused.stderr
    assert unknown.json("effects", "settle", "gift:A-1", "--not-happened", "--run", "L-1")["run_id"] == "L-1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gift:A-2", "--not-happened"), "no effect with the key 'gift:A-2' waits to be settled"),
        (("gift:A-1",), "--not-happened is required"),
        (("gift:A-1", "--happened", "--not-happened"), "not allowed with"),
        (("gift:A-1", "--not-happened", "--result", "1"), "has no result"),
        (("gift:A-1", "--happened", "--result", "{"), "--result is no JSON"),
        (
            ("gift:A-1", "--not-happened", "--run", "nobody"),
            "there is no trajectory 'nobody' in this store, and no run",
        ),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_settled(unknown: Shop, words: tuple[str, ...], said: str):
    assert said in unknown.run("effects", "settle", *words, code=2).stderr
    assert unknown.json("get", "A-1")["status"] == "unknown"


def test_nothing_open_is_said(shop: Shop):
    assert shop.run("effects", "list").stdout == ""
    assert shop.json("effects", "list", "--open") == {"effects": []}


def test_what_a_killed_run_left_in_doubt_is_settled_and_its_key_is_free(unknown: Shop):
    """B5"""
    unknown.run("kill", "A-1")
    assert unknown.json("effects", "list", "--all")["effects"][0]["status"] == "unknown"
    said = unknown.run("effects", "settle", "gift:A-1", "--run", "A-1", "--not-happened", "--reason", "not there")
    assert said.stdout.startswith("gift:A-1 of A-1 did not happen") and said.stdout.endswith("its key is free again\n")
    assert "resume" not in said.stderr
    again = unknown.run("effects", "settle", "gift:A-1", "--run", "A-1", "--not-happened", code=2)
    assert "waits to be settled" in again.stderr
