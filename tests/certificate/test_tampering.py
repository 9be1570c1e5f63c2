"""Without the key nothing can be changed: every byte of the file is bound."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.certificate import verify
from setpoint.certificate.canonical import canonical, from_base64, parse, to_base64

from .factory import KEY, OTHER_KEY, document, history, loaded, resign

TRUSTED = [KEY.public_key()]
GOOD = history().bundle()


def failed(data: bytes, **given_: Any) -> set[str]:
    report = verify(data, TRUSTED, **given_)
    assert not report.valid
    return {failure.check for failure in report.failures()}


def flipped(position: int, bit: int) -> bytes:
    changed = bytearray(GOOD)
    changed[position] ^= 1 << bit
    return bytes(changed)


def test_one_flipped_byte_anywhere_fails() -> None:
    """R020"""
    assert verify(GOOD, TRUSTED).valid
    for position in range(0, len(GOOD), 37):
        assert not verify(flipped(position, position % 8), TRUSTED).valid, position


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_byte_fails_when_flipped() -> None:
    """R020"""
    for position in range(len(GOOD)):
        assert not verify(flipped(position, position % 8), TRUSTED).valid, position


@pytest.mark.parametrize("field", ["apiVersion", "kind", "keyid", "sig", "payloadType", "prev", "hash", "type", "seq"])
def test_every_byte_of_a_structural_field_fails_when_flipped(field: str) -> None:
    start = GOOD.index(f'"{field}":'.encode())
    end = min(end for mark in (b",", b"}") if (end := GOOD.find(mark, start)) > 0)
    for position in range(start, end):
        for bit in (0, 3, 5):
            assert not verify(flipped(position, bit), TRUSTED).valid, (position, bit)


def test_the_first_and_last_bytes_are_bound_too() -> None:
    for changed in (GOOD + b"\n", GOOD[:-1], GOOD[1:], b" " + GOOD, b"\xef\xbb\xbf" + GOOD, GOOD[:-1] + b" \n", b""):
        assert failed(changed) == {"structure"}


@given(st.integers(0, len(GOOD)), st.binary(max_size=3))
@settings(max_examples=150, deadline=None)
def test_bytes_put_in_or_cut_off_fail(position: int, extra: bytes) -> None:
    changed = GOOD[:position] + extra
    if changed != GOOD:
        assert not verify(changed, TRUSTED).valid
    inserted = GOOD[:position] + extra + GOOD[position:]
    if inserted != GOOD:
        assert not verify(inserted, TRUSTED).valid


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    found = copy.deepcopy(loaded(GOOD))
    change(found)
    return canonical(found) + b"\n"


def test_an_edited_event_breaks_the_chain_and_the_root() -> None:
    def edit(found: dict[str, Any]) -> None:
        found["events"][5]["data"]["reason"] = "other"

    assert {"log"} <= failed(edited(edit))


def test_reordered_dropped_repeated_and_foreign_events_fail() -> None:
    def swap(found: dict[str, Any]) -> None:
        events = found["events"]
        events[4], events[5] = events[5], events[4]

    def drop(found: dict[str, Any]) -> None:
        del found["events"][7]

    def cut(found: dict[str, Any]) -> None:
        del found["events"][-1]

    def repeat(found: dict[str, Any]) -> None:
        found["events"].insert(3, found["events"][3])

    def rename(found: dict[str, Any]) -> None:
        found["events"][6]["stream"] = "t-2"

    def empty(found: dict[str, Any]) -> None:
        found["events"] = []

    for change in (swap, drop, cut, repeat, rename, empty):
        assert "log" in failed(edited(change)), change.__name__


def test_another_task_in_the_file_is_not_the_one_signed() -> None:
    def weaken(found: dict[str, Any]) -> None:
        found["task"]["spec"]["done"].pop()

    assert "task" in failed(edited(weaken))


def test_a_certificate_about_another_task_than_the_verifier_wants_fails() -> None:
    """R150: the task is the verifier's, not the file's."""
    stricter = document()
    stricter["spec"]["invariants"].append(
        {"id": "more", "expr": "true", "level": "static", "severity": "hard", "weight": 1}
    )
    assert failed(GOOD, task=canonical(stricter)) == {"task"}
    assert failed(GOOD, task=b'{"not": "canonical"}') == {"task"}
    assert verify(GOOD, TRUSTED, task=canonical(document()) + b"\n").valid


def test_another_key_is_not_trusted_whatever_it_calls_itself() -> None:
    assert "signature" in failed(resign(copy.deepcopy(loaded(GOOD)), OTHER_KEY))

    def claim(found: dict[str, Any]) -> None:
        theirs = loaded(history().bundle(OTHER_KEY))["envelope"]
        found["envelope"] = theirs
        found["envelope"]["signatures"][0]["keyid"] = loaded(GOOD)["envelope"]["signatures"][0]["keyid"]

    assert "signature" in failed(edited(claim))


def test_a_statement_changed_under_the_old_signature_fails() -> None:
    def swap_state(found: dict[str, Any]) -> None:
        statement = parse(from_base64(found["envelope"]["payload"]))
        statement["subject"][0]["digest"]["sha256"] = "0" * 64
        found["envelope"]["payload"] = to_base64(canonical(statement))

    assert "signature" in failed(edited(swap_state))


def test_unknown_and_missing_fields_are_refused_everywhere() -> None:
    """Strict structure: a field nobody checks could say anything."""

    def top(found: dict[str, Any]) -> None:
        found["note"] = "x"

    def event(found: dict[str, Any]) -> None:
        found["events"][0]["note"] = "x"

    def less(found: dict[str, Any]) -> None:
        del found["events"][0]["at"]

    def second_signature(found: dict[str, Any]) -> None:
        found["envelope"]["signatures"] *= 2

    def payload(found: dict[str, Any]) -> None:
        name = next(iter(found["payloads"]))
        found["payloads"][name] = to_base64(b"{}")

    for change in (top, event, less, second_signature, payload):
        assert failed(edited(change)) == {"structure"}, change.__name__


def test_a_payload_left_out_or_added_fails() -> None:
    def leave_out(found: dict[str, Any]) -> None:
        del found["payloads"][sorted(found["payloads"])[0]]

    def add(found: dict[str, Any]) -> None:
        from setpoint.certificate.canonical import digest_bytes

        found["payloads"][digest_bytes(b"more")] = to_base64(b"more")

    assert "replay" in failed(edited(leave_out))
    assert "replay" in failed(edited(add))


@pytest.mark.parametrize(
    "data", [b"{}\n", b"[]\n", b"null\n", b"1\n", b"\n", b"{" * 100_000 + b"\n", b"[" * 100_000 + b"\n", b"\xff\n"]
)
def test_nonsense_is_a_report_and_never_an_exception(data: bytes) -> None:
    assert failed(data) == {"structure"}
