"""Every bound has a name, and where the number came from (L7)."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from setpoint.kernel import limits

TREE = ast.parse(inspect.getsource(limits))
CONSTANTS = [
    (index, node.target.id)
    for index, node in enumerate(TREE.body)
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
]


@pytest.mark.parametrize(("index", "name"), CONSTANTS, ids=[name for _, name in CONSTANTS])
def test_every_bound_says_where_its_number_comes_from(index: int, name: str) -> None:
    """L7: a string right below the constant."""
    following = TREE.body[index + 1] if index + 1 < len(TREE.body) else None
    documented = (
        isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
        and isinstance(following.value.value, str)
        and len(following.value.value) > 20
    )
    assert documented, f"limits.{name} has no docstring below it"


def test_every_bound_is_a_positive_whole_number() -> None:
    """L7"""
    assert all(type(getattr(limits, name)) is int and getattr(limits, name) > 0 for _, name in CONSTANTS)


@pytest.mark.parametrize("name", [name for _, name in CONSTANTS])
def test_every_bound_bounds_something(name: str) -> None:
    """L7: a bound that no module names is a promise that nobody keeps."""
    package = Path(inspect.getfile(limits)).parents[1]
    sources = (path.read_text() for path in package.rglob("*.py") if path.name != "limits.py")
    assert any(re.search(rf"\b{name}\b", text) for text in sources)
