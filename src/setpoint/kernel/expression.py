"""CEL expressions: compiled when the task is read, evaluated over facts, and closed on failure.

CEL is a library (no home-made expression language). It cannot loop for ever, reads nothing but the
variables it is given, and is deterministic, which is why it may live in the kernel.

``evaluate`` answers True, False or ExprError. A missing field, a type that does not fit, an overflow, a result that is
not a boolean: each is an ExprError, and an ExprError counts as unmet. One rule of CEL itself to know: ``a || b`` is
true when ``b`` is true even though ``a`` failed, and ``a && b`` is false when ``b`` is false.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

EXPRESSION_CHARS_MAX: Final = 4096
"""The parser recurses on the text; this and its own depth limit of 96 bound it."""

VARIABLES: Final = ("changes", "state", "baseline", "trajectory", "effect", "call")
CHECK_VARIABLES: Final = ("changes", "state", "baseline", "trajectory")
"""What a completion criterion or an invariant may speak of: a state has no call."""
RESULT_VARIABLES: Final = ("changes", "state", "baseline", "trajectory", "call")
"""What a postcondition may speak of: its effect is past."""
_TRAJECTORY_FIELDS: Final = ("turn", "spent", "savepoint")
CALL_FIELDS: Final = {"call": ("tool", "arguments", "path", "blast"), "trajectory": _TRAJECTORY_FIELDS}
"""What is known before a call is made: the gate gives these, and ``blast`` of ``shell_exec`` only."""
RESULT_FIELDS: Final = {"call": ("tool", "arguments", "exit_code"), "trajectory": _TRAJECTORY_FIELDS}
"""What is known when it was made."""

FUNCTIONS: Final = frozenset(
    {"size", "contains", "startsWith", "endsWith", "matches", "type", "dyn"}
    | {"int", "uint", "double", "string", "bytes", "timestamp", "duration"}
    | {"getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear"}
    | {"getHours", "getMinutes", "getSeconds", "getMilliseconds"}
)
"""What the library offers natively. The optional extensions are Python callbacks and stay off."""
MACROS: Final = ("has", "all", "exists", "exists_one", "existsOne", "map", "filter")
_TYPE_NAMES: Final = frozenset({"int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"})


class BadExpression(ValueError):
    """An expression that does not compile, or names what does not exist. Position is 1-based, in the expression."""

    def __init__(
        self, message: str, line: int = 1, column: int = 1, name: str = "", known: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column
        self.name = name  # the unknown variable or function,
        self.known = known  # and what could stand in its place


@dataclass(frozen=True, slots=True)
class ExprError:
    """The expression gave no boolean. Falsy, so that ``if evaluate(...)`` is closed on failure."""

    message: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Compiled:
    program: Any
    variables: tuple[str, ...]


def check_expression(
    text: str, allowed: tuple[str, ...] = VARIABLES, fields: Mapping[str, tuple[str, ...]] | None = None
) -> None:
    """Raise BadExpression unless ``text`` compiles and names only ``allowed`` variables and known functions, and of the
    variables in ``fields`` only these fields: one that is never there would make the expression fail every time."""
    program = _compiled(text).program
    for name in _free_variables(text, program):
        if name not in allowed:
            known = ", ".join(allowed)
            elsewhere = " here" if name in VARIABLES else ""
            message = f"{name!r} is not known{elsewhere}; known are {known}"
            raise BadExpression(message, *_find(text, name), name, allowed)
    for name in program.functions():
        if name.isidentifier() and name not in FUNCTIONS:
            known = (*sorted(FUNCTIONS), *MACROS)
            raise BadExpression(f"there is no function {name!r}", *_find(text, name), name, known)
    for variable, known in (fields or {}).items():
        _check_fields(text, variable, known)


def _check_fields(text: str, variable: str, known: tuple[str, ...]) -> None:
    if variable in _bound(text):  # a macro's own variable of that name
        return
    for found in re.finditer(rf"(?<![\w.]){variable}\s*\.\s*([A-Za-z_]\w*)", _without_strings(text)):
        if found[1] not in known:
            message = f"{variable} has no {found[1]!r}; it has {', '.join(known)}"
            raise BadExpression(message, *_place(text, found.start(1)), found[1], known)


def evaluate(text: str, variables: Mapping[str, Any]) -> bool | ExprError:
    """Evaluate over ``variables`` (plain dicts, lists, strings, integers, booleans, None). Never raises for the facts.

    Only the variables the expression names are bound: converting the facts costs more than evaluating.
    """
    try:
        compiled = _compiled(text)
    except BadExpression as bad:
        return ExprError(f"it does not compile: {bad.message}")
    facts = {name: variables[name] for name in compiled.variables if name in variables}
    result = _execute(compiled.program, facts)
    if isinstance(result, (bool, ExprError)):
        return result
    return ExprError(f"it gave {_shown(result)}, not true or false")


def named_variables(text: str) -> tuple[str, ...]:
    """The facts a compiled expression speaks of, in alphabetical order. BadExpression when it does not compile."""
    return tuple(name for name in _compiled(text).variables if name in VARIABLES)


def _execute(program: Any, facts: dict[str, Any]) -> Any:
    try:
        return program.execute(facts)
    except ValueError as fault:
        # A file name that is not UTF-8 reaches Python as lone surrogates, which CEL cannot hold. Spell them out: such
        # a name still has its place in the tree, and one odd file must not blind every rule.
        cleaned = {name: _without_surrogates(value) for name, value in facts.items()}
        if cleaned == facts:
            return ExprError(_reason(fault))
        return _execute(program, cleaned)
    except Exception as fault:  # noqa: BLE001 - the library raises many classes; each means: no answer, so unmet
        return ExprError(_reason(fault))
    except BaseException as fault:
        if type(fault).__name__ != "PanicException":  # a panic of the native library derives from BaseException
            raise
        return ExprError(f"the evaluator failed: {_reason(fault)}")


def _reason(fault: BaseException) -> str:
    if isinstance(fault, KeyError):
        return f"there is no field {fault.args[0]!r}" if fault.args else "there is no such field"
    lines = str(fault).splitlines()
    return lines[0][:300] if lines else type(fault).__name__


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {key: _without_surrogates(item) for key, item in value.items()}  # type: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(item) for item in value]  # type: ignore[reportUnknownVariableType]
    return value


@lru_cache(maxsize=512)
def _compiled(text: str) -> _Compiled:
    if len(text) > EXPRESSION_CHARS_MAX:
        raise BadExpression(f"the expression has {len(text)} characters, above {EXPRESSION_CHARS_MAX}")
    try:
        program = _native().compile(text)
    except ValueError as fault:
        raise _syntax(text, str(fault)) from None
    return _Compiled(program, tuple(program.variables()))


def _syntax(text: str, message: str) -> BadExpression:
    """The library's first complaint with its position, without its echo of the expression."""
    found = re.search(r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*)", message)
    if not found:
        return BadExpression("it does not parse")
    line, column, complaint = int(found[1]), int(found[2]), found[3]
    if "Recursion limit" in complaint:
        complaint = "it is nested deeper than 96 levels"
    # The list of every token that could have come is longer than any expression; the offending one is what helps.
    complaint = complaint.split(" expecting ")[0].replace("<EOF>", "the end")
    return BadExpression(complaint, line, column)


