"""reference/lint.md: every finding of ``setpoint lint``, read from its source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from docs_build.markdown import code, page, table
from setpoint.app import lint as linter
from setpoint.kernel import exposure

INTRO = """\
`setpoint lint -f task.yaml` names what is weak about a valid task, each with its place and a remedy. An *error* keeps
the task from starting; a *warning* says what the evidence would not show; *advice* is for those who want more.
`--closure` also lists every rule with what enforces it. A remedy that depends on the task is left to `lint` itself."""
Row = tuple[str, str, str]


def lint() -> str:
    rows = {row[0]: row for row in (*_gaps(), *_findings())}
    return page(
        "What lint finds",
        "`src/setpoint/app/lint.py` and `src/setpoint/kernel/exposure.py`",
        INTRO,
        table(("finding", "severity", "remedy"), [(code(name), *rest) for name, *rest in rows.values()]),
    )


def _findings() -> Iterator[Row]:
    for node in ast.walk(ast.parse(Path(inspect.getfile(linter)).read_text())):
        if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 5:
            name, severity, _, _, remedy = node.value.elts
            if isinstance(name, ast.Constant) and isinstance(severity, ast.Constant):
                yield str(name.value), str(severity.value), _remedy(remedy)


def _gaps() -> Iterator[Row]:
    for node in ast.walk(ast.parse(Path(inspect.getfile(exposure)).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ClosureGap":
            name, _, remedy = node.args
            assert isinstance(name, ast.Constant)
            yield str(name.value), "error", _remedy(remedy)


def _remedy(node: ast.expr) -> str:
    """The remedy where it is one text; those that are put together from the task are left to lint itself."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return ""
    return node.value
