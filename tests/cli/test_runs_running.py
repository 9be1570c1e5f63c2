"""run, resume, recover, worker, signal, pause, cancel, kill: real processes over one SQLite store."""

from __future__ import annotations

import json
import signal

import pytest

from setpoint.adapters.stores.export import verify_lines

from .shop import Shop, killed, until


def test_the_output_is_json_on_stdout_and_what_happened_is_on_stderr(shop: Shop):
    """R036"""
    done = shop.run_order("refund", "A-1")
    assert json.loads(done.stdout)["receipt"] == {"id": "refund:A-1"}
    assert "decision -> APPROVED" in done.stderr and "A-1: completed after 3 nodes, 1 effect" in done.stderr
    assert "\x1b" not in done.stderr
    late = json.loads(shop.run("run", "refund", "--input", '{"order_id": "late"}').stdout)
    assert (late["told"], late["receipt"]) == (True, None)
    assert shop.ledger() == [("pay", "refund:A-1")]


def test_with_json_stdout_is_the_log_from_its_first_event_to_its_last(shop: Shop):
    lines = shop.run_order("refund", "A-1", "--json").stdout.splitlines()
    assert verify_lines(lines).seq == len(lines)
    assert [json.loads(line)["type"] for line in (lines[0], lines[-1])] == ["RunStarted", "Finished"]
    assert lines == shop.inside("events", "A-1", "--json").splitlines()


def test_input_comes_from_a_file_or_from_stdin(shop: Shop):
    shop.write("in.json", '{"order_id": "F-1"}')
    assert json.loads(shop.run("run", "refund", "--input", "@in.json").stdout)["order_id"] == "F-1"
    assert (
        json.loads(shop.run("run", "refund", "--input", "-", stdin='{"order_id": "S-1"}').stdout)["order_id"] == "S-1"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("refund", "--input", '{"cents": 5}'), "the input of refund does not fit: order_id: Field required"),
        (("refund", "--input", "{"), "--input is no JSON"),
        (("refund", "--input", '{"order_id": NaN}'), "NaN is no JSON number"),
        (("refund", "--input", "@nowhere.json"), "cannot read --input nowhere.json"),
        (("refnd",), "it declares big, brief, gift, later, loan"),
        (("refund", "--input", '{"order_id": "a"}', "--id", "a b"), "is no id for a run"),
    ],
)
def test_what_is_wrong_with_the_command_is_said_and_nothing_starts(shop: Shop, words: tuple[str, ...], said: str):
    """R028"""
    done = shop.run("run", *words, code=2)
    assert done.stdout == "" and said in done.stderr
    assert shop.json("get")["runs"] == []


def test_the_same_id_is_the_same_run_and_another_input_is_a_conflict(shop: Shop):
    first = shop.run_order("refund", "A-1").stdout
    assert shop.run_order("refund", "A-1").stdout == first
    other = shop.run("run", "refund", "--input", '{"order_id": "B-1"}', "--id", "A-1", code=15)
    assert "another input" in other.stderr and "B-1" not in other.stdout
    assert shop.run_order("waits", "A-1", code=15).stdout == ""
    assert shop.ledger() == [("pay", "refund:A-1")]


def test_a_run_killed_in_mid_call_is_resumed_and_pays_once(shop: Shop):
    """A1, B3, R051, R054"""
    killed(shop.held_in_call("refund", "A-1"))
    shop.let_go()
    assert shop.json("get", "A-1")["status"] == "due"
    done = shop.run("resume", "A-1")
    assert json.loads(done.stdout)["receipt"] == {"id": "refund:A-1"}
    assert "known by reconstructed" in done.stderr
    assert shop.ledger() == [("pay", "refund:A-1")]
    completed = [
        json.loads(line) for line in shop.inside("events", "A-1", "--json", "--type", "NodeCompleted").splitlines()
    ]
    assert [one["data"]["node"] for one in completed].count("refund/check") == 1


@pytest.mark.parametrize("verb", [("recover",), ("worker", "--until-idle")])
def test_runs_that_lost_their_process_are_taken_up_by_others(shop: Shop, verb: tuple[str, ...]):
    """R056"""
    killed(shop.held_in_call("refund", "A-1"))
    killed(shop.held_in_call("refund", "A-2"))
    shop.let_go()
    shop.run(*verb)
    assert {one["status"] for one in shop.json("get")["runs"]} == {"completed"}
    assert sorted(shop.ledger()) == [("pay", "refund:A-1"), ("pay", "refund:A-2")]
    assert "nothing" in shop.run("recover").stdout


