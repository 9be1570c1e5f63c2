"""An honest certificate holds, says what it covers, and is the same whenever it is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from setpoint.certificate import CHECKS, Invalid, content, tree_digest, verify
from setpoint.certificate.canonical import canonical, from_base64, parse

from .factory import FIXED, KEY, OTHER_KEY, STATE, document, forge, history, loaded, predicate_of, task

TRUSTED = [KEY.public_key()]


@pytest.mark.parametrize("crash", [False, True])
def test_an_honest_certificate_passes_every_check_by_name(crash: bool) -> None:
    """R020"""
    report = verify(history(crash=crash).bundle(), TRUSTED, task=canonical(document()))
    assert report.valid, list(report.failures())
    assert [check.name for check in report.checks] == list(CHECKS)
    made = [check for check in report.checks if check.name not in ("approvers", "workspace")]
    assert {check.outcome for check in made} == {"passed"}
    assert report.require_valid() is report


def test_it_lists_what_was_checked_and_at_what_level_and_never_says_correct() -> None:
    """R145 R149"""
    said = verify(history().bundle(), TRUSTED).predicate
    assert [(item["id"], item["level_reached"], item["verdict"]) for item in said["criteria"]] == [
        ("unit", "visible", "pass"),
        ("golden", "sealed", "pass"),
    ]
    assert said["level"] == {"required": "visible", "reached": "sealed", "weakest": "visible"}
    assert said["covers"] == "States what was checked and at what level; it does not say correct."
    assert "correct" not in json.dumps({**said, "covers": ""})


def test_it_says_what_was_spent_refused_and_rolled_back() -> None:
    said = verify(history().bundle(), TRUSTED).predicate
    assert said["counts"] == {"permits": 5, "refusals": 1, "rollbacks": 1, "claims_rejected": 1}
    assert said["budget"]["used"] == {"turns": 3, "tokens": 3300, "usd_micros": 12_000, "wall_ms": 3000}
    assert said["savepoints"] == [{"savepoint": 1, "fingerprint": FIXED, "seq": said["savepoints"][0]["seq"]}]


def test_the_same_history_and_key_give_the_same_bytes() -> None:
    assert history().bundle() == history().bundle()
    assert history().bundle() != history().bundle(OTHER_KEY)


def test_a_crash_on_the_way_does_not_change_what_is_certified() -> None:
    plain, crashed = history().bundle(), history(crash=True).bundle()
    assert plain != crashed
    assert content(plain) == content(crashed)


def test_another_outcome_is_other_content() -> None:
    def spend(found: dict, predicate: dict) -> None:
        predicate["budget"]["used"]["tokens"] += 1

    assert content(forge(history().bundle(), spend)) != content(history().bundle())


def test_generic_consumers_find_an_svr_about_the_same_subjects() -> None:
    found = loaded(history().bundle())
    svr = parse(from_base64(found["svr"]["payload"]))
    statement = parse(from_base64(found["envelope"]["payload"]))
    assert svr["predicateType"] == "https://in-toto.io/attestation/svr/v0.2"
    assert svr["subject"] == statement["subject"]
    assert statement["subject"][0] == {"name": "clamp", "digest": {"sha256": STATE.partition(":")[2]}}
    assert statement["subject"][1]["digest"]["sha256"] == task().digest.partition(":")[2]


def test_no_trusted_key_means_not_valid() -> None:
    report = verify(history().bundle(), [])
    assert not report.valid
    with pytest.raises(Invalid, match="no trusted key"):
        report.require_valid()


def test_a_directory_in_another_state_is_drift_and_not_a_false_certificate(tmp_path: Path) -> None:
    """R022"""
    report = verify(history().bundle(), TRUSTED, tree=tmp_path)
    assert report.valid
    assert report.drift is not None and STATE in report.drift
    assert report.checks[-1].outcome == "failed"


def test_a_directory_in_the_certified_state_is_no_drift(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    state = tree_digest(tmp_path)

    def settle(found: dict, predicate: dict) -> None:
        next(event for event in found["events"] if event["type"] == "Committed")["data"]["state_digest"] = state
        predicate["state_digest"] = state

    report = verify(forge(history().bundle(), settle), TRUSTED, tree=tmp_path)
    assert report.valid and report.drift is None
    assert report.checks[-1].outcome == "passed"
    (tmp_path / "a").chmod(0o755)
    assert verify(forge(history().bundle(), settle), TRUSTED, tree=tmp_path).drift


def test_a_missing_directory_is_said_to_be_unreadable(tmp_path: Path) -> None:
    report = verify(history().bundle(), TRUSTED, tree=tmp_path / "none")
    assert report.drift is not None and "cannot be read" in report.drift


def test_long_replies_and_arguments_travel_as_payloads_and_nothing_else_does() -> None:
    writer = history()
    found = loaded(writer.bundle())
    assert len(found["payloads"]) == 2  # the reply and the arguments of the fix; the task document travels as itself
    assert set(found["payloads"]) < set(writer.payloads)
    assert predicate_of(found)["log"]["size"] == len(writer.events)
