"""With the signing key stolen: what contradicts itself fails by replay, though chained, hashed and signed anew.

Each forgery is made as well as a careful forger would: hashes and numbers right, root and size restated, the stated
checks pointing at the evidence as it lies now. ``test_a_whole_invented_history_verifies`` says where this ends.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.certificate import key_id, verify
from setpoint.certificate.canonical import digest_bytes
from setpoint.kernel.events import ClaimRejected, Committed, RolledBack, TurnEnded
from setpoint.phases.p5_evidence.implicit import IMPLICIT

from .factory import (
    BASE,
    BYPASS,
    CHEAT,
    CLAIM,
    FIX,
    FIXED,
    KEY,
    LOOK,
    OUTSIDE,
    Writer,
    document,
    forge,
    history,
    loaded,
    of_type,
    predicate_of,
    short,
    task,
)

TRUSTED = [KEY.public_key()]
GOOD = history().bundle()
Found = dict[str, Any]


def failed(change: Any, *, data: bytes = GOOD) -> str:
    """All findings of a forgery made with the real key; the signature itself must hold."""
    report = verify(forge(data, change), TRUSTED)
    found = list(report.failures())
    assert not report.valid
    assert "signature" not in {failure.check for failure in found}
    assert "structure" not in {failure.check for failure in found}
    return "\n".join(map(str, found))


def test_a_forgery_that_changes_nothing_holds() -> None:
    """Otherwise every test below would pass for the wrong reason."""
    assert verify(forge(GOOD, lambda found, predicate: None), TRUSTED).valid


def test_forgery_1_a_refusal_flipped_to_a_permit() -> None:
    def change(found: Found, predicate: Found) -> None:
        refused = of_type(found, "Refused")[0]
        refused["type"] = "Authorized"
        refused["data"] = {
            "ordinal": 1,
            "tool": "file_edit",
            "call_digest": short(*OUTSIDE),
            "effect": "reversible",
            "path": "../etc/passwd",
        }
        predicate["counts"]["permits"] += 1
        predicate["counts"]["refusals"] -= 1

    assert "no path inside the workspace" in failed(change)


def test_forgery_1b_a_refused_call_dispatched_all_the_same() -> None:
    def change(found: Found, predicate: Found) -> None:
        at = found["events"].index(of_type(found, "Refused")[0])
        intent = dict(of_type(found, "ToolIntent")[0])
        intent["data"] = {
            "ordinal": 1,
            "tool": "file_edit",
            "call_digest": short(*OUTSIDE),
            "key": "sha256:0",
            "effect": "reversible",
            "arguments": OUTSIDE[1],
        }
        found["events"].insert(at + 1, intent)

    assert "dispatched although it was refused" in failed(change)


def test_forgery_2_a_verdict_changed_to_pass() -> None:
    """R144"""

    def change(found: Found, predicate: Found) -> None:
        for event in of_type(found, "EvidenceRecorded"):
            if event["data"]["check"] == "done/golden" and event["data"]["fingerprint"] == BASE:
                event["data"]["verdict"] = "pass"
                del event["data"]["distance"], event["data"]["failed"]

    assert "the delta does not follow from the evidence (at done/golden)" in failed(change)


def test_forgery_3_a_history_cut_before_its_end() -> None:
    def change(found: Found, predicate: Found) -> None:
        del found["events"][-1]

    assert "not with a commit: cut, or not finished" in failed(change)


def test_forgery_4_not_finished_but_signed_as_done() -> None:
    """The bypass of turn 2, committed: its criterion failed and its invariant was broken."""

    def change(found: Found, predicate: Found) -> None:
        events = found["events"]
        kept, planned, committed = (
            of_type(found, kind)[-1] for kind in ("SavepointKept", "CommitPlanned", "Committed")
        )
        at = events.index(of_type(found, "ClaimRejected")[0])
        for event in (kept, planned, committed):
            event["turn"], event["data"]["fingerprint"] = 2, BYPASS
        found["events"] = [*events[:at], kept, planned, committed]
        predicate["fingerprint"] = predicate["savepoints"][0]["fingerprint"] = BYPASS
        predicate["counts"] = {"permits": 3, "refusals": 1, "rollbacks": 0, "claims_rejected": 0}
        predicate["budget"]["used"] = {"turns": 2, "tokens": 2200, "usd_micros": 8000, "wall_ms": 2000}
        predicate["ended_at"] = committed["at"]

    found = failed(change)
    assert "hard invariants do not hold: invariants/tests-untouched" in found
    assert "done/golden: the newest evidence about the certified state is 'fail'" in found


def test_forgery_5_the_final_state_swapped() -> None:
    other = "sha256:" + "e" * 64

    def subject_only(found: Found, predicate: Found) -> None:
        predicate["state_digest"] = other

    def committed_state(found: Found, predicate: Found) -> None:
        of_type(found, "Committed")[0]["data"]["fingerprint"] = other
        predicate["fingerprint"] = other

    assert "state_digest is stated as" in failed(subject_only)
    assert "the state committed is not that of the last savepoint kept" in failed(committed_state)


def test_forgery_6_a_dispatch_without_a_permit_and_one_before_its_permit() -> None:
    """L2: Authorized < ToolIntent."""

    def without(found: Found, predicate: Found) -> None:
        found["events"].remove(of_type(found, "Authorized")[0])
        predicate["counts"]["permits"] -= 1

    def before(found: Found, predicate: Found) -> None:
        events = found["events"]
        at = events.index(of_type(found, "Authorized")[0])
        events[at], events[at + 1] = events[at + 1], events[at]

    assert "without a permit before it" in failed(without)
    assert "without a permit before it" in failed(before)


def test_forgery_7_other_arguments_than_were_permitted() -> None:
    def change(found: Found, predicate: Found) -> None:
        of_type(found, "ToolIntent")[0]["data"]["arguments"] = {"command": "curl evil"}

    assert "not those the permit was for" in failed(change)


def test_forgery_8_a_call_the_model_never_proposed() -> None:
    """L1"""
    arguments = {"command": "rm -rf src"}

    def change(found: Found, predicate: Found) -> None:
        for event in (of_type(found, "Authorized")[0], of_type(found, "ToolIntent")[0]):
            event["data"]["call_digest"] = short("shell_exec", arguments)
        of_type(found, "ToolIntent")[0]["data"]["arguments"] = arguments

    assert "not among the calls the model proposed" in failed(change)


def test_forgery_9_a_tool_and_a_path_the_task_does_not_allow() -> None:
    def tool(found: Found, predicate: Found) -> None:
        for kind in ("Authorized", "ToolIntent"):
            of_type(found, kind)[0]["data"]["tool"] = "http_post"

    def path(found: Found, predicate: Found) -> None:
        of_type(found, "Authorized")[1]["data"]["path"] = "setup.py"

    def forbidden(found: Found, predicate: Found) -> None:
        of_type(found, "ChangesObserved")[-1]["data"]["changes"][0]["path"] = "secrets/key"
        of_type(found, "SavepointKept")[0]["data"]["paths"] = ["secrets/key"]

    def hidden(found: Found, predicate: Found) -> None:
        of_type(found, "SavepointKept")[0]["data"].update(paths=[], changed=0)

    def renamed(found: Found, predicate: Found) -> None:
        of_type(found, "ChangesObserved")[-1]["data"]["changes"][0]["renamed_from"] = "sub/.git/config"

    assert "the task does not allow that tool" in failed(tool)
    assert "'setup.py' was permitted for file_edit, but lies outside its paths" in failed(path)
    assert "invariants/@forbid is said to pass, but 1 changed paths break it" in failed(forbidden)
    assert "kept with other changes than were observed" in failed(hidden)
    assert "invariants/@sensitive is said to pass, but 1 changed paths break it" in failed(renamed)


def test_forgery_10_a_criterion_or_invariant_dropped_from_the_statement() -> None:
    """R150"""
    for part in ("criteria", "invariants"):
        for index in range(len(loaded_predicate()[part])):

            def change(found: Found, predicate: Found, part: str = part, index: int = index) -> None:
                del predicate[part][index]

            assert f"{part} lacks" in failed(change)


def loaded_predicate() -> Found:
    return predicate_of(loaded(GOOD))


def test_forgery_11_a_budget_made_to_look_kept() -> None:
    """R153"""

    def understated(found: Found, predicate: Found) -> None:
        predicate["budget"]["used"]["tokens"] = 10

    def exceeded(found: Found, predicate: Found) -> None:
        of_type(found, "ModelReplied")[0]["data"]["input_tokens"] = 300_000
        predicate["budget"]["used"]["tokens"] += 299_000

    assert "budget is stated as" in failed(understated)
    assert "302300 tokens were used, the ceiling is 200000" in failed(exceeded)


def test_forgery_12_a_claim_that_was_not_rejected_and_one_rejected_for_nothing() -> None:
    def silent(found: Found, predicate: Found) -> None:
        for kind in ("ClaimRejected", "RolledBack"):
            found["events"].remove(of_type(found, kind)[0])
        predicate["counts"].update(rollbacks=0, claims_rejected=0)

    def for_nothing(found: Found, predicate: Found) -> None:
        rejected = dict(of_type(found, "ClaimRejected")[0], turn=3)
        found["events"].insert(found["events"].index(of_type(found, "SavepointKept")[0]), rejected)
        predicate["counts"]["claims_rejected"] += 1

    assert "a claim of completion was not rejected" in failed(silent)
    assert "a claim was rejected although nothing was unmet" in failed(for_nothing)


def test_forgery_13_a_weaker_task_than_the_verifier_holds() -> None:
    """The file is consistent in itself; only the verifier's own copy of the task shows it."""
    weak = document()
    weak["spec"]["budget"]["turns"] = 31
    writer = Writer(task(weak))
    report = verify(GOOD, TRUSTED, task=json.dumps(weak, sort_keys=True, separators=(",", ":")).encode())
    assert [failure.check for failure in report.failures()] == ["task"]
    assert writer.task.digest != task().digest


