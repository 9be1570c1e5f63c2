"""The verifier writes the runtime's rules down a second time; here the two are held equal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.adapters.workspaces import treedigest
from setpoint.app.manifest import manifests_of
from setpoint.certificate import contract, globs, implicit, log, proposals, replay, statement, tree_digest, vocabulary
from setpoint.kernel import events as kernel_events
from setpoint.kernel import exposure as kernel_exposure
from setpoint.kernel import globs as kernel_globs
from setpoint.kernel.contract import Level
from setpoint.kernel.proposal import Call, RawCall, Reply
from setpoint.kernel.record import Record
from setpoint.phases.p2_proposal.parse import parse_reply
from setpoint.phases.p3_gate.tools import BUILTIN
from setpoint.phases.p5_evidence import implicit as theirs
from setpoint.phases.p5_evidence.implicit import IMPLICIT
from setpoint.phases.p6_verdict.certificate import policy_digest
from setpoint.ports.log import ZERO_HASH
from setpoint.ports.workspace import Change, ChangeSet

from .factory import history, loaded, task

# Events


def test_every_event_of_the_runtime_is_read_passed_over_or_refused_by_name() -> None:
    known = vocabulary.REPLAYED.keys() | vocabulary.PASSED_OVER | vocabulary.NEVER_INSIDE
    assert known == kernel_events.EVENT_TYPES.keys()


@pytest.mark.parametrize("name", sorted(vocabulary.REPLAYED))
def test_a_replayed_event_has_the_fields_and_defaults_of_the_runtime(name: str) -> None:
    theirs = {field.name: field for field in msgspec.structs.fields(kernel_events.EVENT_TYPES[name])}
    ours = vocabulary.REPLAYED[name]
    assert ours.keys() == theirs.keys()
    for field, (types, default) in ours.items():
        known = theirs[field]
        if known.required:
            assert default is vocabulary.REQUIRED, field
            continue
        expected = known.default if known.default_factory is msgspec.NODEFAULT else known.default_factory()
        assert default == expected, field
        assert isinstance(default, types), field


def test_levels_implicit_invariants_and_effects_are_those_of_the_runtime() -> None:
    assert tuple(level.label for level in Level) == statement.LEVELS
    assert tuple(invariant.id for invariant in IMPLICIT) == contract.IMPLICIT
    assert {(i.severity, i.level, i.weight) for i in IMPLICIT} == {("hard", Level.STATIC, 1)}
    assert replay.BUILTIN_EFFECTS.keys() == BUILTIN.keys()
    assert all(tool.effect in replay.BUILTIN_EFFECTS[name] for name, tool in BUILTIN.items())
    assert tuple(name for name, tool in BUILTIN.items() if tool.path_argument) == replay.PATH_TOOLS
    assert contract.HORIZON_SEALED == kernel_exposure.HORIZON_SEALED
    assert log.ZERO_HASH == ZERO_HASH


def test_the_required_level_follows_from_the_exposure_as_in_the_runtime() -> None:
    """R151"""
    for h in (1, 30, 99, 100, 5000):
        for s in kernel_exposure.State:
            for a in kernel_exposure.Authority:
                exposure = kernel_exposure.Exposure(h, s, a, ())
                assert contract.required_level(str(exposure)) == kernel_exposure.required_level(exposure).label
                assert contract.horizon(str(exposure)) == h
    assert contract.required_level("harmless") is None


def observed(paths: list[str]) -> ChangeSet:
    return ChangeSet(tuple(Change(path, "modified", "file", 0o644, 1, "0" * 64) for path in paths), "sha256:x")


touched = st.lists(
    st.sampled_from(["src/a", "tests/b", "secrets/k", ".git/config", "x/.git/hooks/pre-commit", "setup.py", "secrets"]),
    unique=True,
)


@given(touched, st.sets(st.sampled_from(["shell_exec", "file_edit", "file_read"])))
def test_implicit_invariants_are_judged_as_the_runtime_judges_them(paths: list[str], used: set[str]) -> None:
    assert implicit.SENSITIVE == theirs.SENSITIVE and implicit.WRITING_TOOLS == theirs.WRITING_TOOLS
    calls = dict.fromkeys(used, 2)
    record = Record(trajectory_id="t", calls_by_tool=calls)
    judged = theirs.judge_implicit(task(), record, observed(paths))
    ours = implicit.distances(contract.read(task().document), calls, paths)
    assert ours == {evidence.address: evidence.distance for evidence in judged}
    assert all(evidence.passed == (ours[evidence.address] == 0) for evidence in judged)


# Chain


def test_hashes_of_the_store_are_those_the_verifier_computes() -> None:
    for event in loaded(history().bundle())["events"]:
        assert log.event_hash(event) == event["hash"]


# Patterns

names = st.text(alphabet="ab.-[]", min_size=1, max_size=5)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
PARTS = ["**", "*", "?", "a*", "*b", "[ab]", "[!a]", "[a-c]?", "a", "b", "*.*", "[]]", "[^b]*", "[*]"]
pattern_parts = st.sampled_from(PARTS)
patterns = st.lists(pattern_parts, min_size=1, max_size=4).map("/".join)


@given(patterns, paths)
@settings(max_examples=500)
def test_patterns_match_as_the_gate_matches_them(pattern: str, path: str) -> None:
    if any(part in (".", "..") for part in path.split("/")):
        return
    assert globs.matches(pattern, path) == kernel_globs.matches(pattern, path), (pattern, path)


def test_a_hostile_pattern_costs_no_backtracking() -> None:
    assert not globs.matches("*a" * 400, "a" * 4000 + "b")
    assert not globs.matches("**/a/" * 150 + "x", "a/" * 1000 + "b")


# Calls

fractions = st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: abs(number) < 2**60)
scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | fractions | st.text("xé")
arguments = st.dictionaries(
    st.text(alphabet="ab/~", min_size=1, max_size=4),
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
some_calls = st.lists(st.tuples(st.sampled_from(["shell_exec", "file_edit"]), arguments), min_size=1, max_size=3)


@given(some_calls, st.booleans())
def test_every_call_the_runtime_reads_out_of_a_reply_is_found_there(calls: list[tuple[str, Any]], raw: bool) -> None:
    """L1"""
    if raw:
        text = json.dumps({"calls": [{"name": name, "arguments": given_} for name, given_ in calls]})
        reply = Reply(raw=text)
    else:
        reply = Reply(calls=tuple(RawCall(name, json.dumps(given_)) for name, given_ in calls))
    found = proposals.call_digests(reply.document())
    for call in parse_reply(reply).calls:
        assert isinstance(call, Call)
        carried = call.digest.removeprefix("sha256:")[: proposals.CALL_DIGEST_CHARS]
        assert carried in found
        assert proposals.is_call(carried, call.name, call.arguments)


# Task

MANIFEST = """
apiVersion: setpoint.dev/v1
kind: Task
metadata: {name: clamp}
spec:
  goal: {text: Clamp it., forbid: ["tests/**"]}
  environment: {workspace: ./work}
  observe: {max_tokens: 4000}
  actions:
    - tool: shell_exec
    - {tool: file_edit, paths: ["src/**"], max_calls: 7, rate: {calls: 3, per: 2m}}
    - tool: complete_task
  done:
    - {id: unit, run: "true"}
    - {id: golden, run: "true", files: ./sealed, weight: 3}
    - {id: shape, expr: "size(changes) < 5"}
  invariants:
    - {id: small, expr: "size(changes) < 9", severity: soft}
    - {id: parses, run: "true", level: static}
  budget: {turns: 12, usd: 0.25, wall: 90s}
