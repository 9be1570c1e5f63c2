"""get, describe, why, events, trace, show, top, replay: views of one store, and nothing is changed by looking."""

from __future__ import annotations

import json
import sqlite3

import pytest

from .conftest import ASK, FIX, TASK, Shell

CONDITIONS = [
    "Accepted",
    "Progressing",
    "Converged",
    "Verified",
    "Stalled",
    "AwaitingApproval",
    "BudgetExhausted",
    "Drifted",
    "EffectUnknown",
]


def test_get_lists_trajectories_and_one_with_its_conditions(toured: Shell):
    (one,) = toured.json("get")["trajectories"]
    assert (one["task"], one["status"], one["exit_code"], one["progress"]) == ("fix-add", "converged", 0, [0, 0, 0])
    told = toured.json("get", one["trajectory_id"])
    assert [c["type"] for c in told["conditions"]] == CONDITIONS
    assert {c["type"]: c["status"] for c in told["conditions"]}["Verified"] == "True"
    text = toured.run("get").stdout.splitlines()
    assert text[0].split() == ["ID", "KIND", "NAME", "STATUS", "AT", "DELTA", "AGE", "REASON"]
    assert text[1].startswith(one["trajectory_id"])


def test_an_id_may_be_begun_and_tr_left_out(toured: Shell):
    name = toured.newest()
    for typed in (name, name[:12], name[3:12]):
        assert toured.json("get", typed)["trajectory_id"] == name


def test_describe_holds_spend_savepoints_commits_and_evidence(toured: Shell):
    """R219: commits that can be undone are listed with their paths."""
    told = toured.json("describe")
    assert told["spent"]["turns"] == 3
    assert told["budget"]["turns"] == 10
    assert [s["savepoint"] for s in told["savepoints"]] == [1]
    assert [(r["turn"], r["reason"]) for r in told["rolled_back"]] == [(2, "invariant")]
    assert [(u["state"], u["paths"]) for u in told["undo"]] == [("committed", ["src/calc.py"])]
    evidence = {e["check"]: (e["level"], e["verdict"], e["stale"]) for e in told["evidence"]}
    assert evidence["done/unit"] == ("visible", "pass", False)
    assert evidence["done/gold"] == ("sealed", "pass", False)
    text = toured.run("describe").stdout
    for word in ("conditions", "spend", "evidence", "savepoints", "commits", "src/calc.py", "$0.0120"):
        assert word in text


def test_why_of_a_converged_trajectory_says_what_was_checked_at_what_level(toured: Shell):
    told = toured.json("why")
    assert told["open"] == []
    met = {m["address"]: (m["level"], m["passed"], m["collected"]) for m in told["met"]}
    assert met["done/unit"] == ("visible", 1, 1)
    assert met["done/gold"] == ("sealed", 1, 1)
    assert told["tried"]["claims_rejected"] == 1
    text = toured.run("why").stdout
    assert "at level sealed, 1 of 1 passed" in text
    assert "setpoint certificate export" in text
    assert "exit 0: converged" in text


def test_events_can_be_filtered_and_followed_to_the_end(toured: Shell):
    lines = toured.run("events").stdout.splitlines()
    assert lines[0].split()[3] == "TaskAccepted"
    envelopes = [
        json.loads(line)
        for line in toured.run("events", "--json", "--type", "TurnEnded", "--after", "20").stdout.splitlines()
    ]
    assert [(e["type"], e["data"]["outcome"]) for e in envelopes] == [
        ("TurnEnded", "rolled_back"),
        ("TurnEnded", "kept"),
    ]
    assert all(e["seq"] > 20 for e in envelopes)
    assert toured.run("events", "-f").stdout.splitlines() == lines


def test_following_shows_what_is_written_meanwhile_and_ends_with_the_trajectory(shell: Shell):
    shell.lay(TASK, ASK, FIX)
    shell.run("converge", code=13)
    follower = shell.start("events", "-f", "--json")
    assert follower.stdout is not None
    assert next(json.loads(line) for line in follower.stdout if "QuestionAsked" in line)["turn"] == 1
    shell.inside("answer", "go on")
    shell.inside("resume")
    rest, _ = follower.communicate(timeout=20)
    assert json.loads(rest.splitlines()[-1])["type"] == "Finished"
    assert follower.returncode == 0


