"""Tool output becomes structured lines; hostile output costs nothing."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.kernel.diagnostics import Diagnostic, diagnose


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "tests/test_config.py:12: AssertionError\n"
                "FAILED tests/test_config.py::TestX::test_neg[-1.0] - assert -1.0 == 5.0\n"
                "ERROR tests/test_other.py\n"
            ),
            [
                ("tests/test_config.py", 12, "AssertionError", ""),
                ("tests/test_config.py", 0, "FAILED", "TestX::test_neg[-1.0] - assert -1.0 == 5.0"),
                ("tests/test_other.py", 0, "ERROR", ""),
            ],
        ),
        (
            (
                'Traceback (most recent call last):\n  File "/workspace/run.py", line 3, in <module>\n    main()\n'
                '  File "/workspace/src/a.py", line 7, in main\n    1 / 0\n    ~~^~~\n'
                "ZeroDivisionError: division by zero\n"
            ),
            [("src/a.py", 7, "ZeroDivisionError", "division by zero")],
        ),
        (
            (
                "*** Error compiling 'src/a.py'...\n  File \"src/a.py\", line 1\n    def add(:\n            ^\n"
                "SyntaxError: invalid syntax\n"
            ),
            [("src/a.py", 1, "SyntaxError", "invalid syntax")],
        ),
        (
            "main.c: In function 'main':\nmain.c:3:5: error: unknown type name 'in' [-Wfoo]\nmain.c:9:1: warning: w\n",
            [("main.c", 3, "error", "unknown type name 'in' [-Wfoo]"), ("main.c", 9, "warning", "w")],
        ),
        (
            "src/a.ts(4,11): error TS2322: Type 'x' is not y.\nsrc/b.ts:1:2 - error TS1005: ';' expected.\n",
            [("src/a.ts", 4, "TS2322", "Type 'x' is not y."), ("src/b.ts", 1, "TS1005", "';' expected.")],
        ),
        (
            'src/a.py:3: error: Incompatible return value type (got "int")  [return-value]\nFound 1 error in 1 file\n',
            [("src/a.py", 3, "error", 'Incompatible return value type (got "int") [return-value]')],
        ),
        (
            "src/a.py:1:8: F401 [*] `os` imported but unused\nE501 Line too long\n  --> src/b.py:2:121\n",
            [
                ("src/a.py", 1, "F401", "[*] `os` imported but unused"),
                ("src/b.py", 2, "E501", "Line too long"),
            ],
        ),
        (
            '  /workspace/a.py:67:17 - error: Object of type "M" is not callable (reportCallIssue)\n',
            [("a.py", 67, "error", 'Object of type "M" is not callable [reportCallIssue]')],
        ),
        ("\x1b[31mmain.c:3:5: error: red\x1b[0m\n", [("main.c", 3, "error", "red")]),
        ("all is well\n2 passed in 0.01s\nhttp://example.org:80/\n12:30:45: error-free\n", []),
    ],
    ids=["pytest", "traceback", "syntax", "gcc", "tsc", "mypy", "ruff", "pyright", "colour", "none"],
)
def test_known_tools_are_understood(text, expected):
    """R116"""
    assert diagnose(text) == tuple(Diagnostic(*fields) for fields in expected)


@given(st.text(max_size=400))
def test_any_text_is_survived(text):
    diagnose(text)


@pytest.mark.parametrize("unit", ["a", "a:", ":1", "a:1:1: ", "a(1,1): ", 'File "', " - error", "E5"])
def test_hostile_lines_are_linear(unit):
    started = time.process_time()
    diagnose("\n".join([(unit * 2000)[:1999]] * 500) + "\n" + unit * 500_000)
    assert time.process_time() - started < 3


def test_the_number_is_bounded_and_repeats_are_dropped():
    assert len(diagnose("".join(f"a.c:{n}:1: error: x\n" for n in range(500)))) == 50
    assert len(diagnose("a.c:1:1: error: x\n" * 500)) == 1