"""


def test_a_contract_reads_out_of_the_canonical_document_as_the_loader_built_it(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "sealed").mkdir()
    (tmp_path / "sealed" / "test_x.py").write_text("def test_x(): pass\n")
    (loaded_task,) = (m.task for m in manifests_of(MANIFEST.encode(), file="x.yaml", directory=str(tmp_path)))
    ours = contract.read(loaded_task.document)
    assert ours.digest == contract.task_digest(loaded_task.document) == loaded_task.digest
    assert ours.policy_digest == policy_digest(loaded_task)
    assert ours.name == loaded_task.name and ours.forbid == loaded_task.goal.forbid
    budget = loaded_task.budget
    assert ours.budget == {
        "turns": budget.turns,
        "tokens": budget.tokens,
        "usd_micros": budget.usd_micros,
        "wall_ms": budget.wall_ms,
    }
    assert [(c.id, c.address, c.level, c.weight, c.severity) for c in ours.criteria] == [
        (c.id, c.address, int(c.level), c.weight, "") for c in loaded_task.done
    ]
    assert [(c.id, c.address, c.level, c.weight, c.severity) for c in ours.invariants] == [
        (c.id, c.address, int(c.level), c.weight, c.severity) for c in (*loaded_task.invariants, *IMPLICIT)
    ]
    assert {a.tool: (a.paths, a.max_calls, a.rate) for a in ours.actions.values()} == {
        grant.tool: (grant.paths, grant.max_calls, grant.rate and (grant.rate.calls, grant.rate.per_ms))
        for grant in loaded_task.actions
    }


def test_the_factory_s_document_reads_as_its_task() -> None:
    ours, theirs = contract.read(task().document), task()
    assert [c.address for c in ours.criteria] == [c.address for c in theirs.done]
    assert ours.budget["usd_micros"] == theirs.budget.usd_micros and ours.budget["wall_ms"] == theirs.budget.wall_ms


# Trees


def test_a_tree_has_the_digest_the_workspace_gives_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "empty").mkdir()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_text("")
    (tmp_path / "deep-").write_text("sorts between deep and deep/er")
    (tmp_path / "link").symlink_to("../outside")
    (tmp_path / "dirlink").symlink_to("deep")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("left out")
    (tmp_path / "deep" / ".git").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff")).write_text("bytes")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert tree_digest(tmp_path) == treedigest.scan(fd).digest
        before = tree_digest(tmp_path)
        (tmp_path / ".git" / "HEAD").write_text("other")
        assert tree_digest(tmp_path) == before
        (tmp_path / "empty").rmdir()
        assert tree_digest(tmp_path) == treedigest.scan(fd).digest != before
    finally:
        os.close(fd)


def test_the_empty_tree_has_a_digest_too(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert tree_digest(tmp_path) == treedigest.scan(fd).digest
    finally:
        os.close(fd)