def _free_variables(text: str, program: Any) -> list[str]:
    """Variables that are not bound by a macro such as ``changes.exists(c, ...)``."""
    bound = _bound(text)
    return [name for name in program.variables() if name not in bound and name not in _TYPE_NAMES]


def _bound(text: str) -> set[str]:
    """The names that macros give to what they go through."""
    macros = "|".join(MACROS[1:])
    return set(re.findall(rf"\.(?:{macros})\s*\(\s*([A-Za-z_]\w*)\s*,", _without_strings(text)))


_STRING: Final = re.compile(
    r"""[rRbB]{0,2}(?:\"\"\".*?\"\"\"|'''.*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""", re.DOTALL
)


def _without_strings(text: str) -> str:
    """The same text with every string literal blanked, so that positions stay."""
    return _STRING.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _find(text: str, name: str) -> tuple[int, int]:
    """1-based line and column of the first use of ``name`` that is not a field or part of a string."""
    found = re.search(rf"(?<![\w.]){re.escape(name)}\b", _without_strings(text)) or re.search(
        rf"\b{re.escape(name)}\b", _without_strings(text)
    )
    return _place(text, found.start() if found else 0)


def _place(text: str, offset: int) -> tuple[int, int]:
    """1-based line and column."""
    line_start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - line_start + 1


_LOADING: Final = threading.Lock()


def _native() -> Any:
    """The native module of the CEL library, without its command line.

    ``import cel`` also imports a terminal toolkit (130 ms of CPU). The extension module stands alone, so it is loaded
    alone, and registered under its own name: it may be initialised once a process, and a later ``import cel`` by
    anyone else must find it.
    """
    with _LOADING:
        return sys.modules.get("cel.cel") or _load_native()


def _load_native() -> Any:
    package = importlib.util.find_spec("cel")
    locations = list(package.submodule_search_locations or ()) if package else []
    spec = importlib.machinery.PathFinder.find_spec("cel.cel", locations)
    if spec is None or spec.loader is None:
        raise ImportError("the package 'common-expression-language' is not installed; CEL expressions need it")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cel.cel"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop("cel.cel", None)
        raise
    return module
