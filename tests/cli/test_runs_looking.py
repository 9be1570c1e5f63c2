"""get, describe, why, events, trace, show, top of runs: views of the log, without the application."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from setpoint.app.event_schema import event_schema

from .shop import SHOP, Shop, killed


@pytest.fixture
def looked(shop: Shop) -> Shop:
    """A run that completed, a parent with its child that waits, and no application any more."""
    shop.run_order("refund", "A-1")
    shop.run_order("parent", "P-1", code=13)
    shop.environment.clear()
    (shop.directory / "shop.py").unlink()
    return shop


def child_of(shop: Shop) -> str:
    return next(one["run_id"] for one in shop.json("get")["runs"] if one["parent"] == "P-1")


def test_get_lists_runs_with_what_they_wait_for_and_until_when(looked: Shop):
    told = looked.json("get")
    assert (told["trajectories"], told["sessions"]) == ([], [])
    runs = {one["run_id"]: one for one in told["runs"]}
    assert (runs["A-1"]["status"], runs["A-1"]["exit_code"]) == ("completed", 0)
    assert [one["kind"] for one in runs["P-1"]["waits"]] == ["child", "signal"]
    signal = runs[child_of(looked)]["waits"][0]
    assert (signal["kind"], signal["node"]) == ("signal", "waits/word")
    assert signal["until"] > runs["A-1"]["updated_at"]
    head, *rows = looked.run("get").stdout.splitlines()
    assert head.split() == ["ID", "KIND", "NAME", "STATUS", "AT", "DELTA", "AGE", "REASON"]
    assert any("waiting" in row and "signal word until" in row for row in rows)
    assert looked.json("get", "-n", "1")["runs"][0]["run_id"] == child_of(looked)
    assert looked.json("get", "A-1")["values"]["receipt"] == {"id": "refund:A-1"}


def test_the_newest_is_never_a_child(looked: Shop):
    assert looked.json("why")["run_id"] == "P-1"


def test_why_names_the_node_the_wait_and_who_must_act(looked: Shop):
    """O2"""
    told = looked.json("why", "P-1")
    assert told["blocked_at"] == ["parent/child", "waits/word"]
    assert told["next"]["what"] == "the signal word" and child_of(looked) in told["next"]["how"][0]
    text = looked.run("why", "P-1").stdout
    assert f"setpoint signal {child_of(looked)} word --payload JSON" in text
    assert "exit 13: waiting for a person" in text
    assert looked.json("why", "A-1")["next"]["what"] == "nothing: it is done"


def test_why_names_the_last_failure_and_when_it_is_tried_again(shop: Shop):
    """O2: last evidence, next action, when."""
    killed(shop.held_in_call("refund", "A-1"))
    (shop.directory / "ledger").unlink()
    shop.let_go()
    assert shop.json("why", "A-1")["next"] == {
        "what": "something can be done for it, and nobody works on it",
        "who": "a worker, or you",
        "how": ["setpoint resume A-1"],
        "when": None,
    }
    shop.run("resume", "A-1", code=13)  # it did not happen, or not yet: it is looked for again when it surely did not
    told = shop.json("why", "A-1")
    assert told["blocked_at"] == ["refund/decision/APPROVED/pay"]
    assert told["next"]["when"] == told["waits"][0]["until"] > shop.json("get", "A-1")["updated_at"]
    shop.run_order("waits", "B-1", code=13)
    shop.run("signal", "B-1", "word")
    shop.run("resume", "B-1", code=11)
    failure = shop.json("why", "B-1")["last_failure"]
    assert (failure["node"], failure["kind"]) == ("waits/after", "bug")
    raises = 1 + SHOP.splitlines().index('        raise ValueError("not yet")')
    place = f"raised ValueError: not yet ({shop.directory}/shop.py:{raises})"  # where to look, without a debugger
    assert place in shop.run("why", "B-1").stdout


def test_describe_has_state_effects_approvals_and_waits(looked: Shop):
    told = looked.json("describe", "A-1")
    assert told["input"] == {"order_id": "A-1", "cents": 500}
    assert [(one["key"], one["status"]) for one in told["effects"]] == [("refund:A-1", "done")]
    assert (told["step"], told["effects_made"], told["failures"]) == (3, 1, [])
    text = looked.run("describe", "A-1").stdout
    assert "refund version 1  A-1  completed" in text and "order_id  " in text


def test_trace_hangs_effects_below_nodes_and_children_below_theirs(looked: Shop):
    """R057, O1"""
    told = looked.json("trace", "A-1")
    nodes = {node["node"]: node for node in told["nodes"]}
    assert list(nodes) == ["refund/check", "refund/decision", "refund/decision/APPROVED/pay"]
    pay = nodes["refund/decision/APPROVED/pay"]
    assert (pay["within"], nodes["refund/decision"]["label"]) == ("refund/decision", "APPROVED")
    (effect,) = pay["effects"]
    assert [one["attempt"] for one in effect["attempts"]] == [1]
    seqs = [node["seq"] for node in told["nodes"]]
    assert seqs == sorted(seqs)
    lines = looked.run("trace", "A-1").stdout.splitlines()
    assert "│  └─ APPROVED/pay  done  receipt" in lines
    parent = looked.json("trace", "P-1")
    assert [child["run_id"] for child in parent["children"]] == [child_of(looked)] == [parent["nodes"][0]["child"]]
    assert parent["children"][0]["parent"] == "P-1"
    assert looked.inside("trace", "P-1", "--graph").startswith("graph TD\n")


def test_trace_shows_what_took_an_effect_back(shop: Shop):
    shop.run_order("sold-out", "A-1", code=11)
    told = shop.json("trace", "A-1")
    (effect,) = told["nodes"][0]["effects"]
    assert (effect["status"], effect["compensation"]["key"]) == ("undone", "undo:refund:A-1")
    assert "taken back by pay (keyed) undo:refund:A-1  done" in shop.run("trace", "A-1").stdout


def test_every_envelope_of_a_run_fits_the_published_schema(looked: Shop):
    """R171"""
    schema = jsonschema_rs.Draft202012Validator(event_schema())
    assert json.loads(looked.inside("schema", "Event")) == event_schema()
    envelopes = [json.loads(line) for line in looked.inside("events", "A-1", "--json").splitlines()]
    for envelope in envelopes:
        assert [str(error) for error in schema.iter_errors(envelope)] == []
        assert not schema.is_valid(envelope | {"data": envelope["data"] | {"extra": 1}})
    queued = [line for line in looked.run("events", "A-1").stdout.splitlines() if "EffectQueued" in line]
    assert len(queued) == 1 and "key=refund:A-1" in queued[0]
    only = looked.inside("events", "A-1", "--json", "--type", "NodeCompleted", "--after", "3").splitlines()
    assert {json.loads(line)["type"] for line in only} == {"NodeCompleted"}


def test_show_gives_the_state_after_a_step(looked: Shop):
    """R184"""
    assert [looked.json("show", "A-1", "--turn", str(step))["values"]["eligible"] for step in (0, 1)] == [False, True]
    told = looked.json("show", "A-1", "--turn", "2")
    assert (told["node"], told["values"]["receipt"]) == ("refund/decision/APPROVED/pay", {"id": "refund:A-1"})
    assert looked.json("show", "A-1", "--turn", "1")["values"]["receipt"] is None
    assert "has no step 9" in looked.run("show", "A-1", "--turn", "9", code=2).stderr
    assert "have no prompt" in looked.run("show", "A-1", "--turn", "1", "--prompt", code=2).stderr


def test_top_counts_the_live_ones(looked: Shop):
    told = looked.json("top")
    assert [one["workflow"] for one in told["runs"]] == ["waits", "parent"]
    assert told["finished"] == 1


def test_looking_changes_nothing_and_steers_no_terminal(shop: Shop):
    shop.run("run", "waits", "--input", '{"order_id": "\\u001b[2J"}', "--id", "A-1", code=13)
    before = shop.inside("events", "A-1", "--json")
    for words in (["get"], ["get", "A-1"], ["describe"], ["why"], ["trace"], ["show", "--turn", "1"], ["top"],
                  ["effects", "list"], ["approvals"], ["events"]):  # fmt: skip
        done = shop.run(*words)
        assert "\x1b" not in done.stdout + done.stderr, words
    assert shop.inside("events", "A-1", "--json") == before


def test_a_corrupt_run_is_listed_with_19_and_the_others_still_are(looked: Shop):
    import sqlite3

    database = sqlite3.connect(looked.home / "setpoint.db")
    database.execute("DROP TRIGGER event_is_never_updated")
    changed = database.execute(
        "UPDATE event SET data = CAST(replace(CAST(data AS TEXT), 'APPROVED', 'REJECTED') AS BLOB)"
        " WHERE type = 'BlockEntered'"
    )
    assert changed.rowcount > 0
    database.commit()
    database.close()
    runs = {one["run_id"]: one["status"] for one in looked.json("get", code=19)["runs"]}
    assert runs["A-1"] == "corrupt" and runs["P-1"] == "waiting"
    assert "setpoint: " in looked.run("why", "A-1", code=19).stderr
    assert looked.json("approvals") == {"approvals": []}