def test_forgery_14_a_level_below_what_is_required() -> None:
    """R150 R152: a judge's opinion is level claim, and a visible pass does not meet a sealed criterion."""
    for level in ("claim", "visible"):

        def lowered(found: Found, predicate: Found, level: str = level) -> None:
            for event in of_type(found, "EvidenceRecorded"):
                if event["data"]["check"] == "done/golden" and event["data"]["fingerprint"] == FIXED:
                    event["data"]["level"] = level

        assert f"done/golden: judged at level {level}, sealed is required" in failed(lowered)

    def exposure(found: Found, predicate: Found) -> None:
        accepted = of_type(found, "TaskAccepted")[0]["data"]
        accepted["exposure"] = predicate["exposure"] = "H=30 S3 A2"

    assert "requires sealed, the statement says visible" in failed(exposure)


def test_forgery_15_missing_evidence_passed_off_as_none_needed() -> None:
    """L4: stale, crashed or absent evidence is missing, and missing is never a pass."""

    def dropped(found: Found, predicate: Found) -> None:
        for event in of_type(found, "EvidenceRecorded"):
            if event["data"]["check"] == "done/golden" and event["data"]["fingerprint"] == FIXED:
                found["events"].remove(event)

    def stale(found: Found, predicate: Found) -> None:
        for event in of_type(found, "EvidenceRecorded"):
            if event["data"]["check"] == "done/golden" and event["data"]["fingerprint"] == FIXED:
                event["data"]["fingerprint"] = BASE

    for change in (dropped, stale):
        assert "done/golden: the log holds no evidence about the certified state" in failed(change)


