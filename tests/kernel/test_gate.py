"""The gate: pure, in order, closed on failure, and able to say every no it has (R068-R081)."""

from __future__ import annotations

import dataclasses
import os
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.adapters.workspaces.copy import CopyWorkspaceProvider
from setpoint.kernel.contract import ApprovalRule, Environment, Goal, Policy, Task, ToolGrant
from setpoint.kernel.events import Item
from setpoint.kernel.keys import digest, short_digest
from setpoint.kernel.proposal import Call, Malformed, RawCall, Reply
from setpoint.kernel.record import Record, Seen
from setpoint.kernel.ruling import Hold, Permit, Refusal, RefusalReason
from setpoint.phases.p2_proposal.parse import parse_reply
from setpoint.phases.p3_gate.gate import Facts, effect_of, legal_tools, refuse_blocked, rule
from setpoint.phases.p3_gate.tools import BUILTIN, blast_radius
from setpoint.testing.tasks import make_task


def make_call(name: str, ordinal: int = 0, **arguments: Any) -> Call:
    return Call(ordinal, name, arguments, digest([name, arguments]))


def task(*grants: ToolGrant, **parts: Any) -> Task:
    granted = grants or (
        ToolGrant("shell_exec"),
        ToolGrant("file_read"),
        ToolGrant("file_edit", ("src/**",)),
        ToolGrant("file_write", ("src/**",)),
        ToolGrant("ask_operator"),
        ToolGrant("complete_task"),
    )
    return make_task(actions=granted, **parts)


RECORD = Record(trajectory_id="t", attempt_state="s", fingerprint="s", items=(Item("done/unit", 1, "fail"),))
LS = make_call("shell_exec", command="ls")
RM = make_call("shell_exec", command="rm -r src")
SEEN = {call.digest: Seen(1, short_digest(call.digest), "s", "COMPLETED:0:x") for call in (LS, RM)}


def ruling(call: Call | Malformed, given: Task | None = None, record: Record = RECORD, **facts: Any) -> Any:
    resolved = call.arguments.get("path") if isinstance(call, Call) else None
    return rule(call, given or task(), record, BUILTIN, Facts(**{"resolved": resolved, **facts}))


NO_CALL = "the engine's own: a reply without any call"


def cases() -> dict[str, Refusal | None]:
    """One way to every reason there is."""
    with_rule = task(policy=Policy(approve=(ApprovalRule("effect == 'reversible'", ("ops",)),)))
    twice = dataclasses_replace(RECORD, recent=(SEEN[RM.digest], SEEN[RM.digest]))
    return {
        "MALFORMED": ruling(parse_reply(Reply(raw='{"name": ')).calls[0]),
        "CUT_OFF": ruling(
            parse_reply(Reply(calls=(RawCall("shell_exec", '{"command": "ls"}'),), stop="length")).calls[0]
        ),
        "TOO_MANY_CALLS": ruling(
            parse_reply(Reply(calls=(RawCall("shell_exec", '{"command": "ls"}'),) * 17)).calls[16]
        ),
        "UNKNOWN_TOOL": ruling(make_call("rm", path="x")),
        "SCHEMA": ruling(make_call("shell_exec", command=1)),
        "STRUCTURE": ruling(make_call("file_read", path="src/a", start=5, end=2)),
        "RATE": ruling(
            LS, task(ToolGrant("shell_exec", max_calls=1)), dataclasses_replace(RECORD, calls_by_tool={"shell_exec": 1})
        ),
        "RESTRICTED": ruling(RM, stage="restrict"),
        "OUTSIDE_WORKSPACE": ruling(make_call("file_read", path="../x"), resolved=None),
        "OUTSIDE_GRANT": ruling(make_call("file_write", path="docs/x", content="")),
        "FORBIDDEN_PATH": ruling(
            make_call("file_write", path="src/secret/x", content=""), task(goal=Goal("g", ("src/secret/**",)))
        ),
        "PRECONDITION": ruling(LS, task(ToolGrant("shell_exec", require=("false",)))),
        "APPROVAL_REQUIRED": ruling(RM, with_rule),
        "LOOP_DETECTED": ruling(RM, record=twice),
        "BLOCKED": refuse_blocked(RM),
    }


def dataclasses_replace(record: Record, **changes: Any) -> Record:
    from msgspec.structs import replace

    return replace(record, **changes)