def test_recover_without_the_application_says_what_it_lacks(shop: Shop):
    killed(shop.held_in_call("refund", "A-1"))
    shop.environment.clear()
    done = shop.run("recover", code=2)
    assert "A-1 could not be taken up: no application was named" in done.stderr


def test_two_processes_never_work_on_one_run(shop: Shop):
    """M1"""
    process = shop.held_in_call("refund", "A-1")
    second = shop.run("resume", "A-1", code=1)
    assert "A-1" in second.stderr and second.stdout == ""
    shop.let_go()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert shop.ledger() == [("pay", "refund:A-1")]


def test_a_run_that_a_worker_was_faster_to_take_is_followed(shop: Shop):
    first = shop.held_in_call("refund", "A-1")
    second = shop.start_run("refund", "A-1")
    assert second.stderr is not None
    until(lambda: "is worked on by another process already" in second.stderr.readline())  # type: ignore[union-attr]
    shop.let_go()
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert outputs[0] == outputs[1] and json.loads(outputs[1])["receipt"] == {"id": "refund:A-1"}
    assert shop.ledger() == [("pay", "refund:A-1")]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_run_in_the_log_and_says_how_to_go_on(shop: Shop, signum: int, code: int):
    process = shop.held_in_call("refund", "A-1", "--app", "shop.py")
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert "Go on with: setpoint resume A-1 --app shop.py" in err
    shop.let_go()
    shop.run("resume", "A-1")
    assert shop.ledger() == [("pay", "refund:A-1")]


# worker


def test_a_worker_asked_to_stop_lets_the_call_under_way_come_to_its_end(shop: Shop):
    worker = shop.worker_in_call("A-1")
    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    until(lambda: "stopping" in worker.stderr.readline())  # type: ignore[union-attr]
    shop.let_go()
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 143 and "stands in the log" in err and "cut off" not in err
    assert shop.json("get", "A-1")["status"] == "completed"
    assert shop.ledger() == [("pay", "refund:A-1")]


def test_a_worker_whose_grace_is_over_cuts_off_and_another_settles_it(shop: Shop):
    worker = shop.worker_in_call("A-1", "--grace", "50ms")
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 143 and "cut off" in err
    shop.let_go()
    shop.run("worker", "--until-idle")
    assert shop.json("get", "A-1")["status"] == "completed"
    assert shop.ledger() == [("pay", "refund:A-1")]


def test_a_worker_finds_what_a_signal_woke(shop: Shop):
    """R060"""
    shop.write("fixed", "")
    shop.run_order("waits", "A-1", code=13)
    worker = shop.start("worker", "--json")
    assert "delivered" in shop.run("signal", "A-1", "word", "--payload", '"hello"', "--key", "k").stdout
    until(lambda: shop.json("get", "A-1")["status"] == "completed")
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=60)
    types = [json.loads(line)["type"] for line in out.splitlines()]
    assert (types[0], types[-1]) == ("LeaseClaimed", "Finished"), "it shows what it did, not what others did before"
    assert shop.json("get", "A-1")["values"]["word"] == "hello"


# What is told to a run


def test_a_waiting_run_says_what_to_type(shop: Shop):
    done = shop.run_order("waits", "A-1", "--app", "shop.py", code=13)
    assert done.stdout == ""
    assert "setpoint signal A-1 word --payload JSON" in done.stderr
    assert "go on afterwards: setpoint resume A-1 --app shop.py" in done.stderr


def test_a_signal_counts_once_and_one_nobody_waits_for_is_refused(shop: Shop):
    shop.run_order("waits", "A-1", code=13)
    refused = shop.run("signal", "A-1", "wrod", code=2)
    assert "It waits for: word" in refused.stderr
    assert shop.json("signal", "A-1", "word", "--key", "k") == {
        "run_id": "A-1", "signal": "word", "delivered": True, "awaited": True
    }  # fmt: skip
    assert not shop.json("signal", "A-1", "word", "--key", "k")["delivered"]
    shop.write("fixed", "")
    shop.run("resume", "A-1")
    assert len(shop.inside("events", "A-1", "--type", "SignalReceived").splitlines()) == 1
    assert "is COMPLETED already" in shop.run("signal", "A-1", "word", code=2).stderr


