"""What the command line says of runs that failed, paused or are merely due: what became of their effects, what next."""

from __future__ import annotations

import asyncio

from setpoint.app.app_loading import runs_without_code
from setpoint.app.runtime import open_runtime

from .shop import Shop


def child_of(shop: Shop, run: str) -> str:
    return next(one["run_id"] for one in shop.json("get")["runs"] if one["parent"] == run)


def test_a_failed_run_says_what_was_taken_back_and_what_stands(shop: Shop):
    """B3 of the list: an effect without a compensator stays, and everything that looks at the run says so."""
    done = shop.run_order("mailed", "A-1", code=11)
    assert "taken back: mailed/pay; still stands, since nothing takes it back: mailed/mail" in done.stderr
    assert "what was done is taken back" not in done.stderr
    told = shop.json("why", "A-1")
    assert [one["key"] for one in told["taken_back"]] == ["refund:A-1"]
    assert [(one["key"], one["node"]) for one in told["stands"]] == [("mail:A-1", "mailed/mail")]
    assert shop.json("describe", "A-1")["stands"] == told["stands"]
    for verb in ("why", "describe"):
        assert "  stands      mail:A-1 (mail, keyed)" in shop.inside(verb, "A-1").splitlines()


def test_what_a_parent_took_back_of_its_child_is_said_of_both(shop: Shop):
    shop.run_order("whole", "A-1", code=11)
    for run, node in (("A-1", "whole/part>part/pay"), (child_of(shop, "A-1"), "part/pay")):
        told = shop.json("why", run)
        assert [(one["key"], one["node"]) for one in told["taken_back"]] == [("refund:A-1", node)]
        assert [one["key"] for one in told["stands"]] == ["mail:A-1"]


def test_a_run_whose_key_is_used_up_is_not_to_be_run_again_as_it_was(shop: Shop):
    """B8 of the list"""
    shop.run_order("mailed", "A-1", code=11)
    told = shop.json("why", "A-1")["next"]
    assert told["how"] == [] and "refund:A-1 cannot be used again" in told["what"]
    assert "setpoint run mailed" not in shop.inside("why", "A-1")
    words = ("run", "mailed", "--input", '{"order_id": "A-1"}', "--id", "again")
    shop.run(*words, code=15)
    again = shop.json("why", "again")["next"]
    assert shop.inside("why", "again").count("belongs to run A-1") == 1
    assert again["how"] == [] and "the number of the attempt" in again["what"]


def test_what_nobody_knows_of_a_killed_run_is_said_and_its_key_is_used_up(shop: Shop):
    shop.run_order("gift", "A-1", code=16)
    shop.run("kill", "A-1")
    told = shop.json("why", "A-1")
    assert [one["key"] for one in told["open"]] == ["gift:A-1"]
    assert told["next"]["how"] == [] and "gift:A-1 cannot be used again" in told["next"]["what"]
    assert "  not known   gift:A-1 (give, compensable)" in shop.inside("why", "A-1").splitlines()
    shop.run("run", "gift", "--input", '{"order_id": "A-1"}', "--id", "again", code=15)


def test_a_run_that_left_nothing_may_be_run_again_and_the_command_names_the_application(shop: Shop):
    shop.run_order("later", "A-1", code=13)
    shop.run("cancel", "A-1")
    assert shop.json("why", "A-1")["next"]["how"] == ["setpoint run later --input JSON"]
    assert "  setpoint run later --input JSON\n" in shop.inside("why", "A-1")
    shop.environment.clear()  # nobody names the application any more
    assert "  setpoint run later --input JSON --app APP\n" in shop.inside("why", "A-1")


def test_a_run_that_is_merely_due_has_no_exit_code_and_one_resume_ends_a_pause_that_was_not_read(shop: Shop):
    """C15 of the list"""
    shop.run_order("later", "A-1", code=13)
    shop.run("signal", "A-1", "go")
    told = shop.json("why", "A-1")
    assert (told["status"], told["exit_code"]) == ("due", None)
    assert "no exit code yet" in shop.inside("why", "A-1")
    runtime = open_runtime(f"sqlite:///{shop.home}/setpoint.db")
    runs_without_code(runtime).tell("A-1", "pause", by="anna")  # as while a worker holds it, who then dies
    asyncio.run(runtime.close())
    shop.run("resume", "A-1")
    assert shop.ledger() == [("pay", "refund:A-1")]


def test_no_is_said_once_and_one_node_is_one(shop: Shop):
    shop.run_order("refused", "A-1", code=11)
    said = shop.run_order("refused", "A-2", code=11).stderr
    assert said.count("pay-no declined: no such card") == 1
    assert "done       0 nodes" in shop.inside("why", "A-1")
    shop.run_order("waits", "B-1", code=13)
    assert "done       1 node," in shop.inside("why", "B-1") and "  done        1 node, 1 effect" in shop.inside(
        "describe", "B-1"
    )


def test_an_approval_that_is_not_needed_is_said_to_be_none(shop: Shop):
    said = shop.run_order("maybe", "A-1").stderr
    assert "ask no approval is needed" in said
    assert "ask  not needed" in shop.inside("trace", "A-1")