def test_every_reason_for_a_no_can_happen_and_is_typed() -> None:
    """R069, R070, R075: the vocabulary holds no word that nothing says."""
    found = cases()
    asked = {"APPROVAL_DENIED", "APPROVAL_EXPIRED", "APPROVAL_VOID"}  # said after people were asked: test_approvals.py
    assert set(found) | {"NO_CALL"} | asked == set(typing.get_args(RefusalReason))
    for reason, answer in found.items():
        if reason == "APPROVAL_REQUIRED":
            assert isinstance(answer, Hold) and answer.by == ("ops",)
            continue
        assert isinstance(answer, Refusal) and answer.reason == reason, (reason, answer)
        assert answer.message and answer.tool is not None and answer.gate
        assert answer.pointer == "" or answer.pointer.startswith("/")


@pytest.mark.parametrize(
    ("call", "pointer", "word"),
    [
        (make_call("shell_exec"), "/arguments", "command"),
        (make_call("shell_exec", command="ls", argv=["ls"]), "/arguments", "command"),
        (make_call("shell_exec", command=""), "/arguments/command", "shorter"),
        (make_call("shell_exec", command="ls", timeout=0), "/arguments/timeout", "minimum"),
        (make_call("shell_exec", argv=["ls", 3]), "/arguments/argv/1", "string"),
        (make_call("shell_exec", argv=[]), "/arguments/argv", "command"),
        (make_call("file_edit", path="src/a", old_str="x"), "/arguments", "new_str"),
        (make_call("file_edit", path="src/a", old_str="x", new_str="x"), "/arguments/new_str", "equal"),
        (make_call("file_write", path="src/a", content="x", mode="0777"), "/arguments", "mode"),
        (make_call("complete_task", done=True), "/arguments", "done"),
        (make_call("ask_operator", question=None), "/arguments/question", "string"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_place(call: Call, pointer: str, word: str) -> None:
    """R069: missing, extra and wrongly typed fields."""
    refusal = ruling(call)
    assert isinstance(refusal, Refusal) and refusal.gate == "syntactic"
    assert refusal.pointer == pointer and word in refusal.message, refusal


def test_the_gates_answer_in_order_and_the_first_no_wins() -> None:
    """R077: a call that fails all three is told of the first only; repaired one by one, it meets them in order."""
    given = task(ToolGrant("file_write", ("src/**",), require=("false",), max_calls=0))
    all_wrong = make_call("file_write", path="/etc/passwd", content="x", extra=1)
    rate = make_call("file_write", path="/etc/passwd", content="x")
    answers = [
        ruling(all_wrong, given, resolved=None),
        ruling(rate, given, resolved=None),
        ruling(rate, task(ToolGrant("file_write", ("src/**",), require=("false",))), resolved=None),
        ruling(rate, task(ToolGrant("file_write", ("src/**",), require=("false",))), resolved="src/a"),
        ruling(rate, task(ToolGrant("file_write", ("src/**",))), resolved="src/a"),
    ]
    assert [getattr(answer, "reason", "permit") for answer in answers] == [
        "SCHEMA",
        "RATE",
        "OUTSIDE_WORKSPACE",
        "PRECONDITION",
        "permit",
    ]
    assert [answer.gate for answer in answers[:4]] == ["syntactic", "resource", "isolation", "isolation"]


CALLS = st.one_of(
    st.builds(
        lambda name, arguments: make_call(name, **arguments),
        st.sampled_from([*BUILTIN, "rm", "", "shell"]),
        st.dictionaries(
            st.sampled_from(["path", "command", "argv", "content", "old_str", "new_str", "question", "x"]),
            st.text(max_size=8) | st.integers() | st.lists(st.text(max_size=4), max_size=3),
            max_size=3,
        ),
    ),
    st.builds(
        Malformed, st.integers(0, 3), st.text(max_size=4), st.just("not_json"), st.just("/raw"), st.text(max_size=9)
    ),
)


@settings(max_examples=200, deadline=None)
@given(
    CALLS, st.sampled_from(["nominal", "steer", "restrict"]), st.sampled_from([None, "src/a", "docs/x", ".", "tests"])
)
def test_the_gate_is_a_total_pure_function(call: Call | Malformed, stage: Any, resolved: str | None) -> None:
    """R068, R075, R076: the same input twice gives the same ruling; a permit lies inside the grant it names."""
    given = task()
    facts = Facts(stage, resolved, {"trajectory": {"turn": 1}})
    answer = rule(call, given, RECORD, BUILTIN, facts)
    assert rule(call, given, RECORD, BUILTIN, facts) == answer
    match answer:
        case Permit(call=permitted, grant=grant, effect=effect, path=path, items=items):
            assert permitted is call and grant in given.actions and grant.tool == call.name
            assert items == ("done/unit",), "linked to the delta it may work on (R008)"
            assert stage != "restrict" or effect in ("pure", "read")
            if BUILTIN[call.name].path_argument:
                assert path == resolved and path not in (None, ".")
                assert grant.paths is None or path.startswith("src/")
        case Refusal(message=message):
            assert message
        case Hold():
            raise AssertionError("nothing needs approval here")


def test_the_gate_reads_no_file_clock_or_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """R068: it rules the same where none of them is there."""
    import builtins
    import time

    ruling(LS)  # compile the schema first

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("the gate looked outside")

    for module, name in ((builtins, "open"), (time, "time"), (time, "monotonic"), (os, "stat"), (os, "getcwd")):
        monkeypatch.setattr(module, name, forbidden)
    try:
        answers = [ruling(call) for call in (LS, RM, make_call("file_write", path="docs/x", content=""))]
    finally:
        monkeypatch.undo()
    assert [type(answer).__name__ for answer in answers] == ["Permit", "Permit", "Refusal"]


def test_the_class_of_an_effect_comes_from_the_tool_and_never_from_the_call() -> None:
    """R079, L8: what a caller says of itself changes nothing."""
    claims = make_call("shell_exec", command="rm -r src  'read only, safe'")
    assert effect_of(claims, BUILTIN["shell_exec"]) == "reversible"
    refusal = ruling(make_call("shell_exec", command="ls", effect="pure"))
    assert isinstance(refusal, Refusal) and refusal.reason == "SCHEMA"


# What is shown, and what is restricted


def test_only_tools_that_are_granted_and_legal_now_are_shown_in_canonical_order() -> None:
    """R042, R080, F1, F2"""
    given = task(ToolGrant("file_write"), ToolGrant("complete_task"), ToolGrant("file_read"), ToolGrant("shell_exec"))
    assert [t.name for t in legal_tools(given, BUILTIN, "nominal")] == [
        "complete_task",
        "file_read",
        "file_write",
        "shell_exec",
    ]
    shown = legal_tools(given, dict(reversed(BUILTIN.items())), "restrict")
    assert [t.name for t in shown] == ["complete_task", "file_read", "shell_exec"]


@pytest.mark.parametrize(
    ("call", "permitted"),
    [
        (make_call("shell_exec", command="grep -rn x src"), True),
        (make_call("shell_exec", command="python -c 1"), False),
        (make_call("file_read", path="src/a"), True),
        (make_call("file_write", path="src/a", content=""), False),
        (make_call("file_edit", path="src/a", old_str="a", new_str="b"), False),
        (make_call("ask_operator", question="?"), True),
        (make_call("complete_task"), True),
    ],
)
def test_over_ninety_percent_only_reads_questions_and_the_claim_are_permitted(call: Call, permitted: bool) -> None:
    """R091"""
    answer = ruling(call, stage="restrict")
    assert isinstance(answer, Permit) == permitted
    assert permitted or answer.reason == "RESTRICTED"


def test_the_call_after_the_last_allowed_one_is_refused() -> None:
    """R074"""
    given = task(ToolGrant("shell_exec", max_calls=3), ToolGrant("file_read"))
    for made, expected in ((0, True), (2, True), (3, False), (4, False)):
        record = dataclasses_replace(RECORD, calls_by_tool={"shell_exec": made})
        assert isinstance(ruling(LS, given, record), Permit) == expected
        assert isinstance(ruling(make_call("file_read", path="src/a"), given, record), Permit)


# Preconditions and approvals fail closed


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("true", True),
        ("call.tool == 'shell_exec'", True),
        ("call.arguments.command == 'ls'", True),
        ("effect == 'read'", True),
        ("trajectory.turn < 5", True),
        ("false", False),
        ("call.arguments.no_such_field == 1", False),  # a missing field
        ("trajectory.turn + 'x' == 1", False),  # a type that does not fit
        ("trajectory.turn", False),  # no boolean
        ("no_such_variable", False),
        ("1 +", False),  # does not compile
        ("call.arguments.command", False),
    ],
)
def test_a_precondition_that_does_not_hold_or_cannot_be_told_is_a_no(expression: str, holds: bool) -> None:
    """R010, L10"""
    given = task(ToolGrant("shell_exec", require=(expression,)))
    answer = ruling(LS, given, variables={"trajectory": {"turn": 1}})
    assert isinstance(answer, Permit) == holds
    if not holds:
        assert answer.reason == "PRECONDITION" and expression in answer.message


@pytest.mark.parametrize(
    ("when", "held"),
    [
        ("effect == 'reversible'", True),
        ("effect == 'irreversible'", False),
        ("call.blast == 'high'", True),
        ("call.no_such == 1", True),  # cannot be told: it applies
        ("1 +", True),
        ("'x'", True),
    ],
)
def test_an_approval_rule_that_cannot_be_told_applies(when: str, held: bool) -> None:
    """R128, L10"""
    answer = ruling(RM, task(policy=Policy(approve=(ApprovalRule(when, ("ops",)),))))
    assert isinstance(answer, Hold) == held


@pytest.mark.parametrize(
    ("command", "radius"),
    [
        ("rm -rf build", "high"),
        ("rm -r x", "high"),
        ("rm --recursive x", "high"),
        ("rm -fR x", "high"),
        ("find . -name x -delete", "high"),
        ("git clean -fdx", "high"),
        ("git fetch && git clean -fd", "high"),
        ("git reset --hard HEAD~1", "high"),
        ("git push --force", "high"),
        ("chmod -R 777 .", "high"),
        ("rm x", "normal"),
        ("grep -r rm src", "normal"),
        ("python -m pytest", "normal"),
    ],
)
def test_recursive_deletes_and_the_like_are_flagged(command: str, radius: str) -> None:
    """R073"""
    assert blast_radius({"command": command}) == radius
    assert blast_radius({"argv": command.split()}) == radius


# Repetition


def test_the_third_identical_call_on_the_same_state_with_the_same_outcome_is_refused() -> None:
    """R110, C1"""

    def after(*seen: Seen) -> Any:
        return ruling(RM, record=dataclasses_replace(RECORD, recent=seen))

    mine = SEEN[RM.digest]
    assert isinstance(after(mine), Permit)
    assert after(mine, mine).reason == "LOOP_DETECTED"
    assert isinstance(after(mine, dataclasses_replace(mine, outcome="COMPLETED:1:y")), Permit), "another outcome"
    assert isinstance(after(mine, dataclasses_replace(mine, state="other")), Permit), "another state"
    assert isinstance(after(mine, SEEN[LS.digest]), Permit), "another call"
    assert after(mine, SEEN[LS.digest], mine).reason == "LOOP_DETECTED", "A-B-A"


@pytest.mark.parametrize("name", ["complete_task", "ask_operator"])
def test_a_claim_or_a_question_is_never_a_repetition(name: str) -> None:
    """R110: they are judged or paused on, which changes the record each time."""
    call = make_call(name, **({"question": "?"} if name == "ask_operator" else {}))
    seen = Seen(1, short_digest(call.digest), "s", "x")
    assert isinstance(ruling(call, record=dataclasses_replace(RECORD, recent=(seen,) * 5)), Permit)


# Paths, judged where they lead


@pytest.fixture
def workspace(tmp_path: Path) -> Any:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    root = tmp_path / "work"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "a.py").write_text("a")
    links = {
        "to_file": outside / "secret",
        "to_dir": outside,
        "dangling": outside / "nothing",
        "to_etc": "/etc",
        "up": "..",
        "chain": "to_dir",
        "loop": "loop",
        "proc": "/proc/self/root",
        "near": str(root) + "-evil",
        "home": "/root",
        "src/deep/up3": "../../../outside",
        "abs_inside": "/workspace/../etc",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    (tmp_path / "work-evil").mkdir()
    opened = CopyWorkspaceProvider(tmp_path / "state").open(str(root), "t", 1 << 26)
    opened.begin()
    yield opened
    opened.close(keep_staged=False)


ESCAPES = [
    "../outside/secret",
    "../../etc/shadow",
    "../../../../../../../../etc/passwd",
    "src/../../outside/secret",
    "src/deep/../../../outside/secret",
    "./../outside/secret",
    "/etc/passwd",
    "//etc/passwd",
    "/workspace/../etc/passwd",
    "/workspace/../workspace-evil/x",
    "/workspace-evil/x",
    "/workspacefoo",
    "/Workspace/src/a.py",
    "/proc/self/root/etc/passwd",
    "to_file",
    "to_dir/secret",
    "to_dir/new",
    "dangling",
    "dangling/below",
    "to_etc/passwd",
    "to_etc/../etc/passwd",
    "up/outside/secret",
    "chain/secret",
    "loop",
    "loop/x",
    "proc/etc/passwd",
    "near/x",
    "home/.ssh/authorized_keys",
    "src/deep/up3/secret",
    "abs_inside/passwd",
    "to_dir/../../etc/passwd",
    "src/\0/../../x",
    "x" * 5000,
    "",
]


@pytest.mark.parametrize("path", ESCAPES, ids=[repr(path)[:40] for path in ESCAPES])
@pytest.mark.parametrize("tool", ["file_read", "file_write", "file_edit"])
def test_no_path_leads_out_of_the_workspace(workspace: Any, tool: str, path: str) -> None:
    """R071, H3: judged where it leads, by the very resolution that is used for the write."""
    more = {"file_read": {}, "file_write": {"content": "x"}, "file_edit": {"old_str": "a", "new_str": "b"}}[tool]
    unbounded = task(ToolGrant("file_read"), ToolGrant("file_write"), ToolGrant("file_edit"))
    resolved = workspace.resolve(path)
    answer = ruling(make_call(tool, path=path, **more), unbounded, resolved=resolved)
    assert isinstance(answer, Refusal), (path, resolved)
    assert answer.reason in ("OUTSIDE_WORKSPACE", "OUTSIDE_GRANT", "SCHEMA")
    assert answer.pointer == "/arguments/path"


@pytest.mark.parametrize(
    "path", ["~/.ssh/id", "..\\..\\etc", "%2e%2e/etc", "...", "src/.../a", "$HOME/x", "file:///etc"]
)
def test_odd_names_are_names_and_stay_inside_the_grant(workspace: Any, path: str) -> None:
    """R071: nothing expands them; where paths are bounded they are outside the bound."""
    resolved = workspace.resolve(path)
    assert resolved is not None and not resolved.startswith(("/", "../"))
    answer = ruling(make_call("file_write", path=path, content=""), resolved=resolved)
    assert isinstance(answer, Permit) == resolved.startswith("src/")


@pytest.mark.parametrize("path", [".", "/workspace", "/workspace/", "src/..", "./"])
@pytest.mark.parametrize("tool", ["file_read", "file_write"])
def test_the_workspace_itself_is_no_file(workspace: Any, tool: str, path: str) -> None:
    """R071: and no exception either."""
    more = {"content": "x"} if tool == "file_write" else {}
    answer = ruling(make_call(tool, path=path, **more), task(ToolGrant(tool)), resolved=workspace.resolve(path))
    assert isinstance(answer, Refusal) and answer.reason == "OUTSIDE_GRANT" and "workspace itself" in answer.message


def test_a_parent_swapped_for_a_link_between_ruling_and_write_leads_nowhere(workspace: Any, tmp_path: Path) -> None:
    """R071, H3: the ruling is about a path, and the write follows no link on the way there."""
    resolved = workspace.resolve("src/deep/new.py")
    assert isinstance(ruling(make_call("file_write", path="src/deep/new.py", content="x"), resolved=resolved), Permit)
    view = Path(workspace.action_view().root)
    (view / "src" / "deep" / "up3").unlink()
    (view / "src" / "deep").rmdir()
    (view / "src" / "deep").symlink_to(tmp_path / "outside")
    with pytest.raises(Exception, match=r"deep|director|link"):
        workspace.write(resolved, b"escaped")
    assert sorted(os.listdir(tmp_path / "outside")) == ["secret"]


def test_a_forbidden_path_is_forbidden_even_inside_the_grant_but_may_be_read() -> None:
    """R237, G2"""
    given = task(
        ToolGrant("file_write", ("**",)),
        ToolGrant("file_read"),
        goal=Goal("g", ("tests/**", "*.lock")),
        environment=Environment("/nonexistent"),
    )
    for path, expected in {
        "tests/test_a.py": "FORBIDDEN_PATH",
        "tests": "FORBIDDEN_PATH",
        "uv.lock": "FORBIDDEN_PATH",
        "src/uv.lock": "permit",
        "src/tests/a": "permit",
        "testsuite/a": "permit",
    }.items():
        assert getattr(ruling(make_call("file_write", path=path, content=""), given), "reason", "permit") == expected
        assert isinstance(ruling(make_call("file_read", path=path), given), Permit)


def test_a_permit_is_a_value_that_nothing_changes_afterwards() -> None:
    """R068"""
    permit = ruling(LS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        permit.effect = "pure"


@pytest.mark.parametrize(
    "arguments", [{"argv": 0}, {"argv": None}, {"argv": {"a": 1}}, {"command": ["ls"]}, {"argv": "ls"}]
)
def test_wrong_types_are_refused_before_anything_looks_at_them(arguments: dict[str, Any]) -> None:
    """R077, Q1: the schema comes before the class of the effect is told from the arguments."""
    refusal = ruling(make_call("shell_exec", **arguments))
    assert isinstance(refusal, Refusal) and refusal.reason == "SCHEMA"
