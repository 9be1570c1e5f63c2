"""CEL: checked when read, closed on failure when evaluated."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.kernel import expression
from setpoint.kernel.expression import (
    CALL_FIELDS,
    CHECK_VARIABLES,
    EXPRESSION_CHARS_MAX,
    FUNCTIONS,
    RESULT_FIELDS,
    VARIABLES,
    BadExpression,
    ExprError,
    check_expression,
    evaluate,
    named_variables,
)

CHANGE = {"path": "src/a.py", "kind": "modified", "mode": 0o644, "size": 3, "lines_added": 1, "lines_removed": 0}
FACTS: dict[str, Any] = {"changes": [CHANGE], "state": {"rows": 3, "name": "x"}, "trajectory": {"turn": 2}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("!changes.exists(c, c.path.startsWith('tests/'))", True),
        ("changes.all(c, c.path.matches('^src/.*[.]py$'))", True),
        ("changes.exists_one(c, c.kind == 'removed')", False),
        ("size(changes.filter(c, c.lines_added > 0)) == 1", True),
        ("has(state.rows) && state.rows == 3", True),
        ("has(state.absent) && state.absent == 3", False),
        ("trajectory.turn < 3 ? state.name == 'x' : false", True),
        ("changes.map(c, c.path) == ['src/a.py']", True),
    ],
)  # fmt: skip
def test_expressions_answer(text: str, expected: bool) -> None:
    check_expression(text, CHECK_VARIABLES)
    assert evaluate(text, FACTS) is expected


@pytest.mark.parametrize(
    "text",
    [
        "state.absent == 1",
        "state.rows",
        "'yes'",
        "null",
        "state.rows == 'three' || state.rows > 'a'",
        "1 / 0 == 1",
        "9223372036854775807 + 1 > 0",
        "-9223372036854775808 / -1 > 0",
        "changes[7].path == 'x'",
        "baseline.rows == 3",
        "'a'.matches('(')",
        "int('z') == 1",
        "changes.all(c, c.absent == 1)",
        "1 +",
        "",
    ],
)
def test_whatever_gives_no_boolean_is_an_error_and_counts_as_no(text: str) -> None:
    """L10: an error while evaluating is unmet."""
    result = evaluate(text, FACTS)
    assert isinstance(result, ExprError)
    assert not result
    assert result.message and len(result.message) < 500


def test_values_cel_cannot_hold_are_errors_not_exceptions() -> None:
    assert isinstance(evaluate("state == 1", {"state": object()}), ExprError)
    assert isinstance(evaluate("state.x == 1", {"state": {"x": {1, 2}}}), ExprError)


def test_a_file_name_that_is_not_text_does_not_blind_a_rule() -> None:
    """Any program can create such a name; a rule about the folder must still see it."""
    facts = {"changes": [CHANGE | {"path": "tests/\udcff"}, CHANGE]}
    assert evaluate("!changes.exists(c, c.path.startsWith('tests/'))", facts) is False
    assert evaluate("size(changes) == 2", facts) is True


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("chnges.all(c, c.path == 'x')", 1, 1, "'chnges' is not known; known are"),
        ("changes.all(c, d.path == 'x')", 1, 16, "'d' is not known"),
        ("'call' == 'x' && call.tool == 'x'", 1, 18, "'call' is not known here"),
        ("state.x == 1 &&\n  effect == 'read'", 2, 3, "'effect' is not known here"),
        ("sizeOf(changes) == 1", 1, 1, "there is no function 'sizeOf'"),
        ("state.x.shout() == 'X'", 1, 9, "there is no function 'shout'"),
        ("state.x ==\n  ) 1", 2, 3, "')'"),
        ("(" * 97 + "true" + ")" * 97, 1, 97, "nested deeper"),
        ("x" * (EXPRESSION_CHARS_MAX + 1), 1, 1, "above 4096"),
    ],
)
def test_faults_are_found_when_the_task_is_read(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(BadExpression) as bad:
        check_expression(text, CHECK_VARIABLES)
    assert message in bad.value.message
    assert (bad.value.line, bad.value.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "fields", "column", "message"),
    [
        ("call.toool == 'x'", CALL_FIELDS, 6, "call has no 'toool'; it has tool, arguments, path, blast"),
        ("effect == 'read' || has(call . exit_code)", CALL_FIELDS, 32, "call has no 'exit_code'"),
        ("call.blast == 'high'", RESULT_FIELDS, 6, "call has no 'blast'; it has tool, arguments, exit_code"),
        ("trajectory.turns < 3", CALL_FIELDS, 12, "trajectory has no 'turns'"),
    ],
)
def test_a_field_that_is_never_there_is_found_when_the_task_is_read(
    text: str, fields: dict[str, tuple[str, ...]], column: int, message: str
) -> None:
    """C10 of the list: such a rule held every call."""
    with pytest.raises(BadExpression) as bad:
        check_expression(text, VARIABLES, fields)
    assert message in bad.value.message and (bad.value.line, bad.value.column) == (1, column)


def test_fields_of_arguments_of_texts_and_of_bound_names_are_no_fields_of_the_call() -> None:
    check_expression("call.arguments.toool == 'call.other' && state.call.odd == 1", VARIABLES, CALL_FIELDS)
    check_expression("changes.exists(call, call.other == 'x')", VARIABLES, CALL_FIELDS)


def test_names_inside_strings_and_bound_names_are_not_variables() -> None:
    check_expression("""changes.all(x, x.path != "y.exists(z, w)" && changes.exists(y, y.path == x.path))""")
    assert named_variables("state.a == 1 && changes.all(effect, effect.kind == 'x')") == ("changes", "effect", "state")


def test_every_listed_function_exists_in_the_library() -> None:
    """An unlisted function is refused at load, so the list must be neither too long nor too short."""
    tried = {
        "size": "size('a') == 1",
        "contains": "'a'.contains('a')",
        "startsWith": "'a'.startsWith('a')",
        "endsWith": "'a'.endsWith('a')",
        "matches": "'a'.matches('a')",
        "type": "type(1) == int",
        "dyn": "dyn(1) == 1",
        "int": "int('1') == 1",
        "uint": "uint('1') == 1u",
        "double": "double('1') == 1.0",
        "string": "string(1) == '1'",
        "bytes": "bytes('a') == b'a'",
        "timestamp": "timestamp('2026-01-01T00:00:00Z') < timestamp('2026-01-02T00:00:00Z')",
        "duration": "duration('1s') < duration('2s')",
    }
    calendar = "timestamp('2026-01-01T00:00:00Z')"
    tried |= {name: f"{calendar}.{name}() >= 0" for name in FUNCTIONS if name.startswith("get")}
    assert set(tried) == FUNCTIONS
    for name, text in tried.items():
        assert evaluate(text, {}) is True, name
    assert isinstance(evaluate("min(1, 2) == 1", {}), ExprError)


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_the_evaluator_raise(text: str) -> None:
    assert isinstance(evaluate(text, FACTS), (bool, ExprError))


_TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(_TREES)
@settings(max_examples=200, deadline=None)
def test_no_fact_makes_the_evaluator_raise(state: Any) -> None:
    for text in ("state.x == 1", "size(state) > 0", "state == state", "state.exists(k, k == 'x')"):
        assert isinstance(evaluate(text, {"state": state}), (bool, ExprError))


def test_the_library_is_loaded_without_its_terminal_toolkit_and_stays_importable() -> None:
    """130 ms of CPU at import otherwise. The native module may be initialised once a process, in either order."""
    script = (
        "import sys\n"
        "from setpoint.kernel.expression import evaluate\n"
        "assert 'cel' not in sys.modules and 'cel.cel' not in sys.modules\n"
        "assert evaluate('1 == 1', {}) is True\n"
        "assert not {'cel.cli', 'typer', 'prompt_toolkit', 'rich'} & set(sys.modules)\n"
        "import cel\n"
        "assert cel.evaluate('1 + 1') == 2\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    other_order = "import cel\nfrom setpoint.kernel.expression import evaluate\nassert evaluate('1 == 1', {}) is True\n"
    subprocess.run([sys.executable, "-c", other_order], check=True, timeout=60)


def test_threads_may_evaluate_the_first_expression_at_once() -> None:
    expression._compiled.cache_clear()
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(evaluate("size(changes) == 1", FACTS))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