def test_a_bug_pauses_the_run_and_resume_does_only_that_node_again(shop: Shop):
    """A2, R055"""
    shop.run_order("waits", "A-1", code=13)
    shop.run("signal", "A-1", "word", "--payload", '"x"')
    done = shop.run("resume", "A-1", code=11)
    assert "raised ValueError: not yet" in done.stderr and "or a worker" not in done.stderr
    assert shop.json("get", "A-1")["status"] == "paused"
    shop.write("fixed", "")
    assert json.loads(shop.run("resume", "A-1").stdout)["told"]
    assert shop.ledger() == [("pay", "refund:A-1")]


def test_a_run_that_fails_takes_back_what_it_did(shop: Shop):
    """R190"""
    done = shop.run_order("sold-out", "A-1", code=11)
    assert "NoStock: nothing is left" in done.stderr and done.stdout == ""
    assert shop.ledger() == [("pay", "refund:A-1"), ("undo", "undo:refund:A-1")]


def test_cancel_takes_back_with_the_application_and_waits_for_it_without(shop: Shop):
    """R226"""
    for order in ("A-1", "A-2"):
        shop.run_order("waits", order, code=13)
    assert "it is cancelled" in shop.run("cancel", "A-1", "--reason", "changed my mind").stdout
    assert ("undo", "undo:refund:A-1") in shop.ledger()
    shop.environment.clear()
    assert "takes it back with: setpoint resume A-2" in shop.run("cancel", "A-2").stdout
    assert ("undo", "undo:refund:A-2") not in shop.ledger()
    shop.run("resume", "A-2", "--app", "shop.py", code=11)
    assert ("undo", "undo:refund:A-2") in shop.ledger()


def test_pause_and_kill_need_no_application_and_reach_the_children(shop: Shop):
    """R226, R231"""
    shop.run_order("parent", "A-1", code=13)
    shop.environment.clear()
    assert "it is paused" in shop.run("pause", "A-1").stdout
    assert "it is cancelled" in shop.run("kill").stdout
    assert {one["reason"] for one in shop.json("get")["runs"]} == {"Killed"}
    assert "is finished" in shop.run("kill", code=2).stderr
    assert shop.ledger() == [("pay", "refund:A-1")]


def test_a_kill_ends_a_run_in_mid_call(shop: Shop):
    process = shop.held_in_call("refund", "A-1")
    assert "it ends at once" in shop.run("kill", "A-1").stdout
    _, err = process.communicate(timeout=60)
    assert process.returncode == 11 and "killed by" in err
    shop.let_go()


def test_verbs_of_trajectories_say_so(shop: Shop):
    shop.run_order("refund", "A-1")
    for words in (("undo", "A-1"), ("rollback", "A-1", "--to", "0"), ("fork", "A-1", "--turn", "1"), ("replay", "A-1")):
        assert "A-1 is a run; this verb is for trajectories" in shop.run(*words, code=2).stderr
    assert "has no budget to raise" in shop.run("resume", "A-1", "--more-turns", "3", code=2).stderr
    assert "A-1" in shop.run("resume", "A-1").stderr, "one that is over is said again"


def test_a_worker_knows_who_was_named_since_it_started_and_who_was_removed(shop: Shop):
    """R126: a key that is withdrawn no longer counts."""
    worker = shop.start("worker", "-v")
    shop.run("approvers", "add", "anna", "--role", "ops")
    shop.run_order("big", "A-1", "--as", "customer:17", code=13)
    shop.run("approve", shop.ticket())
    until(lambda: shop.json("get", "A-1")["status"] == "completed")
    shop.run_order("two", "A-2", "--as", "customer:17", code=13)
    shop.run("approve", shop.ticket())
    until(lambda: shop.inside("events", "A-2", "--type", "ApprovalSigned"))
    (shop.home / "approvers.yaml").unlink()
    shop.run("approvers", "add", "bob", "--role", "finance")
    told = shop.json("approve", shop.ticket())
    assert told["ruling"]["missing"] == [["ops"]], "the same key again, and what it said as anna is nothing any more"
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)
    assert shop.ledger() == [("pay", "refund:A-1")]
