"""Capabilities: five conditions of a yes, and no chain of attenuations that widens."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.kernel.contract import Budget, ToolGrant
from setpoint.kernel.globs import is_inside, matches
from setpoint.kernel.grants import Capability, Scope, Widened, approve, attenuate, mint, scope_of
from setpoint.phases.p3_gate.tools import BUILTIN, right_of
from setpoint.testing.tasks import make_task

KEY, OTHER = b"k" * 32, b"o" * 32
SCOPE = Scope(frozenset({"read", "write"}), ("src/**",), 1_000, 60_000)
TOKEN = mint("tr-1", SCOPE, KEY)


@pytest.mark.parametrize("holds", list(itertools.product([True, False], repeat=5)))
def test_a_yes_needs_all_five_conditions(holds: tuple[bool, ...]) -> None:
    """R204: the truth table; the first condition that does not hold is named."""
    signed, granted, inside, affordable, in_time = holds
    denial = approve(
        TOKEN,
        "write" if granted else "execute",
        "src/a.py" if inside else "tests/a.py",
        1_000 if affordable else 1_001,
        59_999 if in_time else 60_000,
        KEY if signed else OTHER,
    )
    names = ("signature", "right", "object", "cost", "expired")
    first = next((name for name, held in zip(names, holds, strict=True) if not held), None)
    assert denial == first


@pytest.mark.parametrize(
    "forged",
    [
        replace(TOKEN, holder="tr-2"),
        replace(TOKEN, scope=replace(SCOPE, rights=frozenset({"read", "write", "execute"}))),
        replace(TOKEN, scope=replace(SCOPE, objects=("**",))),
        replace(TOKEN, scope=replace(SCOPE, cost_max=10**9)),
        replace(TOKEN, scope=replace(SCOPE, expires_ms=10**12)),
        replace(TOKEN, signature=""),
        replace(TOKEN, signature=TOKEN.signature[:-1] + ("0" if TOKEN.signature[-1] != "0" else "1")),
    ],
)
def test_a_changed_token_is_no_token(forged: Capability) -> None:
    """R204, L8"""
    assert approve(forged, "read", "src/a.py", 0, 0, KEY) == "signature"
    assert isinstance(attenuate(forged, "x", SCOPE, KEY), Widened)


def test_a_short_key_signs_nothing() -> None:
    with pytest.raises(ValueError, match="at least 32"):
        mint("x", SCOPE, b"short")


@pytest.mark.parametrize("target", ["", ".", "..", "../src/a", "/src/a", "src//a", "src/../a"])
def test_what_is_no_resolved_path_is_in_no_scope(target: str) -> None:
    """R071"""
    assert approve(mint("x", replace(SCOPE, objects=("**",)), KEY), "read", target, 0, 0, KEY) == "object"


@pytest.mark.parametrize(
    ("change", "dimension"),
    [
        ({"rights": frozenset({"execute"})}, "right"),  # execute cannot be derived from read and write
        ({"rights": frozenset({"read", "write", "execute"})}, "right"),
        ({"objects": ("**",)}, "object"),
        ({"objects": ("src/**", "tests/a.py")}, "object"),
        ({"objects": ("*/a.py",)}, "object"),
        ({"cost_max": 1_001}, "cost"),
        ({"expires_ms": 60_001}, "expired"),
        ({"rights": frozenset({"read"}), "objects": ("src/lib/*.py",)}, None),  # narrower read is accepted
        ({"cost_max": 0, "expires_ms": 0}, None),
        ({}, None),
        ({"objects": ()}, None),
    ],
)
def test_a_child_lies_inside_its_parent_in_every_dimension(change: dict, dimension: str | None) -> None:
    """R205"""
    child = attenuate(TOKEN, "tr-1/child", replace(SCOPE, **change), KEY)
    if dimension is None:
        assert isinstance(child, Capability) and child.holder == "tr-1/child"
    else:
        assert isinstance(child, Widened) and child.dimension == dimension and "tr-1" in child.message


names = st.text("ab", min_size=1, max_size=2)
parts = st.one_of(names, st.sampled_from(["*", "?", "a*", "*b", "[ab]", "[!a]", "**"]))
globs = st.lists(parts, min_size=1, max_size=4).map("/".join)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
scopes = st.builds(
    Scope,
    st.frozensets(st.sampled_from(["read", "write", "execute", "effect"])),
    st.lists(globs, max_size=3).map(tuple),
    st.integers(0, 5),
    st.integers(0, 5),
)


COMPONENTS = ("a", "b", "ab", "ba")
EVERY_PATH = ["/".join(parts) for depth in (1, 2, 3) for parts in itertools.product(COMPONENTS, repeat=depth)]


@given(globs, globs)
def test_a_pattern_inside_another_matches_nothing_more(inner: str, outer: str) -> None:
    """R205: sound over every small path."""
    if is_inside(inner, outer):
        assert all(matches(outer, path) for path in EVERY_PATH if matches(inner, path))


@given(globs)
def test_every_pattern_is_inside_itself_and_inside_everything(glob: str) -> None:
    assert is_inside(glob, glob) and is_inside(glob, "**")


@pytest.mark.parametrize(
    ("inner", "outer", "inside"),
    [
        ("src/a.py", "src/**", True),
        ("src/**", "src/**/*", False),  # src itself
        ("src/*/a", "src/**", True),
        ("**/a", "**", True),
        ("**", "src/**", False),
        ("a[ab]", "a?", True),
        ("?", "[ab]", False),
        ("a", "[ab]", True),
        ("ab*", "a*", True),
        ("a*", "ab*", False),
        ("src", "src/**", True),
        ("src/x/../y", "src/**", None),
    ],
)
def test_inclusion_of_patterns(inner: str, outer: str, inside: bool | None) -> None:
    """R205"""
    if inside is None:
        with pytest.raises(ValueError, match="climbs out"):
            is_inside(inner, outer)
    else:
        assert is_inside(inner, outer) is inside


def test_inclusion_of_hostile_patterns_is_bounded() -> None:
    """L7"""
    assert not is_inside("/".join(["*a" * 16] * 25), "/".join(["*b" * 16] * 25))


@given(scopes, st.lists(scopes, max_size=4), paths, st.integers(0, 6), st.integers(0, 6))
def test_no_chain_of_attenuations_ever_widens(
    first: Scope, wanted: list[Scope], path: str, cost: int, now_ms: int
) -> None:
    """R205, L8: whatever the last of a chain may do, each of its ancestors may."""
    chain = [mint("root", first, KEY)]
    for scope in wanted:
        child = attenuate(chain[-1], "child", scope, KEY)
        if isinstance(child, Capability):
            chain.append(child)
    for right in ("read", "write", "execute", "effect"):
        if approve(chain[-1], right, path, cost, now_ms, KEY) is None:
            assert all(approve(ancestor, right, path, cost, now_ms, KEY) is None for ancestor in chain)


@given(scopes, st.data())
def test_narrowing_in_one_dimension_is_always_possible(scope: Scope, data: st.DataObject) -> None:
    """R205: attenuation is not vacuous."""
    narrower = replace(
        scope,
        rights=frozenset(data.draw(st.sets(st.sampled_from(sorted(scope.rights))))) if scope.rights else scope.rights,
        objects=scope.objects[:1],
        cost_max=data.draw(st.integers(0, scope.cost_max)),
        expires_ms=data.draw(st.integers(0, scope.expires_ms)),
    )
    assert isinstance(attenuate(mint("p", scope, KEY), "c", narrower, KEY), Capability)


def test_the_gate_rules_by_the_scope_of_a_tool_grant() -> None:
    """R204: no paths means the whole workspace, an empty list means none of it."""
    task = make_task(budget=Budget(usd_micros=5, wall_ms=7))
    assert scope_of(task, ToolGrant("file_edit"), "write") == Scope(frozenset({"write"}), ("**",), 5, 7)
    assert scope_of(task, ToolGrant("file_edit", ()), "write").denies("write", "a", 0, 0) == "object"
    rights = {name: right_of(tool) for name, tool in BUILTIN.items()}
    assert rights == {
        "shell_exec": "execute",
        "file_read": "read",
        "file_edit": "write",
        "file_write": "write",
        "ask_operator": "read",
        "complete_task": "read",
    }