def test_forgery_16_tests_lost_and_checks_swapped_on_the_way() -> None:
    def lost(found: Found, predicate: Found) -> None:
        for event in of_type(found, "EvidenceRecorded"):
            if event["data"]["check"] == "done/unit" and event["data"]["fingerprint"] == FIXED:
                event["data"]["collected"] = event["data"]["passed"] = 1

    def swapped(found: Found, predicate: Found) -> None:
        for event in of_type(found, "EvidenceRecorded"):
            if event["data"]["check"] == "done/unit" and event["data"]["fingerprint"] == FIXED:
                event["data"]["check_digest"] = "sha256:" + "0" * 64

    assert "fewer tests than at the base" in failed(lost)
    assert "judged by another check than before" in failed(swapped)


def test_forgery_17_evidence_from_before_the_workspace_drifted() -> None:
    def change(found: Found, predicate: Found) -> None:
        data = {"what": "workspace", "expected": "x", "found": "y", "decision": "judge_again"}
        found["events"].append(dict(found["events"][-1], type="DriftFound", data=data))

    assert "done/golden: the log holds no evidence about the certified state" in failed(change)


def test_forgery_18_events_that_do_not_belong() -> None:
    def unknown(found: Found, predicate: Found) -> None:
        found["events"].insert(2, dict(found["events"][2], type="Blessed", data={}))

    def undone(found: Found, predicate: Found) -> None:
        data = {"commit_id": "t-1-1", "by": "x", "changed": 1}
        found["events"].append(dict(found["events"][-1], type="Undone", data=data))

    def field(found: Found, predicate: Found) -> None:
        of_type(found, "Committed")[0]["data"]["certified"] = True

    def second_task(found: Found, predicate: Found) -> None:
        found["events"].insert(3, dict(of_type(found, "TaskAccepted")[0]))

    assert "'Blessed' is unknown to this verifier" in failed(unknown)
    assert "'Undone' cannot come before the certificate" in failed(undone)
    assert "unknown fields ['certified']" in failed(field)
    assert "holds a second one" in failed(second_task)