def test_trace_tells_what_led_to_what(toured: Shell):
    turns = {turn["turn"]: turn for turn in toured.json("trace")["turns"]}
    assert list(turns) == [0, 1, 2, 3]
    assert [turn["outcome"] for turn in turns.values()] == [None, "unchanged", "rolled_back", "kept"]
    edit = turns[2]["calls"][0]
    assert (edit["tool"], edit["ruling"], edit["result"]["status"]) == ("file_edit", "permit", "COMPLETED")
    assert turns[2]["context"]["seq"] < turns[2]["reply"]["seq"] < edit["seq"] < edit["result"]["seq"]
    assert [d["kind"] for d in turns[3]["decisions"]] == [
        "kept",
        "commit_planned",
        "committed",
        "certified",
        "finished",
    ]
    text = toured.run("trace").stdout
    assert "│  ├─ #0 file_edit tests/test_calc.py  permitted (reversible)" in text
    assert "└─ rolled back" in text


def test_the_graph_shows_roll_backs_as_edges(toured: Shell):
    """R111"""
    lines = toured.run("trace", "--graph").stdout.splitlines()
    assert lines[0] == "graph TD"
    assert '  T2 -.->|"rolled back: invariant"| S0' in lines
    assert "  T3 -->|kept| S1" in lines


def test_show_gives_the_state_at_a_past_turn(toured: Shell):
    """R184"""
    told = toured.json("show", "--turn", "2")
    assert told["outcome"] == "rolled_back"
    assert told["calls"][0]["intent"]["arguments"]["new_str"] == "True"
    assert told["state_after"]["savepoint"] == 0
    assert [item["address"] for item in told["state_after"]["delta"]] == ["done/unit", "done/gold"]
    assert toured.json("show", "--turn", "3")["state_after"]["progress"] == [0, 0, 0]
    base = toured.json("show", "--turn", "0")
    assert (base["calls"], base["state_after"]["spent"]["turns"]) == ([], 0)
    assert "edited tests/test_calc.py" in toured.run("show", "--turn", "2").stdout
    assert "has no turn 4" in toured.run("show", "--turn", "4", code=2).stderr


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_the_prompt_of_a_past_turn_is_rebuilt_to_its_recorded_digest(toured: Shell, turn: int):
    """R179"""
    told = toured.json("show", "--turn", str(turn), "--prompt")
    assert told["verified"]
    assert told["digest"] == told["recorded_digest"]
    assert f"Turn {turn} of 10" in "\n".join(part["text"] for part in told["parts"])


def test_the_prompt_after_a_roll_back_holds_no_text_of_the_failed_attempt(toured: Shell):
    """Law L5: one note stays, the attempt does not."""
    text = toured.run("show", "--turn", "3", "--prompt").stdout
    assert "tests-untouched" in text
    assert "assert True" not in text
    assert "edited tests/test_calc.py" not in text


def test_a_turn_without_a_model_call_has_no_prompt(toured: Shell):
    assert "no model was asked in turn 0" in toured.run("show", "--turn", "0", "--prompt", code=2).stderr


def test_top_shows_the_live_ones_once_where_nobody_can_watch(toured: Shell):
    assert toured.json("top") == {"trajectories": [], "runs": [], "finished": 1}
    assert len(toured.run("top").stdout.splitlines()) == 1


def test_replay_decides_again_and_finds_no_difference(toured: Shell):
    """R183"""
    told = toured.json("replay", "--strict")
    assert told["exit_code"] == 0
    assert told["decided_again"] > 30


def test_looking_changes_nothing(toured: Shell):
    before = toured.inside("events", "--json")
    for words in (["get"], ["describe"], ["why"], ["trace"], ["show", "--turn", "1"], ["certificate", "show"]):
        toured.inside(*words)
    assert toured.inside("events", "--json") == before


def test_an_altered_log_is_named_with_19_and_the_list_still_shows_it(toured: Shell, shell: Shell):
    source = sqlite3.connect(toured.home / "setpoint.db")
    copy = sqlite3.connect(shell.home / "setpoint.db")
    source.backup(copy)
    source.close()
    copy.execute("DROP TRIGGER event_is_never_updated")
    changed = copy.execute(
        "UPDATE event SET data = CAST(replace(CAST(data AS TEXT), 'rolled_back', 'kept') AS BLOB)"
        " WHERE type = 'TurnEnded'"
    )
    assert changed.rowcount > 0
    copy.commit()
    copy.close()
    for words in (["why"], ["events"], ["replay"]):
        assert "setpoint: " in shell.run(*words, code=19).stderr
    (one,) = shell.json("get", code=19)["trajectories"]
    assert one["status"] == "corrupt"