FACTS = {
    "runtime": {"name": "setpoint", "version": "9.9"},
    "trajectory": "t-2",
    "policy_digest": digest_bytes(b"x"),
    "base_digest": digest_bytes(b"x"),
    "fingerprint": digest_bytes(b"x"),
    "exposure": "H=30 S1 A0",
    "level": {"required": "visible", "reached": "proof", "weakest": "visible"},
    "savepoints": [],
    "counts": {"permits": 5, "refusals": 0, "rollbacks": 1, "claims_rejected": 1},
    "isolation": {"tier": "container", "rung": "oci"},
    "started_at": "2020-01-01T00:00:00.000Z",
    "ended_at": "2020-01-01T00:00:00.000Z",
    "covers": "This is correct.",
    "task": {"name": "other", "digest": digest_bytes(b"x")},
}


@pytest.mark.parametrize("name", sorted(FACTS))
def test_no_fact_of_the_statement_can_differ_from_the_events(name: str) -> None:
    def change(found: Found, predicate: Found) -> None:
        assert predicate[name] != FACTS[name]
        predicate[name] = FACTS[name]

    failed(change)


def test_dropping_any_event_fails_even_with_the_key() -> None:
    """All but those on which no verdict rests, which are named here."""
    kept_silent: list[tuple[str, str]] = []
    for index, event in enumerate(loaded(GOOD)["events"]):

        def change(found: Found, predicate: Found, index: int = index) -> None:
            del found["events"][index]

        if verify(forge(GOOD, change), TRUSTED).valid:
            kept_silent.append((event["type"], event["data"].get("check") or event["data"].get("fingerprint", "")))
    assert {kind for kind, _ in kept_silent} <= {"ContextBuilt", "TurnEnded", "EvidenceRecorded", "DeltaMeasured"}
    # A pass of an implicit invariant at the base, and the delta of the base measured once more after a roll-back.
    assert {name for kind, name in kept_silent if kind == "EvidenceRecorded"} <= {c.address for c in IMPLICIT}
    assert [name for kind, name in kept_silent if kind == "DeltaMeasured"] == [BASE]


def test_a_whole_invented_history_verifies() -> None:
    """The limit, stated as a test: key stolen and every event invented consistently cannot be told from the truth."""
    w = Writer(task())
    w.accept()
    w.judge(BASE, {"done/unit": 1}, phase="baseline")
    w.start([FIX])
    w.run(0, *FIX, "reversible", "src/config.py")
    w.judge(FIXED, {})
    w.keep(1, FIXED, ["src/config.py"])
    w.commit(FIXED, ["src/config.py"])
    assert verify(w.bundle(), TRUSTED).valid


def test_what_happens_in_honest_logs_is_not_taken_for_forgery() -> None:
    """A postcondition that takes back a claim with an empty delta; a skipped stage; a base that was fine already."""
    w = Writer(task())
    w.accept()
    w.judge(BASE, {"done/unit": 1}, phase="baseline")
    w.start([CHEAT, CLAIM])
    w.run(0, *CHEAT, "reversible", "tests/test_config.py")
    w.permit(1, *CLAIM, "pure")
    w.judge(BYPASS, {})
    w.emit(ClaimRejected(note="the postcondition did not hold"))
    w.emit(RolledBack(savepoint=0, fingerprint=BASE, reason="postcondition"))
    w.measure(BASE)
    w.emit(TurnEnded(outcome="rolled_back"))
    w.start([LOOK])
    w.run(0, *LOOK, "reversible")
    w.judge(BYPASS, {"invariants/small": 1}, skipped=["done/unit", "done/golden"])
    w.keep(1, BYPASS, ["src/config.py"])
    w.start([FIX])
    w.run(0, *FIX, "reversible", "src/config.py")
    w.judge(FIXED, {})
    w.keep(2, FIXED, ["src/config.py"])
    w.commit(FIXED, ["src/config.py"])
    report = verify(w.bundle(), TRUSTED)
    assert report.valid, list(report.failures())

    w = Writer(task())
    w.accept()
    w.judge(BASE, {}, phase="baseline")
    w.emit(Committed(commit_id="", fingerprint=BASE, state_digest="sha256:" + "b" * 64, changed=0))
    report = verify(w.bundle(), TRUSTED)
    assert report.valid, list(report.failures())


def test_going_back_to_the_best_savepoint_brings_its_evidence_back() -> None:
    w = Writer(task())
    w.accept()
    w.judge(BASE, {"done/unit": 3, "done/golden": 2}, phase="baseline")
    for number, (state, failing) in enumerate(((BYPASS, {"done/golden": 1}), (FIXED, {"done/unit": 4})), start=1):
        w.start([LOOK])
        w.run(0, *LOOK, "reversible")
        w.judge(state, failing)
        w.keep(number, state, ["src/config.py"])
    w.emit(RolledBack(savepoint=1, fingerprint=BYPASS, reason="stall"))
    w.measure(BYPASS)
    assert w.record.items and w.record.items[0].address == "done/golden"
    final = digest_bytes(b"third")
    w.start([FIX])
    w.run(0, *FIX, "reversible", "src/config.py")
    w.judge(final, {})
    w.keep(3, final, ["src/config.py"])
    w.commit(final, ["src/config.py"])
    report = verify(w.bundle(), TRUSTED)
    assert report.valid, list(report.failures())
    assert [kept["savepoint"] for kept in report.predicate["savepoints"]] == [1, 3]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.sampled_from(["", "pass", "fail", "done/unit", FIXED]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["address", "ref", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_history_however_malformed_raises(draw: st.DataObject) -> None:
    """With the key a forger chooses every value; the verifier reports, it does not crash."""

    def change(found: Found, predicate: Found) -> None:
        for _ in range(draw.draw(st.integers(1, 3))):
            event = draw.draw(st.sampled_from(found["events"]))
            if event["data"]:
                event["data"][draw.draw(st.sampled_from(sorted(event["data"])))] = draw.draw(json_values)
        if draw.draw(st.booleans()):
            part = draw.draw(st.sampled_from(["actions", "done", "invariants", "budget", "goal"]))
            found["task"]["spec"][part] = draw.draw(json_values)

    verify(forge(GOOD, change), TRUSTED)


def test_the_key_id_is_that_of_the_raw_public_key() -> None:
    assert key_id(KEY.public_key()) == digest_bytes(KEY.public_key().public_bytes_raw())
